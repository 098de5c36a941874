"""The operator at a running gateway, as a person sits before it: commands, a token, an audit file."""

import asyncio
import json
import sys

import aiohttp
import pytest

from tests.client import Client
from tests.e2e.processes import GatewayProcess
from tests.faults import cut
from tests.requirements import requirement
from tests.stores import wait_until
from tests.upstream_server import UpstreamServer

MORE = """\
[audit]
file = "audit.jsonl"
[admin]
token = "env:OPERATOR_TOKEN"
"""


@pytest.fixture
async def gateway(tmp_path, monkeypatch):
    monkeypatch.setenv("OPERATOR_TOKEN", "a-token-of-the-operator")
    async with UpstreamServer() as upstream:
        made = GatewayProcess(tmp_path, upstream.url)
        config = tmp_path / "config.toml"
        config.write_text(config.read_text().replace("[admin]\n", MORE))
        await asyncio.to_thread(made.start)
        yield made, upstream
        assert await asyncio.to_thread(made.stop) == 0


@requirement("OWN-OPERATE", "OWN-SWITCH", "OWN-AUDIT", "OWN-ADMIN")
async def test_an_incident_from_the_command_line(gateway, tmp_path):
    process, upstream = gateway

    async def command(*words):
        options = ["--admin", process.admin, "--token", "env:OPERATOR_TOKEN", "--json"]
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", *words, *options), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await running.communicate()
        return running.returncode, json.loads(out)

    async with aiohttp.ClientSession() as http:
        client = Client(http, process.url)
        await client.initialize()
        upstream.fault = cut
        task_id = await client.task("echo")
        await client.legacy("tasks/result", {"taskId": task_id})
        upstream.fault = None
        assert (await command("switch", "on", "--all", "--reason", "INC-1"))[0] == 0
        assert (await client.legacy_call("echo", task={})).error["code"] == 50302

    def exported():
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        return lines, [line["entry"]["outcome"] for line in lines if line["event"] == "ledger"]

    # What changes before it is exported is exported once, as it is by then: so one after the other.
    await asyncio.to_thread(wait_until, lambda: exported()[1] == ["unknown"], 10)
    words = ["--outcome", "failed", "--reason", "INC-1: nothing was booked", "--by", "ada"]
    status, settled = await command("ledger", "resolve", task_id, *words)
    assert (status, settled["operation"]["outcome"]) == (0, "failed")
    assert await asyncio.to_thread(process.stop) == 0
    lines, outcomes = exported()
    assert outcomes == ["unknown", "failed"]
    assert {line["event"] for line in lines} == {"ledger", "resolved", "switch_changed"}
