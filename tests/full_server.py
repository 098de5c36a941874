"""A server of revision 2025-11-25 that has everything but tasks, over real HTTP: what passes through is tried on it."""

import asyncio
import json
from typing import Any, Self

from aiohttp import web

from tests.upstream_server import UpstreamServer, answer, event, stream

CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "logging": {},
    "completions": {},
    "tasks": {"list": {}},
    "x-unknown": {"n": 1.0},
}
LOG = "notifications/message"


class FullServer(UpstreamServer):
    """`results` gives the bytes that answer a method, `raw` keeps the bytes of every request."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[bytes] = []
        self.results: dict[str, bytes] = {}
        self.errors: dict[str, bytes] = {}
        self.greeting: dict[str, Any] = {}
        self.listening: dict[str, web.StreamResponse] = {}
        self.listened = asyncio.Event()
        self.fragile = False
        self.broken: set[str] = set()

    def methods(self, method: str) -> list[dict[str, Any]]:
        """Every message of this method."""
        return [message for message in self.seen if message.get("method") == method]

    def sessions_of(self, method: str) -> list[str]:
        """The sessions in which messages of this method came."""
        pairs = zip(self.seen, self.headers, strict=True)
        return [headers["Mcp-Session-Id"] for message, headers in pairs if message.get("method") == method]

    async def say(self, message: dict[str, Any]) -> None:
        """Says something on every stream of a session."""
        for response in self.listening.values():
            await event(response, {"jsonrpc": "2.0", **message})

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/mcp", self._post)
        app.router.add_get("/mcp", self._get)
        app.router.add_delete("/mcp", self._delete)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.listen(0)
        return self

    async def _get(self, request: web.Request) -> web.StreamResponse:
        session = request.headers.get("Mcp-Session-Id", "")
        if session not in self.sessions:
            return web.Response(status=404)
        response = await stream(request)
        last = request.headers.get("Last-Event-ID")
        if last is not None:
            rest = {"jsonrpc": "2.0", "id": int(last), "result": {"content": [{"type": "text", "text": "resumed"}]}}
            await event(response, rest)
            return response
        self.listening[session] = response
        self.listened.set()
        try:
            while not self.closing:
                await asyncio.sleep(0.01)
        finally:
            self.listening.pop(session, None)
        return response

    async def _initialize(self, message: dict[str, Any]) -> web.Response:
        response = await super()._initialize(message)
        told = json.loads(response.body)
        told["result"].update({"capabilities": CAPABILITIES, "instructions": "Be kind.", **self.greeting})
        response.body = json.dumps(told).encode()
        return response

    async def _post(self, request: web.Request) -> web.StreamResponse:
        """A fragile server breaks the session in which it is told of a cancellation."""
        session = request.headers.get("Mcp-Session-Id", "")
        if session in self.broken:
            return await stream(request)  # and no answer on it
        response = await super()._post(request)
        if self.fragile and self.seen[-1].get("method") == "notifications/cancelled":
            self.broken.add(session)
        return response

    async def _aside(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Reports and asks on the stream of the session, as old servers do, and tells the answer."""
        await self.listened.wait()
        aside = self.listening[request.headers["Mcp-Session-Id"]]
        params = {"progressToken": message["params"]["_meta"]["progressToken"], "progress": 1}
        await event(aside, {"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        await event(aside, {"jsonrpc": "2.0", "id": "aside", "method": "roots/list", "params": {}})
        await self.until(lambda: self.closing or any(one.get("id") == "aside" for one in self.seen))
        (heard,) = [one for one in self.seen if one.get("id") == "aside"]
        return answer(message, {"content": [{"type": "text", "text": json.dumps(heard)}]})

    async def serve(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        self.raw.append(await request.read())
        method = message["method"]
        for kind, known in ((b"result", self.results), (b"error", self.errors)):
            if method in known:
                head = b'{"jsonrpc":"2.0","id":' + json.dumps(message["id"]).encode() + b',"' + kind + b'":'
                return web.Response(body=head + known[method] + b"}", content_type="application/json")
        if method.startswith("tools/") or self.fault is not None:
            return await super().serve(request, message)
        return answer(message, {})

    async def _talk(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Says things of several levels, reports progress, then waits at a gate if it is given one."""
        response = await stream(request)
        for level in ("debug", "info", "error"):
            said = {"level": level, "data": level, "x": 1.0}
            await event(response, {"jsonrpc": "2.0", "method": LOG, "params": said})
        token = message["params"].get("_meta", {}).get("progressToken")
        for done in (1, 2, 3):
            params = {"progressToken": token, "progress": done}
            await event(response, {"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        gate = message["params"].get("arguments", {}).get("gate")
        if gate:
            await self.pass_gate(gate)
        await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}})
        return response

    async def _pause(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Ends its stream, to be asked for the rest a little later."""
        response = await stream(request)
        await response.write(f"id: {message['id']}\nretry: 300\ndata: \n\n".encode())
        return response
