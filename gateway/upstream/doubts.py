"""Sessions that may have ended without telling us.

Old SDKs of servers end the whole session on `notifications/cancelled`, and say so to nobody: the next call would be
lost. Other servers refuse what comes in a session that they have forgotten in ways that could mean anything else. A
session in which something was cancelled, or went wrong, is asked whether it is still there before it takes another
call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.upstream.port import Link

PING_S: Final = 5.0
"""How long a server may take that is busy with other things."""


class Doubts:
    """`ping` asks a session something harmless and tells whether it is there; None if its server cannot be reached."""

    def __init__(self, ping: Callable[[Link], Awaitable[bool | None]]) -> None:
        self._ping = ping
        self._asking: dict[Link, asyncio.Task[bool | None]] = {}
        self._suspected: set[Link] = set()

    def about(self, link: Link) -> None:
        """Something was cancelled in this session: it is asked at once."""
        self._asking[link] = asyncio.get_running_loop().create_task(self._answers(link), name="ping")

    def suspect(self, link: Link) -> None:
        """Something went wrong in this session: it is asked when it is to be used, when its server may be back."""
        self._suspected.add(link)

    def forget(self, link: Link) -> None:
        """Nobody will use this session any more."""
        self._suspected.discard(link)

    async def cleared(self, link: Link) -> bool:
        """Whether the session may be there. Everybody who wants to use it waits for the same answer."""
        if link in self._suspected and link not in self._asking:
            self.about(link)
        asking = self._asking.get(link)
        if asking is None:
            return True
        await asyncio.wait({asking})
        there = not asking.cancelled() and asking.result()
        if self._asking.get(link) is asking:
            del self._asking[link]
            if there is not None:
                self._suspected.discard(link)
        return there is not False

    def close(self) -> None:
        """Asks nothing any more."""
        for asking in self._asking.values():
            asking.cancel()

    async def _answers(self, link: Link) -> bool | None:
        try:
            async with asyncio.timeout(PING_S):
                return await self._ping(link)
        except TimeoutError:
            return False
