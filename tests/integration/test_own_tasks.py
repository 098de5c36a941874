"""Upstreams that have Tasks of their own: driven to their end, shown as ours, never started twice."""

import asyncio
import json
import re
from contextlib import ExitStack

import pytest

from tests.client import TASKS, Client
from tests.integration.conftest import POLICY, Harness, eventually
from tests.integration.test_recovery import crash
from tests.requirements import requirement
from tests.sse_client import session_stream
from tests.tasks_server import TasksServer, cut, refusal, result, status

QUICK = {"observe_min_ms": 10, "observe_max_ms": 100}
OWN = {
    **POLICY,
    "defaults": {**POLICY["defaults"], **QUICK},
    "tools": [{"match": "plain", "task_support": "forbidden"}],
}
PLAIN = {**OWN, "defaults": {**OWN["defaults"], "task_support": "forbidden"}}
CAN = {"elicitation": {"form": {}}}
EXTENSION = {**TASKS, **CAN}
ANN = {"action": "accept", "content": {"name": "Ann"}}
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class Recording(Client):
    """Remembers every byte that came from the gateway."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.http, client.url, client.token)
        self.bytes = b""

    async def post(self, *args, **options):
        answer = await super().post(*args, **options)
        self.bytes += answer.body + repr(answer.headers).encode()
        return answer


@pytest.fixture
async def upstream():
    async with TasksServer() as running:
        yield running


def policy(**changes):
    return {**OWN, "defaults": {**OWN["defaults"], **changes}}


@pytest.fixture
async def client(harness: Harness):
    return await begin(harness, OWN)


async def begin(harness, rules=OWN, **runner):
    made = Recording(await harness.start(rules, **runner))
    harness.clients.append(made)
    await made.initialize(capabilities=CAN)
    return made


@pytest.fixture(autouse=True)
async def no_id_of_theirs_leaves(harness, upstream):
    """Whatever a test does: no byte of a client and no line of the log holds an id of the upstream."""
    yield
    said = harness.log.getvalue().encode()
    said += b"".join(client.bytes for client in harness.clients if isinstance(client, Recording))
    assert UUID.findall(said) == []


async def ended(client, task_id):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=EXTENSION)).result

    return await eventually(look, lambda task: task["status"] in ("completed", "failed", "cancelled"))


async def operations(redis):
    return [json.loads(await redis.hget(key, "head")) for key in await redis.keys("*:o:*")]


async def operation(redis, wanted="accepted"):
    async def look():
        return await operations(redis)

    found = await eventually(look, lambda known: bool(known) and known[0]["state"] == wanted)
    return found[0]


def text_of(body):
    return body["content"][0]["text"]


class TestBothDialects:
    @requirement("BR-3")
    @pytest.mark.parametrize("tool", ["job", "must"])
    async def test_a_task_of_theirs_is_shown_as_ours_in_2025(self, client, upstream, tool):
        task_id = await client.task(tool, {"name": "a", "x": 1.0})
        await upstream.until(lambda: len(upstream.asked("tasks/get")) >= 2)
        upstream.open("a")
        told = await client.legacy("tasks/result", {"taskId": task_id})
        assert text_of(told.result) == f"{tool} is done, see task {task_id}"
        assert told.result["_meta"] == {"io.modelcontextprotocol/related-task": {"taskId": task_id}}
        task = (await client.legacy("tasks/get", {"taskId": task_id})).result
        assert (task["taskId"], task["status"], task["pollInterval"]) == (task_id, "completed", 700)
        (call,) = upstream.calls()
        assert call["params"]["arguments"] == {"name": "a", "x": 1.0}
        assert 0 < call["params"]["task"]["ttl"] <= 960_000

    @requirement("BR-3")
    async def test_a_task_of_theirs_is_shown_as_ours_in_the_extension(self, client, upstream):
        made = (await client.call("must", {"name": "a"})).result
        assert (made["resultType"], made["pollIntervalMs"]) == ("task", 700)
        upstream.open("a")
        task = await ended(client, made["taskId"])
        assert task["status"] == "completed"
        assert task["result"] == {
            "resultType": "complete",
            "content": [{"type": "text", "text": f"must is done, see task {made['taskId']}"}],
        }
        assert len(upstream.calls()) == len(upstream.tasks) == 1

    @requirement("BR-3")
    async def test_what_the_upstream_says_of_its_progress_is_told_without_its_id(self, client, upstream):
        task_id = await client.task("job", {"name": "a"})

        async def look():
            return (await client.legacy("tasks/get", {"taskId": task_id})).result

        seen = await eventually(look, lambda task: "statusMessage" in task)
        assert seen["statusMessage"] == f"task {task_id} of job has begun"
        assert seen["status"] == "working"

    @requirement("BR-3", "TX-NEW-4")
    async def test_a_fast_one_is_answered_directly(self, harness, upstream):
        client = await begin(harness, policy(inline_ms=10_000))
        told = (await client.call("must")).result
        assert told["resultType"] == "complete"
        assert "must is done" in text_of(told)

    @requirement("BR-3")
    async def test_a_client_without_tasks_gets_the_answer(self, client, upstream):
        assert "job is done" in text_of((await client.legacy_call("job")).result)
        assert "must is done" in text_of((await client.call("must", capabilities={})).result)
        assert len(upstream.tasks) == 2

    @requirement("BR-3")
    @pytest.mark.parametrize("tool", ["plain", "never", "unlisted"])
    async def test_what_takes_no_task_is_called_plainly(self, client, upstream, tool):
        task = await ended(client, (await client.call(tool)).result.get("taskId", "")) if tool != "plain" else None
        told = (await client.call(tool)).result if task is None else task["result"]
        assert text_of(told) == "done at once"
        assert upstream.tasks == {}

    @requirement("BR-3", "T25-CAP-6")
    async def test_the_list_shows_what_the_policy_says(self, client):
        listed = (await client.legacy("tools/list")).result["tools"]
        shown = {tool["name"]: tool["execution"]["taskSupport"] for tool in listed}
        assert shown == {name: "forbidden" if name == "plain" else "optional" for name in shown}


class TestFailures:
    @requirement("BR-3", "T25-ST-2", "TX-GET-2")
    async def test_a_result_that_says_so(self, client):
        old, new = await client.task("bad"), (await client.call("bad")).result["taskId"]
        told = await client.legacy("tasks/result", {"taskId": old})
        assert (told.result["isError"], told.result["structuredContent"]) == (True, {"errors": [1]})
        assert (await client.legacy("tasks/get", {"taskId": old})).result["status"] == "failed"
        task = await ended(client, new)
        assert (task["status"], task["result"]["isError"]) == ("completed", True)

    @requirement("BR-3", "T25-RES-2", "TX-HTTP-6")
    async def test_an_error(self, client):
        old, new = await client.task("broken"), (await client.call("broken")).result["taskId"]
        told = (await client.legacy("tasks/result", {"taskId": old})).error
        assert told == {"code": -32042, "message": f"task {old} broke", "data": {"task": old, "n": 1.0}}
        task = await ended(client, new)
        assert (task["status"], task["error"]["code"]) == ("failed", -32603)

    @requirement("BR-3")
    async def test_nothing_at_all_is_an_error(self, client):
        told = await client.legacy("tasks/result", {"taskId": await client.task("empty")})
        assert (told.error["code"], "the upstream's task failed: task" in told.error["message"]) == (50202, True)

    @requirement("BR-3")
    async def test_a_cancellation_that_nobody_asked_for_is_an_error(self, client, upstream, redis):
        task_id = await client.task("job", {"name": "a"})
        await upstream.until(lambda: upstream.tasks)
        upstream.only.end("cancelled")
        told = await client.legacy("tasks/result", {"taskId": task_id})
        assert (told.error["code"], told.error["message"]) == (49901, "the upstream cancelled the work")
        assert (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == "failed"
        assert (await operation(redis, "answered"))["outcome_kind"] == "error"


class TestUnasked:
    @requirement("BR-3")
    @pytest.mark.parametrize("tool", ["never", "job"])
    async def test_a_task_is_driven_all_the_same(self, client, upstream, tool):
        upstream.unasked = True
        told = await client.legacy("tasks/result", {"taskId": await client.task(tool)})
        assert f"{tool} is done" in text_of(told.result)

    @requirement("BR-3")
    async def test_a_plain_call_gets_the_result_and_never_the_task(self, client, upstream):
        upstream.unasked = True
        assert "plain is done" in text_of((await client.legacy_call("plain")).result)
        told = (await client.call("plain")).result
        assert ("plain is done" in text_of(told), told["resultType"]) == (True, "complete")
        assert len(upstream.calls()) == 2

    @requirement("BR-3")
    @pytest.mark.parametrize("extension", [False, True])
    async def test_a_plain_call_gets_an_error_where_the_work_failed(self, harness, upstream, extension):
        client = await begin(harness, PLAIN)
        upstream.unasked, upstream.extension = True, extension
        told = (await client.legacy_call("broken")).error
        assert told == {"code": -32042, "message": "task task broke", "data": {"task": "task", "n": 1.0}}
        assert (await client.legacy_call("bad")).result["isError"]

    @requirement("BR-3")
    async def test_faults_of_looking_are_overcome_in_a_plain_call_too(self, harness, upstream):
        client = await begin(harness, PLAIN)
        upstream.unasked = True
        upstream.faults["tasks/get"] = [status(503), refusal(-32602), cut]
        upstream.faults["tasks/result"] = [status(503), refusal(-32603)]
        assert "job is done" in text_of((await client.legacy_call("job")).result)
        assert len(upstream.calls()) == 1

    @requirement("BR-3")
    async def test_a_plain_call_whose_task_is_forgotten_has_an_unknown_outcome(self, harness, upstream, monkeypatch):
        monkeypatch.setattr("gateway.following.watching._SETTLE_S", 0)
        client = await begin(harness, PLAIN)
        upstream.unasked = True
        upstream.faults["tasks/get"] = [refusal(-32602)]
        assert (await client.legacy_call("job")).error["code"] == 50305

    @requirement("BR-3", "TX-HTTP-7")
    async def test_a_plain_call_that_nobody_waits_for_any_more_is_cancelled(self, harness, upstream):
        client = await begin(harness, PLAIN)
        upstream.unasked = True
        calling = asyncio.create_task(client.call("job", {"name": "a"}))
        await upstream.until(lambda: upstream.asked("tasks/get"))
        calling.cancel()
        await upstream.until(lambda: upstream.asked("tasks/cancel"))
        assert upstream.only.status == "cancelled"

    @requirement("BR-3")
    async def test_a_task_without_an_id_is_no_result(self, client, upstream):
        upstream.faults["tools/call"] = [result(resultType="task"), result(resultType="task")]
        told = await client.legacy("tasks/result", {"taskId": await client.task("never")})
        assert told.error["code"] == 50305
        assert (await client.legacy_call("plain")).error["code"] == 50305
        assert len(upstream.calls()) == 2


class TestExtension:
    """The dialect of the extension, over a session: what comes with the state, and answers that go by tasks/update."""

    @pytest.fixture
    async def client(self, harness, upstream):
        upstream.extension = True
        return await begin(harness)

    @requirement("BR-3")
    async def test_results_and_errors_come_with_the_state(self, client, upstream):
        made = {tool: await client.task(tool) for tool in ("job", "bad", "broken", "empty")}
        told = {tool: await client.legacy("tasks/result", {"taskId": task_id}) for tool, task_id in made.items()}
        assert text_of(told["job"].result) == f"job is done, see task {made['job']}"
        assert (told["bad"].result["isError"], told["bad"].result["structuredContent"]) == (True, {"errors": [1]})
        assert told["broken"].error["message"] == f"task {made['broken']} broke"
        assert "content" not in told["empty"].result
        assert (upstream.asked("tasks/result"), len(upstream.calls())) == ([], 4)

    @requirement("BR-3")
    @pytest.mark.parametrize("lost", [False, True])
    async def test_questions_come_with_the_state_and_answers_go_by_update(self, client, upstream, lost):
        upstream.faults["tasks/update"] = [status(503)] if lost else []
        task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]
        await answered(client, task_id)
        heard = json.loads(text_of((await ended(client, task_id))["result"]))
        assert heard == ANN
        (*_, told) = upstream.asked("tasks/update")
        assert told["params"] == {"taskId": upstream.only.id, "inputResponses": {"their-key": ANN}}
        assert len(upstream.asked("tasks/update")) == 1 + lost

    @requirement("BR-3", "T25-INP-2")
    async def test_a_client_that_can_be_asked_nothing_cancels_the_question(self, client):
        task_id = (await client.call("form", capabilities=TASKS)).result["taskId"]
        assert json.loads(text_of((await ended(client, task_id))["result"])) == {"action": "cancel"}

    @requirement("BR-3", "OWN-ONCE")
    async def test_a_successor_asks_no_question_twice(self, client, harness, upstream):
        task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]
        await asked(client, task_id)
        other = await begin(harness)
        await crash(harness.gateways[0])
        polls = len(upstream.asked("tasks/get"))
        await upstream.until(lambda: len(upstream.asked("tasks/get")) > polls + 1)
        await answered(other, task_id)
        assert json.loads(text_of((await ended(other, task_id))["result"])) == ANN
        client.bytes += other.bytes

    @requirement("BR-3")
    async def test_a_cancellation_is_told(self, client, upstream, redis):
        task_id = (await client.call("job", {"name": "a"})).result["taskId"]
        await operation(redis)
        await client.modern("tasks/cancel", {"taskId": task_id})
        assert (await ended(client, task_id))["status"] == "cancelled"
        assert len(upstream.asked("tasks/cancel")) == 1


async def asked(client, task_id):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=EXTENSION)).result

    return await eventually(look, lambda one: one["status"] == "input_required")


async def answered(client, task_id):
    """Answers the one question of a task, which mentions no other."""
    ((key, question),) = (await asked(client, task_id))["inputRequests"].items()
    assert question["params"]["message"] == f"Who, for {task_id}?"
    assert question["params"]["_meta"] == {"com.example/k": 1.0}
    params = {"taskId": task_id, "inputResponses": {key: ANN}}
    await client.modern("tasks/update", params, capabilities=EXTENSION)


class TestLearning:
    @requirement("BR-3")
    async def test_the_list_is_read_once_and_again_when_a_call_is_refused_for_how_it_was_made(self, client, upstream):
        for _ in range(3):
            await client.legacy("tasks/result", {"taskId": await client.task("job")})
        assert len(upstream.asked("tools/list")) == 1
        upstream.tools["job"] = "forbidden"
        told = await client.legacy("tasks/result", {"taskId": await client.task("job")})
        assert text_of(told.result) == "done at once"
        assert len(upstream.asked("tools/list")) == 2
        upstream.tools["job"] = "required"
        told = await client.legacy("tasks/result", {"taskId": await client.task("job")})
        assert "job is done" in text_of(told.result)
        assert len(upstream.calls()) == 7
        assert len(upstream.tasks) == 4

    @requirement("BR-3")
    async def test_the_list_is_read_to_its_end(self, client, upstream):
        upstream.page = 2
        told = await client.legacy("tasks/result", {"taskId": await client.task("stepping")})
        assert "stepping is done" in text_of(told.result)
        assert [one["params"].get("cursor") for one in upstream.asked("tools/list")] == [None, "2", "4", "6", "8"]

    @requirement("BR-3")
    async def test_a_list_that_is_refused_makes_calls_plain_ones(self, client, upstream):
        upstream.faults["tools/list"] = [refusal(-32603)]
        told = await client.legacy("tasks/result", {"taskId": await client.task("job")})
        assert text_of(told.result) == "done at once"

    @requirement("BR-3")
    async def test_a_refusal_that_has_another_reason_is_the_answer(self, client, upstream):
        upstream.faults["tools/call"] = [refusal(-32601)]
        told = await client.legacy("tasks/result", {"taskId": await client.task("job")})
        assert told.error["code"] == -32601
        assert len(upstream.calls()) == 1

    @requirement("BR-3")
    async def test_a_list_that_cannot_be_read_makes_calls_plain_ones(self, client, upstream):
        upstream.faults["tools/list"] = [status(503)]
        told = await client.legacy("tasks/result", {"taskId": await client.task("job")})
        assert text_of(told.result) == "done at once"


class TestPollingFaults:
    """B10: a look that tells nothing is no failure of the work."""

    FAULTS = (
        status(502, b"<html>bad gateway</html>", Content_Type="text/html"),
        status(200, b"", Content_Type="application/json"),
        status(429, b"", Retry_After="0"),
        status(408),
        status(401),
        status(404, b"{}", Content_Type="application/json"),
        cut,
        refusal(-32603),
        refusal(-32602),
        result(taskId="another", status="completed"),
        result(status="working"),
        result(taskId="?", status="sleeping"),
    )

    @requirement("BR-3", "OWN-ONCE")
    async def test_are_overcome(self, client, upstream):
        upstream.by_owner = True
        upstream.faults["tasks/get"] = list(self.FAULTS)
        upstream.faults["tasks/result"] = [status(502), cut, refusal(-32603)]
        told = await client.legacy("tasks/result", {"taskId": await client.task("must")})
        assert "must is done" in text_of(told.result)
        assert upstream.faults == {"tasks/get": [], "tasks/result": []}
        assert len(upstream.calls()) == len(upstream.tasks) == 1

    @requirement("BR-3", "OWN-QUIET")
    async def test_that_go_on_make_the_outcome_unknown(self, harness, upstream, redis):
        client = await begin(harness, policy(observe_budget_s=1))
        upstream.faults["tasks/get"] = [status(503)] * 1000
        told = await client.legacy("tasks/result", {"taskId": await client.task("must")})
        assert told.error["code"] == 50305
        assert (await operations(redis))[0]["state"] == "unknown"
        assert len(upstream.calls()) == 1
        assert "CANARY" not in harness.log.getvalue()

    @requirement("BR-3")
    async def test_a_task_that_the_upstream_forgot_is_unknown(self, client, upstream, redis, monkeypatch):
        monkeypatch.setattr("gateway.following.watching._SETTLE_S", 0)
        task_id = await client.task("must", {"name": "a"})
        await upstream.until(lambda: upstream.asked("tasks/get"))
        upstream.tasks.clear()
        told = await client.legacy("tasks/result", {"taskId": task_id})
        assert (told.error["code"], told.error["data"]["reason"]) == (50305, "outcome_unknown")
        found = await operation(redis, "unknown")
        assert found["reason"] == "the upstream does not know its task any more"
        assert await redis.pttl((await redis.keys("*:o:*"))[0]) == -1

    @requirement("BR-3")
    async def test_a_result_that_is_not_handed_out_is_unknown(self, client, upstream, redis):
        upstream.faults["tasks/result"] = [refusal(-32603)] * 3
        told = await client.legacy("tasks/result", {"taskId": await client.task("must")})
        assert told.error["code"] == 50305
        assert (await operations(redis))[0]["state"] == "unknown"

    @requirement("BR-3")
    async def test_a_session_that_ended_is_no_end_where_the_task_is_found_from_another(self, client, upstream, redis):
        upstream.by_owner = True
        task_id = await client.task("must", {"name": "a"})
        before = await operation(redis)
        upstream.sessions.clear()

        async def place():
            return (await operations(redis))[0]["place"]["session"]

        await eventually(place, lambda session: session != before["place"]["session"])
        upstream.open("a")
        assert "must is done" in text_of((await client.legacy("tasks/result", {"taskId": task_id})).result)
        assert len(upstream.calls()) == 1

    @requirement("BR-3")
    async def test_another_task_of_the_same_name_is_not_taken_for_it(self, client, upstream, redis):
        upstream.by_owner = True
        await client.task("must", {"name": "a"})
        await operation(redis)
        upstream.only.stamp = "2026-02-02T00:00:00Z"
        upstream.sessions.clear()
        assert (await operation(redis, "unknown"))["reason"] == "the upstream has another task of this name"

    @requirement("BR-3")
    async def test_a_result_that_is_too_large_is_asked_for_once(self, harness, upstream, redis):
        client = await begin(harness, policy(max_result_bytes=2000))
        await client.task("must", {"name": "a"})
        await operation(redis)
        big = [{"type": "text", "text": "x" * 100_000}]
        upstream.only.end("completed", result={"content": big})
        assert "larger than max_result_bytes" in (await operation(redis, "unknown"))["reason"]
        assert len(upstream.asked("tasks/result")) == 1

    @requirement("BR-3")
    async def test_a_task_that_is_forgotten_with_its_result_handed_out_has_that_result(
        self, client, upstream, monkeypatch
    ):
        monkeypatch.setattr("gateway.following.watching._SETTLE_S", 0.2)
        task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]
        upstream.faults["tasks/get"] = []
        await asked(client, task_id)
        upstream.faults["tasks/get"] = [refusal(-32601)] * 1000
        upstream.only.end("completed", result={"content": [{"type": "text", "text": "done"}]})
        assert text_of((await ended(client, task_id))["result"]) == "done"

    @requirement("BR-3")
    async def test_a_server_without_sessions_knows_its_tasks_as_well(self, harness, upstream):
        upstream.stateless = True
        client = await begin(harness)
        told = await client.legacy("tasks/result", {"taskId": await client.task("must")})
        assert "must is done" in text_of(told.result)
        assert upstream.streams == []

    @requirement("BR-3")
    async def test_a_session_that_ended_with_its_tasks_makes_the_outcome_unknown(self, client, upstream, redis):
        task_id = await client.task("must", {"name": "a"})
        await operation(redis)
        upstream.sessions.clear()
        told = await client.legacy("tasks/result", {"taskId": task_id})
        assert told.error["code"] == 50305
        assert (await operations(redis))[0]["state"] == "unknown"
        assert len(upstream.calls()) == 1

    @requirement("BR-3")
    async def test_an_upstream_that_is_away_for_a_while_is_waited_for(self, client, upstream, redis):
        task_id = await client.task("must", {"name": "a"})
        await operation(redis)
        port = int(upstream.url.split(":")[2].split("/")[0])
        (site,) = upstream._runner.sites
        await site.stop()
        upstream.open("a")
        await eventually(lambda: said(client, task_id, "working"))
        await upstream.listen(port)
        assert "must is done" in text_of((await client.legacy("tasks/result", {"taskId": task_id})).result)
        assert len(upstream.calls()) == 1


async def said(client, task_id, wanted):
    return (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == wanted


class TestRecord:
    @requirement("BR-3")
    async def test_all_that_is_needed_to_ask_again_is_durable_and_kept_up_to_date(self, client, upstream, redis):
        await client.task("job", {"name": "a"})
        first = await operation(redis)
        assert first["handle"] == upstream.only.id
        assert first["place"]["dialect"] == first["place"]["version"] == "2025-11-25"
        assert first["place"]["session"] in upstream.sessions
        assert (first["place"]["cancels"], first["place"]["created"]) == (True, "2026-01-01T00:00:00Z")
        assert first["seen"]["state"] == "working"
        assert first["seen"]["next_ms"] > first["seen"]["at_ms"]
        assert first["correlation"] != first["handle"]

        async def look():
            return (await operations(redis))[0]["seen"]["at_ms"]

        await eventually(look, lambda at: at > first["seen"]["at_ms"])


class TestCancel:
    @requirement("BR-3", "T25-CAN-1", "T25-CAN-3")
    async def test_of_2025_is_final_and_told_once(self, client, upstream, redis):
        task_id = await client.task("job", {"name": "a"})
        await operation(redis)
        assert (await client.legacy("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
        found = await operation(redis, "answered")
        assert found["learnt"] == "late_answer"
        assert [one["params"] for one in upstream.asked("tasks/cancel")] == [{"taskId": upstream.only.id}]
        assert upstream.cancelled() == []

    @requirement("BR-3", "TX-CAN-1")
    async def test_of_the_extension_is_done_when_the_upstream_has_done_it(self, client, upstream, redis):
        task_id = (await client.call("job", {"name": "a"})).result["taskId"]
        await operation(redis)
        await client.modern("tasks/cancel", {"taskId": task_id})
        assert (await ended(client, task_id))["status"] == "cancelled"
        assert len(upstream.asked("tasks/cancel")) == 1

    @requirement("BR-3", "TX-CAN-3", "OWN-LATE")
    async def test_that_is_not_heeded_ends_the_task_and_the_ledger_learns_the_rest(self, client, upstream, redis):
        upstream.heeds_cancel = False
        task_id = (await client.call("job", {"name": "a"})).result["taskId"]
        await operation(redis)
        await client.modern("tasks/cancel", {"taskId": task_id})
        assert (await ended(client, task_id))["status"] == "cancelled"
        assert (await operation(redis))["state"] == "accepted"
        upstream.open("a")
        found = await operation(redis, "answered")
        assert (found["learnt"], found["outcome_kind"]) == ("late_answer", "result")
        assert len(upstream.asked("tasks/cancel")) == 1

    @requirement("BR-3")
    async def test_nobody_looks_for_ever_at_what_nobody_waits_for(self, client, upstream, redis, monkeypatch):
        monkeypatch.setattr("gateway.running.observing._AFTERMATH_S", 0.05)
        upstream.heeds_cancel = False
        task_id = await client.task("job", {"name": "a"})
        await operation(redis)
        await client.legacy("tasks/cancel", {"taskId": task_id})
        assert (await operation(redis, "unknown"))["reason"].startswith("the upstream goes on")

    @requirement("BR-3")
    async def test_is_not_told_to_an_upstream_that_takes_none(self, harness, upstream, redis):
        upstream.can_cancel = False
        client = await begin(harness)
        task_id = (await client.call("job", {"name": "a"})).result["taskId"]
        await operation(redis)
        await client.modern("tasks/cancel", {"taskId": task_id})
        assert (await ended(client, task_id))["status"] == "cancelled"
        assert upstream.asked("tasks/cancel") == []

    @requirement("BR-3")
    async def test_comes_with_the_deadline(self, harness, upstream, redis):
        client = await begin(harness, policy(deadline_s=1))
        upstream.heeds_cancel = False
        told = await client.legacy("tasks/result", {"taskId": await client.task("job", {"name": "a"})})
        assert told.error["code"] == 50401
        await upstream.until(lambda: upstream.asked("tasks/cancel"))
        assert (await operation(redis))["state"] == "accepted"
        upstream.open("a")
        assert (await operation(redis, "answered"))["learnt"] == "late_answer"

    @requirement("BR-3")
    async def test_a_bounded_call_whose_time_is_over_is_told_the_truth(self, harness, upstream):
        client = await begin(harness, policy(sync_timeout_s=1))
        upstream.heeds_cancel = False
        told = (await client.legacy_call("job", {"name": "a"})).error
        assert (told["code"], told["data"]["operation"]["outcome"]) == (50305, "unknown")


class TestInput:
    @requirement("BR-3", "TX-GET-1")
    @pytest.mark.parametrize("on_get", [False, True])
    async def test_reaches_a_client_of_the_extension(self, client, upstream, on_get):
        upstream.asks_on_get = on_get
        task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]
        await answered(client, task_id)
        task = await ended(client, task_id)
        heard = next(one["result"] for one in upstream.seen if "method" not in one)
        related = {"io.modelcontextprotocol/related-task": {"taskId": upstream.only.id}}
        assert heard == {**ANN, "_meta": related}
        assert json.loads(text_of(task["result"]))["content"] == {"name": "Ann"}
        assert task["result"]["_meta"] == {"com.example/k": 1.0}
        assert len(upstream.calls()) == 1

    @requirement("BR-3", "T25-INP-1")
    async def test_reaches_a_client_of_2025_on_its_stream(self, client, upstream):
        task_id = await client.task("form")
        async with session_stream(client) as stream:
            question = await stream.message("elicitation/create")
            client.bytes += json.dumps(question).encode()
            assert question["params"]["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task_id}
            said = {"jsonrpc": "2.0", "id": question["id"], "result": ANN}
            assert (await client.post(said, client.session)).status == 202
        told = await client.legacy("tasks/result", {"taskId": task_id})
        assert json.loads(text_of(told.result))["content"] == {"name": "Ann"}

    @requirement("BR-3", "T25-INP-2")
    async def test_is_refused_where_the_client_can_be_asked_nothing(self, client):
        task_id = (await client.call("form", capabilities=TASKS)).result["taskId"]
        assert json.loads(text_of((await ended(client, task_id))["result"]))["code"] == -32601

    @requirement("BR-3", "T25-INP-3")
    async def test_that_nobody_gives_ends_the_task_and_tells_the_upstream(self, harness, upstream, redis):
        client = await begin(harness, policy(input_timeout_s=1))
        task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]
        task = await ended(client, task_id)
        assert (task["status"], task["error"]["code"]) == ("failed", 50402)
        await upstream.until(lambda: upstream.asked("tasks/cancel"))

    @requirement("BR-3")
    async def test_outlives_the_stream_on_which_it_was_asked(self, client, upstream):
        task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]
        await asked(client, task_id)
        upstream.waits[0].transport.abort()
        await upstream.until(lambda: len(upstream.waits) > 1)
        await answered(client, task_id)
        assert json.loads(text_of((await ended(client, task_id))["result"]))["content"] == {"name": "Ann"}
        assert len(upstream.calls()) == 1

    @requirement("BR-3", "OWN-ONCE")
    async def test_outlives_the_process_that_was_asked(self, harness, upstream, redis):
        client = await begin(harness)
        task_id = (await client.call("form", capabilities=EXTENSION)).result["taskId"]

        await asked(client, task_id)
        other = await begin(harness)
        await crash(harness.gateways[0])
        await answered(other, task_id)
        task = await ended(other, task_id)
        assert json.loads(text_of(task["result"]))["content"] == {"name": "Ann"}
        assert len(upstream.calls()) == 1
        client.bytes += other.bytes


class TestProgress:
    @requirement("BR-3", "T25-INP-4")
    async def test_that_comes_on_the_stream_of_the_session_reaches_the_client(self, client, upstream, redis):
        made = await client.legacy_call("job", {"name": "a"}, task={}, _meta={"progressToken": "mine"})
        task_id = made.result["task"]["taskId"]
        await operation(redis)
        params = {"progressToken": upstream.only.token, "progress": 1, "message": f"half of {upstream.only.id}"}
        async with session_stream(client) as stream:
            await upstream.tell({"method": "notifications/progress", "params": {**params, "progressToken": "other"}})
            await upstream.tell({"method": "notifications/progress", "params": params})
            note = await stream.message("notifications/progress")
        client.bytes += json.dumps(note).encode()
        assert note["params"]["progressToken"] == "mine"
        assert note["params"]["message"] == f"half of {task_id}"

    @requirement("BR-3")
    async def test_a_change_that_is_told_is_looked_at_soon(self, harness, upstream, redis):
        slow = policy(observe_min_ms=10, observe_max_ms=60_000)
        client = await begin(harness, slow)
        task_id = await client.task("job", {"name": "a"})
        await operation(redis)
        upstream.open("a")
        await upstream.only.ended.wait()
        await upstream.tell({"method": "notifications/tasks/status", "params": upstream.only.flat()})
        assert "job is done" in text_of((await client.legacy("tasks/result", {"taskId": task_id})).result)


class TestSuccession:
    @requirement("BR-3", "OWN-ONCE", "OWN-FENCE")
    @pytest.mark.parametrize("effect", ["consequential", "read_only"])
    async def test_a_dead_holder_is_succeeded_and_the_work_not_started_again(self, harness, upstream, redis, effect):
        rules = policy(effect=effect, on_lost="retry" if effect == "read_only" else "unknown")
        client = await begin(harness, rules)
        task_id = await client.task("must", {"name": "a"})
        await operation(redis)
        other = await begin(harness, rules)
        other.session = client.session
        await crash(harness.gateways[0])
        polls = len(upstream.asked("tasks/get"))
        await upstream.until(lambda: len(upstream.asked("tasks/get")) > polls)
        upstream.open("a")
        assert "must is done" in text_of((await other.legacy("tasks/result", {"taskId": task_id})).result)
        assert len(upstream.calls()) == len(upstream.tasks) == 1
        client.bytes += other.bytes

    @requirement("BR-3", "OWN-DRAIN")
    async def test_a_gateway_that_stops_leaves_its_sessions_and_tasks_to_others(self, harness, upstream, redis):
        client = await begin(harness, drain_s=0.05)
        task_id = await client.task("must", {"name": "a"})
        held = (await operation(redis))["place"]["session"]
        await harness.gateways[0].stop()
        assert held in upstream.sessions
        assert (await operations(redis))[0]["state"] == "accepted"
        other = await begin(harness)
        other.session = client.session
        upstream.open("a")
        assert "must is done" in text_of((await other.legacy("tasks/result", {"taskId": task_id})).result)
        assert len(upstream.calls()) == 1

    @requirement("BR-3", "OWN-FENCE")
    async def test_a_holder_whose_fence_was_taken_stops_asking(self, harness, upstream, redis):
        client = await begin(harness)
        await client.task("must", {"name": "a"})
        await operation(redis)
        runner = harness.gateways[0]._runner
        (running,) = runner._held.values()
        (key,) = await redis.keys("*:o:*")
        later = int(await redis.hget(key, "fn")) + 1
        await redis.hset(key, mapping={"fn": later, "hd": "another"})
        await asyncio.wait({running.task})
        assert (await operations(redis))[0]["state"] == "accepted"

    @requirement("BR-3", "OWN-AWAY")
    async def test_the_work_is_followed_while_the_store_is_away(self, harness, server, upstream, redis):
        client = await begin(harness, store_s=1)
        task_id = await client.task("must", {"name": "a"})
        await operation(redis)
        with server.away():
            upstream.open("a")
            assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 50303
        told = await eventually(
            lambda: client.legacy("tasks/result", {"taskId": task_id}), lambda found: "result" in found.messages[-1]
        )
        assert "must is done" in text_of(told.result)
        assert len(upstream.calls()) == 1

    @requirement("BR-3", "OWN-AWAY", "OWN-ONCE")
    async def test_a_task_that_was_made_while_the_store_was_away_is_written_down_later(self, harness, server, upstream):
        client, away = await begin(harness, store_s=1), ExitStack()

        async def made(request, message):
            away.enter_context(server.away())
            return upstream._made(request, message)

        upstream.faults["tools/call"] = [made]
        with away:
            task_id = await client.task("must", {"name": "a"})
            await upstream.until(lambda: upstream.tasks)
            upstream.open("a")
            assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 50303
        told = await eventually(
            lambda: client.legacy("tasks/result", {"taskId": task_id}), lambda found: "result" in found.messages[-1]
        )
        assert "must is done" in text_of(told.result)
        assert len(upstream.calls()) == 1


@requirement("BR-3", "OWN-QUIET")
async def test_a_fault_of_ours_leaves_no_record_without_an_end(client, harness, monkeypatch):
    def broken(*_):
        raise RuntimeError("CANARY")

    monkeypatch.setattr("gateway.wire.theirs.ending", broken)
    told = await client.legacy("tasks/result", {"taskId": await client.task("must")})
    assert told.error["code"] == 50305
    assert "CANARY" not in harness.log.getvalue()
