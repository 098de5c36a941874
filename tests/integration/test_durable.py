"""What a consequential call waits for before it leaves."""

import asyncio
import random
import socket
from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from gateway.store import opening
from tests.conftest import servers
from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement
from tests.stores import Server

HARMLESS = {**POLICY, "defaults": {**POLICY["defaults"], "effect": "read_only"}}


@pytest.fixture
def _soon(monkeypatch):
    monkeypatch.setattr(opening, "SURE_S", 0.2)
    monkeypatch.setattr(random, "random", lambda: 0.1)


async def listening(redis) -> int:
    """A port that the server listens on from now on. Somebody else may take a free one first."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        with suppress(ResponseError):
            await redis.config_set("port", port)
            return port


@pytest.fixture
async def replica(redis, tmp_path, request):
    """A replica of the store's server, once it is wanted."""
    port = await listening(redis)
    await redis.config_set("repl-diskless-sync-delay", 0)
    with Server(servers()[request.node.callspec.params["server"]], tmp_path) as made:
        made.process.kill()
        made.process.wait()
        yield lambda: made.start("--replicaof", "127.0.0.1", str(port))
    await redis.config_set("port", 0)


@pytest.mark.usefixtures("_soon")
@requirement("OWN-DURABLE", "OWN-SENT")
async def test_nothing_is_sent_until_a_replica_has_it(harness, upstream, redis, replica):
    client = await harness.start(store={"sent_durability": "replica"})
    await client.initialize()
    task_id = await client.task("echo")

    async def told():
        return '"event":"sent_not_durable"' in harness.log.getvalue()

    await eventually(told)
    assert (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == "working"
    assert upstream.calls() == []
    await asyncio.to_thread(replica)
    answer = await client.legacy("tasks/result", {"taskId": task_id})
    assert answer.result["content"][0]["text"] == "{}"
    assert len(upstream.calls("echo")) == 1
    assert await redis.hget("mtg:{s0}:store", "epoch") == b"1"  # a first replica makes no other store of it


@pytest.mark.usefixtures("_soon")
@requirement("OWN-DURABLE")
async def test_what_does_no_harm_twice_waits_for_nothing(harness, upstream):
    client = await harness.start(HARMLESS, store={"sent_durability": "replica"})
    await client.initialize()
    answer = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
    assert answer.result["content"][0]["text"] == "{}"
    assert "sent_not_durable" not in harness.log.getvalue()


@requirement("OWN-DURABLE")
async def test_a_server_that_writes_its_file_is_waited_for(harness, upstream, redis):
    await redis.config_set("appendonly", "yes")
    if (await redis.info("server"))["redis_version"] < "7.2":
        await redis.config_set("appendfsync", "always")
    try:
        client = await harness.start(store={"sent_durability": "fsync"})
        await client.initialize()
        answers = [client.legacy("tasks/result", {"taskId": await client.task("echo")}) for _ in range(5)]
        assert all("content" in answer.result for answer in await asyncio.gather(*answers))
        assert len(upstream.calls("echo")) == 5
        assert "sent_not_durable" not in harness.log.getvalue()
    finally:
        await redis.config_set("appendfsync", "everysec")
        await redis.config_set("appendonly", "no")


@pytest.mark.usefixtures("_soon")
@requirement("OWN-DURABLE")
async def test_a_call_that_is_never_durable_ends_at_its_deadline_and_was_not_sent(harness, upstream):
    policy = {**POLICY, "defaults": {**POLICY["defaults"], "deadline_s": 1}}
    client = await harness.start(policy, store={"sent_durability": "replica"})
    await client.initialize()
    told = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
    assert told.error["code"] == 50401
    assert upstream.calls() == []
