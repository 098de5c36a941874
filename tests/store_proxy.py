"""A way to a store that can be blocked, cut and led elsewhere."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self


class StoreProxy:
    """Listens on a unix socket and hands on to `target`, the path of another."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._socket = Path(tempfile.mkdtemp(prefix="mtg-way-")) / "s"
        self.url = f"unix://{self._socket}"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._ways: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        self._socket.parent.rmdir()

    async def open(self) -> None:
        """Takes connections."""
        self._server = await asyncio.start_unix_server(self._take, self._socket)

    async def refuse(self) -> None:
        """Cuts what is connected and takes nothing new."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._socket.unlink(missing_ok=True)
        await self.cut()

    async def cut(self) -> None:
        """Cuts what is connected."""
        for writer in list(self._open):
            writer.transport.abort()
        for way in list(self._ways):
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

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
        self.target = target
        await self.cut()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.transport.abort()
            return
        flowing = self._flowing
        for source, sink in ((reader, back), (there, writer)):
            self._open.add(sink)
            way = asyncio.get_running_loop().create_task(self._carry(source, sink, flowing))
            self._ways.add(way)
            way.add_done_callback(self._ways.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        try:
            with suppress(OSError):
                while piece := await source.read(65_536):
                    await flowing.wait()
                    sink.write(piece)
                    await sink.drain()
        finally:
            self._open.discard(sink)
            sink.transport.abort()
