"""What the loops ask of an upstream. Whatever goes wrong is one of two things: it was not sent, or nobody knows."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, TypeVar

from msgspec import Raw

from gateway.core.model import Owner
from gateway.wire.jsonrpc import Members, Notification, Request, Response

_NotSent = TypeVar("_NotSent", bound="NotSent")


class NotSent(Exception):  # noqa: N818  # a fact about the call
    """Nothing took effect at the upstream. `again` tells whether a later attempt may succeed.

    `busy` means that nothing is wrong with the upstream: all sessions that there may be are in use and one will be
    free, or the store that knows of them is away. `ended` means that the session does not exist any more. `after_s` is
    how long the upstream wants to be left alone.
    """

    def __init__(
        self, reason: str, message: str, *, again: bool, busy: bool = False, ended: bool = False, after_s: float = 0
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.again = again
        self.busy = busy
        self.ended = ended
        self.after_s = after_s

    def copy(self) -> "NotSent":
        """The same fact, to be raised to one more of those who waited for it."""
        return self._as(NotSent)

    def _as(self, kind: "type[_NotSent]") -> "_NotSent":
        return kind(self.reason, str(self), again=self.again, busy=self.busy, ended=self.ended, after_s=self.after_s)


class NotSpoken(NotSent):
    """The server does not speak this transport or this era: another one may do."""

    def copy(self) -> "NotSpoken":
        """See `NotSent`."""
        return self._as(NotSpoken)


class Refused(NotSent):
    """The server refused the request with this HTTP status."""

    def __init__(self, status: int, *, again: bool, after_s: float = 0) -> None:
        super().__init__("upstream_bad", f"the upstream refused with HTTP {status}", again=again, after_s=after_s)
        self.status = status


class SessionEnded(NotSent):
    """The server answered this very request by saying that it does not know the session (HTTP 404)."""

    def __init__(self) -> None:
        super().__init__("upstream_down", "the upstream ended the session", again=True, ended=True)


class OutcomeUnknown(Exception):  # noqa: N818  # a fact about the call
    """It was sent, and no answer will come. `reason` is `upstream_down` or `upstream_bad`; `after_s` as above."""

    def __init__(self, reason: str, message: str, *, after_s: float = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.after_s = after_s


SOON_S: Final = 5.0
"""How long a question waits for somebody to listen for the questions of its task."""
TOO_LARGE: Final = "the upstream's answer is larger than max_result_bytes"
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
    """One request to an upstream. `id` is ours; `max_bytes` bounds the answer; `raw` is the text of `params`, if known.

    `on_pause` is called where the upstream ends its stream before the answer, to be asked for the rest later; when it
    returns, that is done without waiting any longer. `on_mark` is told events of the stream after which it could be
    taken up by another process, see `Upstream.resume`.
    """

    id: int
    method: str
    params: Members
    max_bytes: int
    on_pause: Callable[[], Awaitable[None]] | None = None
    raw: bytes | None = None
    on_mark: Callable[[str], None] | None = None

    @property
    def written(self) -> Members | Raw:
        """The parameters as they go out in revisions where nothing is added to them."""
        return self.params if self.raw is None else Raw(self.raw)


OnNote: TypeAlias = Callable[[Notification], None]
"""Called with each notification that comes before an answer, or that belongs to no call."""
OnRequest: TypeAlias = Callable[[str, Members], Awaitable[tuple[bool, bytes]]]
"""Called with method and parameters of each request of the upstream; gives whether it is answered with a result, and
the result or error object."""


@dataclass(frozen=True, slots=True)
class WithId:
    """An `OnRequest` that is told the id of the request as well (JSON text): it can be answered later, by anybody."""

    ask: Callable[[str, str, Members], Awaitable[tuple[bool, bytes]]]

    def __call__(self, method: str, params: Members) -> Awaitable[tuple[bool, bytes]]:
        """The same without an id."""
        return self.ask("", method, params)


def put(on_request: OnRequest, request: Request) -> Awaitable[tuple[bool, bytes]]:
    """Puts a request of an upstream to whoever answers it."""
    if isinstance(on_request, WithId):
        return on_request.ask(request.id.decode(), request.method, request.params)
    return on_request(request.method, request.params)


class Upstream(Protocol):
    """One server. Methods raise NotSent or OutcomeUnknown and nothing else."""

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """A session for this principal that declares these client capabilities (JSON text). Raises NotSent.

        With `client`, a session for that client session alone, the same on every replica, where the transport can.
        """

    def able(self, link: Link) -> Link:
        """Where work can become a task of the upstream's own: elsewhere than in this session, if only there."""

    def next_id(self) -> int:
        """An id for a request, used once."""

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer, for as long as it takes.

        Without `on_request`, the upstream hears an error when it asks something.
        """

    async def resume(
        self, link: Link, call: Call, event: str, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Waits for the answer to a request that another process sent under this id, and sends nothing.

        `event` is what `Call.on_mark` was told last. Raises OutcomeUnknown where the upstream does not tell any more.
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

    async def follow(self, link: Link, task: str, on_note: OnNote, on_request: OnRequest) -> None:
        """Likewise, but hears only what may concern a task of the upstream's own.

        That is its questions, which name it, its changes, and progress that belongs to no call. Nobody else does.
        """

    async def reply(self, link: Link, request_id: str, *, ok: bool, body: bytes) -> None:
        """Answers a request of the upstream that was heard elsewhere. Failing to is no error."""

    def holding(self, link: Link) -> AbstractContextManager[None]:
        """Keeps a session from being ended for want of use, because the upstream works on something in it."""

    def spare(self, link: Link) -> bool:
        """Leaves a session to other processes, instead of ending it; whether they can use it."""

    async def leave(self, link: Link) -> None:
        """Ends a session that belongs to one client session alone, which has ended."""

    async def close(self) -> None:
        """Ends all sessions."""
