"""Starts the slow example server with the gateway in front of it, on this machine only.

`python examples/local.py run` prints the commands that try it and keeps running; `python examples/local.py demo`
shows a task created, polled and fetched in both dialects, and ends.
"""

import asyncio
import json
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parent.parent
POLICY = ROOT / "policies" / "example.toml"
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
META = (
    '{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientInfo":{"name":"curl","version":"1"},'
    '"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}'
)
ARGUMENTS = '{"account":"a-1","seconds":5}'

COMMANDS = """
The gateway serves {url} in front of an MCP server that knows nothing of tasks. Try it from another terminal.

# Revision 2026-07-28 with the extension io.modelcontextprotocol/tasks: the server decides that the call is a task.
curl -s {url} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\
  -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: build_report' \\
  -d '{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"build_report","arguments":{arguments},"_meta":{meta}}}}}'

# Look at it, with the taskId of the answer:
TASK=...
curl -s {url} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\
  -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tasks/get' -H "Mcp-Name: $TASK" \\
  -d '{{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{{"taskId":"'$TASK'","_meta":{meta}}}}}'

# Revision 2025-11-25: a session first, then a call that asks for a task.
SESSION=$(curl -s -D - -o /dev/null {url} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\
  -d '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"curl","version":"1"}}}}}}' \\
  | tr -d '\\r' | sed -n 's/^mcp-session-id: //Ip')
curl -s {url} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H "Mcp-Session-Id: $SESSION" \\
  -d '{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"build_report","arguments":{arguments},"task":{{"ttl":600000}}}}}}'

# Its state, and its result (which waits for the end), with the taskId of the answer:
curl -s {url} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H "Mcp-Session-Id: $SESSION" \\
  -d '{{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{{"taskId":"'$TASK'"}}}}'
curl -s {url} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H "Mcp-Session-Id: $SESSION" \\
  -d '{{"jsonrpc":"2.0","id":4,"method":"tasks/result","params":{{"taskId":"'$TASK'"}}}}'

Metrics: curl -s {admin}/metrics        Stop with Ctrl-C.
"""


async def main(mode: str) -> int:
    """Runs one of the two modes."""
    listen, admin = (8080, 8081) if mode == "run" else (free_port(), free_port())
    with tempfile.TemporaryDirectory(prefix="mcp-task-gateway-demo-") as scratch:
        data = ROOT / "data" if mode == "run" else Path(scratch)
        return await start(mode, listen, admin, data)


async def start(mode: str, listen: int, admin: int, data: Path) -> int:
    """Runs until the demonstration is over or somebody stops it."""
    async with processes(listen, admin, data) as gateway:
        url = f"http://127.0.0.1:{listen}/mcp"
        if mode == "demo":
            await demo(url)
            return 0
        print(COMMANDS.format(url=url, admin=f"http://127.0.0.1:{admin}", meta=META, arguments=ARGUMENTS), flush=True)
        return await gateway.wait()


@asynccontextmanager
async def processes(listen: int, admin: int, data: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The example server and the gateway, both answering."""
    port = free_port()
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples" / "slow_server.py"), str(port), stdout=quiet, stderr=quiet
    )
    options = ["--policy", str(POLICY), "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--upstream", f"http://127.0.0.1:{port}/mcp"),
        *(*options, "--data", str(data)),
        cwd=ROOT,
    )
    try:
        await asyncio.gather(answers(port, server), answers(listen, gateway))
        yield gateway
    finally:
        for process in (gateway, server):
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        await asyncio.gather(gateway.wait(), server.wait())


async def answers(port: int, process: asyncio.subprocess.Process) -> None:
    """Waits until something listens on the port."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        writer.close()
        return
    sys.exit(f"a process ended with {process.returncode}: is port {port} taken?")


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def demo(url: str) -> None:
    """One task in each dialect."""
    meta = json.loads(META)
    async with aiohttp.ClientSession() as http:
        print("\n== 2026-07-28: the server decides that the call is a task")
        call = {"name": "build_report", "arguments": {"account": "a-1", "seconds": 2}}
        task = await modern(http, url, "tools/call", "build_report", {**call, "_meta": meta})
        task_id = task["taskId"]
        while task["status"] == "working":
            await asyncio.sleep(0.7)
            task = await modern(http, url, "tasks/get", task_id, {"taskId": task_id, "_meta": meta})

        print("\n== 2025-11-25: the client asks for a task")
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "demo", "version": "1"}}
        _, session = await post(http, url, "initialize", hello, {})
        headers = {"Mcp-Session-Id": session}
        call = {"name": "build_report", "arguments": {"account": "a-2", "seconds": 2}, "task": {"ttl": 600_000}}
        answer, _ = await post(http, url, "tools/call", call, headers)
        asked = {"taskId": answer["result"]["task"]["taskId"]}
        await post(http, url, "tasks/get", asked, headers)
        print("-> tasks/result waits until the work is done")
        await post(http, url, "tasks/result", asked, headers)


async def modern(http: aiohttp.ClientSession, url: str, method: str, name: str, params: object) -> dict[str, Any]:
    """A request of revision 2026-07-28; its result."""
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name}
    answer, _ = await post(http, url, method, params, headers)
    return dict(answer["result"])


async def post(
    http: aiohttp.ClientSession, url: str, method: str, params: object, headers: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Sends one request and prints what comes back; the answer, and the session that came with it."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    async with http.post(url, data=body, headers={**JSON, **headers}) as response:
        text = await response.text()
        session = response.headers.get("Mcp-Session-Id", "")
        if response.content_type == "text/event-stream":
            # The first event of a stream that can be resumed has an id and no data.
            text = next(line[5:] for line in text.splitlines() if line.startswith("data: {"))
    print(f"{method}\n   {text.strip()}", flush=True)
    return json.loads(text), session


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "run")))
    except KeyboardInterrupt:
        sys.exit(0)
