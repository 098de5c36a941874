"""MCP over HTTP+SSE, the transport of revision 2024-11-05: a stream for each principal and set of capabilities.

A session is a connection, so it lives in this process alone and ends with it; a later call opens another one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final

from gateway.telemetry import Telemetry
from gateway.upstream.exchange import Connections
from gateway.upstream.links import key_of
from gateway.upstream.pool import Bounds, Pool
from gateway.upstream.port import Link, OnNote, OnRequest
from gateway.upstream.stream import Stream

_ENDPOINT_S: Final = 10.0


class SseUpstream(Pool):
    """One server whose streams are opened at one URL."""

    WHAT: ClassVar[str] = Stream.WHAT
    MANY: ClassVar[str] = "sessions"

    def __init__(
        self,
        connections: Connections,
        bounds: Bounds,
        telemetry: Telemetry,
        new_id: Callable[[], str],
        *,
        ids: Iterator[int] | None = None,
        endpoint_s: float = _ENDPOINT_S,
    ) -> None:
        """`new_id` names sessions, and no two of them alike in any process. `ids`: see `Pool`."""
        super().__init__(bounds, ids)
        self._connections = connections
        self._telemetry = telemetry
        self._new_id = new_id
        self._endpoint_s = endpoint_s

    async def listen(
        self,
        link: Link,
        on_note: OnNote,
        on_request: OnRequest,
        resources: Sequence[str] = (),  # noqa: ARG002  # each was subscribed to before
    ) -> None:
        """Hears what belongs to no call. Raises NotSent when the session has ended, as its stream cannot be resumed."""
        session = self._of(link)
        if isinstance(session, Stream):
            with self._hearing(key_of(link), on_note, on_request), session.listened():
                await session.collected()
        raise self._over()

    async def leave(self, link: Link) -> None:
        """Ends the sessions that belong to one client session alone."""
        for session in self._current.get(key_of(link), ()) if link.client else ():
            session.end()

    async def close(self) -> None:
        """Ends all sessions, and waits until nothing is left of them."""
        await super().close()
        await self._connections.close()

    def _name(self) -> str:
        return self._new_id()

    def _made(self, link: Link) -> Stream:
        return Stream(link, self._connections, self._endpoint_s, self._bounds.idle_s, self._telemetry, self._hooks)
