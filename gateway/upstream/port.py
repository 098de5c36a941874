"""What the loops ask of an upstream. Whatever goes wrong is one of two things: it was not sent, or nobody knows."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from gateway.core.model import Owner
from gateway.wire.jsonrpc import Members, Notification, Response


class NotSent(Exception):  # noqa: N818  # a fact about the call
    """Nothing took effect at the upstream. `again` tells whether a later attempt may succeed.

    `busy` means that nothing is wrong with the upstream: all sessions that there may be are in use and one will be
    free, or the store that knows of them is away.
    """

    def __init__(self, reason: str, message: str, *, again: bool, busy: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.again = again
        self.busy = busy

    def copy(self) -> "NotSent":
        """The same fact, to be raised to one more of those who waited for it."""
        return NotSent(self.reason, str(self), again=self.again, busy=self.busy)


class NotSpoken(NotSent):
    """The server does not speak this transport or this era: another one may do."""

    def copy(self) -> "NotSpoken":
        """See `NotSent`."""
        return NotSpoken(self.reason, str(self), again=self.again, busy=self.busy)


class OutcomeUnknown(Exception):  # noqa: N818  # a fact about the call
    """It was sent, and no answer will come. `reason` is `upstream_down` or `upstream_bad`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


NO_CAPABILITIES: Final = "{}"
"""What is declared for a client that can be asked nothing."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a server said of itself when the session began: JSON texts as written, None for what it did not say."""

    capabilities: bytes = b"{}"
    info: bytes | None = None
    instructions: bytes | None = None
    meta: bytes | None = None

    @property
    def said(self) -> dict[str, bytes | None]:
        """All but the capabilities, by the names of the handshake."""
        return {"serverInfo": self.info, "instructions": self.instructions, "_meta": self.meta}


@dataclass(frozen=True, slots=True)
class Link:
    """A session at an upstream, as one principal, with the client capabilities that were declared to it.

    `client` names the client session that it belongs to alone; empty for a session that all of the principal share.
    """

    owner: Owner
    version: str
    session_id: str | None
    capabilities: str = NO_CAPABILITIES
    client: str = ""
    hello: Hello = field(default=Hello(), compare=False)
    spoken: str = field(default="", compare=False)
    """Which of several transports it belongs to, where that was found out: see `auto`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an upstream. `id` is ours; `max_bytes` bounds the answer.

    `on_pause` is called where the upstream ends its stream before the answer, to be asked for the rest later; when it
    returns, that is done without waiting any longer.
    """

    id: int
    method: str
    params: Members
    max_bytes: int
    on_pause: Callable[[], Awaitable[None]] | None = None


OnNote: TypeAlias = Callable[[Notification], None]
"""Called with each notification that comes before an answer, or that belongs to no call."""
OnRequest: TypeAlias = Callable[[str, Members], Awaitable[tuple[bool, bytes]]]
"""Called with method and parameters of each request of the upstream; gives whether it is answered with a result, and
the result or error object."""


class Upstream(Protocol):
    """One server. Methods raise NotSent or OutcomeUnknown and nothing else."""

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """A session for this principal that declares these client capabilities (JSON text). Raises NotSent.

        With `client`, a session for that client session alone, the same on every replica, where the transport can.
        """

    def next_id(self) -> int:
        """An id for a request, used once."""

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer, for as long as it takes.

        Without `on_request`, the upstream hears an error when it asks something.
        """

    async def cancel(self, link: Link, call: Call) -> None:
        """Tells the upstream that nobody waits for this request any more. Failing to tell is no error."""

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Sends a notification of the client. Failing to is no error."""

    async def listen(self, link: Link, on_note: OnNote, on_request: OnRequest, resources: Sequence[str] = ()) -> None:
        """Hears what belongs to no call, until it is cancelled. Returns where the upstream has no such stream.

        `resources` are those whose changes are wanted, for upstreams that are told when they are listened to.
        A connection that breaks is made again. Raises NotSent when the session has ended.
        """

    async def leave(self, link: Link) -> None:
        """Ends a session that belongs to one client session alone, which has ended."""

    async def close(self) -> None:
        """Ends all sessions."""
