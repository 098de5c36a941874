"""Work that several callers want at the same time: it is done once, for all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Generic, TypeVar

_Found = TypeVar("_Found")
_LAST_WORDS_S: Final = 0.5


async def over(running: "Collection[asyncio.Future[Any]]") -> None:
    """Waits until none of it runs. What takes long is ended: no server that hangs keeps a process from stopping."""
    if not running:
        return
    _, late = await asyncio.wait(running, timeout=_LAST_WORDS_S)
    for one in late:
        one.cancel()
    if late:
        await asyncio.wait(late)


class Once(Generic[_Found]):
    """`work` gives a value and raises nothing."""

    def __init__(self, work: Callable[[], Awaitable[_Found]]) -> None:
        self._work = work
        self._running: asyncio.Future[_Found] | None = None

    async def __call__(self) -> _Found:
        """The outcome of the run that is under way, or of a new one. A caller that goes away ends it for nobody."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._work())
            self._running.add_done_callback(self._over)
        running = self._running
        await asyncio.wait({running})
        return running.result()

    async def over(self) -> None:
        """Waits until nothing runs."""
        if self._running is not None:
            await over([self._running])

    def _over(self, _: object) -> None:
        self._running = None
