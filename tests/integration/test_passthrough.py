"""Everything that is neither a task nor one of its methods: there and back, in both eras, on any replica."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gateway.store.streams import StreamStore
from tests.client import JSON, TASKS
from tests.full_server import CAPABILITIES, LOG, FullServer
from tests.integration.conftest import Harness, eventually
from tests.requirements import requirement
from tests.sse_client import opened, result_of, session_stream

CAN = {"elicitation": {"form": {}}, "sampling": {}, "roots": {"listChanged": True}}
ANN = {"action": "accept", "content": {"name": "Ann"}}
LEVEL = "io.modelcontextprotocol/logLevel"
POLICY = {"version": 1, "tools": [{"match": "slow_*", "task_support": "optional", "effect": "read_only"}]}


@pytest.fixture
async def upstream() -> AsyncIterator[FullServer]:
    async with FullServer() as running:
        yield running


@pytest.fixture
async def client(harness: Harness):
    return await harness.start(POLICY)


@pytest.fixture
async def session(client):
    await client.initialize(capabilities=CAN)
    return client


async def twin(harness, client):
    """The same client at another replica."""
    other = await harness.start(POLICY)
    other.session = client.session
    return other


def call(client, tool, arguments=None, request_id=1, **meta):
    params = {"name": tool, "arguments": arguments or {}, **({"_meta": meta} if meta else {})}
    return opened(
        client, {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}, client.session
    )


async def answer(client, request_id, **body):
    return await client.post({"jsonrpc": "2.0", "id": request_id, **body}, client.session)


class TestHandshake:
    @requirement("T25-CAP-1", "T25-CAP-6")
    async def test_says_what_the_upstream_said_but_for_its_own_tasks(self, client, upstream):
        upstream.greeting = {"serverInfo": {"name": "u", "version": "7", "x": 1.0}, "_meta": {"a": 1}}
        told = (await client.initialize(capabilities=CAN)).result
        passed = {name: value for name, value in CAPABILITIES.items() if name != "tasks"}
        ours = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        assert told["capabilities"] == {**passed, "tasks": ours}
        assert (told["serverInfo"], told["instructions"]) == (upstream.greeting["serverInfo"], "Be kind.")
        assert told["_meta"] == {"a": 1}

    @requirement("T25-CAP-3")
    async def test_older_revisions_see_no_tasks(self, client):
        assert "tasks" not in (await client.initialize("2025-06-18")).result["capabilities"]

    async def test_the_upstream_is_told_all_that_the_client_declared_but_for_tasks(self, client, upstream):
        await client.initialize(capabilities={**CAN, "experimental": {"x": {}}, "tasks": {"list": {}}})
        (told,) = upstream.methods("initialize")
        assert told["params"]["capabilities"] == {**CAN, "experimental": {"x": {}}}

    async def test_an_upstream_that_is_down_is_told_so_and_no_session_is_made(self, client, upstream, redis):
        await upstream.__aexit__()
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        refused = await client.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert (refused.status, refused.error["code"]) == (200, 50201)
        assert await redis.keys("*:s:*") == []

    @requirement("TX-CAP-1")
    async def test_a_modern_client_learns_the_same(self, client):
        told = (await client.modern("server/discover")).result
        hidden = {"tasks", "logging"}
        passed = {name: value for name, value in CAPABILITIES.items() if name not in hidden}
        assert told["capabilities"] == {**passed, "extensions": TASKS["extensions"]}
        assert told["instructions"] == "Be kind."

    async def test_what_is_known_of_an_upstream_is_told_while_it_is_down(self, client, upstream):
        before = (await client.modern("server/discover")).result
        await upstream.__aexit__()
        assert (await client.modern("server/discover")).result == before


class TestSessions:
    @requirement("OWN-APART")
    async def test_each_client_session_has_one_of_its_own_on_every_replica(self, harness, session, upstream):
        other = await twin(harness, session)
        for client in (session, other):
            await client.legacy("logging/setLevel", {"level": "debug"})
            await client.legacy("resources/subscribe", {"uri": "a:b"})
        stranger = await harness.start(POLICY)
        await stranger.initialize(capabilities=CAN)
        await stranger.legacy("logging/setLevel", {"level": "error"})
        first, second, third = upstream.sessions_of("logging/setLevel")
        assert first == second != third
        assert upstream.sessions_of("resources/subscribe") == [first, first]
        await session.legacy_call("slow_one", task={})
        await upstream.until(lambda: upstream.calls("slow_one"))
        assert upstream.sessions_of("tools/call") == [first]

    async def test_one_that_the_upstream_has_ended_is_opened_anew_once(self, harness, session, upstream):
        other = await twin(harness, session)
        await session.legacy("prompts/list")
        await other.legacy("prompts/list")
        upstream.sessions.clear()
        answers = await asyncio.gather(*(client.legacy("prompts/get") for client in (session, other, session)))
        assert [told.status for told in answers] == [200] * 3
        assert len(upstream.methods("prompts/get")) in (3, 4, 5, 6)
        assert len(set(upstream.sessions_of("prompts/get")) & upstream.sessions) == 1

    @requirement("T25-HTTP-2")
    async def test_one_ends_with_that_of_its_client(self, session, upstream):
        assert len(upstream.sessions) == 1
        async with session.http.delete(session.url, headers=session.session) as response:
            assert response.status == 200
        assert upstream.sessions == set()

    @requirement("T25-HTTP-2")
    async def test_one_in_which_a_task_is_at_work_outlives_that_of_its_client(self, session, upstream, redis):
        upstream._slow_gate = upstream._gate
        await session.legacy_call("slow_gate", {"name": "a"}, task={})
        await upstream.until(lambda: upstream.calls("slow_gate"))
        async with session.http.delete(session.url, headers=session.session) as response:
            assert response.status == 200
        assert len(upstream.sessions) == 1
        upstream.open("a")
        (key,) = await redis.keys("*:o:*")
        await eventually(lambda: redis.hget(key, "st"), lambda state: state == b"answered")


class TestRequests:
    @requirement("BR-5")
    @pytest.mark.usefixtures("patient")
    @pytest.mark.parametrize(
        "method", ["prompts/get", "resources/read", "resources/subscribe", "completion/complete", "made/up"]
    )
    async def test_pass_with_their_answers(self, session, upstream, method):
        upstream.results[method] = b'{"x":1.0,"a":[ ],"_meta":{"k":1e2}}'
        told = await session.legacy(method, {"uri": "a:b", "name": "n", "more": {"n": 1}})
        assert told.body == b'{"jsonrpc":"2.0","id":1,"result":{"x":1.0,"a":[ ],"_meta":{"k":1e2}}}'
        assert upstream.methods(method)[0]["params"] == {"uri": "a:b", "name": "n", "more": {"n": 1}}

    @pytest.mark.usefixtures("patient")
    @pytest.mark.parametrize("code", [-32602, -32002, -32042, 7])
    async def test_pass_with_their_errors(self, session, client, upstream, code):
        upstream.errors["prompts/get"] = b'{"code":%d,"message":"no","data":{"n":1.0},"x":[ ]}' % code
        told = await session.legacy("prompts/get")
        assert (told.status, told.body) == (
            200,
            b'{"jsonrpc":"2.0","id":1,"error":%s}' % upstream.errors["prompts/get"],
        )

    @requirement("TX-HTTP-5")
    @pytest.mark.parametrize("method", ["prompts/list", "resources/list", "resources/templates/list", "resources/read"])
    async def test_lists_and_reads_of_a_modern_client_say_for_whom_they_are(self, client, upstream, method):
        upstream.results[method] = b'{"prompts":[{"n":1.0}],"nextCursor":"c"}'
        body, headers = client.modern_request(method, {"uri": "a:b", "cursor": "x"})
        told = await client.post(body, {**headers, **({"Mcp-Name": "a:b"} if method == "resources/read" else {})})
        assert b'"prompts":[{"n":1.0}],"nextCursor":"c"' in told.body
        assert (told.result["ttlMs"], told.result["cacheScope"], told.result["resultType"]) == (
            0,
            "private",
            "complete",
        )

    @requirement("TX-HTTP-4", "BR-4")
    @pytest.mark.parametrize("method", ["ping", "logging/setLevel", "resources/subscribe", "made/up"])
    async def test_what_a_modern_client_cannot_ask_a_legacy_upstream_is_no_method(self, client, upstream, method):
        refused = await client.modern(method)
        assert (refused.status, refused.error["code"]) == (404, -32601)
        assert upstream.methods(method) == []

    async def test_a_lost_answer_is_asked_for_again_only_where_nothing_can_have_changed(self, session, upstream):
        async def cut(request, message):
            upstream.fault = None
            request.transport.close()

        for method, times in (("completion/complete", 2), ("made/up", 1)):
            upstream.fault = cut
            told = await session.legacy(method, {"name": "echo"})
            assert len(upstream.methods(method)) == times
            assert ("result" in told.messages[-1]) is (times == 2)

    async def test_credentials_of_the_client_stay_here(self, session, upstream):
        secret = {
            "Authorization": "Bearer x",
            "Cookie": "c=1",
            "X-Api-Key": "k",
            "Last-Event-ID": "e",
            "traceparent": "t",
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "prompts/list", "params": {}}
        await session.post(body, {**session.session, **secret})
        names = {name.lower() for name in upstream.headers[-1]}
        assert not names & {name.lower() for name in secret}


class TestNotifications:
    async def test_of_a_client_pass(self, session, upstream):
        for method in ("notifications/roots/list_changed", "notifications/made/up"):
            await session.post({"jsonrpc": "2.0", "method": method, "params": {"x": 1.0}}, session.session)
            await upstream.until(lambda method=method: upstream.methods(method))
            assert upstream.methods(method)[0]["params"] == {"x": 1.0}
        assert len(upstream.methods("notifications/initialized")) == 1

    async def test_during_a_call_pass_in_order(self, session):
        async with call(session, "talk", progressToken="mine") as stream:
            levels = [(await stream.message(LOG))["params"]["level"] for _ in range(3)]
            steps = [(await stream.message("notifications/progress"))["params"] for _ in range(3)]
            assert (await stream.message(""))["result"] == {"content": []}
        assert levels == ["debug", "info", "error"]
        assert [(step["progressToken"], step["progress"]) for step in steps] == [("mine", 1), ("mine", 2), ("mine", 3)]

    @pytest.mark.parametrize("tool", ["talk", "slow_talk"])
    async def test_nobody_hears_of_progress_that_was_not_asked_for(self, session, upstream, tool):
        upstream._slow_talk = upstream._talk
        async with call(session, tool) as stream:
            raw = await stream.end()
        assert b"notifications/progress" not in raw
        assert raw.count(LOG.encode()) == 3

    async def test_none_is_lost_that_is_on_its_way_when_the_call_ends(self, session, upstream, monkeypatch):
        take, taken = StreamStore.take_notes, asyncio.Event()

        async def slowly(self, ref):
            found = await take(self, ref)
            if found:
                taken.set()  # by now the store has them no more, and the call ends
                await asyncio.sleep(0.2)
            return found

        monkeypatch.setattr(StreamStore, "take_notes", slowly)
        upstream._slow_talk = upstream._talk
        async with call(session, "slow_talk", {"gate": "a"}) as stream:
            await taken.wait()
            upstream.open("a")
            raw = await stream.end()
        assert raw.count(LOG.encode()) == 3

    @requirement("BR-4")
    @pytest.mark.parametrize(("level", "heard"), [(None, []), ("info", ["info", "error"]), ("emergency", [])])
    @pytest.mark.parametrize("capabilities", [{}, CAN])
    async def test_a_modern_request_says_from_which_level_on_it_wants_to_hear(self, client, level, heard, capabilities):
        meta = {} if level is None else {LEVEL: level}
        told = await client.call_raw("talk", meta={**meta, "progressToken": 7}, capabilities=capabilities)
        notes = told.messages[:-1]
        assert [note["params"]["level"] for note in notes if note["method"] == LOG] == heard
        steps = [note["params"]["progress"] for note in notes if note["method"] == "notifications/progress"]
        assert steps == [1, 2, 3]

    async def test_of_a_session_come_on_its_stream(self, session, upstream):
        async with session_stream(session) as stream:
            await upstream.listened.wait()
            await upstream.say({"method": "notifications/tools/list_changed", "params": {"x": 1.0}})
            await upstream.say({"method": "notifications/tasks/status", "params": {"taskId": "theirs"}})
            await upstream.say({"method": "notifications/resources/updated", "params": {"uri": "a:b"}})
            assert (await stream.message("notifications/tools/list_changed"))["params"] == {"x": 1.0}
            assert (await stream.message())["params"] == {"uri": "a:b"}

    @requirement("TX-NOT-1", "BR-4")
    async def test_come_on_a_subscription_if_they_were_wanted(self, client, upstream):
        wanted = {"toolsListChanged": True, "promptsListChanged": False, "resourceSubscriptions": ["a:b"]}
        body, headers = client.modern_request("subscriptions/listen", {"notifications": wanted}, request_id="s")
        async with opened(client, body, headers) as stream:
            acknowledged = (await stream.message())["params"]
            assert acknowledged["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}
            await upstream.listened.wait()
            assert [one["params"]["uri"] for one in upstream.methods("resources/subscribe")] == ["a:b"]
            await upstream.say({"method": "notifications/prompts/list_changed"})
            await upstream.say({"method": "notifications/resources/updated", "params": {"uri": "other"}})
            await upstream.say({"method": "notifications/resources/updated", "params": {"uri": "a:b", "x": 1.0}})
            await upstream.say({"method": "notifications/tools/list_changed", "params": {"_meta": {"k": 1}}})
            updated, changed = await stream.message(), await stream.message()
        mark = {"io.modelcontextprotocol/subscriptionId": "s"}
        assert updated["params"] == {"uri": "a:b", "x": 1.0, "_meta": mark}
        assert (changed["method"], changed["params"]) == (
            "notifications/tools/list_changed",
            {"_meta": {"k": 1, **mark}},
        )
        await upstream.until(lambda: upstream.sessions <= {"session-1"})


class TestQuestions:
    @requirement("T25-INP-1")
    @pytest.mark.parametrize("tool", ["form", "slow_form"])
    async def test_reach_the_client_that_waits_and_are_answered_on_any_replica(self, harness, session, upstream, tool):
        upstream._slow_form = upstream._form
        other = await twin(harness, session)
        async with call(session, tool) as stream:
            asked = await stream.message("elicitation/create")
            assert asked["params"]["_meta"] == {"com.example/k": 1.0}
            assert (await answer(other, asked["id"], result=ANN)).status == 202
            (heard,) = json.loads((await stream.message(""))["result"]["content"][0]["text"])
        assert heard["result"] == ANN

    @requirement("T25-INP-2")
    async def test_that_a_client_cannot_be_asked_are_refused_at_once(self, client, upstream):
        await client.initialize()
        (heard,) = json.loads((await client.legacy_call("form")).result["content"][0]["text"])
        assert heard["error"]["code"] == -32601

    async def test_that_belong_to_no_call_come_on_the_stream_of_the_session(self, session, upstream):
        async with session_stream(session) as stream:
            await upstream.listened.wait()
            await upstream.say({"id": "q9", "method": "roots/list", "params": {"x": 1.0}})
            asked = await stream.message("roots/list")
            assert asked["params"] == {"x": 1.0}
            await answer(session, asked["id"], result={"roots": [{"uri": "file:///a", "n": 1.0}]})
            await upstream.until(lambda: any(one.get("id") == "q9" for one in upstream.seen))
        (heard,) = [one for one in upstream.seen if one.get("id") == "q9"]
        assert heard["result"] == {"roots": [{"uri": "file:///a", "n": 1.0}]}

    @requirement("T25-SEC-1")
    async def test_are_not_answered_by_somebody_else(self, harness, session, upstream):
        async with call(session, "form") as stream:
            asked = await stream.message("elicitation/create")
            for wrong in ("~" + "x" * 32, asked["id"] + "x", "~"):
                assert (await answer(session, wrong, result=ANN)).status == 202
            await answer(session, asked["id"], error={"code": -1, "message": "no"})
            (heard,) = json.loads((await stream.message(""))["result"]["content"][0]["text"])
        assert heard["error"] == {"code": -1, "message": "no"}


class TestModernClient:
    """BR-1: the upstream call is parked while the client is asked."""

    async def _retry(self, client, tool, asked, answers, arguments=None, **options):
        params = {"name": tool, "arguments": arguments or {}, "inputResponses": answers}
        state = {"requestState": asked["requestState"]}
        return await client.modern("tools/call", {**params, **state}, capabilities=CAN, **options)

    @requirement("BR-1")
    @pytest.mark.parametrize("tool", ["form", "slow_form"])
    async def test_is_asked_and_its_retry_finds_the_same_call_on_any_replica(self, harness, client, upstream, tool):
        upstream._slow_form = upstream._form
        asked = (await client.call(tool, capabilities=CAN)).result
        assert asked["resultType"] == "input_required"
        ((key, question),) = asked["inputRequests"].items()
        assert (question["method"], question["params"]["message"]) == ("elicitation/create", "Who?")
        other = await harness.start(POLICY)
        for _ in range(2):  # a replay gets the same outcome
            told = (await self._retry(other, tool, asked, {key: ANN}, request_id=2)).result
            assert told["resultType"] == "complete"
            assert json.loads(told["content"][0]["text"])[0]["result"] == ANN
        assert len(upstream.calls()) == 1

    @requirement("BR-1", "TX-UPD-4")
    async def test_a_state_is_good_for_its_own_call_only_and_answers_are_checked(self, client, upstream):
        asked = (await client.call("form", capabilities=CAN)).result
        (key,) = asked["inputRequests"]
        changed = {**asked, "requestState": asked["requestState"][:-2] + "xx"}
        for tool, arguments, state, given in (
            ("form", None, changed, ANN),
            ("form", {"a": 1}, asked, ANN),
            ("both", None, asked, ANN),
            ("form", None, asked, {"action": "accept", "content": {}}),
            ("form", None, asked, 5),
        ):
            refused = await self._retry(client, tool, state, {key: given}, arguments)
            assert (refused.status, refused.error["code"]) == (200, -32602)
        again = (await self._retry(client, "form", asked, {"unknown": ANN})).result
        assert (again["resultType"], list(again["inputRequests"])) == ("input_required", [key])
        assert len(upstream.calls()) == 1

    @requirement("BR-1")
    async def test_several_questions_are_asked_together_or_one_after_the_other(self, client):
        asked = (await client.call("both", capabilities=CAN)).result
        answers = dict.fromkeys(asked["inputRequests"], ANN)
        told = (await self._retry(client, "both", asked, answers)).result
        while told["resultType"] == "input_required":
            told = (await self._retry(client, "both", told, dict.fromkeys(told["inputRequests"], ANN))).result
        assert [heard["result"] for heard in json.loads(told["content"][0]["text"])] == [ANN, ANN]

    @requirement("TX-HTTP-7", "TX-CAN-2")
    @pytest.mark.parametrize("capabilities", [{}, CAN])
    async def test_that_leaves_cancels_its_plain_call(self, client, upstream, capabilities):
        params = {"name": "gate", "arguments": {"name": "a"}}
        body, headers = client.modern_request("tools/call", params, capabilities=capabilities)
        async with opened(client, body, headers):
            await upstream.until(lambda: upstream.calls("gate"))
        await upstream.until(upstream.cancelled)
        assert upstream.cancelled() == [upstream.calls("gate")[0]["id"]]


class TestLegacyClient:
    @requirement("T25-HTTP-1")
    @pytest.mark.parametrize("replica", [0, 1])
    @pytest.mark.parametrize("tool", ["gate", "slow_gate"])
    async def test_cancels_a_plain_call_from_any_replica(self, harness, session, upstream, replica, tool):
        upstream._slow_gate = upstream._gate
        client = [session, await twin(harness, session)][replica]
        async with call(session, tool, {"name": "a"}, request_id="to stop") as stream:
            await upstream.until(lambda: upstream.calls(tool))
            params = {"requestId": "to stop", "reason": "enough"}
            await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, client.session)
            await upstream.until(upstream.cancelled)
            assert (await stream.message(""))["error"]["code"] == 49901
        assert upstream.cancelled() == [upstream.calls(tool)[0]["id"]]

    @requirement("T25-HTTP-1")
    @pytest.mark.parametrize("tool", ["talk", "slow_talk"])
    async def test_takes_up_a_broken_stream_where_it_broke_on_another_replica(self, harness, session, upstream, tool):
        upstream._slow_talk = upstream._talk
        async with call(session, tool, {"gate": "a"}, request_id="r", progressToken=1) as stream:
            await stream.message(LOG)
            event = stream.ids[-1]
        other = await twin(harness, session)
        async with session_stream(other, event) as resumed:
            levels = [(await resumed.message(LOG))["params"]["level"] for _ in range(2)]
            assert (await resumed.message("notifications/progress"))["params"]["progressToken"] == 1
            upstream.open("a")
            assert await resumed.message("") == {"jsonrpc": "2.0", "id": "r", "result": {"content": []}}
        assert levels == ["info", "error"]
        assert len(upstream.calls()) == 1
        async with session_stream(other, resumed.ids[-2]) as again:  # cut just before the answer, and asked once more
            assert (await again.message(""))["id"] == "r"

    @requirement("T25-HTTP-1", "T25-SEC-1")
    async def test_cannot_take_up_what_is_not_its_own_or_not_there(self, harness, session):
        async with call(session, "talk", {"gate": "a"}) as stream:
            await stream.message(LOG)
            event = stream.ids[-1]
        stranger = await harness.start(POLICY)
        await stranger.initialize(capabilities=CAN)
        name = event.partition(".")[0]
        for client, wanted in (
            (stranger, event),
            (session, f"{name}.99"),
            (session, f"{name}.x"),
            (session, "x" * 32 + ".1"),
        ):
            async with session_stream(client, wanted) as refused:
                assert refused.status == 400

    async def test_sees_a_stream_end_that_the_upstream_ends_to_be_asked_for_again(self, session):
        async with call(session, "pause") as stream:
            raw = await stream.end()
        assert b"retry: " in raw
        assert b'"result"' not in raw
        async with session_stream(session, stream.ids[-1]) as resumed:
            assert (await resumed.message(""))["result"]["content"][0]["text"] == "resumed"

    async def test_that_takes_no_streams_gets_one_answer(self, session):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pause", "arguments": {}}}
        told = await session.post(body, {**session.session, **JSON, "Accept": "application/json"})
        assert told.result["content"][0]["text"] == "resumed"

    async def test_may_prefer_a_stream(self, session):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        told = await session.post(body, {**session.session, "Accept": "text/event-stream, application/json"})
        assert told.headers["Content-Type"] == "text/event-stream"
        assert "tools" in told.result


@requirement("T25-HTTP-3")
class TestBatches:
    """Revision 2025-03-26 alone has them."""

    BATCH = (
        b'[{"jsonrpc":"2.0","id":"a","method":"ping"}, {"jsonrpc":"2.0","method":"notifications/x"},'
        b'{"jsonrpc":"2.0","id":2,"method":"made/up","params":{"n":1.0}}, 7,'
        b'{"jsonrpc":"2.0","id":3,"method":"tasks/get"},'
        b'{"jsonrpc":"2.0","id":4,"method":"initialize","params":{"protocolVersion":"2025-03-26"}},'
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"talk","_meta":{"progressToken":9}}}]'
    )

    async def test_are_answered_together_as_if_each_message_had_come_alone(self, client, upstream):
        await client.initialize("2025-03-26")
        upstream.results["made/up"] = b'{"x":1.0}'
        told = await client.post(self.BATCH, client.session)
        lines = [line[6:] for line in told.body.splitlines() if line.startswith(b"data: ")]
        *notes, answers = [json.loads(line) for line in (lines or [told.body])]
        assert [one.get("id") for one in answers] == ["a", 2, None, 3, 4, 5]
        assert (answers[0]["result"], answers[1]["result"], answers[5]["result"]) == ({}, {"x": 1.0}, {"content": []})
        assert [one["error"]["code"] for one in answers[2:5]] == [-32600, -32602, -32600]
        assert [note["params"]["progress"] for note in notes if "progressToken" in note["params"]] == [1, 2, 3]
        await upstream.until(lambda: upstream.methods("notifications/x"))

    async def test_of_notifications_are_accepted(self, client):
        await client.initialize("2025-03-26")
        told = await client.post(b'[{"jsonrpc":"2.0","method":"notifications/x"}]', client.session)
        assert (told.status, told.body) == (202, b"")

    @pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2024-11-05"])
    async def test_are_refused_in_other_revisions(self, client, upstream, version):
        await client.initialize(version)
        refused = await client.post(self.BATCH, client.session)
        assert (refused.status, refused.error["code"], refused.messages[0]["id"]) == (400, -32600, None)
        assert upstream.methods("made/up") == []

    @pytest.mark.parametrize(
        "batch", [b"[]", b"[" + b",".join([b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 101) + b"]"]
    )
    async def test_are_neither_empty_nor_endless(self, client, batch):
        await client.initialize("2025-03-26")
        refused = await client.post(batch, client.session)
        assert (refused.status, refused.error["code"]) == (400, -32600)

    async def test_need_a_session(self, client):
        refused = await client.post(self.BATCH)
        assert (refused.status, refused.error["code"]) == (400, -32600)


class TestOldServers:
    """What servers on older SDKs do that the specification does not foresee."""

    @requirement("T25-INP-1", "T25-INP-4")
    async def test_report_and_ask_on_the_stream_of_the_session(self, session, upstream):
        upstream._slow_aside = upstream._aside
        task_id = (await call_task(session, "slow_aside")).result["task"]["taskId"]
        async with result_of(session, task_id) as stream:
            asked = await stream.message("roots/list")
            await answer(session, asked["id"], result={"roots": []})
            told = await stream.message("")
        assert json.loads(told["result"]["content"][0]["text"])["result"] == {"roots": []}
        assert b'"progressToken":"mine"' in stream.raw

    @requirement("T25-CAN-3")
    async def test_break_their_session_when_something_is_cancelled(self, session, upstream):
        upstream.fragile = True
        upstream._slow_gate = upstream._gate
        task_id = (await call_task(session, "slow_gate", {"name": "a"})).result["task"]["taskId"]
        await upstream.until(lambda: upstream.calls("slow_gate"))
        await session.legacy("tasks/cancel", {"taskId": task_id})
        await upstream.until(lambda: upstream.broken)
        told = await session.legacy_call("echo", {"a": 1})
        assert told.messages[-1]["result"]["content"][0]["text"] == '{"a": 1}'
        assert len(upstream.calls("echo")) == 1


def call_task(client, tool, arguments=None):
    meta = {"progressToken": "mine"}
    return client.legacy_call(tool, arguments, task={}, _meta=meta)


@requirement("BR-1")
async def test_a_parked_call_whose_client_never_answers_ends(harness, upstream, redis):
    client = await harness.start({**POLICY, "defaults": {"input_timeout_s": 1}})
    asked = (await client.call("form", capabilities=CAN)).result
    assert asked["resultType"] == "input_required"
    (key,) = await redis.keys("*:o:*")
    await eventually(lambda: redis.hget(key, "st"), lambda state: state == b"unknown")
    params = {"name": "form", "arguments": {}, "inputResponses": {}, "requestState": asked["requestState"]}
    told = await client.modern("tools/call", params, capabilities=CAN)
    assert told.error["code"] == 50402
