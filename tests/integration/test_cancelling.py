"""Cancelling a task from end to end: from whichever replica, told once, and both truths are kept."""

import asyncio
import json

import pytest

from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement


async def cancel(client, task, dialect):
    return await getattr(client, dialect)("tasks/cancel", {"taskId": task})


async def twins(harness, policy=None):
    """A client of the gateway that does the work, and one of another gateway at the same store, that does none."""
    client = await harness.start(policy)
    await client.initialize()
    other = await harness.start(policy)
    other.session = client.session
    harness.gateways[1]._runner.pause()
    return client, other


async def operation(redis, task):
    (key,) = await redis.keys(f"*:o:*{task}")
    return json.loads(await redis.hget(key, "head"))


@requirement("T25-CAN-3", "TX-CAN-1")
@pytest.mark.parametrize("dialect", ["legacy", "modern"])
async def test_on_another_replica_tells_the_upstream_once_and_by_our_own_id(harness, upstream, redis, dialect):
    client, other = await twins(harness)
    task = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    for _ in range(3):
        await cancel(other, task, dialect)
    await eventually(lambda: operation(redis, task), lambda found: found["state"] == "unknown")
    assert upstream.cancelled() == [upstream.calls("gate")[0]["id"]]
    assert (await other.legacy("tasks/get", {"taskId": task})).result["status"] == "cancelled"


@requirement("OWN-SENT", "TX-CAN-1")
@pytest.mark.parametrize("dialect", ["legacy", "modern"])
async def test_of_planned_work_on_another_replica_sends_nothing(harness, upstream, redis, dialect):
    policy = {**POLICY, "defaults": {**POLICY["defaults"], "max_concurrent_upstream": 1}}
    client, other = await twins(harness, policy)
    first = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    waiting = await client.task("echo")
    await cancel(other, waiting, dialect)
    assert (await operation(redis, waiting))["state"] == "dropped"
    upstream.open("a")
    await client.legacy("tasks/result", {"taskId": first})
    await client.legacy("tasks/result", {"taskId": await client.task("odd")})
    assert (upstream.calls("echo"), upstream.cancelled()) == ([], [])


@requirement("T25-CAN-1", "OWN-LATE")
async def test_that_races_the_answer_leaves_the_task_cancelled_and_the_operation_answered(harness, upstream, redis):
    client, other = await twins(harness)
    task = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    assert (await cancel(other, task, "legacy")).result["status"] == "cancelled"
    upstream.open("a")
    found = await eventually(lambda: operation(redis, task), lambda found: found["state"] != "sent")
    assert (found["state"], found["learnt"], found["outcome_kind"]) == ("answered", "late_answer", "result")
    assert (await other.legacy("tasks/get", {"taskId": task})).result["status"] == "cancelled"
    assert (await other.legacy("tasks/result", {"taskId": task})).error["code"] == 49901


@requirement("TX-CAN-2", "T25-CAN-3")
async def test_of_a_bounded_call_whose_gateway_only_waits_is_told_where_the_call_is(harness, upstream):
    _, other = await twins(harness)
    calling = asyncio.create_task(other.call("gate", {"name": "a"}, capabilities={}))
    await upstream.until(lambda: upstream.calls("gate"))
    calling.cancel()
    await upstream.until(upstream.cancelled)
    assert upstream.cancelled() == [upstream.calls("gate")[0]["id"]]


@requirement("OWN-LEDGER", "OWN-OPERATE")
async def test_of_a_bounded_call_by_the_operator_claims_nothing_that_is_not_known(
    client, harness, http, upstream, redis
):
    await client.initialize()
    calling = asyncio.create_task(client.legacy_call("gate", {"name": "a"}))
    await upstream.until(lambda: upstream.calls("gate"))
    (key,) = await redis.keys("*:o:*")
    name = key.decode().rpartition(":")[2]
    async with http.post(f"{harness.gateways[0].admin_address}/api/tasks/{name}/cancel", json={}) as response:
        assert response.status == 200
    error = (await calling).error
    assert (error["code"], error["data"]["operation"]) == (49901, {"id": name, "outcome": "pending"})
