"""The gateway as a desktop client runs it: a child process in front of a server of its own, over standard streams."""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.processes import alive
from tests.integration.conftest import eventually
from tests.line_client import LineClient
from tests.requirements import requirement
from tests.stdio_server import Stdio

ROOT = Path(__file__).parent.parent.parent
SLOW = [sys.executable, str(ROOT / "examples" / "slow_server.py"), "stdio"]
POLICY = ROOT / "policies" / "example.toml"


class Desktop:
    """What starts gateways. All of them have the same data and the same log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "gateway.log"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, *server: str, policy: Path = POLICY, words: tuple[str, ...] = ()) -> LineClient:
        options = words or ("--data", str(self.folder / "data"), "--policy", str(policy), "--", *server)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", "stdio", *options),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=2**26,
                env={**os.environ, "XDG_STATE_HOME": str(self.folder / "state")},
            )
        return LineClient(self.process.stdout, self.process.stdin)

    async def exit_status(self) -> int:
        async with asyncio.timeout(30):
            return await self.process.wait()

    def said(self, event: str) -> list[dict]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"event":"{event}"' in line]


@pytest.fixture
async def desktop(tmp_path):
    made = Desktop(tmp_path)
    yield made
    if made.process is not None and made.process.returncode is None:
        made.process.kill()
        await made.process.wait()
    for path in tmp_path.rglob("server.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGTERM)


async def end(desktop, client):
    """Closes its input, as clients do; it drains and says goodbye with 0, and nothing of it is left."""
    client.leave()
    status = await desktop.exit_status()
    await client.ended()
    assert (status, client.rest) == (0, b"")
    assert [one["pid"] for one in desktop.said("upstream_started") if alive(one["pid"])] == []
    return client


@requirement("OWN-STDIO", "T25-NEW-1", "T25-RES-2")
async def test_a_task_of_2025_from_the_handshake_to_the_result(desktop):
    client = await desktop.start(*SLOW)
    assert (await client.initialize())["result"]["protocolVersion"] == "2025-11-25"
    tools = (await client.ask("tools/list"))["result"]["tools"]
    assert {one["name"]: one["execution"]["taskSupport"] for one in tools} == {
        "build_report": "optional",
        "greet": "forbidden",
    }
    task_id = await client.task("build_report", {"account": "a-1", "seconds": 0.5})
    assert (await client.ask("tasks/get", {"taskId": task_id}))["result"]["status"] == "working"
    result = (await client.ask("tasks/result", {"taskId": task_id}))["result"]
    assert result["content"][0]["text"] == "Report for a-1: all is well."
    greeted = await client.ask("tools/call", {"name": "greet", "arguments": {"name": "Ada"}})
    assert greeted["result"]["content"][0]["text"] == "Hello, Ada!"
    await end(desktop, client)
    assert desktop.said("fault") == []


@requirement("OWN-STDIO", "TX-NEW-1", "TX-GET-1")
async def test_a_task_of_the_extension_from_discovery_to_the_result(desktop):
    client = await desktop.start(*SLOW)
    extensions = (await client.modern("server/discover"))["result"]["capabilities"]["extensions"]
    assert extensions == {"io.modelcontextprotocol/tasks": {}}
    call = {"name": "build_report", "arguments": {"account": "a-2", "seconds": 0.5}}
    task_id = (await client.modern("tools/call", call))["result"]["taskId"]
    done = await eventually(
        lambda: client.modern("tasks/get", {"taskId": task_id}), lambda one: one["result"]["status"] == "completed"
    )
    assert done["result"]["result"]["content"][0]["text"] == "Report for a-2: all is well."
    await end(desktop, client)
    assert desktop.said("fault") == []


@requirement("OWN-STDIO", "OWN-DRAIN")
@pytest.mark.parametrize("how", ["eof", "sigterm"])
async def test_the_end_lets_a_running_task_finish(desktop, how):
    stdio = Stdio(desktop.folder)
    client = await desktop.start(*stdio.arguments(), policy=optional(desktop.folder))
    await client.initialize()
    task_id = await client.task("gate", {"name": "a"})
    await stdio.until(lambda: stdio.calls("gate"))
    client.leave() if how == "eof" else desktop.process.send_signal(signal.SIGTERM)
    await stdio.until(lambda: desktop.said("stopping"))
    stdio.open("a")
    assert await desktop.exit_status() == 0
    again = await desktop.start(*stdio.arguments(), policy=optional(desktop.folder))
    await again.initialize()
    result = (await again.ask("tasks/result", {"taskId": task_id}))["result"]
    assert result["content"][0]["text"] == "through a"
    await end(desktop, again)


@requirement("OWN-STDIO", "OWN-DRAIN")
async def test_a_signal_after_the_end_of_input_cuts_it_short_and_the_truth_is_told(desktop):
    """Clients wait for two seconds after each word: what runs has to be told before they kill, and nothing be left."""
    stdio = Stdio(desktop.folder)
    client = await desktop.start(*stdio.arguments("late"), policy=optional(desktop.folder))
    task_id = await modern_task(client, "gate", name="never")
    await stdio.until(lambda: stdio.calls("gate"))
    client.leave()
    await stdio.until(lambda: desktop.said("stopping"))
    desktop.process.send_signal(signal.SIGTERM)
    assert await desktop.exit_status() == 0
    # A server that was waited for politely would have got SIGTERM.
    assert [one["status"] for one in desktop.said("upstream_exited")] == [-signal.SIGKILL]
    again = await desktop.start(*stdio.arguments(), policy=optional(desktop.folder))
    task = (await again.modern("tasks/get", {"taskId": task_id}))["result"]
    assert (task["status"], task["error"]["code"]) == ("failed", 50305)
    await end(desktop, again)


@requirement("OWN-STDIO", "OWN-ADOPT", "T25-SEC-1")
async def test_a_client_that_was_killed_with_its_gateway_finds_its_task_again(desktop):
    stdio = Stdio(desktop.folder)
    client = await desktop.start(*stdio.arguments(), policy=optional(desktop.folder))
    await client.initialize()
    legacy = await client.task("gate", {"name": "a"})
    modern = await modern_task(client, "gate", name="a")
    done = await modern_task(client, "echo", a=1)
    await eventually(lambda: client.modern("tasks/get", {"taskId": done}), completed)
    await stdio.until(lambda: len(stdio.calls("gate")) == 2)
    desktop.process.kill()
    await desktop.process.wait()
    again = await desktop.start(*stdio.arguments(), policy=optional(desktop.folder))
    assert completed(await again.modern("tasks/get", {"taskId": done}))
    assert (await again.modern("tasks/get", {"taskId": modern}))["result"]["status"] == "working"
    await again.initialize()
    assert (await again.ask("tasks/get", {"taskId": legacy}))["result"]["status"] == "working"
    assert desktop.said("embedded_store")[-1]["adopted"] is True
    await end(desktop, again)


@requirement("OWN-STDIO")
async def test_what_a_server_or_a_library_prints_is_not_taken_for_a_message(desktop):
    stdio = Stdio(desktop.folder)
    client = await desktop.start(*stdio.arguments(), policy=optional(desktop.folder))
    await client.initialize()
    printed = await client.task("print", {"text": "hello"})
    await client.ask("tasks/result", {"taskId": printed})
    client.send(b"x" * 5_000_000)
    await client.message(lambda one: "error" in one and "id" not in one)
    assert (await client.ask("ping"))["result"] == {}
    await end(desktop, client)


@requirement("OWN-STDIO")
async def test_a_configuration_names_which_server_is_spoken_to(desktop):
    stdio = Stdio(desktop.folder)
    config = desktop.folder / "config.toml"
    entry = '[[upstreams]]\nname = "{}"\ntransport = "stdio"\ncommand = {}\n'
    commands = [entry.format(name, json.dumps(command)) for name, command in (("a", stdio.arguments()), ("b", SLOW))]
    config.write_text("".join(['[store]\nurl = "embedded:data"\n', *commands]))
    for words, tool in ((), "echo"), (("--name", "b", "--admin", "127.0.0.1:0"), "build_report"):
        client = await desktop.start(words=("--config", str(config), *words))
        await client.initialize()
        assert (await client.ask("tools/list"))["result"]["tools"][0]["name"] == tool
        await end(desktop, client)
    assert [one["admin"][:17] for one in desktop.said("started")] == ["", "http://127.0.0.1:"]
    assert [one["upstreams"] for one in desktop.said("started")] == [["a"], ["b"]]


@requirement("OWN-STDIO")
async def test_without_a_directory_each_server_has_a_store_of_its_own_below_the_state_directory(desktop):
    stdio = Stdio(desktop.folder)
    for server in (SLOW, SLOW, stdio.arguments()):
        await end(desktop, await desktop.start(words=("--", *server)))
    below = (desktop.folder / "state" / "mcp-task-gateway").iterdir()
    stores = [path for path in below if path.is_dir()]
    assert len(stores) == 2
    assert all(one.name.startswith("upstream-") for one in stores)


async def test_it_says_what_is_wrong_and_exits_with_one(desktop):
    (desktop.folder / "data").write_text("no directory")
    client = await desktop.start(*SLOW)
    assert await desktop.exit_status() == 1
    await client.ended()
    assert client.received == []
    assert "cannot be made" in desktop.log.read_text()


def optional(folder):
    path = folder / "optional.toml"
    path.write_text('version = 1\n[defaults]\ntask_support = "optional"\ninline_ms = 0\n')
    return path


def completed(answer):
    return answer["result"]["status"] == "completed"


async def modern_task(client, tool, **arguments):
    call = {"name": tool, "arguments": arguments}
    return (await client.modern("tools/call", call))["result"]["taskId"]
