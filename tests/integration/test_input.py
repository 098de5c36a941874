"""Questions of an upstream during a task, in both dialects and from any replica."""

import asyncio
import json

import pytest

from tests.client import TASKS
from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement
from tests.sse_client import opened, result_of, session_stream

CAN = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}
EXTENSION = {**TASKS, **CAN}
RELATED = "io.modelcontextprotocol/related-task"
ANN = {"action": "accept", "content": {"name": "Ann"}}
SAMPLE = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}}


@pytest.fixture
async def session(client):
    await client.initialize(capabilities=CAN)
    return client


async def asked(client, task_id):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=EXTENSION)).result

    return await eventually(look, lambda task: task["status"] == "input_required")


async def ended(client, task_id):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=EXTENSION)).result

    return await eventually(look, lambda task: task["status"] in ("completed", "failed", "cancelled"))


async def update(client, task_id, **answers):
    params = {"taskId": task_id, "inputResponses": answers}
    return await client.modern("tasks/update", params, capabilities=EXTENSION)


async def form(client, tool="form", arguments=None):
    return (await client.call(tool, arguments, capabilities=EXTENSION)).result["taskId"]


def heard(result):
    return json.loads(result["content"][0]["text"])


async def legacy_answer(client, request_id, **body):
    return await client.post({"jsonrpc": "2.0", "id": request_id, **body}, client.session)


class TestExtension:
    @requirement("TX-GET-1", "TX-UPD-1")
    async def test_a_question_is_asked_and_its_answer_goes_back_from_any_replica(self, client, harness):
        other = await harness.start()
        task_id = await form(client)
        task = await asked(other, task_id)
        assert task["inputRequests"] == {
            "input-1": {
                "method": "elicitation/create",
                "params": {
                    "message": "Who?",
                    "requestedSchema": task["inputRequests"]["input-1"]["params"]["requestedSchema"],
                    "_meta": {"com.example/k": 1.0},
                },
            }
        }
        told = await update(other, task_id, **{"input-1": ANN, "input-9": ANN})
        assert told.result["resultType"] == "complete"
        result = (await ended(client, task_id))["result"]
        assert heard(result)[0]["result"] == ANN

    @requirement("TX-UPD-2", "TX-UPD-3")
    async def test_two_are_asked_at_once_and_may_be_answered_one_by_one(self, client):
        task_id = await form(client, "both")

        async def both():
            return (await asked(client, task_id))["inputRequests"]

        assert sorted(await eventually(both, lambda found: len(found) == 2)) == ["input-1", "input-2"]
        await update(client, task_id, **{"input-2": ANN})
        assert list((await asked(client, task_id))["inputRequests"]) == ["input-1"]
        await update(client, task_id, **{"input-2": {"action": "decline"}, "input-1": {"action": "cancel"}})
        answers = [one["result"] for one in heard((await ended(client, task_id))["result"])]
        assert sorted(answers, key=str) == sorted([ANN, {"action": "cancel"}], key=str)

    @requirement("TX-UPD-4")
    @pytest.mark.parametrize(
        ("params", "answer"),
        [
            ({}, {"action": "accept", "content": {"name": 7}}),
            ({}, {"action": "accept", "content": {}}),
            ({}, {"action": "accept"}),
            ({}, {"action": "yes"}),
            ({}, []),
            ({}, "x"),
            ({}, {"action": "decline", "x": "y" * 300_000}),
            ({"method": "sampling/createMessage", "params": {}}, {"role": "assistant"}),
            ({"method": "roots/list", "params": {}}, {"x": []}),
        ],
    )
    async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(self, client, params, answer):
        task_id = await form(client, arguments=params)
        await asked(client, task_id)
        refused = await update(client, task_id, **{"input-1": answer})
        assert (refused.status, refused.error["code"]) == (200, -32602)
        assert list((await asked(client, task_id))["inputRequests"]) == ["input-1"]

    @requirement("TX-UPD-4")
    @pytest.mark.parametrize(
        ("question", "answer"),
        [
            ({"method": "sampling/createMessage", "params": {"maxTokens": 1}}, SAMPLE),
            ({"method": "roots/list", "params": {}}, {"roots": []}),
            ({"params": {"mode": "url", "url": "https://x.example", "message": "m"}}, {"action": "accept"}),
        ],
    )
    async def test_everything_that_can_be_asked_can_be_answered(self, client, question, answer):
        task_id = await form(client, arguments=question)
        await asked(client, task_id)
        await update(client, task_id, **{"input-1": answer})
        assert heard((await ended(client, task_id))["result"])[0]["result"] == answer

    @requirement("T25-INP-2")
    @pytest.mark.parametrize(
        "question", [{"method": "sampling/createMessage"}, {"params": {"mode": "url"}}, {"method": "x/y"}]
    )
    async def test_what_was_not_declared_is_refused_upstream_and_the_task_goes_on(self, client, question, upstream):
        declared = {**TASKS, "elicitation": {}}
        task_id = (await client.call("form", question, capabilities=declared)).result["taskId"]
        assert heard((await ended(client, task_id))["result"])[0]["error"]["code"] == -32601
        (initialize,) = [message for message in upstream.seen if message.get("method") == "initialize"]
        assert initialize["params"]["capabilities"] == {"elicitation": {}}

    @requirement("T25-INP-3")
    async def test_nobody_waits_for_input_for_ever(self, harness, upstream):
        client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], "input_timeout_s": 1}})
        task = await ended(client, await form(client))
        assert (task["status"], task["error"]["code"]) == ("failed", 50402)
        await upstream.until(upstream.cancelled)

    async def test_a_cancelled_task_is_asked_nothing_any_more(self, client, upstream):
        task_id = await form(client)
        await asked(client, task_id)
        await client.modern("tasks/cancel", {"taskId": task_id}, capabilities=EXTENSION)
        assert (await ended(client, task_id))["status"] == "cancelled"
        refused = await update(client, task_id, **{"input-1": ANN})
        assert refused.result["resultType"] == "complete"

    async def test_an_inline_wait_ends_when_something_is_asked(self, harness):
        client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], "inline_ms": 30_000}})
        created = (await client.call("form", capabilities=EXTENSION)).result
        assert created["resultType"] == "task"
        assert "input-1" in (await asked(client, created["taskId"]))["inputRequests"]


class TestBefore:
    @pytest.fixture
    async def first(self, harness):
        tools = [*POLICY["tools"], {"match": "form", "input_phase": "before"}]
        tools += [{"match": "gate", "input_phase": "before"}, {"match": "echo", "input_phase": "before"}]
        self.policy = {**POLICY, "tools": tools}
        return await harness.start(self.policy)

    async def retry(self, client, result, answers, arguments=None):
        params = {"name": "form", "arguments": arguments or {}, "inputResponses": answers}
        params["requestState"] = result["requestState"]
        return await client.modern("tools/call", params, capabilities=EXTENSION)

    @requirement("TX-NEW-3")
    async def test_the_question_comes_first_and_the_task_afterwards_with_one_upstream_call(
        self, first, harness, upstream
    ):
        asked_first = (await first.call("form", capabilities=EXTENSION)).result
        assert asked_first["resultType"] == "input_required"
        assert asked_first["inputRequests"]["input-1"]["method"] == "elicitation/create"
        other = await harness.start(self.policy)
        done = (await self.retry(other, asked_first, {"input-1": ANN})).result
        assert heard(done)[0]["result"] == ANN
        assert len(upstream.calls("form")) == 1
        assert "inputResponses" not in str(upstream.calls("form"))

    @requirement("TX-NEW-3")
    async def test_a_bad_answer_is_refused_and_may_be_given_again(self, first):
        asked_first = (await first.call("form", capabilities=EXTENSION)).result
        assert (await self.retry(first, asked_first, {"input-1": {"action": "x"}})).error["code"] == -32602
        again = (await self.retry(first, asked_first, {})).result
        assert (again["resultType"], list(again["inputRequests"])) == ("input_required", ["input-1"])
        assert heard((await self.retry(first, again, {"input-1": ANN})).result)[0]["result"] == ANN

    async def test_a_state_is_good_for_its_own_call_only(self, first):
        asked_first = (await first.call("form", capabilities=EXTENSION)).result
        for state in ("", "x", asked_first["requestState"][:-2] + "AA", "A" * 10_000):
            refused = await self.retry(first, {"requestState": state}, {"input-1": ANN})
            assert refused.error["code"] == -32602
        other_call = await self.retry(first, asked_first, {"input-1": ANN}, {"method": "roots/list"})
        assert other_call.error["code"] == -32602

    async def test_a_tool_that_asks_nothing_answers_or_becomes_a_task(self, first):
        assert (await first.call("echo", capabilities=EXTENSION)).result["resultType"] == "complete"
        assert (await first.call("gate", {"name": "a"}, capabilities=EXTENSION)).result["resultType"] == "task"


class TestLegacy:
    @requirement("T25-INP-1")
    async def test_a_question_comes_on_the_stream_that_waits_for_the_result(self, session, harness):
        other = await harness.start()
        other.session = session.session
        task_id = await session.task("form")
        async with result_of(other, task_id) as stream:
            question = await stream.message("elicitation/create")
            assert question["params"]["_meta"] == {"com.example/k": 1.0, RELATED: {"taskId": task_id}}
            assert (await session.legacy("tasks/get", {"taskId": task_id})).result["status"] == "input_required"
            result = {**ANN, "_meta": {RELATED: {"taskId": task_id}}}
            told = await legacy_answer(session, question["id"], result=result)
            assert (told.status, told.body) == (202, b"")
            done = await stream.message("")
        assert done["id"] == "r"
        assert heard(done["result"])[0]["result"] == ANN

    @requirement("T25-INP-1")
    async def test_it_comes_on_the_stream_of_the_session_when_nobody_waits_for_the_result(self, session):
        async with session_stream(session) as stream:
            task_id = await session.task("form")
            question = await stream.message("elicitation/create")
            assert question["params"]["_meta"][RELATED] == {"taskId": task_id}
            await legacy_answer(session, question["id"], result=ANN)
            answer = await session.legacy("tasks/result", {"taskId": task_id})
        assert heard(answer.result)[0]["result"] == ANN

    @requirement("T25-INP-1")
    async def test_one_stream_at_a_time_brings_it_and_another_after_that_broke(self, session):
        task_id = await session.task("form")
        async with result_of(session, task_id) as first:
            one = await first.message("elicitation/create")
            async with result_of(session, task_id, "r2") as second, session_stream(session) as third:
                await asyncio.gather(second.event(), third.event())
                first.response.close()
                two = await second.message("elicitation/create")
                assert two["id"] != one["id"]
                assert b"elicitation" not in third.raw
                await legacy_answer(session, one["id"], result=ANN)
                await legacy_answer(session, two["id"], result={"action": "decline"})
                assert heard((await second.message(""))["result"])[0]["result"] == ANN

    @requirement("T25-INP-2")
    async def test_it_goes_to_no_session_that_did_not_declare_it(self, session, harness):
        task_id = await session.task("form")
        plain = await harness.start()
        await plain.initialize()
        async with session_stream(plain) as deaf, session_stream(session) as able:
            question = await able.message("elicitation/create")
            await legacy_answer(session, question["id"], result=ANN)
            await session.legacy("tasks/result", {"taskId": task_id})
            assert b"elicitation" not in deaf.raw

    async def test_an_error_of_the_client_goes_back_as_it_is(self, session):
        task_id = await session.task("form")
        async with result_of(session, task_id) as stream:
            question = await stream.message("elicitation/create")
            error = {"code": -1, "message": "the user went away", "data": 1.5}
            await legacy_answer(session, question["id"], error=error)
            assert heard((await stream.message(""))["result"])[0]["error"] == error

    async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(self, session):
        task_id = await session.task("form")
        async with result_of(session, task_id) as stream:
            question = await stream.message("elicitation/create")
            large = {"code": 1, "message": "y" * 300_000}
            for wrong in ({"result": {"action": "accept", "content": {}}}, {"error": large}):
                assert (await legacy_answer(session, question["id"], **wrong)).status == 400
            await legacy_answer(session, question["id"], result=ANN)
            assert heard((await stream.message(""))["result"])[0]["result"] == ANN

    @pytest.mark.parametrize("request_id", ["x", "", 7, "a:b:c", "x" * 32 + ":input-1:y"])
    async def test_an_answer_to_nothing_is_taken_and_changes_nothing(self, session, request_id):
        assert (await legacy_answer(session, request_id, result=ANN)).status == 202

    @requirement("OWN-BYTES")
    async def test_the_form_of_a_bounded_call_is_the_upstreams_to_judge(self, session):
        call = {"name": "form", "arguments": {}}
        body = {"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": call}
        odd = {"action": "accept", "content": {"other": 1.0}}
        async with opened(session, body, session.session) as stream:
            question = await stream.message("elicitation/create")
            assert (await legacy_answer(session, question["id"], result={"action": "yes"})).status == 400
            assert (await legacy_answer(session, question["id"], result=odd)).status == 202
            assert heard((await stream.message(""))["result"])[0]["result"] == odd
