"""A client of both eras at the standard streams of a gateway: what it sends, and everything that comes."""

import asyncio
import itertools
import json
import os
from collections.abc import Callable
from typing import Any, Self

from tests.client import CAPABILITIES, TASKS, VERSION


class LineClient:
    """`received` is every message in order. Whatever is no message fails the test at the end, in `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._output: asyncio.ReadTransport = reader._transport
        self._ids = itertools.count(1)
        self._news = asyncio.Event()
        self.received: list[dict[str, Any]] = []
        self.rest = b""
        self._pump = asyncio.create_task(self._read())

    @classmethod
    async def at(cls, source: int, sink: int) -> Self:
        """A client at two descriptors of this process."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(2**26)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(sink, "wb", 0))
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    def send(self, message: object) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        self._writer.write(line + b"\n")

    def request(self, method: str, params: object = None, request_id: object = None) -> Any:
        """Sends a legacy request; its id."""
        request_id = next(self._ids) if request_id is None else request_id
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})
        return request_id

    def modern_request(self, method: str, params: Any = None, *, capabilities: Any = None, **options: Any) -> Any:
        """Sends a modern request; its id."""
        meta = {VERSION: "2026-07-28", CAPABILITIES: TASKS if capabilities is None else capabilities}
        return self.request(method, {**(params or {}), "_meta": meta}, **options)

    def note(self, method: str, **params: object) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def answer(self, request_id: object) -> dict[str, Any]:
        """The answer to a request, whenever it comes."""
        return await self.message(lambda one: "method" not in one and one.get("id") == request_id)

    async def message(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message that is wanted."""
        async with asyncio.timeout(20):
            while True:
                for one in self.received:
                    if wanted(one):
                        return one
                assert not self._pump.done(), f"the stream ended: {self.received}"
                self._news.clear()
                await self._news.wait()

    async def told(self, method: str) -> dict[str, Any]:
        """The first notification or request of this method."""
        return await self.message(lambda one: one.get("method") == method)

    async def ask(self, method: str, params: object = None) -> dict[str, Any]:
        return await self.answer(self.request(method, params))

    async def modern(self, method: str, params: object = None, **options: Any) -> dict[str, Any]:
        return await self.answer(self.modern_request(method, params, **options))

    async def initialize(self, version: str = "2025-11-25", capabilities: object = None) -> dict[str, Any]:
        info = {"name": "t", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": info}
        answer = await self.ask("initialize", params)
        self.note("notifications/initialized")
        return answer

    async def task(self, tool: str, arguments: object = None) -> str:
        """The id of a new task of 2025-11-25."""
        params = {"name": tool, "arguments": arguments or {}, "task": {"ttl": 600_000}}
        return (await self.ask("tools/call", params))["result"]["task"]["taskId"]

    async def close(self) -> None:
        """Closes both streams, and shows what made this client stop reading before."""
        self._writer.close()
        self._output.close()
        await self.ended()

    def pause(self) -> None:
        """Reads nothing more."""
        self._output.pause_reading()

    def leave(self) -> None:
        """Closes the gateway's standard input."""
        self._writer.close()

    async def ended(self) -> None:
        """Waits until the gateway has closed its standard output."""
        async with asyncio.timeout(30):
            await self._pump

    async def _read(self) -> None:
        while line := await self._reader.readline():
            if not line.endswith(b"\n"):
                self.rest = line
                break
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0", line
            self.received.append(message)
            self._news.set()
        self._news.set()
