"""A scriptable MCP server of 2025-11-25 with Tasks of its own, over real HTTP. Its tasks belong to its sessions."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.upstream_server import FORM, UpstreamServer, answer, event, stream

RELATED = "io.modelcontextprotocol/related-task"
STAMP = "2026-01-01T00:00:00Z"
TOOLS = {
    "job": "optional",
    "must": "required",
    "bad": "required",
    "broken": "required",
    "empty": "required",
    "form": "required",
    "stepping": "optional",
    "plain": None,
    "never": "forbidden",
}


class Theirs:
    """A task of the server. `ended` is set once it has ended, `news` when it has something for whoever waits."""

    def __init__(self, tool: str, arguments: dict[str, Any], session: str | None, token: Any) -> None:
        self.id = str(uuid.uuid4())
        self.tool = tool
        self.arguments = arguments
        self.session = session
        self.token = token
        self.status = "working"
        self.stamp = STAMP
        self.message = f"task {self.id} of {tool} has begun"
        self.outcome: dict[str, Any] = {}
        self.ended = asyncio.Event()
        self.outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.questions: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}

    def end(self, status: str, **outcome: Any) -> None:
        if not self.ended.is_set():
            self.status, self.outcome = status, outcome
            self.ended.set()

    def flat(self) -> dict[str, Any]:
        return {
            "taskId": self.id,
            "status": self.status,
            "statusMessage": self.message,
            "createdAt": self.stamp,
            "lastUpdatedAt": STAMP,
            "ttl": 60_000,
            "pollInterval": 30,
        }

    def detailed(self) -> dict[str, Any]:
        """The same in the words of the extension, with all that goes with the state."""
        shown = {
            name: self.flat()[name] for name in ("taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt")
        }
        if self.status == "failed" and "result" in self.outcome:
            shown["status"] = "completed"
        open_ones = {key: one for key, one in self.questions.items() if key not in self.answers}
        more = {"inputRequests": open_ones} if self.status == "input_required" else self.outcome
        return {**shown, "ttlMs": 60_000, "pollIntervalMs": 30, **(more if self.status != "cancelled" else {})}


Fault = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class TasksServer(UpstreamServer):
    """`tasks` are all that were made. Work waits for the gate that its argument `name` says, or ends at once.

    `faults` are used up by requests, by method, one each. `by_owner`: tasks are found from any session. `extension`: it
    makes tasks as it likes, and speaks of them as the extension does.
    """

    version = "2025-11-25"

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, Theirs] = {}
        self.tools = dict(TOOLS)
        self.faults: dict[str, list[Fault]] = {}
        self.by_owner = False
        self.page = 100
        self.can_cancel = True
        self.heeds_cancel = True
        self.unasked = False
        self.extension = False
        self.stateless = False
        self.asks_on_get = False
        self.streams: list[tuple[str | None, web.StreamResponse]] = []
        self.waits: list[web.Request] = []
        self._working: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        await super().listen(port)

    async def __aenter__(self):
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/mcp", self._post)
        app.router.add_get("/mcp", self._get)
        app.router.add_delete("/mcp", self._delete)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.listen(0)
        return self

    async def __aexit__(self, *args: object) -> None:
        for work in self._working:
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await super().__aexit__(*args)

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The requests of this method that arrived."""
        return [message for message in self.seen if message.get("method") == method]

    @property
    def only(self) -> Theirs:
        (task,) = self.tasks.values()
        return task

    async def _initialize(self, message: dict[str, Any]) -> web.Response:
        response = await super()._initialize(message)
        told = json.loads(response.body)["result"]
        cancel = {"cancel": {}} if self.can_cancel else {}
        tasks = {"list": {}, **cancel, "requests": {"tools": {"call": {}}}}
        info = {**told, "protocolVersion": self.version, "capabilities": {"tools": {}, "tasks": tasks}}
        made = answer(message, info)
        if self.stateless:
            self.sessions.add(None)
        else:
            made.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        return made

    async def _post(self, request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.read())
        method = message.get("method")
        if self.faults.get(method) and request.headers.get("Mcp-Session-Id") in self.sessions:
            self.seen.append(message)
            self.arrived.set()
            return await self.faults[method].pop(0)(request, message)
        if method == "tools/list" and request.headers.get("Mcp-Session-Id") in self.sessions:
            self.seen.append(message)
            self.arrived.set()
            listed = [tool(name, support) for name, support in self.tools.items()]
            at = int(message["params"].get("cursor", 0))
            more = {"nextCursor": str(at + self.page)} if at + self.page < len(listed) else {}
            return answer(message, {"tools": listed[at : at + self.page], **more})
        if method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/update", "tools/call"):
            self.seen.append(message)
            self.arrived.set()
            if request.headers.get("Mcp-Session-Id") not in self.sessions:
                return web.Response(status=404)
            if method == "tools/call":
                return await self._called(request, message)
            return await self._about(request, message)
        return await super()._post(request)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        entry = (request.headers.get("Mcp-Session-Id"), response)
        self.streams.append(entry)
        self.arrived.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.streams.remove(entry)
        return response

    async def tell(self, message: dict[str, Any]) -> None:
        """Says something on a stream of a session."""
        await self.until(lambda: self.streams)
        await event(self.streams[-1][1], {"jsonrpc": "2.0", **message})

    async def _called(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        params = message["params"]
        support = self.tools.get(params["name"])
        if self.unasked or self.extension:
            return self._made(request, message)
        if ("task" in params and support not in ("optional", "required")) or (
            "task" not in params and support == "required"
        ):
            return error(message, -32601, "not to be called like this")
        if "task" in params:
            return self._made(request, message)
        return answer(message, {"content": [{"type": "text", "text": "done at once"}]})

    def _made(self, request: web.Request, message: dict[str, Any]) -> web.Response:
        params = message["params"]
        session, token = request.headers.get("Mcp-Session-Id"), params.get("_meta", {}).get("progressToken")
        made = Theirs(params["name"], params.get("arguments", {}), session, token)
        self.tasks[made.id] = made
        working = asyncio.get_running_loop().create_task(self._work(made))
        self._working.add(working)
        working.add_done_callback(self._working.discard)
        if self.extension:
            return answer(message, {"resultType": "task", **made.detailed()})
        return answer(message, {"task": made.flat()})

    async def _work(self, task: Theirs) -> None:
        if gate := task.arguments.get("name"):
            await self.pass_gate(gate)
        meta = {RELATED: {"taskId": task.id}}
        text = [{"type": "text", "text": f"{task.tool} is done, see task {task.id}"}]
        if task.tool == "bad":
            told = {"content": text, "structuredContent": {"errors": [1]}, "isError": True, "_meta": meta}
            task.end("failed", result=told)
        elif task.tool == "broken":
            data = {"task": task.id, "n": 1.0}
            task.end("failed", error={"code": -32042, "message": f"task {task.id} broke", "data": data})
        elif task.tool == "empty":
            task.end("failed", result={"_meta": meta})
        elif task.tool == "form":
            heard = await self._question(task)
            told = [{"type": "text", "text": json.dumps(heard.get("result", heard.get("error")))}]
            task.end("completed", result={"content": told, "_meta": {**meta, "com.example/k": 1.0}})
        else:
            task.end("completed", result={"content": text, "_meta": meta})

    async def _question(self, task: Theirs) -> dict[str, Any]:
        if self.extension:
            task.questions["their-key"] = {
                "method": "elicitation/create",
                "params": {**FORM, "message": f"Who, for {task.id}?"},
            }
            task.status = "input_required"
            await self.until(lambda: task.answers or self.closing, 60)
            task.status = "working"
            return {"result": task.answers.get("their-key")}
        ident = f"q-{task.id}"
        params = {**FORM, "message": f"Who, for {task.id}?", "_meta": {**FORM["_meta"], RELATED: {"taskId": task.id}}}
        question = {"id": ident, "method": "elicitation/create", "params": params}
        task.status = "input_required"
        if self.asks_on_get:
            await self.tell(question)
        else:
            task.outbox.put_nowait({"jsonrpc": "2.0", **question})
        heard: list[dict[str, Any]] = []

        def answered() -> bool:
            heard.extend(one for one in self.seen if "method" not in one and one.get("id") == ident)
            return bool(heard) or self.closing

        await self.until(answered, 60)
        task.status = "working"
        return heard[0] if heard else {}

    async def _about(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        task = self.tasks.get(message["params"]["taskId"])
        mine = task is not None and (self.by_owner or task.session == request.headers.get("Mcp-Session-Id"))
        if task is None or not mine:
            return error(message, -32602, f"there is no task {message['params']['taskId']}")
        if message["method"] == "tasks/update":
            task.answers.update(message["params"]["inputResponses"])
            self.arrived.set()
            return answer(message, {"resultType": "complete"})
        if message["method"] == "tasks/get":
            return answer(message, {"resultType": "complete", **task.detailed()} if self.extension else task.flat())
        if message["method"] == "tasks/cancel":
            return self._cancelled(message, task)
        return await self._result(request, message, task)

    def _cancelled(self, message: dict[str, Any], task: Theirs) -> web.Response:
        if task.ended.is_set():
            return error(message, -32602, "it has ended")
        if self.heeds_cancel:
            task.end("cancelled", error={"code": -32000, "message": "cancelled"})
        return answer(message, task.flat())

    async def _result(self, request: web.Request, message: dict[str, Any], task: Theirs) -> web.StreamResponse:
        response = await stream(request)
        self.waits.append(request)
        ended = asyncio.ensure_future(task.ended.wait())
        try:
            while not ended.done():
                news = asyncio.ensure_future(task.outbox.get())
                await asyncio.wait({news, ended}, return_when=asyncio.FIRST_COMPLETED)
                if news.done():
                    await event(response, news.result())
                news.cancel()
        finally:
            ended.cancel()
        await event(response, {"jsonrpc": "2.0", "id": message["id"], **task.outcome})
        return response


def tool(name: str, support: str | None) -> dict[str, Any]:
    execution = {} if support is None else {"execution": {"taskSupport": support}}
    return {"name": name, "inputSchema": {"type": "object"}, **execution}


def error(message: dict[str, Any], code: int, text: str) -> web.Response:
    told = {"code": code, "message": text}
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": told})


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    """A fault: an HTTP answer that is no MCP."""

    async def fault(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(
            status=code, body=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )

    return fault


def refusal(code: int) -> Fault:
    """A fault: a JSON-RPC error."""

    async def fault(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return error(message, code, "CANARY")

    return fault


def result(**body: Any) -> Fault:
    """A fault: another result."""

    async def fault(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return answer(message, body)

    return fault


async def cut(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    """A fault: the connection breaks."""
    request.transport.abort()
    return answer(message, {})
