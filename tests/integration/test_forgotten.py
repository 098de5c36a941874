"""A store that has become another one and has forgotten the latest writes, as after a failover or a restored backup."""

import json

import pytest

from tests.integration.conftest import eventually
from tests.requirements import requirement


async def becomes_another(redis):
    await redis.hset("mtg:{s0}:store", "run", "another")


async def forgets_that_it_was_sent(redis, task_id):
    """The operation is as it was before anybody claimed it, in a store that is another one from the same moment on."""
    (key,) = await redis.keys(f"*:o:*{task_id}")
    head = json.loads(await redis.hget(key, "head"))
    head |= {"state": "planned", "version": 1, "attempt": 0, "history": [], "handle": None, "place": None}
    fields = {"head": json.dumps(head), "v": 1, "st": "planned", "fn": 0, "hd": ""}
    member = key.decode().partition(":o:")[2]
    async with redis.pipeline(transaction=True) as at_once:
        at_once.hset(key, mapping=fields)
        at_once.zadd("mtg:{s0}:due:reports", {member: 0})
        at_once.zrem("mtg:{s0}:watch:reports", member)
        at_once.hset("mtg:{s0}:store", "run", "another")
        await at_once.execute()
    return key


async def state(redis, key):
    return (await redis.hget(key, "st")).decode()


@pytest.fixture
async def running(harness, upstream):
    """A client, and its call that is under way."""
    client = await harness.start()
    await client.initialize()
    task_id = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    return client, task_id


@requirement("OWN-DOUBT", "OWN-ONCE")
async def test_a_call_that_is_under_way_is_not_made_again_and_completes(harness, upstream, redis, running):
    client, task_id = running
    other = await harness.start()
    key = await forgets_that_it_was_sent(redis, task_id)
    await eventually(lambda: state(redis, key), lambda found: found == "sent")
    upstream.open("a")
    other.session = client.session
    answer = await other.legacy("tasks/result", {"taskId": task_id})
    assert answer.result["content"][0]["text"] == "through a"
    assert len(upstream.calls("gate")) == 1
    assert await state(redis, key) == "answered"
    assert '"event":"store_reminded"' in harness.log.getvalue()


@requirement("OWN-DOUBT", "OWN-ONCE")
async def test_an_answer_that_comes_before_anybody_has_noticed_is_written(harness, upstream, redis, running):
    client, task_id = running
    for loop in harness.gateways[0]._runner._loops:
        loop.cancel()
    key = await forgets_that_it_was_sent(redis, task_id)
    upstream.open("a")
    answer = await client.legacy("tasks/result", {"taskId": task_id})
    assert answer.result["content"][0]["text"] == "through a"
    assert await state(redis, key) == "answered"
    history = json.loads(await redis.hget(key, "head"))["history"]
    assert [step["state"] for step in history] == ["sent", "answered"]


@requirement("OWN-DOUBT", "OWN-ONCE")
async def test_what_nobody_holds_becomes_unknown_and_new_work_goes_on(harness, upstream, redis):
    client = await harness.start(concurrency=1)
    await client.initialize()
    await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    waiting = await client.task("gate", {"name": "b"})
    await becomes_another(redis)
    told = await client.legacy("tasks/result", {"taskId": waiting})
    assert (told.error["code"], "may have lost" in told.error["message"]) == (50305, True)
    assert len(upstream.calls("gate")) == 1
    upstream.open("a")
    answer = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
    assert answer.result["content"][0]["text"] == "{}"


@requirement("OWN-DOUBT")
async def test_a_cancelled_task_whose_work_may_have_been_sent_is_not_said_to_have_done_nothing(
    harness, upstream, redis
):
    client = await harness.start(concurrency=1, takeover_grace_s=30)
    await client.initialize()
    await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    waiting = await client.task("gate", {"name": "b"})
    await becomes_another(redis)
    assert (await client.legacy("tasks/cancel", {"taskId": waiting})).result["status"] == "cancelled"
    (key,) = await redis.keys(f"*:o:*{waiting}")
    assert await state(redis, key) == "unknown"


@requirement("OWN-DOUBT", "OWN-QUIET")
async def test_an_outcome_without_a_record_is_told_to_the_log(harness, upstream, redis, running):
    _, task_id = running
    await redis.delete(*await redis.keys(f"*{task_id}"))
    upstream.open("a")

    async def told():
        return [line for line in harness.log.getvalue().splitlines() if '"event":"record_gone"' in line]

    (line,) = await eventually(told)
    assert (json.loads(line)["outcome"], json.loads(line)["level"]) == ("result", "error")
    assert task_id not in line
    assert "through" not in line
