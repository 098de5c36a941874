"""The modern test server over real HTTP: it checks the headers that repeat the body, and notices closed streams."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from tests.fixtures_stdio.modern import VERSION, Modern, RefusedError

NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"} | {
    f"tasks/{verb}": "taskId" for verb in ("get", "update", "cancel")
}


class ModernServer:
    """`gates` holds calls until a test opens them; `seen` is every message in order.

    `closed` are the ids of requests whose streams were closed. Answers are JSON unless something is told before them;
    `streams` makes all of them streams.
    """

    def __init__(self) -> None:
        self.modern = Modern(self.pass_gate)
        self.gates: dict[str, asyncio.Event] = {}
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closed: list[Any] = []
        self.fault: Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]] | None = None
        self.streams = False
        self.url = ""
        self.arrived = asyncio.Event()
        self.closing = False
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/mcp", self._post)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/mcp"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close_gates()
        await self._runner.cleanup()

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [message for message in self.seen if message.get("method") == method]

    def calls(self, tool: str | None = None) -> list[dict[str, Any]]:
        """The tool calls that arrived."""
        return [call for call in self.sent("tools/call") if tool is None or call["params"]["name"] == tool]

    def change(self, note: dict[str, Any] | None) -> None:
        """Tells every subscription, or ends it."""
        for queue in self.modern.subscriptions.values():
            queue.put_nowait(note)

    def open(self, name: str) -> None:
        self.gates.setdefault(name, asyncio.Event()).set()

    async def pass_gate(self, name: str) -> None:
        if not self.closing:
            await self.gates.setdefault(name, asyncio.Event()).wait()

    def close_gates(self) -> None:
        """Lets everything through, now and from now on."""
        self.closing = True
        self.arrived.set()
        self.change(None)
        for gate in self.gates.values():
            gate.set()

    async def until(self, condition: Callable[[], Any], timeout_s: float = 10) -> None:
        """Waits until what has arrived satisfies the condition."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.read())
        self.seen.append(message)
        self.headers.append(dict(request.headers))
        self.arrived.set()
        if self.fault is not None and (answered := await self.fault(request, message)) is not None:
            return answered
        if message["method"] == "initialize":
            return _json(404, message, RefusedError(-32601, "Method not found").error)
        try:
            self._check(request, message)
        except RefusedError as refused:
            return _json(400, message, refused.error)
        try:
            return await self._answer(request, message)
        except asyncio.CancelledError:
            self.closed.append(message["id"])
            self.arrived.set()
            raise

    async def _answer(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream: web.StreamResponse | None = None

        async def tell(note: dict[str, Any]) -> None:
            nonlocal stream
            if stream is None:
                stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await stream.prepare(request)
                await stream.write(b": hello\n\n")
            await stream.write(b"data: " + json.dumps({"jsonrpc": "2.0", **note}).encode() + b"\n\n")

        if self.streams:
            await tell({"method": "notifications/unheard-of"})
        line = await self.modern.answer(message, tell)
        if stream is not None:
            await stream.write(b"event: message\ndata: " + line + b"\n\n")
            return stream
        error = json.loads(line).get("error", {})
        status = {-32601: 404, -32022: 400, -32020: 400}.get(error.get("code"), 200)
        return web.Response(status=status, body=line, content_type="application/json")

    def _check(self, request: web.Request, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        expected = {"Mcp-Method": message["method"], "MCP-Protocol-Version": params.get("_meta", {}).get(VERSION)}
        if message["method"] in NAMED:
            expected["Mcp-Name"] = params[NAMED[message["method"]]]
        arguments = params.get("arguments", {})
        if params.get("name") == "region":
            expected[f"Mcp-Param-{self.modern.region_header}"] = arguments.get("region")
            rows = arguments.get("limits", {}).get("rows")
            expected["Mcp-Param-Max-Rows"] = None if rows is None else str(rows)
        for name, value in expected.items():
            if _decoded(request.headers.get(name)) != value:
                raise RefusedError(-32020, f"Header mismatch: {name}")


def _decoded(value: str | None) -> str | None:
    if value is None or not value.startswith("=?base64?"):
        return value
    return base64.b64decode(value.removeprefix("=?base64?").removesuffix("?=")).decode()


def _json(status: int, message: dict[str, Any], error: dict[str, Any]) -> web.Response:
    body = {"jsonrpc": "2.0", "id": message.get("id"), "error": error}
    return web.json_response(body, status=status)
