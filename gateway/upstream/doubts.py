"""Sessions that may have died of a cancellation.

Old SDKs of servers end the whole session on `notifications/cancelled`, and say so to nobody: the next call would be
lost. A session in which something was cancelled is asked whether it is still there before it takes another call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.upstream.port import Link

PING_S: Final = 5.0
"""How long a server may take that is busy with other things."""


class Doubts:
    """`ping` asks a session something harmless and tells whether it answered, in whatever way."""

    def __init__(self, ping: Callable[[Link], Awaitable[bool]]) -> None:
        self._ping = ping
        self._asking: dict[Link, asyncio.Task[bool]] = {}

    def about(self, link: Link) -> None:
        """Something was cancelled in this session."""
        self._asking[link] = asyncio.get_running_loop().create_task(self._answers(link), name="ping")

    async def cleared(self, link: Link) -> bool:
        """Whether the session is there. Everybody who wants to use it waits for the same answer."""
        asking = self._asking.get(link)
        if asking is None:
            return True
        await asyncio.wait({asking})
        if self._asking.get(link) is asking:
            del self._asking[link]
        return not asking.cancelled() and asking.result()

    def close(self) -> None:
        """Asks nothing any more."""
        for asking in self._asking.values():
            asking.cancel()

    async def _answers(self, link: Link) -> bool:
        try:
            async with asyncio.timeout(PING_S):
                return await self._ping(link)
        except TimeoutError:
            return False
