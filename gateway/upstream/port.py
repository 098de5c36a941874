"""What the loops ask of an upstream. Whatever goes wrong is one of two things: it was not sent, or nobody knows."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from gateway.core.model import Owner
from gateway.wire.jsonrpc import Members, Response


class NotSent(Exception):  # noqa: N818  # a fact about the call
    """Nothing took effect at the upstream. `again` tells whether a later attempt may succeed.

    `busy` means that nothing is wrong: all sessions that there may be are in use, and one will be free.
    """

    def __init__(self, reason: str, message: str, *, again: bool, busy: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.again = again
        self.busy = busy


class OutcomeUnknown(Exception):  # noqa: N818  # a fact about the call
    """It was sent, and no answer will come. `reason` is `upstream_down` or `upstream_bad`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


NO_CAPABILITIES: Final = "{}"
"""What is declared for a client that can be asked nothing."""


@dataclass(frozen=True, slots=True)
class Link:
    """A session at an upstream, as one principal, with the client capabilities that were declared to it."""

    owner: Owner
    version: str
    session_id: str | None
    capabilities: str = NO_CAPABILITIES


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an upstream. `id` is ours; `max_bytes` bounds the answer."""

    id: int
    method: str
    params: Members
    max_bytes: int


OnProgress: TypeAlias = Callable[[Members], None]
"""Called with the parameters of each progress notification of a call."""
OnRequest: TypeAlias = Callable[[str, Members], Awaitable[tuple[bool, bytes]]]
"""Called with method and parameters of each request of the upstream during a call; gives whether it is answered with a
result, and the result or error object."""


class Upstream(Protocol):
    """One server. Methods raise NotSent or OutcomeUnknown and nothing else."""

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES) -> Link:
        """A session for this principal that declares these client capabilities (JSON text). Raises NotSent."""

    def next_id(self) -> int:
        """An id for a request, used once."""

    async def perform(
        self, link: Link, call: Call, on_progress: OnProgress | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer, for as long as it takes.

        Without `on_request`, the upstream hears an error when it asks something.
        """

    async def cancel(self, link: Link, call: Call) -> None:
        """Tells the upstream that nobody waits for this request any more. Failing to tell is no error."""

    async def close(self) -> None:
        """Ends all sessions."""
