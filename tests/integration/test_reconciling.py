"""Work whose answer was lost, and an authority that knows what became of it. The work is never sent a second time."""

import asyncio
import json

import pytest
from aiohttp import web

from gateway.core import engine
from gateway.running import reconciling
from gateway.running.reconciling import Pauses
from gateway.store.codec import switch_record
from gateway.wire import work
from tests.integration.conftest import POLICY, eventually
from tests.integration.test_admin import Operator
from tests.integration.test_recovery import crash
from tests.requirements import requirement
from tests.upstream_server import UpstreamServer, answer

OPERATION = "io.github.mcp-task-gateway/operation"
AUTHORITY = {
    "tool": "state",
    "arguments": {"id": "{arguments.key}", "deep": [{"n": "{arguments.n}"}]},
    "outcome": "result:/structuredContent/state",
    "succeeded": ["booked"],
    "failed": ["absent"],
    "receipt": "result:/structuredContent/receipt",
}
CHARGE = {"key": "order-7", "n": 1.0}
READ_ONLY = {"match": "state", "effect": "read_only"}


def policy(on_lost="reconcile", **changes):
    rule = {"idempotency_key": "argument:/key", "reconcile": {**AUTHORITY, **changes}}
    charge = {"match": "charge", "on_lost": on_lost, "operation": rule}
    return {**POLICY, "tools": [*POLICY["tools"], READ_ONLY, charge]}


class Bank(UpstreamServer):
    """`charge` books and loses its answer; `state` says what is next in `words`, the last one for ever.

    A word that is no text is a fault: a status, or None for a connection that breaks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.booked: list[str] = []
        self.words: list[object] = ["pending"]
        self.hangs = False
        self.answers = False

    async def _charge(self, request, message):
        self.booked.append(message["params"]["arguments"]["key"])
        if self.answers:
            await self.pass_gate("charge")
            return answer(message, {"content": [{"type": "text", "text": "charged"}]})
        request.transport.abort()
        return web.Response()

    async def _state(self, request, message):
        said = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        if self.hangs:
            await self.pass_gate("state")
        if said is None:
            request.transport.abort()
        if not isinstance(said, str):
            return web.Response(status=said or 200)
        shown = {"state": said, "receipt": {"no": 1.0}}
        return answer(message, {"content": [], "structuredContent": shown, "isError": said == "isError"})


@pytest.fixture
def server(any_server):
    """One kind of store is enough here: the contract tests know both."""
    return any_server


@pytest.fixture
async def upstream():
    async with Bank() as running:
        yield running


async def started(harness, rules, session=None, **runner):
    """A gateway that asks again in a moment, and a client of it."""
    client = await harness.start(rules, **runner)
    harness.gateways[-1]._runner._reconciling._pauses = Pauses(0.01, 0.02)
    if session is None:
        await client.initialize()
    else:
        client.session = session
    return client


async def shown(client, task_id):
    return (await client.legacy("tasks/get", {"taskId": task_id})).result


async def entry(redis, task_id):
    """The operation in the ledger."""
    (key,) = await redis.keys(f"*:o:*{task_id}")
    return {**json.loads(await redis.hget(key, "head")), "expires": await redis.pttl(key)}


async def until_state(redis, task_id, state="reconciled"):
    return await eventually(lambda: entry(redis, task_id), lambda found: found["state"] == state)


def events(harness, name):
    return [line for line in map(json.loads, harness.log.getvalue().splitlines()) if line["event"] == name]


async def watched(redis):
    return await redis.zrange("mtg:{s0}:watch:reports", 0, -1)


@requirement("OWN-RECONCILE", "OWN-OPERATE")
async def test_a_task_that_waits_hears_what_the_operator_says(harness, upstream, redis, http):
    client = await started(harness, policy())
    task_id = await client.task("charge", CHARGE)
    await upstream.until(lambda: upstream.calls("state"))
    settled = {"outcome": "succeeded", "reason": "INC-1", "by": "ada"}
    said = await Operator(http, harness.gateways[0]).post(f"/api/ledger/{task_id}/resolve", settled)
    assert (said.status, said.body["operation"]["learnt"]) == (200, "resolved")
    told = (await client.legacy("tasks/result", {"taskId": task_id})).error
    assert (told["code"], told["data"]["operation"]) == (40902, {"id": task_id, "outcome": "succeeded"})
    assert (await entry(redis, task_id))["state"] == "reconciled"
    assert len(upstream.booked) == 1


@requirement("OWN-RECONCILE", "OWN-ONCE")
class TestATaskThatWaits:
    @pytest.mark.parametrize(
        ("era", "word", "outcome", "done"),
        [("legacy", "booked", "succeeded", "done"), ("modern", "absent", "failed", "not done")],
    )
    async def test_hears_what_the_authority_says_in_both_dialects(
        self, harness, upstream, redis, era, word, outcome, done
    ):
        client = await started(harness, policy())
        upstream.hangs, upstream.words = True, [word]
        if era == "legacy":
            task_id = await client.task("charge", CHARGE)
        else:
            task_id = (await client.call("charge", CHARGE)).result["taskId"]
        await upstream.until(lambda: upstream.calls("state"))
        asked = await shown(client, task_id)
        assert (asked["status"], asked["_meta"][OPERATION]["outcome"]) == ("working", "unknown")
        upstream.open("state")
        told = (await client.legacy("tasks/result", {"taskId": task_id})).error
        assert (told["code"], told["message"]) == (40902, f"the answer was lost; the work was {done}")
        assert told["data"] == {
            "reason": "key_settled",
            "retryable": False,
            "operation": {"id": task_id, "outcome": outcome},
        }
        modern = (await client.modern("tasks/get", {"taskId": task_id})).result
        assert (modern["status"], modern["error"]) == ("failed", told)
        assert modern["_meta"][OPERATION] == {"id": task_id, "outcome": outcome}
        known = await entry(redis, task_id)
        assert (known["learnt"], known["receipt"]) == ("reconciled", '{"no": 1.0}')
        assert [step["state"] for step in known["history"]] == ["sent", "unknown", "reconciled"]
        assert known["expires"] > 0
        (question,) = upstream.calls("state")
        assert question["params"] == {"name": "state", "arguments": {"id": "order-7", "deep": [{"n": 1.0}]}}
        assert upstream.booked == ["order-7"]

    async def test_waits_on_when_nothing_is_told(self, harness, upstream, redis, monkeypatch):
        monkeypatch.setattr(reconciling, "_LONGEST_S", 0.3)
        client = await started(harness, policy())
        upstream.words = ["pending", "isError", 500, None, "booked"]
        task_id = await client.task("charge", CHARGE)
        answered = await client.legacy("tasks/result", {"taskId": task_id})
        assert answered.error["data"]["operation"]["outcome"] == "succeeded"
        assert len(upstream.calls("state")) == 5
        failed = [line["reason"] for line in events(harness, "reconcile_failed")]
        assert failed == ["word", "error", "upstream_bad", "upstream_down"]
        assert [line["questions"] for line in events(harness, "reconciled")] == [5]
        assert [line["cause"] for line in events(harness, "transition")] == ["send", "lose", "reconcile"]
        assert upstream.booked == ["order-7"]

    async def test_waits_on_when_the_authority_does_not_answer(self, harness, upstream, monkeypatch):
        monkeypatch.setattr(reconciling, "_LONGEST_S", 0.1)
        client = await started(harness, policy())
        upstream.hangs, upstream.words = True, ["booked"]
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.cancelled() and len(upstream.calls("state")) > 1)
        upstream.open("state")
        assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 40902
        assert events(harness, "reconcile_failed")[0]["reason"] == "deadline"

    async def test_waits_on_while_the_upstream_is_away(self, harness, upstream):
        client = await started(harness, policy())
        upstream.words = ["pending", "booked"]
        harness.gateways[0]._runner._reconciling._pauses = Pauses(0.2, 0.2)
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.calls("state"))
        (site,) = upstream._runner.sites
        port = upstream._runner.addresses[0][1]
        await site.stop()
        await eventually(lambda: failures(harness), lambda reasons: "upstream_down" in reasons)
        await upstream.listen(port)
        assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 40902
        assert upstream.booked == ["order-7"]

    @pytest.mark.parametrize("era", ["legacy", "modern"])
    async def test_can_be_cancelled_and_the_ledger_learns_it_all_the_same(self, harness, upstream, redis, era):
        client = await started(harness, policy())
        upstream.hangs, upstream.words = True, ["booked"]
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.calls("state"))
        await getattr(client, era)("tasks/cancel", {"taskId": task_id})
        assert (await shown(client, task_id))["status"] == "cancelled"
        upstream.open("state")
        assert (await until_state(redis, task_id))["outcome_kind"] == "result"
        assert (await shown(client, task_id))["status"] == "cancelled"
        assert len(upstream.calls("state")) == 1

    async def test_ends_as_unknown_with_the_budget_and_nobody_is_asked_any_more(self, harness, upstream, redis):
        client = await started(harness, policy(budget_s=1))
        task_id = await client.task("charge", CHARGE)
        told = (await client.legacy("tasks/result", {"taskId": task_id})).error
        assert (told["code"], told["data"]["operation"]) == (50305, {"id": task_id, "outcome": "unknown"})
        await eventually(lambda: failures(harness), lambda reasons: reasons[-1:] == ["budget"])
        await eventually(lambda: watched(redis), lambda members: members == [])
        left = await entry(redis, task_id)
        assert (left["state"], left["expires"]) == ("unknown", -1)
        assert [await redis.zcard(key) for key in await redis.keys("mtg:{s0}:un*")] == [1]
        assert len(upstream.calls("state")) == left["inquiry"]["tries"] - 1
        assert upstream.booked == ["order-7"]

    async def test_ends_as_unknown_with_its_deadline_and_the_asking_goes_on(self, harness, upstream, redis):
        rules = policy()
        rules["tools"][-1]["deadline_s"] = 1
        client = await started(harness, rules)
        task_id = await client.task("charge", CHARGE)
        told = (await client.legacy("tasks/result", {"taskId": task_id})).error
        assert told["code"] == 50305
        upstream.words = ["booked"]
        await until_state(redis, task_id)
        assert (await client.legacy("tasks/result", {"taskId": task_id})).error == told

    async def test_does_not_end_before_its_deadline_because_the_next_question_is_far(self, harness, upstream, redis):
        client = await started(harness, policy())
        harness.gateways[0]._runner._reconciling._pauses = Pauses(10_000, 10_000)
        task_id = await client.task("charge", CHARGE)
        await eventually(lambda: failures(harness))
        left = await eventually(lambda: entry(redis, task_id), lambda found: found["inquiry"]["tries"] == 1)
        assert left["inquiry"]["next_ms"] == left["deadline_ms"] - reconciling.LAST_MS
        assert (await shown(client, task_id))["status"] == "working"

    async def test_needs_no_slot_between_two_questions_and_one_for_each(self, harness, upstream):
        client = await started(harness, policy(), concurrency=1)
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.calls("state"))
        gate = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        asked, upstream.words = len(upstream.calls("state")), ["booked"]
        assert (await shown(client, task_id))["status"] == "working"
        upstream.open("a")
        assert "result" in (await client.legacy("tasks/result", {"taskId": gate})).messages[-1]
        assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 40902
        assert len(upstream.calls("state")) == asked + 1


async def failures(harness):
    return [line["reason"] for line in events(harness, "reconcile_failed")]


@requirement("OWN-RECONCILE", "OWN-KEY-ONCE")
class TestTheKey:
    async def test_leads_to_the_task_that_waits(self, harness, upstream):
        client = await started(harness, policy())
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.calls("state"))
        assert await client.task("charge", CHARGE) == task_id
        assert (await client.call("charge", CHARGE)).result["taskId"] == task_id
        along = asyncio.ensure_future(client.legacy_call("charge", CHARGE))
        upstream.words = ["booked"]
        for told in (await along, await client.legacy("tasks/result", {"taskId": task_id})):
            assert told.error["data"]["operation"] == {"id": task_id, "outcome": "succeeded"}
        assert upstream.booked == ["order-7"]

    @pytest.mark.parametrize(("word", "outcome"), [("booked", "succeeded"), ("absent", "failed")])
    async def test_is_refused_until_it_is_known_and_then_tells_the_outcome(
        self, harness, upstream, redis, word, outcome
    ):
        client = await started(harness, policy("unknown"))
        task_id = await client.task("charge", CHARGE)
        ended = (await client.legacy("tasks/result", {"taskId": task_id})).error
        assert (ended["code"], ended["data"]["operation"]["outcome"]) == (50305, "unknown")
        for told in (await client.legacy_call("charge", CHARGE, task={}), await client.call("charge", CHARGE)):
            known = {"id": task_id, "outcome": "unknown", "taskId": task_id}
            assert (told.error["code"], told.error["data"]["operation"]) == (50305, known)
        await redis.hset("mtg:{s0}:sw", "all", switch_record(on=True, reason="r", by="ops", at_ms=1))
        upstream.words = [word]  # asking goes on while a switch is on
        await until_state(redis, task_id)
        told = await client.legacy_call("charge", CHARGE, task={})
        assert told.error["code"] == 40902
        assert told.error["data"]["operation"] == {"id": task_id, "outcome": outcome, "taskId": task_id}
        assert (await client.legacy("tasks/result", {"taskId": task_id})).error == ended
        seen = await shown(client, task_id)
        assert (seen["status"], seen["_meta"][OPERATION]["outcome"]) == ("failed", outcome)
        assert upstream.booked == ["order-7"]


@requirement("OWN-RECONCILE", "OWN-ONCE")
class TestAnotherProcess:
    async def test_asks_when_the_holder_died_after_sending(self, harness, upstream):
        client = await started(harness, policy())
        upstream.answers, upstream.words = True, ["booked"]
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.booked)
        other = await started(harness, policy(), client.session)
        await crash(harness.gateways[0])
        told = (await other.legacy("tasks/result", {"taskId": task_id})).error
        assert told["data"]["operation"] == {"id": task_id, "outcome": "succeeded"}
        assert upstream.booked == ["order-7"]

    @pytest.mark.parametrize("how", ["crash", "stop"])
    async def test_asks_on_when_the_one_that_asked_has_gone(self, harness, upstream, redis, how):
        client = await started(harness, policy(), drain_s=0.05)
        upstream.hangs, upstream.words = True, ["booked"]
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.calls("state"))
        first = harness.gateways[0]
        await (crash(first) if how == "crash" else first.stop())
        (key,) = await redis.keys(f"*:o:*{task_id}")
        assert bool(await redis.hget(key, "hd")) is (how == "crash")  # who stops leaves it to others at once
        upstream.hangs = False
        other = await started(harness, policy(), client.session)
        assert (await other.legacy("tasks/result", {"taskId": task_id})).error["code"] == 40902
        assert len(upstream.calls("state")) == 2
        assert upstream.booked == ["order-7"]

    async def test_asks_on_what_a_living_one_forgot(self, harness, upstream):
        client = await started(harness, policy())
        upstream.hangs, upstream.words = True, ["booked"]
        task_id = await client.task("charge", CHARGE)
        await upstream.until(lambda: upstream.calls("state"))
        (running,) = harness.gateways[0]._runner._held.values()
        running.fence = -1
        running.task.cancel()
        upstream.hangs = False
        assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 40902

    @pytest.mark.parametrize("change", ["no rule", "another tool", "not read-only"])
    async def test_asks_nobody_whom_its_policy_does_not_name(self, harness, upstream, redis, change):
        client = await started(harness, policy())
        harness.gateways[0]._runner._reconciling._pauses = Pauses(60, 60)
        task_id = await client.task("charge", CHARGE)
        await eventually(lambda: failures(harness))
        await harness.gateways[0].stop()
        rules = policy(tool="other") if change == "another tool" else policy()
        if change == "not read-only":
            rules["tools"].remove(READ_ONLY)
        await redis.zadd("mtg:{s0}:watch:reports", {(await watched(redis))[0]: 0})
        other = await started(harness, POLICY if change == "no rule" else rules, client.session)
        await eventually(lambda: failures(harness), lambda reasons: "policy" in reasons)
        assert len(upstream.calls("state")) == 1
        assert (await shown(other, task_id))["status"] == "working"


@requirement("OWN-LATE", "OWN-RECONCILE")
@pytest.mark.parametrize(("on_lost", "status"), [("reconcile", "completed"), ("unknown", "failed")])
async def test_a_late_answer_of_the_work_itself_is_believed_and_nobody_is_asked(
    harness, upstream, redis, on_lost, status
):
    client = await started(harness, policy(on_lost))
    upstream.answers = True
    task_id = await client.task("charge", CHARGE)
    await upstream.until(lambda: upstream.booked)
    runner = harness.gateways[0]._runner
    runner.pause()  # nobody takes on the asking: a claim would take the work from its holder
    (held,) = runner._held.values()
    await runner._holder.finish(held, engine.Lose(), work.LOST)
    await until_state(redis, task_id, "unknown")
    upstream.open("charge")
    assert (await until_state(redis, task_id, "answered"))["learnt"] == "late_answer"
    assert (await shown(client, task_id))["status"] == status
    assert await watched(redis) == []
    assert upstream.calls("state") == []
    assert upstream.booked == ["order-7"]


@requirement("OWN-RECONCILE")
async def test_a_fault_of_ours_is_a_question_in_vain(harness, upstream):
    client = await started(harness, policy())
    asking = harness.gateways[0]._runner._reconciling
    sites, asking._sites = asking._sites, {}
    upstream.words = ["booked"]
    task_id = await client.task("charge", CHARGE)
    await eventually(lambda: failures(harness), lambda reasons: "fault" in reasons)
    asking._sites = sites
    assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 40902
