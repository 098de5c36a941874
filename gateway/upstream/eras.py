"""A server at one URL, in whichever era it speaks: asked at first use, by one caller for all, and remembered."""

from collections.abc import Sequence

from gateway.core.model import Owner
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.modern import ModernUpstream, probe
from gateway.upstream.once import Once
from gateway.upstream.port import NO_CAPABILITIES, Call, Link, NotSent, OnNote, OnRequest
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Members, Response


class BothEras:
    """Hands on to one of two. An era that turns out to be wrong is asked for anew."""

    def __init__(self, connections: Connections, legacy: HttpUpstream, modern: ModernUpstream) -> None:
        self._connections = connections
        self._legacy = legacy
        self._modern = modern
        self._choosing: Once[NotSent | None] = Once(self._choose)
        self._chosen: HttpUpstream | ModernUpstream | None = None

    def next_id(self) -> int:
        """An id for a request, used once."""
        return self._legacy.next_id()

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """A session, or in the modern era what requests say of the principal. Raises NotSent."""
        chosen = await self._speaker()
        try:
            return await chosen.open(owner, capabilities, client)
        except NotSent as error:
            if error.busy:
                raise
            self._forget(chosen)
            if error.reason != "upstream_bad" or (other := await self._speaker()) is chosen:
                raise
        return await other.open(owner, capabilities, client)

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        return await self._of(link).perform(link, call, on_note, on_request)

    async def cancel(self, link: Link, call: Call) -> None:
        """Tells the server that nobody waits for this request any more."""
        await self._of(link).cancel(link, call)

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Sends a notification of the client."""
        await self._of(link).tell(link, method, params)

    async def listen(self, link: Link, on_note: OnNote, on_request: OnRequest, resources: Sequence[str] = ()) -> None:
        """Hears what belongs to no call; `resources` counts in the modern era only."""
        if link.version in MODERN_VERSIONS:
            await self._modern.listen(link, on_note, on_request, resources)
        else:
            await self._legacy.listen(link, on_note, on_request)

    async def leave(self, link: Link) -> None:
        """Ends a session that belongs to one client session alone."""
        await self._of(link).leave(link)

    async def close(self) -> None:
        """Ends all sessions."""
        await self._choosing.over()
        await self._legacy.close()
        await self._modern.close()

    async def _speaker(self) -> HttpUpstream | ModernUpstream:
        """Who speaks the era of the server. Raises NotSent where it cannot be found out."""
        if self._chosen is None and (failure := await self._choosing()) is not None:
            raise NotSent(failure.reason, str(failure), again=failure.again)
        return self._chosen or self._legacy

    def _forget(self, chosen: HttpUpstream | ModernUpstream) -> None:
        if self._chosen is chosen:
            self._chosen = None

    def _of(self, link: Link) -> HttpUpstream | ModernUpstream:
        return self._modern if link.version in MODERN_VERSIONS else self._legacy

    async def _choose(self) -> NotSent | None:
        try:
            found = await probe(self._connections, self.next_id())
        except NotSent as error:
            return error
        self._modern.found = found
        self._chosen = self._legacy if found is None else self._modern
        return None
