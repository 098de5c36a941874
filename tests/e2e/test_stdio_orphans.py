"""Whatever ends a gateway, nothing is left of the servers that it ran and of what they started."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client import Client
from tests.e2e.processes import GatewayProcess, alive
from tests.requirements import requirement
from tests.stdio_server import Stdio
from tests.stores import wait_until


class StdioGateway(GatewayProcess):
    """A gateway whose configuration names a command."""

    def __init__(self, folder, mode=""):
        super().__init__(folder, "URL")
        self.stdio = Stdio(folder)
        config = folder / "config.toml"
        command = f'transport = "stdio"\ncommand = {json.dumps(self.stdio.arguments(mode))}'
        config.write_text(config.read_text().replace('url = "URL"', command))

    @property
    def servers(self):
        return [entry["pid"] for entry in self.said("upstream_started")]


class ServeCommand(StdioGateway):
    """A gateway as `serve -- COMMAND` runs it."""

    def start(self):
        self.log.write_bytes(b"")
        options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", str(self.folder / "data")]
        words = [*options, "--policy", str(self.folder / "policy.toml"), "--env", "API_TOKEN"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", *words, "--", *self.stdio.arguments()],
                stdout=log,
                stderr=log,
                env={**os.environ, "API_TOKEN": "SECRET-123", "OTHER": "SECRET-456"},
            )
        wait_until(lambda: self.said("started") or self.process.poll() is not None, 20)
        assert self.process.poll() is None, self.log.read_text()


async def connected(gateway, http):
    client = Client(http, gateway.url)
    await client.initialize()
    return client


async def text(client, tool, arguments=None):
    answer = await client.legacy("tasks/result", {"taskId": await client.task(tool, arguments)})
    return answer.result["content"][0]["text"]


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def until_dead(*pids):
    await asyncio.to_thread(wait_until, lambda: not any(map(alive, pids)), 20)


@requirement("OWN-ONCE", "OWN-ORPHANS")
@pytest.mark.parametrize("mode", ["", "stubborn"])
async def test_a_killed_gateway_leaves_no_process_and_its_call_is_unknown(tmp_path, http, mode):
    """The server may ignore the end of its input and SIGTERM; what it started does, in its group and outside of it."""
    gateway = StdioGateway(tmp_path, mode)
    await asyncio.to_thread(gateway.start)
    client = await connected(gateway, http)
    started = [int(await text(client, "spawn", {"detached": detached})) for detached in (False, True)]
    task_id = await client.task("gate", {"name": "never"})
    await gateway.stdio.until(lambda: gateway.stdio.calls("gate"))
    pids = [*gateway.servers, *started]
    assert len(pids) == 3
    assert all(map(alive, pids))
    await asyncio.to_thread(gateway.kill)
    await until_dead(*pids)
    await asyncio.to_thread(gateway.start)
    client.url = gateway.url
    assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 50305
    assert await asyncio.to_thread(gateway.stop) == 0


async def test_a_server_dies_with_its_keeper_also_where_nobody_is_left_to_end_it(tmp_path, http):
    gateway = StdioGateway(tmp_path, "stubborn")
    await asyncio.to_thread(gateway.start)
    await text(await connected(gateway, http), "pid")
    (server,) = gateway.servers
    keeper = parent(server)
    gateway.process.send_signal(signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    await until_dead(server)
    gateway.process.send_signal(signal.SIGCONT)
    assert await asyncio.to_thread(gateway.stop) == 0


async def test_a_gateway_in_front_of_a_command_that_is_stopped_leaves_no_process(tmp_path, http):
    gateway = ServeCommand(tmp_path)
    await asyncio.to_thread(gateway.start)
    client = await connected(gateway, http)
    environment = json.loads(await text(client, "env"))
    assert (environment["API_TOKEN"], environment.get("OTHER")) == ("SECRET-123", None)
    started = int(await text(client, "spawn"))
    pids = [*gateway.servers, started]
    assert all(map(alive, pids))
    assert await asyncio.to_thread(gateway.stop) == 0
    assert not any(map(alive, pids))
    assert "SECRET" not in gateway.log.read_text()
