"""A way from a gateway to its store that can hold back single commands or answers, hang, go away and lead elsewhere.

What is held is chosen by what it says, so that a test stops a gateway between two of its own steps from outside.
"""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from redis.asyncio import Redis

from gateway.store.redis import RedisStore

_CHUNK = 2**20
_TAIL = 4096


def script(name: str) -> bytes:
    """How a call of a script looks on the wire."""
    store = RedisStore(Redis(), "mtg", timeout_s=1, lease_ms=1, session_idle_ms=1)
    return store._scripts[name][1].encode()


def word(text: str) -> bytes:
    """How an argument looks on the wire that is exactly this."""
    return f"\r\n${len(text)}\r\n{text}\r\n".encode()


class Hold:
    """Commands that hold `pattern` stop here, or their answers do. `seen` counts them."""

    def __init__(self, pattern: bytes, *, answers: bool) -> None:
        self.pattern = pattern
        self.answers = answers
        self.armed = True
        self.seen = 0
        self.open = asyncio.Event()
        self._news = asyncio.Event()

    def hits(self, tail: bytes, data: bytes) -> int:
        return (tail + data).count(self.pattern) - tail.count(self.pattern) if self.armed else 0

    def count(self, hits: int) -> None:
        self.seen += hits
        self._news.set()

    async def until(self, seen: int, *, last: bool = True) -> None:
        """Waits until so many have been stopped, and then lets further ones pass if this was the last."""
        async with asyncio.timeout(10):
            while self.seen < seen:
                self._news.clear()
                await self._news.wait()
        self.armed = not last

    def release(self) -> None:
        """Lets go of what is held."""
        self.armed = False
        self.open.set()


class _Pair:
    """One connection there and back; nothing comes through while it is not `flowing`."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        self.near, self.far = near, far
        self.flowing = flowing
        self.held: Hold | None = None
        self.hits = 0

    def abort(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


async def _turns() -> None:
    """Lets the loop do what it has begun: accept, connect, serve, close."""
    for _ in range(5):
        await asyncio.sleep(0)


class StoreProxy:
    """Listens on a socket of its own and passes everything on to the store at `target`, a unix socket."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._folder = tempfile.TemporaryDirectory(prefix="mtg-test-")
        self._socket = Path(self._folder.name) / "p"
        self.url = f"unix://{self._socket}"
        self._holds: list[Hold] = []
        self._pairs: set[_Pair] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gone()
        self._folder.cleanup()

    def hold(self, pattern: bytes, *, answers: bool = False) -> Hold:
        """Holds the commands with this pattern before the store sees them, or the answers to them."""
        made = Hold(pattern, answers=answers)
        self._holds.append(made)
        return made

    def release(self) -> None:
        """Lets go of everything."""
        for hold in self._holds:
            hold.release()
        self._holds.clear()

    async def gone(self) -> None:
        """Nobody listens any more, and every connection is cut."""
        server, self._server = self._server, None
        if server is not None:
            for one in server.sockets:
                asyncio.get_running_loop().remove_reader(one.fileno())
            await _turns()  # asyncio leaks what it has accepted and not yet connected when its server closes
            server.close()
        self._socket.unlink(missing_ok=True)
        await self.cut()

    async def back(self) -> None:
        """Listens again."""
        self._server = await asyncio.start_unix_server(self._serve, str(self._socket))

    async def cut(self) -> None:
        """Every connection is cut."""
        for pair in list(self._pairs):
            pair.abort()
        for running in list(self._running):
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await _turns()

    def hang(self) -> None:
        """From now on nothing comes through, in either direction."""
        self._flowing.clear()

    def flow(self) -> None:
        """It comes through again."""
        self._flowing.set()

    def strand(self) -> None:
        """Nothing ever comes through again what is connected now; new connections are not concerned."""
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def lead_to(self, target: str) -> None:
        """Another server from now on."""
        self._target = target
        await self.cut()

    async def _serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        running = asyncio.current_task()
        self._running.add(running)
        try:
            if self._server is None:  # accepted in its last moment
                raise ConnectionError  # ends like the others
            far_reader, far = await asyncio.open_unix_connection(self._target.removeprefix("unix://"))
        except (OSError, asyncio.CancelledError):
            near.transport.abort()
            self._running.discard(running)
            return
        pair = _Pair(near, far, self._flowing)
        self._pairs.add(pair)
        try:
            ways = {
                asyncio.ensure_future(self._there(reader, pair)),
                asyncio.ensure_future(self._back(far_reader, pair)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # asyncio's streams log what a handler ends with
        finally:
            pair.abort()
            self._pairs.discard(pair)
            self._running.discard(running)

    async def _there(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        tail = b""
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                for hold in self._holds:
                    hits = hold.hits(tail, data)
                    if hits and hold.answers:
                        pair.held, pair.hits = hold, pair.hits + hits  # a pipeline may come in pieces
                    elif hits:
                        hold.count(hits)
                        await hold.open.wait()
                await pair.flowing.wait()
                tail = (tail + data)[-_TAIL:]
                pair.far.write(data)
                await pair.far.drain()

    async def _back(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if pair.held is not None:
                    held, pair.held = pair.held, None
                    held.count(pair.hits)
                    pair.hits = 0
                    await held.open.wait()
                await pair.flowing.wait()
                pair.near.write(data)
                await pair.near.drain()
