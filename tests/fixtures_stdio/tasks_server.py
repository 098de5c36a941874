"""The server of `server.py` with Tasks of its own: revision 2025-11-25, and every tool must be called as a task.

The tool `question` asks for a form on the stream of tasks/result, `aside` asks at once; all others wait for their gate.
"""

import threading
import time

import server
from server import FOLDER, answer, ask, say

RELATED = "io.modelcontextprotocol/related-task"
TASKS: dict[str, dict] = {}
ENDED: dict[str, dict] = {}
ASKED: dict[str, threading.Event] = {}


def initialize(message: dict) -> None:
    tasks = {"cancel": {}, "requests": {"tools": {"call": {}}}}
    told = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "tasks": tasks}, "serverInfo": {"name": "u"}}
    answer(message, told)


def serve(message: dict) -> None:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        initialize(message)
    elif method == "tools/list":
        tools = [{"name": name, "execution": {"taskSupport": "required"}} for name in ("job", "question", "aside")]
        answer(message, {"tools": [{**tool, "inputSchema": {"type": "object"}} for tool in tools]})
    elif method == "tools/call":
        create(message)
    elif method.startswith("tasks/") and params.get("taskId") not in TASKS:
        say({"id": message["id"], "error": {"code": -32602, "message": "there is no such task"}})
    elif method == "tasks/get":
        answer(message, TASKS[params["taskId"]])
    elif method == "tasks/cancel":
        TASKS[params["taskId"]]["status"] = "cancelled"
        ENDED[params["taskId"]] = {"result": {}}
        answer(message, TASKS[params["taskId"]])
    elif method == "tasks/result":
        ASKED[params["taskId"]].set()
        while params["taskId"] not in ENDED:
            time.sleep(0.005)
        say({"id": message["id"], **ENDED[params["taskId"]]})
    elif "id" in message:
        say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})


def create(message: dict) -> None:
    tool, arguments = message["params"]["name"], message["params"].get("arguments", {})
    ident = f"their-task-{len(TASKS) + 1:08}"
    TASKS[ident] = {"taskId": ident, "status": "working", "createdAt": "t", "lastUpdatedAt": "t", "ttl": None}
    TASKS[ident]["pollInterval"] = 20
    ASKED[ident] = threading.Event()
    answer(message, {"task": TASKS[ident]})
    if tool in ("question", "aside"):
        if tool == "question":
            TASKS[ident]["status"] = "input_required"
            ASKED[ident].wait()
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        asked = {"message": f"Who, {ident}?", "requestedSchema": schema, "_meta": {RELATED: {"taskId": ident}}}
        heard = ask(f"q-{ident}", "elicitation/create", asked)
        told = str(heard.get("result", {}).get("content"))
    else:
        told = f"{tool} is done"
        while not (FOLDER / f"gate-{arguments['name']}").exists():
            time.sleep(0.005)
    if ident not in ENDED:
        meta = {RELATED: {"taskId": ident}}
        ENDED[ident] = {"result": {"content": [{"type": "text", "text": told}], "_meta": meta}}
        TASKS[ident]["status"] = "completed"


if __name__ == "__main__":
    server.serve = serve
    server.main()
