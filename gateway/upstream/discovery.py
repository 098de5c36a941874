"""`server/discover`, as an upstream is asked: which era a server is of, and what it says of itself."""

from typing import Final

from gateway.upstream.port import NO_CAPABILITIES, Call, Hello, NotSent
from gateway.wire import modern_client
from gateway.wire.errors import Reject
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Response
from gateway.wire.modern_client import Discovered

PROBE_S: Final = 5.0
"""How long a server may take to tell its era; one that says nothing is greeted with `initialize`."""
MAX_BYTES: Final = 4_194_304


def discover(call_id: int) -> Call:
    """The request."""
    return Call(
        call_id, modern_client.DISCOVER, modern_client.params({}, MODERN_VERSIONS[0], NO_CAPABILITIES), MAX_BYTES
    )


def meant(answer: Response) -> Discovered | None:
    """What the answer says; None for a server of another era. Raises NotSent for a modern one that is of no use."""
    found = modern_client.discovered(answer)
    if isinstance(found, Reject):
        raise NotSent(found.reason, found.message, again=False)
    return found


def hello_of(found: Discovered) -> Hello:
    """The same, as a link tells it."""
    return Hello(found.capabilities, found.info, found.instructions, found.meta)
