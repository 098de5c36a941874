"""Work that several callers want at the same time: it is done once, for all of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_Found = TypeVar("_Found")


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
            await asyncio.wait({self._running})

    def _over(self, _: object) -> None:
        self._running = None
