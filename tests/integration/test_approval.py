"""Calls that their requestor has to agree to: shown, asked for, answered anywhere, sent once or not at all."""

import asyncio
import json

import pytest

from gateway.store.codec import switch_record
from gateway.store.keys import scope_of
from tests.client import TASKS
from tests.integration.conftest import POLICY, eventually
from tests.integration.test_recovery import crash
from tests.requirements import requirement
from tests.sse_client import opened, result_of, session_stream
from tests.upstream_server import answer

FORM = {"elicitation": {"form": {}}}
EXTENSION = {**TASKS, **FORM}
YES = {"action": "accept", "content": {"approve": True}}
NO = {"action": "accept", "content": {"approve": False}}
ARGUMENTS = {"amount": 7, "to": "Bo", "key": "k-1"}


def policy(approval=None, **settings):
    rule = {
        "idempotency_key": "argument:/key",
        "receipt": "result:/structuredContent/receipt",
        "approval": {"message": "Pay {arguments.amount}?", "preview_tool": "show", **(approval or {})},
    }
    charge = {"match": "charge", "operation": rule, **settings}
    return {**POLICY, "tools": [*POLICY["tools"], {"match": "show", "effect": "read_only"}, charge]}


@pytest.fixture
def money(upstream):
    """The upstream, with a tool that pays and one that shows what it would do."""

    async def charge(_, message):
        return answer(message, {"content": [{"type": "text", "text": "paid"}], "structuredContent": {"receipt": "r-1"}})

    async def show(_, message):
        given = message["params"]["arguments"]
        return answer(message, {"content": [{"type": "text", "text": f"{given['amount']} for {given['to']}\x07"}]})

    upstream._charge, upstream._show = charge, show
    return upstream


@pytest.fixture
async def client(harness, money):
    return await harness.start(policy())


async def get(client, task_id):
    return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=EXTENSION)).result


async def until(client, task_id, *states):
    return await eventually(lambda: get(client, task_id), lambda task: task["status"] in states)


async def asked(client, task_id):
    return (await until(client, task_id, "input_required"))["inputRequests"]["approval"]


async def ended(client, task_id):
    return await until(client, task_id, "completed", "failed", "cancelled")


async def begun(client, arguments=None):
    """A task that waits for its approval."""
    called = await client.call("charge", arguments or ARGUMENTS, capabilities=EXTENSION)
    task_id = called.result["taskId"]
    await asked(client, task_id)
    return task_id


async def update(client, task_id, result=YES):
    params = {"taskId": task_id, "inputResponses": {"approval": result}}
    return await client.modern("tasks/update", params, capabilities=EXTENSION)


async def entries(redis):
    return [json.loads(await redis.hget(key, "head")) for key in await redis.keys("*:o:*")]


async def legacy_answer(client, request_id, **body):
    return await client.post({"jsonrpc": "2.0", "id": request_id, **body}, client.session)


@requirement("OWN-APPROVE", "OWN-LEDGER")
async def test_is_shown_first_and_sent_once_after_a_yes_on_any_replica(client, harness, money, redis):
    other = await harness.start(policy())
    task_id = await begun(client)
    task = await get(other, task_id)
    assert task["statusMessage"] == "waits for approval"
    question = task["inputRequests"]["approval"]
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == "Pay 7? Preview: 7 for Bo"
    (shown,) = money.calls()
    assert (shown["params"]["name"], shown["params"]["arguments"]) == ("show", ARGUMENTS)
    await update(other, task_id)
    done = await ended(other, task_id)
    assert (done["status"], done["result"]["content"][0]["text"], "statusMessage" in done) == (
        "completed",
        "paid",
        False,
    )
    assert [call["params"]["name"] for call in money.calls()] == ["show", "charge"]
    (entry,) = await entries(redis)
    assert (entry["state"], entry["receipt"]) == ("answered", '"r-1"')
    assert entry["created_ms"] <= entry["approval"]["granted_ms"] <= entry["updated_ms"]
    assert [step["state"] for step in entry["history"]] == ["sent", "answered"]
    assert done["_meta"]["io.github.mcp-task-gateway/operation"] == {"id": task_id, "outcome": "succeeded"}


@requirement("OWN-APPROVE")
@pytest.mark.parametrize("result", [NO, {"action": "cancel"}])
async def test_a_no_ends_it_with_nothing_sent(client, money, redis, result):
    task_id = await begun(client)
    await update(client, task_id, result)
    error = (await ended(client, task_id))["error"]
    assert (error["code"], error["data"]["operation"]) == (49902, {"id": task_id, "outcome": "none"})
    assert money.calls("charge") == []
    assert [entry["state"] for entry in await entries(redis)] == ["dropped"]


@requirement("OWN-APPROVE")
async def test_no_answer_in_time_ends_it_with_nothing_sent_whatever_the_switches_say(harness, money, redis):
    rules = policy({"timeout_s": 1})
    blocked = {**rules["tools"][-1], "match": "echo"}
    client = await harness.start({**rules, "tools": [*rules["tools"], blocked]})
    tasks = [
        (await client.call(tool, ARGUMENTS, capabilities=EXTENSION)).result["taskId"] for tool in ("charge", "echo")
    ]
    await asked(client, tasks[1])
    record = switch_record(on=True, reason="incident", by="ops", at_ms=0)
    await redis.hset("mtg:{s0}:sw", scope_of(upstream="reports", tool="echo"), record)
    for task_id in tasks:
        error = (await ended(client, task_id))["error"]
        assert (error["code"], error["data"]["operation"]["outcome"]) == (50402, "none")
        assert (await update(client, task_id)).result["resultType"] == "complete"
    assert {call["params"]["name"] for call in money.calls()} == {"show"}


@requirement("OWN-APPROVE")
async def test_a_cancelled_task_is_not_sent_whatever_is_answered(client, money):
    task_id = await begun(client)
    await client.modern("tasks/cancel", {"taskId": task_id}, capabilities=EXTENSION)
    await update(client, task_id)
    assert (await get(client, task_id))["status"] == "cancelled"
    assert money.calls("charge") == []


class TestLegacy:
    @pytest.fixture
    async def session(self, client):
        await client.initialize(capabilities=FORM)
        return client

    @requirement("OWN-APPROVE")
    @pytest.mark.parametrize(
        ("body", "code"), [({"result": YES}, None), ({"error": {"code": -1, "message": "m"}}, 49902)]
    )
    async def test_is_asked_on_a_stream_of_the_task(self, session, money, body, code):
        task_id = await session.task("charge", ARGUMENTS)
        async with result_of(session, task_id) as stream:
            question = await stream.message("elicitation/create")
            assert question["params"]["message"] == "Pay 7? Preview: 7 for Bo"
            told = (await session.legacy("tasks/get", {"taskId": task_id})).result
            assert (told["status"], told["statusMessage"]) == ("input_required", "waits for approval")
            assert (await legacy_answer(session, question["id"], **body)).status == 202
            done = await stream.message("")
        assert done.get("error", {}).get("code") == code
        assert len(money.calls("charge")) == (code is None)

    @requirement("OWN-APPROVE")
    async def test_is_asked_on_the_stream_of_the_session_and_answered_by_another_replica(self, session, harness, money):
        other = await harness.start(policy())
        other.session = session.session
        async with session_stream(session) as stream:
            task_id = await session.task("charge", ARGUMENTS)
            question = await stream.message("elicitation/create")
            assert (await legacy_answer(other, question["id"], result=NO)).status == 202
        assert (await other.legacy("tasks/result", {"taskId": task_id})).error["code"] == 49902
        assert money.calls("charge") == []

    @requirement("OWN-APPROVE")
    @pytest.mark.parametrize("support", ["optional", "forbidden"])
    async def test_is_asked_on_the_stream_of_a_call_that_waits(self, harness, money, support):
        client = await harness.start(policy(task_support=support))
        await client.initialize(capabilities=FORM)
        params = {"name": "charge", "arguments": ARGUMENTS}
        body = {"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": params}
        async with opened(client, body, client.session) as stream:
            question = await stream.message("elicitation/create")
            await legacy_answer(client, question["id"], result=YES)
            assert (await stream.message(""))["result"]["content"][0]["text"] == "paid"
        assert len(money.calls("charge")) == 1


@requirement("OWN-APPROVE")
@pytest.mark.parametrize(
    ("settings", "capabilities"),
    [
        ({"input_phase": "before"}, EXTENSION),
        ({"task_support": "optional"}, FORM),
        ({"task_support": "forbidden"}, FORM),
    ],
)
async def test_is_asked_before_the_answer_of_a_modern_call_that_waits(harness, money, settings, capabilities):
    settings = {**settings, "inline_ms": 5000}
    client = await harness.start(policy(**settings))
    other = await harness.start(policy(**settings))
    first = (await client.call("charge", ARGUMENTS, capabilities=capabilities)).result
    assert (first["resultType"], list(first["inputRequests"])) == ("input_required", ["approval"])
    assert money.calls("charge") == []
    params = {"name": "charge", "arguments": ARGUMENTS, "requestState": first["requestState"]}
    again = {**params, "inputResponses": {"approval": YES}}
    done = (await other.modern("tools/call", again, capabilities=capabilities)).result
    if done["resultType"] == "task":
        done = (await ended(other, done["taskId"]))["result"]
    assert done["content"][0]["text"] == "paid"
    assert len(money.calls("charge")) == 1


@requirement("OWN-APPROVE")
async def test_a_client_that_cannot_be_asked_is_refused_before_anything_is_begun(client, money, redis):
    for capabilities in (TASKS, {**TASKS, "elicitation": {"url": {}}}, {}):
        refused = await client.call("charge", ARGUMENTS, capabilities=capabilities)
        assert (refused.status, refused.error["code"]) == (400, -32021)
        assert refused.error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}
    await client.initialize(capabilities={"sampling": {}})
    for task in ({"task": {"ttl": 1000}}, {}):
        legacy = await client.legacy_call("charge", ARGUMENTS, **task)
        assert (legacy.status, legacy.error["code"], legacy.error["data"]["reason"]) == (200, -32021, "capability")
    assert await entries(redis) == []
    assert money.calls() == []


@requirement("OWN-APPROVE")
async def test_a_client_of_the_extension_may_be_taken_to_show_forms(harness, money):
    client = await harness.start(policy({"preview_tool": None}, assume_elicitation=True))
    task_id = (await client.call("charge", ARGUMENTS)).result["taskId"]
    question = await asked(client, task_id)
    assert question["params"]["message"] == "Pay 7?"
    await update(client, task_id)
    assert (await ended(client, task_id))["status"] == "completed"
    assert [call["params"]["name"] for call in money.calls()] == ["charge"]


@requirement("OWN-APPROVE")
async def test_what_the_tool_itself_asks_comes_after_the_approval(harness, money):
    tool = {"match": "form", "operation": {"approval": {"message": "Really?"}}}
    client = await harness.start({**POLICY, "tools": [tool]})
    task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]
    await asked(client, task_id)
    assert money.calls() == []
    await update(client, task_id)
    task = await eventually(lambda: get(client, task_id), lambda task: "input-2" in task.get("inputRequests", {}))
    assert (list(task["inputRequests"]), "statusMessage" in task) == (["input-2"], False)
    params = {"taskId": task_id, "inputResponses": {"input-2": {"action": "decline"}}}
    await client.modern("tasks/update", params, capabilities=EXTENSION)
    assert (await ended(client, task_id))["status"] == "completed"


class TestPreview:
    @requirement("OWN-APPROVE", "OWN-QUIET")
    @pytest.mark.parametrize(
        ("tool_says", "told"),
        [
            ({"content": [{"type": "text", "text": "CANARY"}], "isError": True}, "CANARY"),
            ({"content": []}, None),
            (None, '{"code":'),
        ],
    )
    async def test_that_fails_ends_the_task_with_nothing_sent(self, client, harness, money, tool_says, told):
        async def show(request, message):
            return await money._error(request, message) if tool_says is None else answer(message, tool_says)

        money._show = show
        task_id = (await client.call("charge", ARGUMENTS, capabilities=EXTENSION)).result["taskId"]
        task = await ended(client, task_id)
        assert (task["status"], task["error"]["code"]) == ("failed", 50202)
        assert task["error"]["data"]["operation"]["outcome"] == "none"
        assert task["error"]["data"].get("preview") == (told if told == "CANARY" else None)
        assert "CANARY" not in task["statusMessage"] + harness.log.getvalue()
        assert money.calls("charge") == []

    @requirement("OWN-APPROVE")
    async def test_is_made_in_a_new_session_when_the_old_one_has_ended(self, client, money):
        await client.modern("tools/list", capabilities=EXTENSION)
        money.sessions.clear()
        task_id = await begun(client)
        await update(client, task_id)
        assert (await ended(client, task_id))["status"] == "completed"

    @requirement("OWN-APPROVE")
    async def test_that_takes_too_long_is_given_up(self, client, money, monkeypatch):
        monkeypatch.setattr("gateway.running.approving._PREVIEW_S", 0.05)

        async def show(_, message):
            await money.pass_gate("never")
            return answer(message, {})

        money._show = show
        task_id = (await client.call("charge", ARGUMENTS, capabilities=EXTENSION)).result["taskId"]
        assert (await ended(client, task_id))["error"]["code"] == 50201
        await money.until(money.cancelled)
        assert money.calls("charge") == []


@requirement("OWN-APPROVE")
async def test_a_switch_that_is_on_when_the_answer_comes_holds_the_work_back(client, money, redis):
    task_id = await begun(client)
    record = {"reason": "incident", "by": "ops", "at_ms": 0}
    await redis.hset("mtg:{s0}:sw", "all", switch_record(on=True, **record))
    await update(client, task_id)
    (due,) = await redis.keys("*:due:*")

    async def held_back():
        seconds, micros = await redis.time()
        return any(
            at > seconds * 1000 + micros // 1000 + 500 for _, at in await redis.zrange(due, 0, -1, withscores=True)
        )

    await eventually(held_back)
    assert (await get(client, task_id))["status"] == "working"
    assert money.calls("charge") == []
    await redis.hset("mtg:{s0}:sw", "all", switch_record(on=False, **record))
    assert (await ended(client, task_id))["status"] == "completed"
    assert len(money.calls("charge")) == 1


class TestReplicas:
    @requirement("OWN-APPROVE", "OWN-KEY-ONCE")
    async def test_a_retry_while_it_waits_finds_the_task_that_waits(self, client, harness, money):
        other = await harness.start(policy())
        task_id = await begun(client)
        again = await asyncio.gather(
            *(one.call("charge", ARGUMENTS, capabilities=EXTENSION) for one in (client, other))
        )
        assert [one.result["taskId"] for one in again] == [task_id, task_id]
        await update(other, task_id)
        assert (await ended(client, task_id))["status"] == "completed"
        assert [call["params"]["name"] for call in money.calls()] == ["show", "charge"]

    @requirement("OWN-APPROVE")
    async def test_of_two_answers_one_counts_and_one_call_is_sent(self, client, harness, money):
        other = await harness.start(policy())
        tasks = [await begun(client, {**ARGUMENTS, "key": f"k-{number}"}) for number in range(6)]
        answers = [(client, YES), (other, YES)] * 4 + [(client, YES), (other, NO)] * 2
        pairs = zip([one for one in tasks for _ in range(2)], answers, strict=True)
        await asyncio.gather(*(update(one, task_id, result) for task_id, (one, result) in pairs))
        states = [(await ended(client, task_id))["status"] for task_id in tasks]
        assert states[:4] == ["completed"] * 4
        keys = [call["params"]["arguments"]["key"] for call in money.calls("charge")]
        assert sorted(keys) == [f"k-{number}" for number, state in enumerate(states) if state == "completed"]

    @requirement("OWN-APPROVE")
    async def test_a_gateway_that_dies_while_it_waits_is_not_needed(self, client, harness, money):
        task_id = await begun(client)
        await crash(harness.gateways[0])
        other = await harness.start(policy())
        await update(other, task_id)
        assert (await ended(other, task_id))["status"] == "completed"
        assert [call["params"]["name"] for call in money.calls()] == ["show", "charge"]

    @requirement("OWN-APPROVE", "OWN-ONCE")
    async def test_a_gateway_that_dies_after_the_yes_and_before_the_call_is_replaced(
        self, client, harness, money, redis
    ):
        task_id = await begun(client)
        greet, opening = money._initialize, asyncio.Event()

        async def stuck(message):
            money._initialize = greet
            opening.set()
            await money.pass_gate("stuck")
            return await greet(message)

        await harness.forget_upstream_sessions()
        money._initialize = stuck
        await update(client, task_id)
        await opening.wait()
        (entry,) = await entries(redis)
        assert (entry["state"], entry["approval"]["granted_ms"] is None) == ("planned", False)
        await crash(harness.gateways[0])
        other = await harness.start(policy())
        done = await ended(other, task_id)
        assert (done["status"], len(done.get("inputRequests", {}))) == ("completed", 0)
        assert [call["params"]["name"] for call in money.calls()] == ["show", "charge"]


@requirement("OWN-QUIET", "OWN-APPROVE")
async def test_what_is_shown_is_for_the_requestor_only(client, harness, money):
    task_id = await begun(client, {"amount": "CANARY-1", "to": "CANARY-2", "key": "CANARY-3"})
    shown = await asked(client, task_id)
    assert shown["params"]["message"] == "Pay CANARY-1? Preview: CANARY-1 for CANARY-2"
    await update(client, task_id)
    await ended(client, task_id)
    async with client.http.get(harness.gateways[0].admin_address + "/metrics") as response:
        assert "CANARY" not in await response.text() + harness.log.getvalue()
