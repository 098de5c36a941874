"""SIGKILL while a call is under way: found again by the same identity, told truthfully, and never sent twice."""

import asyncio
import json
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.client import Client
from tests.e2e.processes import GatewayProcess, alive
from tests.integration.conftest import eventually
from tests.requirements import requirement
from tests.stores import leaks
from tests.tasks_server import TasksServer
from tests.upstream_server import UpstreamServer, answer


class Bank(UpstreamServer):
    """Writes down every charge before it answers; `charge` and `lookup` answer when their gate is open."""

    def __init__(self, ledger: Path) -> None:
        super().__init__()
        self.ledger = ledger

    async def _charge(self, _, message):
        with self.ledger.open("a") as book:
            book.write(json.dumps(message["params"]["arguments"]) + "\n")
        await self.pass_gate("charge")
        return answer(message, {"content": [{"type": "text", "text": "charged"}]})

    async def _lookup(self, _, message):
        await self.pass_gate("lookup")
        return answer(message, {"content": [{"type": "text", "text": "found"}]})


@pytest.fixture
async def bank(tmp_path):
    async with Bank(tmp_path / "ledger") as running:
        yield running


@pytest.fixture
async def gateway(tmp_path, bank):
    made = GatewayProcess(tmp_path, bank.url)
    await asyncio.to_thread(made.start)
    yield made
    bank.close_gates()
    assert await asyncio.to_thread(made.stop) == 0


async def restart(gateway):
    await asyncio.to_thread(gateway.kill)
    await asyncio.to_thread(gateway.start)


@requirement("OWN-ONCE", "OWN-ADOPT", "T25-SEC-1", "OWN-SENT")
async def test_a_charge_is_made_once_and_its_outcome_is_told_to_be_unknown(gateway, bank, http):
    client = Client(http, gateway.url)
    await client.initialize()
    legacy = await client.task("charge", {"amount": 1, "key": "k"})
    modern = (await client.call("charge", {"amount": 2, "key": "k"})).result["taskId"]
    await bank.until(lambda: len(bank.calls("charge")) == 2)
    store = gateway.store_pid
    await restart(gateway)
    assert gateway.store_pid == store
    assert gateway.said("embedded_store")[0]["adopted"] is True
    client.url = gateway.url
    assert (await client.legacy("tasks/get", {"taskId": legacy})).result["status"] == "working"
    told = await client.legacy("tasks/result", {"taskId": legacy})
    assert told.error["code"] == 50305
    await client.initialize()
    assert (await client.legacy("tasks/get", {"taskId": legacy})).result["status"] == "failed"
    task = (await client.modern("tasks/get", {"taskId": modern})).result
    assert (task["status"], task["error"]["code"]) == ("failed", 50305)
    assert len(bank.ledger.read_text().splitlines()) == 2
    redis = Redis.from_url(f"unix://{gateway.said('embedded_store')[0]['socket']}")
    entries = [await redis.hget(key, "head") for key in await redis.keys("*:o:*")]
    assert [json.loads(entry)["state"] for entry in entries] == ["unknown", "unknown"]
    assert await leaks(redis) == []
    await redis.aclose()


async def test_repeatable_work_is_started_again_and_completes(gateway, bank, http):
    client = Client(http, gateway.url)
    await client.initialize()
    task_id = await client.task("lookup")
    await bank.until(lambda: bank.calls("lookup"))
    await restart(gateway)
    bank.open("lookup")
    client.url = gateway.url
    assert (await client.legacy("tasks/result", {"taskId": task_id})).result["content"][0]["text"] == "found"
    assert len(bank.calls("lookup")) == 2


@requirement("OWN-ADOPT")
async def test_the_store_outlives_a_killed_gateway_and_ends_with_the_last_one(gateway, bank, http):
    client = Client(http, gateway.url)
    await client.initialize()
    done = await client.task("echo", {"a": 1})
    result = await client.legacy("tasks/result", {"taskId": done})
    store = gateway.store_pid
    await asyncio.to_thread(gateway.kill)
    assert alive(store)
    await asyncio.to_thread(gateway.start)
    client.url = gateway.url
    again = await client.legacy("tasks/result", {"taskId": done})
    assert again.result == result.result
    assert await asyncio.to_thread(gateway.stop) == 0
    assert not alive(store)


async def test_it_says_what_is_wrong_and_exits_with_one(gateway, tmp_path):
    second = GatewayProcess(tmp_path, "http://127.0.0.1:9/mcp")
    port = gateway.url.split(":")[2].split("/")[0]
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace('"127.0.0.1:0"', f'"127.0.0.1:{port}"', 1))
    log = tmp_path / "second.log"
    second.log = log
    with pytest.raises(AssertionError):
        await asyncio.to_thread(second.start)
    assert second.process.wait() == 1
    assert "choose another" in log.read_text()
    assert gateway.ready()


@pytest.fixture
async def theirs(tmp_path):
    async with TasksServer() as running:
        made = GatewayProcess(tmp_path, running.url)
        await asyncio.to_thread(made.start)
        yield made, running
        running.close_gates()
        assert await asyncio.to_thread(made.stop) == 0


@requirement("BR-3", "OWN-ONCE", "T25-SEC-1")
async def test_work_that_an_upstream_took_is_followed_by_the_next_process_and_never_started_again(theirs, http):
    gateway, server = theirs
    client = Client(http, gateway.url)
    await client.initialize()
    legacy = await client.task("must", {"name": "a"})
    modern = (await client.call("must", {"name": "a"})).result["taskId"]
    await server.until(lambda: len(server.asked("tasks/get")) >= 2 and len(server.tasks) == 2)
    await restart(gateway)
    client.url = gateway.url
    assert (await client.legacy("tasks/get", {"taskId": legacy})).result["status"] == "working"
    server.open("a")
    told = await client.legacy("tasks/result", {"taskId": legacy})
    assert told.result["content"][0]["text"] == f"must is done, see task {legacy}"
    task = await eventually(
        lambda: client.modern("tasks/get", {"taskId": modern}), lambda answer: answer.result["status"] == "completed"
    )
    assert task.result["result"]["content"][0]["text"] == f"must is done, see task {modern}"
    assert len(server.calls()) == len(server.tasks) == 2
