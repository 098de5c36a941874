"""An answer that takes a while, as the request loop hands it to the edge."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.wire.reply import Reply


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One JSON-RPC message for a stream. `event_id` is what the stream can be taken up from; None if it cannot."""

    body: bytes
    event_id: str | None = None


@dataclass(slots=True)
class Pending:
    """`answer` runs whoever listens; `notes` are written before it; `close` is for a client that left.

    `cancel` is for a client that says that it does not want the answer any more; without it, that is like leaving.
    `streamed` tells whether it may take long enough to be written as an event stream, `at_once` that it is a stream in
    any case. `preamble` gives the id of the event that such a stream begins with, once it is known that there is one;
    None begins it without. An answer without a body ends a stream that is to be asked for again. `good_for_s` is how
    long the stream may be open, None for as long as it takes: whoever it is for asks again with a fresh token.
    """

    answer: "asyncio.Task[Reply]"
    close: Callable[[], None]
    streamed: bool = True
    at_once: bool = False
    preamble: Callable[[], Awaitable[str | None]] | None = None
    notes: "asyncio.Queue[Outgoing]" = field(default_factory=asyncio.Queue)
    good_for_s: float | None = None
    cancel: Callable[[], None] | None = None


def emitter(notes: "asyncio.Queue[Outgoing]") -> Callable[[bytes], None]:
    """Puts messages on a stream that cannot be taken up again."""
    return lambda body: notes.put_nowait(Outgoing(body))


class Patience:
    """How long a process that stops waits for what still runs: so many seconds in all, or until it is told to hurry."""

    def __init__(self, seconds: float, hurried: asyncio.Event) -> None:
        """The time runs from the first wait on."""
        self._seconds = seconds
        self._hurried = hurried
        self._ends: float | None = None

    async def wait(self, work: "Iterable[asyncio.Future[Any]]") -> None:
        """Returns when all of it is done, or when the patience is over."""
        loop = asyncio.get_running_loop()
        self._ends = ends = loop.time() + self._seconds if self._ends is None else self._ends
        running: set[asyncio.Future[Any]] = set(work)
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            while running and not hurried.done() and (left := ends - loop.time()) > 0:
                waited = {*running, hurried}
                done, _ = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                running -= done
        finally:
            hurried.cancel()


class Background:
    """Tasks that outlive the request which began them. They are referenced, and waited for at the end."""

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_fault = on_fault

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Runs the work; a fault in it is reported."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def under_way(self, *names: str) -> "list[asyncio.Task[Any]]":
        """What runs now under these names."""
        return [task for task in self._tasks if task.get_name() in names]

    async def close(self, timeout_s: float) -> None:
        """Ends what does not end by itself in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._on_fault(fault)
