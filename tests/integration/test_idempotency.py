"""Calls that name their effect: it is begun once, whoever asks for it again, and on whichever replica."""

import asyncio
import json

import pytest

from tests.client import Client
from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement

OPERATION = "io.github.mcp-task-gateway/operation"
RULE = {
    "idempotency_key": "argument:/key",
    "intended_effect": "let {arguments.name} through",
    "object_version": "argument:/version",
    "receipt": "result:/content/0/text",
}
NAMED = {
    **POLICY,
    "tools": [
        *POLICY["tools"],
        {"match": "gate", "operation": RULE},
        {"match": "fail", "operation": RULE},
        {"match": "error", "operation": {"idempotency_key": "meta:com.example/key"}},
        {"match": "echo", "operation": {"idempotency_key": "derived", "derived_window_s": 60}},
        {"match": "odd", "task_support": "forbidden", "operation": {**RULE, "missing_key": "accept"}},
    ],
}
ARGUMENTS = {"key": "order-7", "name": "a", "version": 3}


@pytest.fixture
async def first(harness) -> Client:
    client = await harness.start(NAMED)
    await client.initialize()
    return client


@pytest.fixture
async def second(harness, first) -> Client:
    """The same principal on another replica."""
    client = await harness.start(NAMED)
    await client.initialize()
    return client


async def ended(client, task_id):
    async def look():
        return (await client.legacy("tasks/get", {"taskId": task_id})).result

    return await eventually(look, lambda task: task["status"] not in ("working", "input_required"))


async def waiters(gateway):
    """How many wait at this gateway for a record to change."""
    return sum(map(len, gateway.wake._waiting.values()))


async def operation(redis, task_id):
    (key,) = await redis.keys(f"*:o:*:{task_id}")
    return json.loads(await redis.hget(key, "head"))


@requirement("OWN-KEY-ONCE")
class TestRunning:
    async def test_the_same_call_gets_the_same_task_on_any_replica(self, first, second, upstream):
        task_id = await first.task("gate", ARGUMENTS)
        assert await second.task("gate", {"version": 3.0, "name": "a", "key": "order-7"}) == task_id
        told = await second.call("gate", ARGUMENTS)
        assert (told.result["resultType"], told.result["taskId"]) == ("task", task_id)
        upstream.open("a")
        await ended(second, task_id)
        assert len(upstream.calls("gate")) == 1

    async def test_many_at_once_begin_one_operation(self, first, second, upstream):
        clients = [first, second] * 10
        ids = {*await asyncio.gather(*(client.task("gate", ARGUMENTS) for client in clients))}
        upstream.open("a")
        (task_id,) = ids
        await ended(first, task_id)
        assert len(upstream.calls("gate")) == 1

    async def test_a_plain_call_waits_for_the_task_and_does_not_end_it(self, harness, first, second, upstream):
        task_id = await first.task("gate", ARGUMENTS)
        plain = asyncio.ensure_future(second.legacy_call("gate", ARGUMENTS))
        await eventually(lambda: waiters(harness.gateways[1]))
        upstream.open("a")
        assert (await plain).result["content"] == [{"type": "text", "text": "through a"}]
        assert (await ended(first, task_id))["status"] == "completed"
        assert len(upstream.calls("gate")) == 1

    async def test_a_task_takes_over_what_a_plain_call_began(self, first, second, upstream):
        plain = asyncio.ensure_future(first.legacy_call("gate", ARGUMENTS))
        await upstream.until(lambda: upstream.calls("gate"))
        task_id = await second.task("gate", ARGUMENTS)
        upstream.open("a")
        assert (await ended(second, task_id))["status"] == "completed"
        assert (await plain).result["content"] == [{"type": "text", "text": "through a"}]
        assert len(upstream.calls("gate")) == 1

    async def test_a_plain_call_whose_time_is_over_leaves_the_task_that_was_made_of_it(self, harness, upstream):
        client = await harness.start({**NAMED, "defaults": {**NAMED["defaults"], "sync_timeout_s": 1}})
        await client.initialize()
        plain = asyncio.ensure_future(client.legacy_call("gate", ARGUMENTS))
        await upstream.until(lambda: upstream.calls("gate"))
        task_id = await client.task("gate", ARGUMENTS)
        told = (await plain).error
        assert (told["code"], told["data"]["operation"]) == (50401, {"id": task_id, "outcome": "pending"})
        assert upstream.cancelled() == []
        upstream.open("a")
        assert (await ended(client, task_id))["status"] == "completed"

    async def test_a_legacy_client_that_lost_its_connection_finds_its_call_again(self, harness, first, upstream):
        plain = asyncio.ensure_future(first.legacy_call("gate", ARGUMENTS))
        await upstream.until(lambda: upstream.calls("gate"))
        before = await waiters(harness.gateways[0])
        plain.cancel()
        again = asyncio.ensure_future(first.legacy_call("gate", ARGUMENTS))
        await eventually(lambda: waiters(harness.gateways[0]), lambda count: count > before)
        upstream.open("a")
        assert (await again).result["content"] == [{"type": "text", "text": "through a"}]
        assert len(upstream.calls("gate")) == 1

    async def test_whoever_only_waits_along_ends_nothing_by_leaving(self, harness, first, second, upstream):
        task_id = await first.task("gate", ARGUMENTS)
        await upstream.until(lambda: upstream.calls("gate"))
        along = asyncio.ensure_future(second.call("gate", ARGUMENTS, capabilities={}))
        await eventually(lambda: waiters(harness.gateways[1]))
        along.cancel()
        await eventually(lambda: waiters(harness.gateways[1]), lambda count: count == 0)
        upstream.open("a")
        assert (await ended(first, task_id))["status"] == "completed"
        assert upstream.cancelled() == []

    async def test_other_arguments_are_a_conflict_and_begin_nothing(self, first, upstream):
        task_id = await first.task("gate", ARGUMENTS)
        told = await first.legacy_call("gate", {**ARGUMENTS, "name": "b"}, task={})
        assert told.error["code"] == 40901
        assert told.error["data"]["operation"] == {"id": task_id}
        upstream.open("a")
        await ended(first, task_id)
        assert len(upstream.calls("gate")) == 1

    @pytest.mark.parametrize("arguments", [{"name": "a"}, {"key": "", "name": "a"}, {"key": [], "name": "a"}])
    async def test_a_key_that_is_missing_or_none_is_refused(self, first, upstream, redis, arguments):
        told = await first.legacy_call("gate", arguments, task={})
        assert (told.error["code"], upstream.calls("gate")) == (-32602, [])
        assert await redis.keys("*:o:*") == []

    async def test_a_key_that_may_be_missing_is(self, first, upstream):
        assert "structuredContent" in (await first.legacy_call("odd", {})).result
        assert "structuredContent" in (await first.legacy_call("odd", {})).result
        assert len(upstream.calls("odd")) == 2


@requirement("OWN-KEY-ONCE", "OWN-LEDGER")
class TestEnded:
    async def test_the_key_tells_what_became_of_it(self, first, second, upstream, redis):
        task_id = await first.task("gate", ARGUMENTS)
        upstream.open("a")
        await ended(first, task_id)
        known = {"id": task_id, "outcome": "succeeded", "taskId": task_id}
        for told in (await second.legacy_call("gate", ARGUMENTS, task={}), await second.call("gate", ARGUMENTS)):
            assert (told.error["code"], told.error["data"]["operation"]) == (40902, known)
        entry = await operation(redis, task_id)
        assert (entry["idempotency_key"], entry["object_version"]) == ("order-7", "3")
        assert (entry["intended_effect"], entry["receipt"]) == ("let a through", '"through a"')
        assert [step["state"] for step in entry["history"]] == ["sent", "answered"]

    async def test_a_tool_error_has_ended_as_well(self, first):
        task_id = await first.task("fail", ARGUMENTS)
        await ended(first, task_id)
        told = await first.legacy_call("fail", ARGUMENTS, task={})
        assert told.error["data"]["operation"]["outcome"] == "failed"

    async def test_what_was_never_sent_may_be_begun_anew(self, harness, upstream):
        held = {**NAMED, "defaults": {**NAMED["defaults"], "max_concurrent_upstream": 1}}
        client = await harness.start(held)
        await client.initialize()
        await client.task("gate", {**ARGUMENTS, "key": "other"})
        await upstream.until(lambda: upstream.calls("gate"))
        task_id = await client.task("gate", ARGUMENTS)
        await client.legacy("tasks/cancel", {"taskId": task_id})
        again = await client.task("gate", ARGUMENTS)
        assert again != task_id
        upstream.open("a")
        assert (await ended(client, again))["status"] == "completed"
        assert len(upstream.calls("gate")) == 2

    async def test_a_cancelled_task_whose_work_goes_on_keeps_the_key(self, first, upstream):
        task_id = await first.task("gate", ARGUMENTS)
        await upstream.until(lambda: upstream.calls("gate"))
        await first.legacy("tasks/cancel", {"taskId": task_id})
        told = await first.legacy_call("gate", ARGUMENTS, task={})
        assert told.error["data"]["reason"] in ("key_settled", "outcome_unknown")
        assert len(upstream.calls("gate")) == 1

    async def test_a_key_in_the_meta_is_a_key(self, first, upstream):
        meta = {"com.example/key": "k"}
        with_key = {"name": "error", "arguments": {}, "_meta": meta, "task": {}}
        task_id = (await first.legacy("tools/call", with_key)).result["task"]["taskId"]
        await ended(first, task_id)
        assert (await first.legacy("tools/call", with_key)).error["code"] == 40902
        assert upstream.calls("error")[0]["params"]["_meta"] == meta

    async def test_clients_are_told_where_a_key_may_stand(self, first):
        told = {"io.github.mcp-task-gateway/idempotency": {"metaKeys": ["com.example/key"]}}
        assert (await first.initialize()).result["capabilities"]["experimental"] == told
        assert (await first.modern("server/discover")).result["capabilities"]["experimental"] == told

    async def test_a_derived_key_is_free_again_once_the_work_has_ended(self, first, upstream):
        for _ in range(2):
            await ended(first, await first.task("echo", {"x": 1}))
        assert len(upstream.calls("echo")) == 2


@requirement("OWN-LEDGER")
class TestTold:
    async def test_a_task_says_what_is_known_of_its_effect(self, first, upstream):
        made = (await first.legacy_call("gate", ARGUMENTS, task={})).result
        task_id = made["task"]["taskId"]
        assert made["_meta"][OPERATION] == {"id": task_id, "outcome": "pending"}
        upstream.open("a")
        assert (await ended(first, task_id))["_meta"][OPERATION] == {"id": task_id, "outcome": "succeeded"}
        result = (await first.legacy("tasks/result", {"taskId": task_id})).result
        assert result["_meta"][OPERATION] == {"id": task_id, "outcome": "succeeded"}
        modern = (await first.modern("tasks/get", {"taskId": task_id})).result
        assert modern["_meta"][OPERATION] == {"id": task_id, "outcome": "succeeded"}
        assert modern["result"]["_meta"][OPERATION] == {"id": task_id, "outcome": "succeeded"}

    async def test_the_end_of_a_task_is_not_the_end_of_the_effect(self, first, upstream):
        task_id = await first.task("gate", ARGUMENTS)
        await upstream.until(lambda: upstream.calls("gate"))
        told = (await first.legacy("tasks/cancel", {"taskId": task_id})).result
        assert (told["status"], told["_meta"][OPERATION]["outcome"]) == ("cancelled", "pending")

        async def look():
            return (await first.legacy("tasks/get", {"taskId": task_id})).result

        shown = await eventually(look, lambda task: task["_meta"][OPERATION]["outcome"] == "unknown")
        assert shown["status"] == "cancelled"

    async def test_tools_without_a_ledger_say_nothing_of_it(self, first):
        made = (await first.legacy_call("lookup", {}, task={})).result
        assert "_meta" not in made
        assert "_meta" not in await ended(first, made["task"]["taskId"])
