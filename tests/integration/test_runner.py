"""The runner at its joints: between claim and send, between send and answer, between answer and commit."""

import asyncio
import json
from contextlib import ExitStack

import pytest

from gateway.running import runner as runner_module
from gateway.upstream.port import NotSent
from gateway.wire import work
from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement
from tests.upstream_server import answer


@pytest.fixture
async def session(client):
    await client.initialize()
    return client


async def records(redis, kind):
    return [json.loads(await redis.hget(key, "head")) for key in await redis.keys(f"*:{kind}:*")]


@requirement("OWN-SENT")
async def test_the_record_says_sent_when_the_call_arrives(session, upstream, redis):
    seen = []

    async def look(_, message):
        seen.extend(await records(redis, "o"))
        return answer(message, {"content": []})

    upstream.fault = look
    await session.legacy("tasks/result", {"taskId": await session.task("echo")})
    assert [(one["state"], one["attempt"]) for one in seen] == [("sent", 1)]


@requirement("OWN-SENT", "OWN-AWAY")
async def test_nothing_is_sent_while_sent_cannot_be_written(harness, upstream, server):
    session, hanging, away = await harness.start(store_s=1), asyncio.Event(), ExitStack()
    await session.initialize()
    holder = harness.gateways[0]._runner._holder
    send = holder.send

    async def hang(held):
        away.enter_context(server.away())
        hanging.set()
        return await send(held)

    holder.send = hang
    with away:
        task_id = await session.task("echo")
        await hanging.wait()
        assert (await session.legacy("tasks/result", {"taskId": task_id})).error["code"] == 50303
        assert upstream.calls() == []
    found = await eventually(
        lambda: session.legacy("tasks/result", {"taskId": task_id}), lambda told: "result" in told.messages[-1]
    )
    assert found.result["content"][0]["text"] == "{}"
    assert len(upstream.calls()) == 1


async def test_a_cancellation_whose_wake_up_was_lost_reaches_the_upstream(harness, upstream, monkeypatch):
    monkeypatch.setattr(runner_module, "_RECHECK_S", 0.05)
    client = await harness.start()
    await client.initialize()
    task_id = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    await harness.gateways[0].wake.close()
    await client.legacy("tasks/cancel", {"taskId": task_id})
    await upstream.until(upstream.cancelled)


async def test_a_cancellation_between_claim_and_send_sends_nothing(session, upstream, redis, harness):
    greet, claimed, cancelled = upstream._initialize, asyncio.Event(), asyncio.Event()

    async def slow(message):
        claimed.set()
        await cancelled.wait()
        return await greet(message)

    upstream._initialize = slow
    await harness.forget_upstream_sessions()
    task_id = await session.task("echo")
    await claimed.wait()
    assert (await session.legacy("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
    cancelled.set()
    assert [one["state"] for one in await records(redis, "o")] == ["dropped"]
    assert (await session.legacy_call("plain")).status == 200
    assert [call["params"]["name"] for call in upstream.calls()] == ["plain"]


@requirement("OWN-SENT")
async def test_a_record_that_expires_before_it_is_sent_leaves_nothing_open(session, upstream, redis, harness):
    greet, claimed, expired = upstream._initialize, asyncio.Event(), asyncio.Event()

    async def slow(message):
        claimed.set()
        await expired.wait()
        return await greet(message)

    upstream._initialize = slow
    await harness.forget_upstream_sessions()
    task_id = await session.task("echo")
    await claimed.wait()
    await redis.delete(*await redis.keys(f"*:t:*{task_id}"))
    expired.set()
    await eventually(lambda: records(redis, "o"), lambda found: [one["state"] for one in found] == ["dropped"])
    assert upstream.calls() == []


async def test_a_fault_of_ours_leaves_no_record_without_an_end(session, upstream, monkeypatch, harness):
    def broken(_):
        raise RuntimeError("CANARY")

    monkeypatch.setattr(work, "outcome", broken)
    told = await session.legacy("tasks/result", {"taskId": await session.task("echo")})
    assert told.error["code"] == 50305
    assert '"where":"runner","error":"RuntimeError"' in harness.log.getvalue()
    assert "CANARY" not in harness.log.getvalue()


async def test_a_fault_of_ours_before_anything_was_sent_is_not_met_again_and_again(
    session, upstream, monkeypatch, harness, redis
):
    def broken(*_):
        raise RuntimeError("CANARY")

    monkeypatch.setattr(harness.gateways[0]._runner._performing, "_open", broken)
    told = await session.legacy("tasks/result", {"taskId": await session.task("echo")})
    assert (told.error["code"], upstream.calls()) == (-32603, [])
    assert [one["state"] for one in await records(redis, "o")] == ["dropped"]
    assert harness.log.getvalue().count('"event":"fault"') == 1


async def test_work_waits_while_all_sessions_at_its_upstream_are_busy(session, upstream, harness):
    opening = harness.gateways[0].upstreams["reports"]
    free, asked = opening.open, []

    async def busy(owner, capabilities="{}", client=""):
        asked.append(owner)
        if len(asked) <= 4:
            raise NotSent("upstream_down", "all busy", again=True, busy=True)
        return await free(owner, capabilities, client)

    opening.open = busy
    told = await session.legacy("tasks/result", {"taskId": await session.task("echo", {"a": 1})})
    assert told.result["content"][0]["text"] == '{"a": 1}'


async def test_work_that_was_lost_again_and_again_is_given_up(harness, upstream, redis):
    retry = {**POLICY, "defaults": {**POLICY["defaults"], "effect": "read_only", "on_lost": "retry"}}
    client = await harness.start({**retry, "defaults": {**retry["defaults"], "max_concurrent_upstream": 1}})
    await client.initialize()
    await client.task("gate", {"name": "a"})
    task_id = await client.task("echo")
    (key,) = await redis.keys(f"*:o:*{task_id}")
    head = json.loads(await redis.hget(key, "head"))
    await redis.hset(key, "head", json.dumps({**head, "attempt": 5}))
    upstream.open("a")
    told = await client.legacy("tasks/result", {"taskId": task_id})
    assert (told.error["code"], told.error["message"]) == (50201, "given up after 5 attempts")
    assert upstream.calls("echo") == []


async def test_lost_repeatable_work_is_sent_again_after_an_outcome_nobody_knows(harness, upstream):
    retry = {**POLICY, "defaults": {**POLICY["defaults"], "effect": "idempotent", "on_lost": "retry"}}
    client = await harness.start(retry)
    await client.initialize()

    async def once(request, message):
        upstream.fault = None
        request.transport.abort()
        return answer(message, {})

    upstream.fault = once
    told = await client.legacy("tasks/result", {"taskId": await client.task("echo", {"a": 1})})
    assert told.result["content"][0]["text"] == '{"a": 1}'
    assert len(upstream.calls("echo")) == 2


@requirement("OWN-SCHEMA")
async def test_a_record_that_nobody_can_read_ends_no_loop(session, redis, harness):
    planned = {"v": 1, "st": "planned", "fn": 0, "hd": "", "dl": 2**42, "sc": 1, "ex": "1", "head": "no record"}
    keys = harness.gateways[0]._runner._store.keys
    await redis.hset(f"{keys.base}o:nobody:nothing", mapping=planned)
    await redis.zadd(keys.due("reports"), {"nobody:nothing": 0})
    await eventually(lambda: redis.hget(f"{keys.base}o:nobody:nothing", "hd"))
    answer = await session.legacy("tasks/result", {"taskId": await session.task("echo")})
    assert answer.result["content"][0]["text"] == "{}"
    assert "no record" not in harness.log.getvalue()
    await redis.delete(f"{keys.base}o:nobody:nothing")
