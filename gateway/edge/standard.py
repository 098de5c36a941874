"""Standard streams: lines in, lines out, a log. Each has a thread of its own, and the loop waits for none of them.

A descriptor may be a pipe, a socket, a terminal or a file, and may be shared with other processes. Threads take all of
these as they are: nothing is set on them that their other users would notice. The threads are daemons, so that one
which waits for a peer keeps no process from ending.
"""

import asyncio
import io
import os
import queue
import select
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TextIO

_CHUNK_BYTES: Final = 2**16
_CHUNKS_AHEAD: Final = 4
_UNWRITTEN_BYTES: Final = 2**20
"""How much may wait to be written before whoever writes more has to wait too."""
_LOG_LINES: Final = 1000


def take_standard_streams() -> tuple[int, int]:
    """The descriptors of standard input and output, for us alone. Raises OSError where there is none.

    Whoever else reads standard input in this process reads nothing, and what is printed goes to standard error: only
    messages go to the client.
    """
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


class Lines:
    """Lines out of chunks. Of one that is longer than `limit` bytes nothing is kept but that there was one: None."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """What the chunk completes, without line ends; None as soon as a line has become too long."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            if self._take(part):
                yield None
            elif not self._skipping:
                yield b"".join(self._parts)
            self._forget()
            self._skipping = False
        if self._take(rest):
            yield None

    def rest(self) -> bytes:
        """What came after the last line end."""
        return b"".join(self._parts)

    def _take(self, part: bytes) -> bool:
        """Whether this is what makes the line too long."""
        if self._skipping:
            return False
        self._size += len(part)
        self._parts.append(part)
        self._skipping = self._size > self._limit
        if self._skipping:
            self._forget()
        return self._skipping

    def _forget(self) -> None:
        self._parts, self._size = [], 0


class LineReader:
    """Reads lines of at most `limit` bytes, and no faster than they are taken."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.limit = limit
        self._descriptor = descriptor
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._ahead = threading.Semaphore(_CHUNKS_AHEAD)

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Each line; None in place of one that is too long. Ends with the stream."""
        _start(self._read, asyncio.get_running_loop(), name="stdin")
        lines = Lines(self.limit)
        while chunk := await self._chunks.get():
            for line in lines.feed(chunk):
                yield line
            self._ahead.release()
        if rest := lines.rest():
            yield rest

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        chunk = b"."
        while chunk:
            self._ahead.acquire()
            try:
                chunk = os.read(self._descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                _wait_for(self._descriptor, select.POLLIN)
                self._ahead.release()
                continue
            except OSError:
                chunk = b""
            _tell(loop, self._chunks.put_nowait, chunk)


class LineWriter:
    """Writes lines, whole and in order. `gone` is set once nobody reads them any more."""

    def __init__(self, descriptor: int) -> None:
        self.gone = asyncio.Event()
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._unwritten = 0
        self._progress = asyncio.Event()

    def start(self) -> None:
        """Begins to write, and to look whether anybody reads."""
        loop = asyncio.get_running_loop()
        _start(self._write, loop, name="stdout")
        _start(self._watch, loop, name="stdout-watch")

    async def write(self, message: bytes) -> None:
        """Takes one message. Waits while its reader is far behind; one that is gone is not waited for."""
        # A line break in JSON text stands between values: one within a string is written otherwise.
        line = message.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"
        await self._until(lambda: self._unwritten < _UNWRITTEN_BYTES)
        if not self.gone.is_set():
            self._unwritten += len(line)
            self._lines.put(line)

    async def flush(self) -> None:
        """Returns when all is written, or nobody reads it."""
        await self._until(lambda: self._unwritten == 0)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and not self.gone.is_set():
            self._progress.clear()
            await self._progress.wait()

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(OSError):
            while True:
                line = self._lines.get()
                _write_all(self._descriptor, line)
                _tell(loop, self._wrote, len(line))
        _tell(loop, self._lost)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for what a pipe or a socket says when its other end is closed; files and terminals never say it."""
        if _wait_for(self._descriptor, 0) & (select.POLLERR | select.POLLHUP):
            _tell(loop, self._lost)

    def _wrote(self, size: int) -> None:
        self._unwritten -= size
        self._progress.set()

    def _lost(self) -> None:
        self.gone.set()
        self._progress.set()


class LogWriter(io.RawIOBase):
    """Standard error for a log: lines that nobody reads in time are left out, and counted."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes] = queue.Queue(_LOG_LINES)
        self._begun = b""
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def text(self) -> TextIO:
        """What a log is written to."""
        return io.TextIOWrapper(io.BufferedWriter(self), "utf-8", "backslashreplace", line_buffering=True)

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Never waits, never fails."""
        *lines, self._begun = (self._begun + bytes(data)).split(b"\n")
        for line in lines:
            self._offer(line + b"\n")
        return len(data)

    def finish(self, timeout_s: float) -> None:
        """Returns when all is written, or when the time is over."""
        with suppress(queue.Full):
            self._lines.put(b"", timeout=timeout_s)
            self._thread.join(timeout_s)

    def _offer(self, line: bytes) -> None:
        try:
            if self._left_out:
                self._lines.put_nowait(b'{"event":"log_left_out","lines":%d,"level":"warning"}\n' % self._left_out)
                self._left_out = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1

    def _run(self) -> None:
        read = True
        while line := self._lines.get():
            try:
                if read:
                    _write_all(self._descriptor, line)
            except OSError:
                read = False


def _start(target: Callable[..., None], loop: asyncio.AbstractEventLoop, name: str) -> None:
    threading.Thread(target=target, args=(loop,), name=name, daemon=True).start()


def _tell(loop: asyncio.AbstractEventLoop, heard: Callable[..., object], *arguments: object) -> None:
    """Calls it on the loop, if that still runs."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(heard, *arguments)


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes it to the last byte, also where others have made the descriptor one that does not wait."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            _wait_for(descriptor, select.POLLOUT)


def _wait_for(descriptor: int, events: int) -> int:
    """Waits until one of the events has come, or one that needs not be asked for; which one it was."""
    poll = select.poll()
    poll.register(descriptor, events)
    ((_, event),) = poll.poll()
    return event
