"""Calls whose holder has gone: their streams are taken up at the upstream, where it keeps them."""

import asyncio
import json

import pytest

from tests.integration.conftest import POLICY, eventually
from tests.integration.test_input import ANN, CAN, asked, update
from tests.integration.test_recovery import crash
from tests.requirements import requirement
from tests.resumable_server import ResumableServer


@pytest.fixture
async def upstream():
    async with ResumableServer() as running:
        yield running


async def begun(harness, redis, policy=None, drain_s=5.0, lease_s=1, **arguments):
    """A gateway that holds a call and has kept where it stands, and a client of another one; its task."""
    client = await harness.start(policy, drain_s=drain_s, lease_s=lease_s)
    await client.initialize(capabilities=CAN)
    task = await client.task("keep", {"name": "a", **arguments})
    await eventually(lambda: redis.keys("*:at:*"))
    other = await harness.start(policy)
    other.session = client.session
    return other, task


async def operation(redis):
    (key,) = await redis.keys("*:o:*")
    return json.loads(await redis.hget(key, "head"))


class TestHolderThatDied:
    @requirement("OWN-REATTACH", "OWN-ONCE")
    async def test_leaves_its_answer_to_the_next_one(self, harness, upstream, redis):
        other, task = await begun(harness, redis)
        await crash(harness.gateways[0])
        await upstream.until(lambda: upstream.asked)
        upstream.open("a")
        told = await other.legacy("tasks/result", {"taskId": task})
        assert told.result["content"][0]["text"] == "kept"
        assert (len(upstream.calls()), (await operation(redis))["state"]) == (1, "answered")
        await eventually(lambda: redis.keys("*:at:*"), lambda keys: not keys)
        assert '"event":"reattached"' in harness.log.getvalue()

    @requirement("OWN-REATTACH", "OWN-ONCE")
    async def test_is_told_as_unknown_where_the_upstream_refuses(self, harness, upstream, redis):
        other, task = await begun(harness, redis)
        upstream.refusal = 404
        await crash(harness.gateways[0])
        assert (await other.legacy("tasks/result", {"taskId": task})).error["code"] == 50305
        assert (len(upstream.calls()), len(upstream.asked)) == (1, 1)
        assert (await operation(redis))["state"] == "unknown"

    @requirement("OWN-REATTACH")
    async def test_of_repeatable_work_has_it_repeated_only_where_its_answer_cannot_be_had(
        self, harness, upstream, redis
    ):
        policy = {**POLICY, "defaults": {**POLICY["defaults"], "effect": "read_only", "on_lost": "retry"}}
        other, task = await begun(harness, redis, policy)
        await crash(harness.gateways[0])
        await upstream.until(lambda: upstream.asked)
        upstream.open("a")
        assert "result" in (await other.legacy("tasks/result", {"taskId": task})).messages[-1]
        assert len(upstream.calls()) == 1

    @requirement("OWN-REATTACH", "OWN-FENCE")
    async def test_cannot_move_what_is_kept_once_somebody_else_holds_the_call(self, harness, upstream, redis):
        await begun(harness, redis)
        gateway = harness.gateways[0]
        (held,) = gateway._runner._held.values()
        streams = gateway._runner._performing._streams
        assert await streams.attach(held.ref, held.fence, b"mine", 60_000)
        assert not await streams.attach(held.ref, held.fence - 1, b"theirs", 60_000)
        assert await streams.attachment(held.ref) == b"mine"

    @requirement("OWN-REATTACH")
    async def test_asked_a_question_that_is_not_asked_twice(self, harness, upstream, redis):
        other, task = await begun(harness, redis, ask=True)
        await asked(other, task)
        await crash(harness.gateways[0])
        await upstream.until(lambda: upstream.asked)
        (key,) = (await asked(other, task))["inputRequests"]
        await update(other, task, **{key: ANN})
        upstream.open("a")
        told = await other.legacy("tasks/result", {"taskId": task})
        assert json.loads(told.result["content"][0]["text"]) == ANN

    @requirement("OWN-REATTACH", "T25-CAN-3")
    async def test_left_a_cancellation_untold_which_the_next_one_tells_once(self, harness, upstream, redis):
        other, task = await begun(harness, redis)
        gateway = harness.gateways[0]
        for loop in gateway._runner._loops:
            loop.cancel()
        (held,) = gateway._runner._held.values()
        held.stop = asyncio.Event()  # the wake-up is lost, and the process dies before it looks
        assert (await other.legacy("tasks/cancel", {"taskId": task})).result["status"] == "cancelled"
        await crash(gateway)
        await eventually(lambda: _state(redis), lambda state: state == "unknown")
        assert upstream.cancelled() == [upstream.calls()[0]["id"]]


class TestHolderThatStops:
    @requirement("OWN-REATTACH", "OWN-DRAIN")
    async def test_leaves_its_calls_to_others_at_once(self, harness, upstream, redis):
        other, task = await begun(harness, redis, drain_s=0.05, lease_s=600)
        stopping = asyncio.create_task(harness.gateways[0].stop())
        await upstream.until(lambda: upstream.asked)
        upstream.open("a")
        told = await other.legacy("tasks/result", {"taskId": task})
        assert told.result["content"][0]["text"] == "kept"
        await stopping
        assert len(upstream.calls()) == 1

    @requirement("OWN-REATTACH", "OWN-DRAIN")
    async def test_does_not_take_them_again_while_others_have_their_last_words(self, harness, upstream, redis):
        await begun(harness, redis, drain_s=0.05)
        gateway = harness.gateways[0]
        runner, other, rounds = gateway._runner, harness.gateways.pop(), []
        await other.stop()
        (kept,) = runner._held.values()
        await harness.clients[0].task("gate", {"name": "b"})
        await upstream.until(lambda: upstream.calls("gate"))
        finish, run_once = runner._holder.finish, runner.run_once

        async def over():  # the first round may have begun before
            return runner._loops[0].done() or len(rounds) > 1

        async def counted():
            found = await run_once()
            if kept.task.done():
                rounds.append(found)
            return found

        async def last_words(*what, **how):
            await eventually(over)
            await finish(*what, **how)

        runner.run_once, runner._holder.finish = counted, last_words
        await gateway.stop()
        (key,) = await redis.keys(f"*:o:{kept.member}")
        assert await redis.hmget(key, "st", "hd") == [b"sent", b""]
        assert upstream.asked == []


async def _state(redis):
    return (await operation(redis))["state"]
