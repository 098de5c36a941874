"""A server at one URL, in whichever era it speaks: asked at first use, by one caller for all, and remembered.

A server that speaks both is spoken to in the era of the client: what a client session is there for, as sessions,
streams of their own and questions in the middle, exists in its own era. Requests of no client session are modern ones.
"""

from gateway.core.model import Owner
from gateway.upstream.delegating import Delegating
from gateway.upstream.discovery import hello_of
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.modern import ModernUpstream, probe
from gateway.upstream.once import Once
from gateway.upstream.port import NO_CAPABILITIES, Link, NotSent, NotSpoken
from gateway.wire import theirs_2025, theirs_ext
from gateway.wire.intent import MODERN_VERSIONS


class BothEras(Delegating):
    """Hands on to one of two. An era that turns out to be wrong is asked for anew."""

    def __init__(self, connections: Connections, legacy: HttpUpstream, modern: ModernUpstream) -> None:
        self._connections = connections
        self._legacy = legacy
        self._modern = modern
        self._asking: Once[NotSent | None] = Once(self._ask)
        self._is_modern: bool | None = None
        self._has_sessions = True
        """Whether a modern server may speak to client sessions in their own era too: not known before one has tried."""

    def next_id(self) -> int:
        """An id for a request, used once."""
        return self._legacy.next_id()

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """A session, or in the modern era what requests say of the principal. Raises NotSent."""
        modern = await self._speaks_modern()
        try:
            return await self._open(owner, capabilities, client, modern=modern)
        except NotSent as error:
            if error.busy:
                raise
            if self._is_modern is modern:
                self._is_modern = None
            if error.reason != "upstream_bad" or await self._speaks_modern() is modern:
                raise
        return await self._open(owner, capabilities, client, modern=not modern)

    def able(self, link: Link) -> Link:
        """A server may have tasks in the modern era only: then work of legacy clients goes there, too."""
        found = self._modern.found
        if (
            found is None
            or link.version in MODERN_VERSIONS
            or theirs_2025.offers(link.version, link.hello.capabilities)
        ):
            return link
        if not theirs_ext.offers(found.version, found.capabilities):
            return link
        return Link(link.owner, found.version, None, link.capabilities, link.client, hello_of(found))

    async def close(self) -> None:
        """Ends all sessions."""
        await self._asking.over()
        await self._legacy.close()
        await self._modern.close()

    async def _speaks_modern(self) -> bool:
        """Raises NotSent where it cannot be found out."""
        if self._is_modern is None and (failure := await self._asking()) is not None:
            raise failure.copy()
        return bool(self._is_modern)

    async def _open(self, owner: Owner, capabilities: str, client: str, *, modern: bool) -> Link:
        if not modern:
            return await self._legacy.open(owner, capabilities, client)
        if client and self._has_sessions:
            try:
                return await self._legacy.open(owner, capabilities, client)
            except NotSpoken:
                self._has_sessions = False
        return await self._modern.open(owner, capabilities, client)

    def _of(self, link: Link) -> HttpUpstream | ModernUpstream:
        return self._modern if link.version in MODERN_VERSIONS else self._legacy

    async def _ask(self) -> NotSent | None:
        try:
            found = await probe(self._connections, self.next_id())
        except NotSent as error:
            return error
        self._modern.found = found
        self._is_modern, self._has_sessions = found is not None, True
        return None
