"""Which tools of an upstream may be called as tasks of its own, as its tool list says. Remembered within bounds."""

import asyncio
from contextlib import suppress
from typing import Final

from gateway.upstream.port import Call, Link, NotSent, OutcomeUnknown, Upstream
from gateway.wire import theirs_2025, theirs_ext
from gateway.wire.jsonrpc import Members, members, write

_LIST_S: Final = 10.0
_MAX_BYTES: Final = 8_388_608
_MOST_PAGES: Final = 50
_MOST_TOOLS: Final = 10_000
_AGAIN_S: Final = 60.0
"""How long the list is believed that lacks a tool, and how long one is believed that could not be read."""


class Abilities:
    """What one upstream says of its tools."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._tools: dict[str, bool] = {}
        self._read: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def takes_task(self, link: Link, tool: str) -> bool:
        """Whether to ask for a task. A list that cannot be read says nothing, and then the call is a plain one.

        A server with the extension decides for itself, call by call.
        """
        if theirs_ext.offers(link.version, link.hello.capabilities):
            return True
        if not theirs_2025.offers(link.version, link.hello.capabilities):
            return False
        if tool not in self._tools and self._old():
            await self._learn(link)
        return self._tools.get(tool, False)

    async def differs(self, link: Link, tool: str, *, asked: bool) -> bool:
        """Whether a call that was refused should have been made the other way: the list is read anew."""
        if not theirs_2025.offers(link.version, link.hello.capabilities):
            return False
        await self._learn(link)
        return self._tools.get(tool, False) is not asked

    def _old(self) -> bool:
        return self._read is None or asyncio.get_running_loop().time() - self._read > _AGAIN_S

    async def _learn(self, link: Link) -> None:
        """Callers that come together share one reading, and none of them ends it by going away."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._list(link), name="abilities")
        await asyncio.wait({self._reading})

    async def _list(self, link: Link) -> None:
        found: dict[str, bool] = {}
        cursor: str | None = None
        self._read = asyncio.get_running_loop().time()
        with suppress(NotSent, OutcomeUnknown, TimeoutError):
            async with asyncio.timeout(_LIST_S):
                for _ in range(_MOST_PAGES):
                    params: Members = {} if cursor is None else members(write({"cursor": cursor})) or {}
                    call = Call(self._upstream.next_id(), "tools/list", params, _MAX_BYTES)
                    page = await self._upstream.perform(link, call)
                    if not page.ok:
                        return
                    tools, cursor = theirs_2025.supports(page.body)
                    found.update(tools)
                    if cursor is None or len(found) > _MOST_TOOLS:
                        break
            self._tools = found
