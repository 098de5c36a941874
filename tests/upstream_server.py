"""A scriptable MCP server of revision 2025-06-18 that knows nothing of tasks, over real HTTP."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

STREAM = web.RequestKey("stream", web.StreamResponse)
"""The stream of a session, where it has one for all."""
TOOLS = ["echo", "gate", "fail", "error", "progress", "ask", "form", "both", "plain", "required", "odd"]
FORM = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "_meta": {"com.example/k": 1.0},
}
ODD = (
    b'{"content":[{"type":"text","text":"caf\\u00e9 \\ud83d\\ude00"}],"structuredContent":'
    b'{"big":9007199254740993,"huge":1e400,"one":1.0,"zero":-0},'
    b'"_meta":{"com.example/k":[1, 2]},"unknown":{"z":1,"a":2}}'
)


class UpstreamServer:
    """`gates` holds calls of the tool `gate` until a test opens them; `seen` is every message in order.

    `fault` answers calls instead of the server, `forgotten` what comes in a session that it does not know.
    """

    path = "/mcp"

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.sessions: set[str] = set()
        self.fault: Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]] | None = None
        self.forgotten: Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]] | None = None
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._count = 0
        self.arrived = asyncio.Event()
        self.closing = False

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**26)
        self._route(app.router)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.listen(0)
        return self

    def _route(self, router: web.UrlDispatcher) -> None:
        router.add_post(self.path, self._post)
        router.add_delete(self.path, self._delete)

    async def listen(self, port: int) -> None:
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}{self.path}"

    async def __aexit__(self, *_: object) -> None:
        self.close_gates()
        await self._runner.cleanup()

    def calls(self, tool: str | None = None) -> list[dict[str, Any]]:
        """The tool calls that arrived."""
        sent = [message for message in self.seen if message.get("method") == "tools/call"]
        return [message for message in sent if tool is None or message["params"]["name"] == tool]

    def cancelled(self) -> list[Any]:
        """The ids of the requests that were cancelled."""
        notes = [message for message in self.seen if message.get("method") == "notifications/cancelled"]
        return [note["params"]["requestId"] for note in notes]

    def open(self, name: str) -> None:
        self.gates.setdefault(name, asyncio.Event()).set()

    async def pass_gate(self, name: str) -> None:
        if not self.closing:
            await self.gates.setdefault(name, asyncio.Event()).wait()

    def close_gates(self) -> None:
        """Lets everything through, now and from now on."""
        self.closing = True
        self.arrived.set()
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
        method = message.get("method")
        if method == "initialize":
            return await self._initialize(message)
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            return web.Response(status=404) if self.forgotten is None else await self.forgotten(request, message)
        if "id" not in message or method is None:
            return web.Response(status=202)
        return await self.serve(request, message)

    async def serve(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """The answer to a request after the handshake."""
        if message["method"] == "tools/list":
            listed = [{"name": name, "inputSchema": {"type": "object"}, "x": 1.0} for name in TOOLS]
            return answer(message, {"tools": listed, "nextCursor": "more"})
        if message["method"] == "ping":
            return answer(message, {})
        if self.fault is not None:
            return await self.fault(request, message)
        return await getattr(self, f"_{message['params']['name']}", self._echo)(request, message)

    async def _delete(self, request: web.Request) -> web.Response:
        self.sessions.discard(request.headers.get("Mcp-Session-Id", ""))
        self.arrived.set()
        return web.Response()

    async def _initialize(self, message: dict[str, Any]) -> web.Response:
        self._count += 1
        session = f"session-{self._count}"
        self.sessions.add(session)
        info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "u"}}
        response = answer(message, info)
        response.headers["Mcp-Session-Id"] = session
        return response

    async def _echo(self, _: web.Request, message: dict[str, Any]) -> web.Response:
        text = json.dumps(message["params"].get("arguments", {}))
        return answer(message, {"content": [{"type": "text", "text": text}]})

    async def _gate(self, _: web.Request, message: dict[str, Any]) -> web.Response:
        name = message["params"]["arguments"]["name"]
        await self.pass_gate(name)
        return answer(message, {"content": [{"type": "text", "text": f"through {name}"}]})

    async def _fail(self, _: web.Request, message: dict[str, Any]) -> web.Response:
        told = {"content": [{"type": "text", "text": "no"}], "structuredContent": {"errors": [1]}, "isError": True}
        return answer(message, told)

    async def _error(self, _: web.Request, message: dict[str, Any]) -> web.Response:
        error = {"code": -32002, "message": "no such thing", "data": {"uri": "x", "n": 1.0}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})

    async def _odd(self, _: web.Request, message: dict[str, Any]) -> web.Response:
        body = b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (message["id"], ODD)
        return web.Response(body=body, content_type="application/json")

    async def _progress(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        token = message["params"].get("_meta", {}).get("progressToken")
        response = await stream(request)
        for done in (1, 2):
            note = {"progressToken": token, "progress": done, "message": f"step {done}"}
            await event(response, {"jsonrpc": "2.0", "method": "notifications/progress", "params": note})
        gate = message["params"]["arguments"].get("name")
        if gate:
            await self.pass_gate(gate)
        await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}})
        return response

    async def _ask(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Asks the client something although it declared nothing, and tells what it heard."""
        response = await stream(request)
        await event(response, {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": {}})
        await event(response, {"jsonrpc": "2.0", "id": "q2", "method": "ping"})
        await self.until(lambda: len([heard for heard in self.seen if "method" not in heard]) == 2 or self.closing)
        heard = [heard for heard in self.seen if "method" not in heard]
        content = [{"type": "text", "text": json.dumps(heard)}]
        await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}})
        return response

    async def _form(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Asks what its arguments say (a form for a name, if they say nothing), and tells the answer."""
        told = message["params"]["arguments"]
        method = told.get("method", "elicitation/create")
        return await self._asking(request, message, [(method, told.get("params", FORM))])

    async def _both(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Asks two things at once."""
        return await self._asking(request, message, [("elicitation/create", FORM)] * 2)

    async def _asking(
        self, request: web.Request, message: dict[str, Any], questions: list[tuple[str, Any]]
    ) -> web.StreamResponse:
        response = await stream(request)
        ids = [f"q{message['id']}-{number}" for number, _ in enumerate(questions)]
        for ident, (method, params) in zip(ids, questions, strict=True):
            await event(response, {"jsonrpc": "2.0", "id": ident, "method": method, "params": params})
        heard = {}

        def all_heard() -> bool:
            heard.update({one["id"]: one for one in self.seen if "method" not in one and one.get("id") in ids})
            return len(heard) == len(ids)

        await self.until(lambda: all_heard() or self.closing, 60)
        content = [{"type": "text", "text": json.dumps([heard.get(ident) for ident in ids])}]
        await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}})
        return response


def answer(message: dict[str, Any], result: dict[str, Any]) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


async def stream(request: web.Request) -> web.StreamResponse:
    """The stream of an answer: one of its own, or that of the session where it has one for all."""
    if STREAM in request:
        return request[STREAM]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def event(response: web.StreamResponse, message: dict[str, Any]) -> None:
    await response.write(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")
