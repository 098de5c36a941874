"""The kill switch as clients meet it: refused or served without a task, at every replica, and nothing else changes."""

import asyncio
import json

import pytest

from gateway.core.model import Owner
from gateway.edge.auth import ANONYMOUS
from gateway.store.codec import switch_record
from gateway.store.keys import Keys, scope_of, tenant_digest
from tests.integration.conftest import POLICY, eventually
from tests.integration.test_input import ANN, CAN, EXTENSION, asked, form, heard, update
from tests.integration.test_recovery import crash
from tests.requirements import requirement
from tests.sse_client import opened, result_of

SWITCHES = Keys("mtg").switches
TENANT = tenant_digest(Owner(ANONYMOUS.issuer, ANONYMOUS.subject, ANONYMOUS.tenant, "reports"))
SCOPES = ["all", scope_of(upstream="reports"), scope_of(upstream="reports", tool="echo"), scope_of(tenant=TENANT)]
SYNC = {**POLICY, "defaults": {**POLICY["defaults"], "on_switch": "sync", "sync_timeout_s": 1}}


@pytest.fixture
def server(any_server):
    """What the scripts do about switches is shown for each kind of store elsewhere."""
    return any_server


async def turn(redis, scope="all", *, on=True):
    await redis.hset(SWITCHES, scope, switch_record(on=on, reason="INC-1", by="ops", at_ms=1))


async def replicas(harness, policy=None, **settings):
    """Two gateways at one store, and a client of each, in one session."""
    one, two = [await harness.start(policy, **settings) for _ in range(2)]
    await one.initialize(capabilities=CAN)
    two.session = one.session
    return one, two


def begin(client, **options):
    """Every way to ask for something that would be recorded."""
    calls = [client.legacy_call("echo", {}, task={}), client.legacy_call("echo"), client.call("echo", **options)]
    return asyncio.gather(*calls, client.call("echo", capabilities={}))


class TestRefuse:
    @requirement("OWN-SWITCH")
    async def test_every_scope_counts_at_the_next_call_at_every_replica(self, harness, upstream, redis):
        both = await replicas(harness)
        for scope in SCOPES:
            await turn(redis, scope)
            for client in both:
                for answer in await begin(client):
                    assert (answer.status, answer.error["code"]) == (200, 50302)
                    told = {"reason": "switch", "retryable": True, "scope": scope.partition(":")[0]}
                    assert answer.error["data"] == told
            assert upstream.calls() == []
            await turn(redis, scope, on=False)
            for client in both:
                assert [len(answer.result) > 0 for answer in await begin(client)] == [True] * 4
            await upstream.until(lambda: len(upstream.calls()) == 8)
            upstream.seen.clear()

    @requirement("OWN-SWITCH")
    async def test_tools_that_are_never_tasks_go_on_in_both_dialects(self, harness, upstream, redis):
        both = await replicas(harness)
        await turn(redis)
        for client in both:
            assert (await client.legacy_call("plain")).result["content"]
            assert (await client.call("plain")).result["content"]
            assert (await client.call("plain", capabilities=EXTENSION)).result["content"]  # recorded: it may be asked
            assert (await client.legacy("tools/list")).result["tools"]
        assert len(upstream.calls("plain")) == 6


class TestSync:
    @requirement("OWN-SWITCH-SYNC", "T25-CAP-7")
    async def test_whoever_asked_for_no_task_is_served_without_one(self, harness, upstream, redis):
        both = await replicas(harness, SYNC)
        await turn(redis)
        for client in both:
            refused, *served = await begin(client)
            assert (refused.status, refused.error["code"]) == (200, 50302)  # asked for a task, and gets no other
            assert [answer.result["content"][0]["text"] for answer in served] == ["{}"] * 3
            assert [answer.result.get("resultType") for answer in served] == [None, "complete", "complete"]
            for needed in (client.legacy_call("required", task={}), client.call("required")):
                assert (await needed).error["code"] == 50302
        assert len(upstream.calls("echo")) == len(upstream.calls()) == 6
        assert await redis.keys("*:ix:*") == []  # tasks that anybody could see

    @requirement("OWN-SWITCH-SYNC", "T25-CAP-7")
    async def test_no_longer_than_its_time(self, harness, upstream, redis):
        both = await replicas(harness, SYNC)
        await turn(redis)
        slow = {"name": "never"}
        calls = [both[0].legacy_call("gate", slow), both[0].call("gate", slow), both[1].call("gate", slow)]
        told = [answer.error for answer in await asyncio.gather(*calls)]
        # The upstream was told to stop, and said nothing to that.
        assert [(one["code"], one["data"]["operation"]["outcome"]) for one in told] == [(50305, "unknown")] * 3
        await upstream.until(lambda: len(upstream.cancelled()) == 3)

    @requirement("OWN-SWITCH-SYNC")
    async def test_is_over_with_the_switch(self, harness, redis):
        _, client = await replicas(harness, SYNC)
        await turn(redis)
        assert (await client.call("echo")).result["resultType"] == "complete"
        await turn(redis, on=False)
        assert (await client.call("echo")).result["resultType"] == "task"


class TestWhatIsUnderWay:
    @requirement("OWN-SWITCH")
    async def test_goes_on_and_can_be_read_answered_and_cancelled(self, harness, upstream, redis):
        one, two = await replicas(harness)
        kept = await one.task("gate", {"name": "a"})
        dropped = await one.task("gate", {"name": "never"})
        listened = (await one.call("gate", {"name": "a"})).result["taskId"]
        asking = await form(one)
        await asked(two, asking)
        await upstream.until(lambda: len(upstream.calls("gate")) == 3)
        body, headers = two.modern_request("subscriptions/listen", {"notifications": {"taskIds": [listened]}})
        async with result_of(two, kept) as waiting, opened(two, body, headers) as listening:
            await asyncio.gather(waiting.event(), listening.message("notifications/tasks"))
            await turn(redis)
            await update(two, asking, **{"input-1": ANN})
            assert (await two.legacy("tasks/cancel", {"taskId": dropped})).result["status"] == "cancelled"
            await upstream.until(upstream.cancelled)
            assert (await one.legacy("tasks/get", {"taskId": kept})).result["status"] == "working"
            upstream.open("a")
            assert (await waiting.message(""))["result"]["content"][0]["text"] == "through a"
            told = await listening.message("notifications/tasks")
            assert (told["params"]["taskId"], told["params"]["status"]) == (listened, "completed")
        answered = await eventually(
            lambda: two.modern("tasks/get", {"taskId": asking}, capabilities=EXTENSION),
            lambda answer: answer.result["status"] == "completed",
        )
        assert heard(answered.result["result"])[0]["result"] == ANN

    @requirement("OWN-SWITCH", "OWN-ONCE")
    async def test_is_taken_over_while_what_is_planned_waits_for_the_switch(self, harness, upstream, redis):
        one, other = await replicas(harness, concurrency=1, lease_s=0.5)
        harness.gateways[1]._runner.pause()
        lost = await one.task("gate", {"name": "never"})
        planned = [await one.task("echo"), (await one.call("echo")).result["taskId"]]
        await upstream.until(lambda: upstream.calls("gate"))
        await turn(redis)
        harness.gateways[1]._runner.resume()
        await crash(harness.gateways[0])
        assert (await other.legacy("tasks/result", {"taskId": lost})).error["code"] == 50305
        assert (await other.legacy("tasks/get", {"taskId": planned[0]})).result["status"] == "working"
        assert upstream.calls("echo") == []
        await turn(redis, on=False)
        assert (await other.legacy("tasks/result", {"taskId": planned[0]})).result["content"]
        await eventually(
            lambda: other.modern("tasks/get", {"taskId": planned[1]}),
            lambda answer: answer.result["status"] == "completed",
        )
        assert len(upstream.calls("echo")) == 2


@requirement("OWN-SWITCH")
@pytest.mark.parametrize("damage", ["absent", "unreadable"])
async def test_what_cannot_be_read_blocks_at_every_replica(harness, redis, damage):
    both = await replicas(harness)
    await (redis.delete(SWITCHES) if damage == "absent" else redis.hset(SWITCHES, "all", json.dumps({"on": False})))
    for client in both:
        assert [answer.error["code"] for answer in await begin(client)] == [50302] * 4
