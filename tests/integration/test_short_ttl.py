"""A task whose time is shorter than its work: told so, forgotten in time, and the ledger still learns the outcome."""

import asyncio
import json

from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement
from tests.sse_client import result_of

TTL_MS = 1500
SHORT = {
    **POLICY,
    "defaults": {**POLICY["defaults"], "ttl_min_s": 1, "ttl_default_s": 1, "deadline_s": 60, "keep_result_s": 5},
}


@requirement("T25-NEW-3", "T25-RES-1", "T25-SEC-5", "TX-NEW-1", "TX-GET-4", "OWN-LATE")
async def test_a_ttl_that_ends_before_the_work(harness, upstream, redis):
    one, two = await harness.start(SHORT), await harness.start(SHORT)
    await one.initialize()
    two.session = one.session
    legacy = (await one.legacy_call("gate", {"name": "a"}, task={"ttl": TTL_MS})).result["task"]
    modern = (await two.call("gate", {"name": "b"})).result
    assert (legacy["ttl"], modern["ttlMs"]) == (TTL_MS, 1000)
    assert (await two.legacy("tasks/get", {"taskId": legacy["taskId"]})).result["ttl"] == TTL_MS
    await upstream.until(lambda: len(upstream.calls("gate")) == 2)
    async with result_of(one, legacy["taskId"], "x") as here, result_of(two, legacy["taskId"], "y") as there:
        told = await asyncio.gather(here.message(""), there.message(""))
        assert [(one["id"], one["error"]["code"]) for one in told] == [("x", -32602), ("y", -32602)]
        assert "expired" in told[0]["error"]["message"]
        assert await asyncio.gather(here.event(), there.event()) == [b"", b""]
    gone = await eventually(
        lambda: one.modern("tasks/get", {"taskId": modern["taskId"]}), lambda answer: "error" in answer.messages[0]
    )
    assert (gone.error["code"], "expired" in gone.error["message"]) == (-32602, True)
    upstream.open("a")
    upstream.open("b")
    await eventually(lambda: operations(redis), lambda found: [one["state"] for one in found] == ["answered"] * 2)
    assert [one["learnt"] for one in await operations(redis)] == ["late_answer"] * 2
    assert await redis.keys("*:t:*") == await redis.keys("*:r:*") == []
    assert len(upstream.calls("gate")) == 2
    quiet = [json.loads(line) for line in harness.log.getvalue().splitlines()]
    assert [line for line in quiet if line["level"] != "info"] == []
    steps = [(line["task"], line["operation"]) for line in quiet if line["event"] == "transition"]
    assert steps == [("working", "sent")] * 2 + [("expired", "answered")] * 2
    for client in (one, two):
        again = await client.legacy("tasks/result", {"taskId": legacy["taskId"]})
        assert [message["error"]["code"] for message in again.messages] == [-32602]


async def operations(redis):
    return [json.loads(await redis.hget(key, "head")) for key in await redis.keys("*:o:*")]
