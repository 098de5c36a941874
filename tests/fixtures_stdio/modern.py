"""A scriptable MCP server of revision 2026-07-28, for tests: what it answers, and how it speaks over standard streams.

    python modern.py FOLDER [MODE]

Every message that arrives over standard input is written to FOLDER/seen, a line each with the process that got it; each
request that was cancelled to FOLDER/closed. The tool `gate` waits for the file FOLDER/gate-NAME. Only the standard
library is used here; over HTTP the same answers are given by `tests/modern_server.py`.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TASKS = "io.modelcontextprotocol/tasks"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
INFO = {"io.modelcontextprotocol/serverInfo": {"name": "m", "version": "1"}}
FORM = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "_meta": {"com.example/k": 1.0},
}
ODD = (
    b'{"resultType":"complete","content":[{"type":"text","text":"caf\\u00e9 \\ud83d\\ude00"}],"structuredContent":'
    b'{"big":9007199254740993,"huge":1e400,"one":1.0,"zero":-0},'
    b'"_meta":{"com.example/k":[1, 2]},"unknown":{"z":1,"a":2}}'
)
STATE = 'opaque "state" \u00e9'
REGION = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "limits": {"type": "object", "properties": {"rows": {"type": "integer", "x-mcp-header": "Max-Rows"}}},
    },
}
BROKEN = {"type": "object", "properties": {"price": {"type": "number", "x-mcp-header": "Price"}}}
NAMES = ["echo", "gate", "fail", "error", "progress", "form", "both", "plain", "required", "odd", "caf\u00e9"]

Tell = Callable[[dict[str, Any]], Awaitable[None]]


class RefusedError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


class RawError(Exception):
    """An answer as it goes out, whatever it is."""

    def __init__(self, line: bytes) -> None:
        super().__init__()
        self.line = line


def declares(params: dict[str, Any]) -> bool:
    return TASKS in params["_meta"][CAPABILITIES].get("extensions", {})


def said(text: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": text}], "_meta": INFO}


class Work:
    """A task of the server's own."""

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.told: dict[str, Any] = {"status": "working"}
        self.answers: dict[str, Any] = {}
        self.answered = asyncio.Event()
        self.working: asyncio.Task[None] | None = None

    def state(self, kind: str) -> dict[str, Any]:
        times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": None}
        return {"resultType": kind, "taskId": self.ident, **times, "pollIntervalMs": 10, **self.told}


class Modern:
    """Answers requests. `changed` wakes subscriptions; `pass_gate` is how the transport lets a test hold a call."""

    def __init__(self, pass_gate: Callable[[str], Awaitable[None]]) -> None:
        self.pass_gate = pass_gate
        self.region_header = "Region"
        self.versions = ["2026-07-28"]
        self.capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True},
            "logging": {},
            "extensions": {"x": {}, TASKS: {"n": 1}},
        }
        self.subscriptions: dict[Any, asyncio.Queue[dict[str, Any] | None]] = {}
        self.tasks: dict[str, Work] = {}

    async def answer(self, message: dict[str, Any], tell: Tell) -> bytes:
        """The line that answers a request."""
        head = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            result = await self.result(message, tell)
        except RefusedError as refused:
            return json.dumps({**head, "error": refused.error}).encode()
        except RawError as raw:
            return raw.line
        return json.dumps({**head, "result": result}).encode()

    async def result(self, message: dict[str, Any], tell: Tell) -> dict[str, Any]:
        method, params = message["method"], message.get("params", {})
        self.check(method, params.get("_meta", {}))
        if method == "server/discover":
            known = {"supportedVersions": self.versions, "capabilities": self.capabilities, "instructions": "Hi."}
            return {"resultType": "complete", **known, "_meta": INFO, "ttlMs": 0, "cacheScope": "public"}
        if method == "tools/list":
            return self.tools(params)
        if method == "subscriptions/listen":
            return await self.listen(message, tell)
        if method in ("resources/read", "prompts/get", "x/unheard-of"):
            cached = {"ttlMs": 7, "cacheScope": "public"} if method == "resources/read" else {}
            return {"resultType": "complete", **cached, "said": params, "_meta": INFO}
        if method.startswith("tasks/"):
            return self.about(method, params)
        if method == "x/fail":
            raise RefusedError(params["code"], "no", {"supported": [], "n": 1.0})
        if method == "tools/call":
            tool = getattr(self, f"tool_{params['name'].removeprefix('plain_')}", self.tool_echo)
            return await tool(message, params.get("arguments", {}), tell)
        raise RefusedError(-32601, "Method not found")

    def check(self, method: str, meta: dict[str, Any]) -> None:
        if method == "initialize":
            raise RefusedError(-32601, "Method not found: this server speaks 2026-07-28")
        if VERSION not in meta or CAPABILITIES not in meta:
            raise RefusedError(-32602, "incomplete _meta")
        if meta[VERSION] not in self.versions:
            raise RefusedError(-32022, "Unsupported protocol version", {"supported": self.versions})

    def tools(self, params: dict[str, Any]) -> dict[str, Any]:
        """Two pages."""
        hints = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}
        if "cursor" not in params:
            listed = [{"name": name, "inputSchema": {"type": "object"}, "x": 1.0} for name in NAMES]
            return {**hints, "tools": listed, "nextCursor": "more"}
        properties = {**REGION["properties"], "region": {"type": "string", "x-mcp-header": self.region_header}}
        region = {"name": "region", "inputSchema": {**REGION, "properties": properties}}
        return {**hints, "tools": [region, {"name": "broken", "inputSchema": BROKEN}]}

    async def listen(self, message: dict[str, Any], tell: Tell) -> dict[str, Any]:
        mark = {"_meta": {SUBSCRIPTION: message["id"]}}
        wanted = message["params"]["notifications"]
        if "refuse:x" in wanted.get("resourceSubscriptions", ()):
            raise RefusedError(-32601, "Method not found")
        queue = self.subscriptions[message["id"]] = asyncio.Queue()
        told = {"notifications": wanted, **mark}
        await tell({"method": "notifications/subscriptions/acknowledged", "params": told})
        try:
            while (note := await queue.get()) is not None:
                await tell({**note, "params": {**note.get("params", {}), **mark}})
        finally:
            del self.subscriptions[message["id"]]
        return {"resultType": "complete", **mark}

    async def tool_echo(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        return said(json.dumps(arguments))

    async def tool_job(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """A task where the client knows them, else a plain call. Asks for a name if its argument `ask` says so."""
        if not declares(message["params"]):
            return said("no task")
        work = Work(f"their-task-{len(self.tasks) + 1:08}")
        self.tasks[work.ident] = work
        work.working = asyncio.ensure_future(self.work(work, arguments))
        return work.state("task")

    async def work(self, work: Work, arguments: dict[str, Any]) -> None:
        if arguments.get("ask"):
            asked = {**FORM, "message": f"Who, {work.ident}?"}
            requests = {"their-key": {"method": "elicitation/create", "params": asked}}
            work.told = {"status": "input_required", "inputRequests": requests}
            await work.answered.wait()
            work.told = {"status": "working", "statusMessage": f"{work.ident} goes on"}
        await self.pass_gate(arguments["name"])
        if arguments.get("fail"):
            work.told = {"status": "failed", "error": {"code": -32000, "message": f"{work.ident} broke"}}
        else:
            work.told = {"status": "completed", "result": said(f"{work.ident}: {json.dumps(work.answers)}")}

    def about(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        work = self.tasks.get(params["taskId"])
        if not declares(params):
            raise RefusedError(-32021, "the extension is not declared")
        if work is None:
            raise RefusedError(-32602, f"there is no task {params['taskId']}")
        if method == "tasks/update":
            work.answers.update(params["inputResponses"])
            work.answered.set()
        elif method == "tasks/cancel" and work.working is not None:
            work.working.cancel()
            work.told = {"status": "cancelled"}
        return work.state("complete") if method == "tasks/get" else {"resultType": "complete"}

    async def tool_gate(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        await self.pass_gate(arguments["name"])
        return said(f"through {arguments['name']}")

    async def tool_wait(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        return await self.tool_slow(message, arguments, tell)

    async def tool_slow(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Begins its stream, then waits."""
        await tell({"method": "notifications/unheard-of"})
        await self.pass_gate(arguments["name"])
        return said("done")

    async def tool_fail(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        return {**said("no"), "structuredContent": {"errors": [1]}, "isError": True}

    async def tool_error(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        raise RefusedError(-32002, "no such thing", {"uri": "x", "n": 1.0})

    async def tool_odd(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        raise RawError(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (message["id"], ODD))

    async def tool_progress(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        token = message["params"]["_meta"].get("progressToken")
        for done in (1, 2):
            note = {"progressToken": token, "progress": done, "message": f"step {done}"}
            await tell({"method": "notifications/progress", "params": note})
        if "name" in arguments:
            await self.pass_gate(arguments["name"])
        return {"resultType": "complete", "content": []}

    async def tool_chatter(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Says what nobody asked for, a request included, then answers."""
        await tell({"method": "notifications/tools/list_changed"})
        await tell({"method": "notifications/unheard-of", "params": {"x": 1}})
        await tell({"id": "q1", "method": "elicitation/create", "params": {}})
        await tell({"id": 999_999, "result": {}})
        return said("done")

    async def tool_logging(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Tells which log level it was given, and logs whether it was or not."""
        await tell({"method": "notifications/unheard-of"})
        await tell({"method": "notifications/message", "params": {"level": "error", "data": "x"}})
        return said(json.dumps(message["params"]["_meta"].get("io.modelcontextprotocol/logLevel")))

    async def tool_updated(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Tells every subscription that a resource changed."""
        for queue in self.subscriptions.values():
            queue.put_nowait({"method": "notifications/resources/updated", "params": {"uri": arguments["uri"]}})
        return said("")

    async def tool_huge(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        return said("x" * 20_000)

    async def tool_nonsense(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        raise RawError(b'{"jsonrpc":"2.0","id":%d,"result":5}' % message["id"])

    async def tool_typed(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """A result as its arguments say."""
        return dict(arguments)

    async def tool_form(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Asks what its arguments say (a form for a name, if they say nothing), and tells what it heard."""
        asked = {"method": arguments.get("method", "elicitation/create"), "params": arguments.get("params", FORM)}
        return self.asking(message, {"who": asked}, arguments.get("rounds", 1))

    async def tool_both(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Asks two things at once."""
        asked = {"method": "elicitation/create", "params": FORM}
        return self.asking(message, {"a": asked, "b": asked}, 1)

    async def tool_later(self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Asks nothing and wants to be called again."""
        if "requestState" not in message["params"]:
            return {"resultType": "input_required", "requestState": STATE}
        return said(json.dumps({name: message["params"].get(name) for name in ("inputResponses", "requestState")}))

    async def tool_ask_then_wait(
        self, message: dict[str, Any], arguments: dict[str, Any], tell: Tell
    ) -> dict[str, Any]:
        """Asks, and works for long once it has the answer."""
        if "requestState" in message["params"]:
            await self.pass_gate(arguments["name"])
        return await self.tool_form(message, {}, tell)

    def asking(self, message: dict[str, Any], asked: dict[str, Any], rounds: int) -> dict[str, Any]:
        params = message["params"]
        count = len(params.get("requestState", ""))
        if count < rounds:
            return {"resultType": "input_required", "inputRequests": asked, "requestState": "s" * (count + 1)}
        return said(json.dumps(params.get("inputResponses")))


class Stdio:
    """Speaks over standard streams."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder = folder
        self.mode = mode
        self.running: dict[Any, asyncio.Task[None]] = {}
        self.modern = Modern(self.pass_gate)
        if mode == "other-version":
            self.modern.versions = ["2031-01-01"]

    async def pass_gate(self, name: str) -> None:
        while not (self.folder / f"gate-{name}").exists():
            await asyncio.sleep(0.005)

    async def tell(self, note: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **note}).encode())

    def write(self, line: bytes) -> None:
        data = line + b"\n"
        while data:
            data = data[os.write(1, data) :]

    async def serve(self, message: dict[str, Any]) -> None:
        tool = message["params"].get("name") if message["method"] == "tools/call" else None
        if tool == "die":
            os._exit(3)
        if tool == "pid":
            self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": said(str(os.getpid()))}).encode())
            return
        if tool == "changed":
            for queue in self.modern.subscriptions.values():
                queue.put_nowait({"method": "notifications/tools/list_changed"})
        if tool == "tear-down":
            for request_id in list(self.modern.subscriptions):
                await self.tell({"method": "notifications/cancelled", "params": {"requestId": request_id}})
                self.running[request_id].cancel()
        try:
            self.write(await self.modern.answer(message, self.tell))
        except asyncio.CancelledError:
            with (self.folder / "closed").open("a") as closed:
                closed.write(f"{message['id']}\n")
        finally:
            self.running.pop(message["id"], None)

    def take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "notifications/cancelled":
            running = self.running.get(message["params"]["requestId"])
            if running is not None:
                running.cancel()
        elif "id" in message and "method" in message:
            self.running[message["id"]] = asyncio.ensure_future(self.serve(message))

    async def run(self) -> None:
        reader = asyncio.StreamReader(2**24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        held: list[dict[str, Any]] = []
        with (self.folder / "seen").open("ab", buffering=0) as seen:
            while line := await reader.readline():
                message = json.loads(line)
                seen.write(json.dumps({"pid": os.getpid(), "message": message}).encode() + b"\n")
                held.append(message)
                if self.mode in ("slow-start", "slow-start-reversed") and not (self.folder / "started").exists():
                    if len(held) == 1:
                        continue  # reads nothing before it is ready, which is when it has been greeted twice
                    (self.folder / "started").touch()
                    held = held[:: -1 if self.mode.endswith("reversed") else 1]
                for one in held:
                    self.take(one)
                held = []


if __name__ == "__main__":
    asyncio.run(Stdio(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "").run())
    os._exit(0)
