"""The dialect of 2025-11-25, from a client's side."""

import asyncio
import json
import re

import pytest

from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement

RELATED = "io.modelcontextprotocol/related-task"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
async def session(client):
    await client.initialize()
    return client


async def reached(client, task_id, *statuses):
    async def look():
        return (await client.legacy("tasks/get", {"taskId": task_id})).result

    return await eventually(look, lambda task: task["status"] in statuses)


class TestNegotiation:
    @requirement("T25-CAP-1", "T25-CAP-2")
    async def test_the_capability_is_there_without_list(self, client):
        result = (await client.initialize()).result
        assert result["protocolVersion"] == "2025-11-25"
        assert result["capabilities"] == {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        assert "resultType" not in result

    @requirement("T25-CAP-2")
    async def test_listing_is_unknown_without_authentication(self, session):
        assert (await session.legacy("tasks/list")).error["code"] == -32601

    @requirement("T25-CAP-3")
    @pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
    async def test_older_sessions_know_nothing_of_tasks(self, client, version):
        result = (await client.initialize(version)).result
        assert (result["protocolVersion"], result["capabilities"]) == (version, {"tools": {}})
        tools = (await client.legacy("tools/list")).result["tools"]
        assert all("execution" not in tool for tool in tools)
        plain = await client.legacy_call("echo", {"a": 1}, task={"ttl": "odd"})
        assert plain.result == {"content": [{"type": "text", "text": '{"a": 1}'}]}
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            refused = await client.legacy(method, {"taskId": "x" * 32})
            assert (refused.status, refused.error["code"]) == (200, -32601)

    async def test_an_unknown_version_is_answered_with_one_that_is_served(self, client):
        assert (await client.initialize("1999-01-01")).result["protocolVersion"] == "2025-11-25"

    @requirement("T25-CAP-4", "T25-CAP-6")
    async def test_the_tool_list_shows_what_the_policy_says_and_all_else_unchanged(self, session):
        answer = await session.legacy("tools/list", {"cursor": "c"})
        tools = {tool["name"]: tool for tool in answer.result["tools"]}
        assert tools["echo"] == {
            "name": "echo",
            "inputSchema": {"type": "object"},
            "x": 1.0,
            "execution": {"taskSupport": "optional"},
        }
        assert tools["plain"]["execution"] == {"taskSupport": "forbidden"}
        assert tools["required"]["execution"] == {"taskSupport": "required"}
        assert answer.result["nextCursor"] == "more"
        assert b'"x":1.0' in answer.body.replace(b" ", b"")

    @requirement("T25-CAP-5", "T25-CAP-7")
    async def test_a_tool_is_called_as_its_support_says_or_not_at_all(self, session, upstream):
        as_task = await session.legacy_call("plain", task={})
        plainly = await session.legacy_call("required")
        assert (as_task.status, as_task.error["code"]) == (200, -32601)
        assert (plainly.status, plainly.error["code"]) == (200, -32601)
        assert upstream.calls() == []


class TestCreation:
    @requirement("T25-NEW-1")
    async def test_answers_with_the_task_at_once(self, session):
        result = (await session.legacy_call("gate", {"name": "a"}, task={"ttl": 600_000})).result
        assert result.keys() == {"task"}
        task = result["task"]
        assert task.keys() == {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
        assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", 600_000, 700)

    @requirement("T25-NEW-3", "T25-SEC-3")
    @pytest.mark.parametrize(
        ("wish", "told"),
        [({}, 3_600_000), ({"ttl": None}, 3_600_000), ({"ttl": 1}, 60_000), ({"ttl": 10**30}, 3_600_000)],
    )
    async def test_clamps_the_ttl_and_tells_it(self, session, wish, told):
        task = (await session.legacy_call("gate", {"name": "a"}, task=wish)).result["task"]
        assert task["ttl"] == told
        assert (await session.legacy("tasks/get", {"taskId": task["taskId"]})).result["ttl"] == told

    @requirement("T25-NEW-3")
    @pytest.mark.parametrize("ttl", [0, -1, 1.5, 60000.0, "60000", [1], {}, True])
    async def test_refuses_a_ttl_that_is_no_positive_integer(self, session, upstream, ttl):
        refused = await session.legacy_call("echo", task={"ttl": ttl})
        assert (refused.status, refused.error["code"]) == (200, -32602)
        assert upstream.calls() == []

    @pytest.mark.parametrize("task", [None, 1, "x", []])
    async def test_refuses_a_task_that_is_no_object(self, session, task):
        assert (await session.legacy_call("echo", task=task)).error["code"] == -32602

    @requirement("T25-SEC-3")
    async def test_beyond_the_limit_is_refused_with_the_limit(self, harness, upstream):
        client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], "max_concurrent_per_principal": 2}})
        await client.initialize()
        for _ in range(2):
            await client.task("gate", {"name": "a"})
        refused = await client.legacy_call("gate", {"name": "a"}, task={})
        assert (refused.status, refused.error["code"]) == (200, 42902)
        assert refused.error["data"] == {"reason": "quota", "retryable": True, "limit": 2, "scope": "principal"}
        upstream.open("a")
        await eventually(lambda: client.legacy_call("echo", task={}), lambda answer: b'"result"' in answer.body)

    async def test_refuses_arguments_that_are_too_large(self, session, upstream):
        refused = await session.legacy_call("echo", {"a": "x" * 262_144}, task={})
        assert (refused.status, refused.error["code"]) == (413, -32600)
        assert refused.error["data"]["limit"] == 262_144
        assert upstream.calls() == []

    @requirement("OWN-BYTES")
    async def test_hands_the_parameters_on_as_they_were_written(self, session, upstream):
        sent = (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gate","x-unknown":{"b":1e2,"a":0.10},'
            b'"arguments":{"name":"a","big":9007199254740993,"one":1.0},"task":{},'
            b'"_meta":{"com.example/trace":"t","progressToken":7,"io.modelcontextprotocol/related-task":{"taskId":"x"}}}}'
        )
        raw = []

        async def keep(request, message):
            raw.append(await request.read())
            return await upstream._gate(request, message)

        upstream.fault = keep
        await session.post(sent, session.session)
        await upstream.until(lambda: upstream.calls("gate"))
        written = (
            b'"params":{"name":"gate","x-unknown":{"b":1e2,"a":0.10},'
            b'"arguments":{"name":"a","big":9007199254740993,"one":1.0},'
            b'"_meta":{"com.example/trace":"t","progressToken":%d}}'
        )
        assert written % json.loads(raw[0])["id"] in raw[0]


class TestGet:
    @requirement("T25-GET-1", "T25-GET-3")
    async def test_answers_a_flat_task(self, session):
        task_id = await session.task("echo")
        await reached(session, task_id, "completed")
        params = {"taskId": task_id, "task": {"ttl": 1}, "_meta": {RELATED: {"taskId": "other"}}}
        answer = await session.legacy("tasks/get", params)
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.result["taskId"] == task_id
        assert answer.result["status"] == "completed"
        assert TIME.fullmatch(answer.result["createdAt"])
        assert TIME.fullmatch(answer.result["lastUpdatedAt"])
        assert "_meta" not in answer.result

    @requirement("T25-GET-2", "T25-SEC-6", "OWN-KEY")
    async def test_knows_nobody_elses_task(self, harness):
        client = await harness.start(names=("reports", "other"))
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        client.url = client.url.replace("/mcp", "/other/mcp")
        await client.initialize()
        foreign = [await client.legacy(method, {"taskId": task_id}) for method in ("tasks/get", "tasks/result")]
        unknown = [await client.legacy(method, {"taskId": "x" * 32}) for method in ("tasks/get", "tasks/result")]
        assert [answer.body for answer in foreign] == [answer.body for answer in unknown]
        assert foreign[0].error["code"] == -32602

    @pytest.mark.parametrize("task_id", [None, 1, "", "x", ["a"], "é" * 32])
    @pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
    async def test_of_a_malformed_id_finds_nothing(self, session, method, task_id):
        refused = await session.legacy(method, {"taskId": task_id})
        assert (refused.status, refused.error["code"]) == (200, -32602)

    @requirement("T25-SEC-5", "T25-GET-2")
    async def test_tells_the_owner_that_a_task_expired(self, session, redis):
        task_id = await session.task("gate", {"name": "a"})
        (key,) = await redis.keys(f"*t:*{task_id}")
        await redis.delete(key)
        assert (await session.legacy("tasks/get", {"taskId": task_id})).error["message"] == "Task has expired"


class TestResult:
    @requirement("T25-RES-1", "T25-RES-2", "T25-RES-3")
    async def test_waits_on_any_replica_and_answers_once(self, session, harness, upstream):
        other = await harness.start()
        other.session = session.session
        task_id = await session.task("gate", {"name": "a"})
        waiting = [
            asyncio.create_task(one.legacy("tasks/result", {"taskId": task_id}, request_id=f"r{number}"))
            for number, one in enumerate((session, other, other))
        ]
        await upstream.until(lambda: upstream.calls("gate"))
        upstream.open("a")
        for number, answer in enumerate(await asyncio.gather(*waiting)):
            assert [message["id"] for message in answer.messages] == [f"r{number}"]
            assert answer.result == {
                "content": [{"type": "text", "text": "through a"}],
                "_meta": {RELATED: {"taskId": task_id}},
            }

    @requirement("T25-RES-3", "OWN-BYTES")
    async def test_keeps_what_the_tool_said(self, session):
        answer = await session.legacy("tasks/result", {"taskId": await session.task("odd")})
        assert b'"structuredContent":{"big":9007199254740993,"huge":1e400,"one":1.0,"zero":-0}' in answer.body
        assert b"caf\\u00e9 \\ud83d\\ude00" in answer.body
        assert b'"unknown":{"z":1,"a":2}' in answer.body
        meta = json.loads(answer.body.split(b"data: ")[-1])["result"]["_meta"]
        assert meta["com.example/k"] == [1, 2]
        assert RELATED in meta

    @requirement("T25-ST-2", "T25-RES-2")
    async def test_of_a_failed_task_is_what_the_tool_or_the_protocol_said(self, session):
        tool, protocol = await session.task("fail"), await session.task("error")
        assert (await reached(session, tool, "completed", "failed"))["status"] == "failed"
        answer = await session.legacy("tasks/result", {"taskId": tool})
        assert answer.result["isError"] is True
        assert answer.result["structuredContent"] == {"errors": [1]}
        assert (await reached(session, protocol, "completed", "failed"))["status"] == "failed"
        answer = await session.legacy("tasks/result", {"taskId": protocol})
        assert answer.error == {"code": -32002, "message": "no such thing", "data": {"uri": "x", "n": 1.0}}

    @requirement("T25-RES-1", "T25-RES-2")
    async def test_of_a_cancelled_task_is_an_error_for_all_who_wait(self, session):
        task_id = await session.task("gate", {"name": "a"})
        waiting = asyncio.create_task(session.legacy("tasks/result", {"taskId": task_id}))
        await asyncio.sleep(0)
        await session.legacy("tasks/cancel", {"taskId": task_id})
        for answer in (await waiting, await session.legacy("tasks/result", {"taskId": task_id})):
            assert answer.status == 200
            assert answer.error["code"] == 49901

    @requirement("T25-RES-1")
    async def test_of_a_task_that_expires_is_told_to_all_who_wait(self, session, redis, harness):
        task_id = await session.task("gate", {"name": "a"})
        waiting = asyncio.create_task(session.legacy("tasks/result", {"taskId": task_id}))
        (key,) = await redis.keys(f"*t:*{task_id}")
        await redis.delete(key)
        await redis.publish("mtg:{s0}:wake", f"{key.decode().split(':t:')[1]} look")
        answer = await waiting
        assert (answer.error["code"], answer.error["message"]) == (-32602, "Task has expired")

    @requirement("T25-RES-4")
    async def test_can_be_dropped_and_asked_again(self, session, upstream):
        task_id = await session.task("gate", {"name": "a"})
        dropped = asyncio.create_task(session.legacy("tasks/result", {"taskId": task_id}))
        await upstream.until(lambda: upstream.calls("gate"))
        dropped.cancel()
        upstream.open("a")
        bodies = {
            (await session.legacy("tasks/result", {"taskId": task_id})).body.split(b"data: ")[-1].strip()
            for _ in range(3)
        }
        assert len(bodies) == 1
        assert upstream.cancelled() == []

    async def test_answers_as_json_to_a_client_that_takes_no_streams(self, session, upstream):
        task_id = await session.task("gate", {"name": "a"})
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/result", "params": {"taskId": task_id}}
        headers = {**session.session, "Accept": "application/json"}
        waiting = asyncio.create_task(session.post(body, headers))
        await upstream.until(lambda: upstream.calls("gate"))
        upstream.open("a")
        answer = await waiting
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.result["content"][0]["text"] == "through a"


class TestCancel:
    @requirement("T25-CAN-1", "T25-CAN-3")
    async def test_is_final_and_tells_the_upstream_once(self, session, upstream):
        task_id = await session.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        answer = await session.legacy("tasks/cancel", {"taskId": task_id})
        assert (answer.result["taskId"], answer.result["status"]) == (task_id, "cancelled")
        await upstream.until(upstream.cancelled)
        assert upstream.cancelled() == [upstream.calls("gate")[0]["id"]]
        upstream.open("a")
        assert (await session.legacy("tasks/get", {"taskId": task_id})).result == answer.result

    @requirement("T25-CAN-2")
    async def test_of_a_task_that_has_ended_is_refused(self, session):
        task_id = await session.task("echo")
        before = await reached(session, task_id, "completed")
        refused = await session.legacy("tasks/cancel", {"taskId": task_id})
        assert (refused.status, refused.error["code"]) == (200, -32602)
        assert (await session.legacy("tasks/get", {"taskId": task_id})).result == before

    @requirement("T25-CAN-2")
    async def test_one_of_two_wins(self, session, harness):
        other = await harness.start()
        other.session = session.session
        task_id = await session.task("gate", {"name": "a"})
        answers = await asyncio.gather(
            *(one.legacy("tasks/cancel", {"taskId": task_id}) for one in (session, other, session, other))
        )
        outcomes = sorted("result" in answer.messages[0] for answer in answers)
        assert outcomes == [False, False, False, True]

    @requirement("T25-CAN-3")
    async def test_reaches_the_upstream_from_a_replica_that_does_not_hold_the_call(self, session, harness, upstream):
        task_id = await session.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        other = await harness.start()
        other.session = session.session
        await other.legacy("tasks/cancel", {"taskId": task_id})
        await upstream.until(upstream.cancelled)


class TestSessions:
    @requirement("T25-SEC-1")
    async def test_another_session_on_another_replica_finds_the_task(self, session, harness):
        task_id = await session.task("gate", {"name": "a"})
        other = await harness.start()
        await other.initialize()
        assert (await other.legacy("tasks/get", {"taskId": task_id})).result["status"] == "working"

    @pytest.mark.parametrize("method", ["tools/list", "tools/call", "ping", "tasks/get", "tasks/result", "no/such"])
    async def test_an_unknown_session_is_not_found(self, client, method):
        client.session = {"Mcp-Session-Id": "x" * 32}
        answer = await client.legacy(method, {"name": "echo", "taskId": "x" * 32})
        assert answer.status == 404
        assert answer.error["message"].startswith("Unknown or ended session")

    async def test_no_session_is_a_bad_request(self, client):
        assert (await client.legacy("tools/list")).status == 400

    async def test_can_be_ended(self, session):
        async with session.http.delete(session.url, headers=session.session) as response:
            assert response.status == 200
        assert (await session.legacy("ping")).status == 404
        async with session.http.delete(session.url, headers=session.session) as response:
            assert response.status == 404

    async def test_answers_pings_and_takes_notifications(self, session):
        assert (await session.legacy("ping")).result == {}
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        told = await session.post(note, session.session)
        assert (told.status, told.body) == (202, b"")
        answer = await session.post({"jsonrpc": "2.0", "id": "x", "result": {}}, session.session)
        assert answer.status == 202


class TestPlainCalls:
    @requirement("T25-HTTP-1")
    async def test_go_on_when_the_connection_drops(self, session, upstream, harness):
        for tool in ("gate", "progress"):
            calling = asyncio.create_task(session.legacy_call(tool, {"name": tool}))
            await upstream.until(lambda tool=tool: upstream.calls(tool))
            calling.cancel()
            upstream.open(tool)
        assert (await session.legacy("ping")).result == {}
        assert upstream.cancelled() == []

    async def test_answer_as_the_upstream_did(self, session):
        assert (await session.legacy_call("fail")).result["isError"] is True
        assert (await session.legacy_call("error")).error["code"] == -32002
        assert b'"huge":1e400' in (await session.legacy_call("odd")).body

    async def test_are_bounded_and_the_upstream_is_told_to_stop(self, harness, upstream):
        client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], "sync_timeout_s": 1}})
        await client.initialize()
        answer = await client.legacy_call("gate", {"name": "a"})
        assert answer.error["code"] == 50305
        assert answer.error["data"]["operation"]["outcome"] == "unknown"
        assert upstream.cancelled() == [upstream.calls("gate")[0]["id"]]

    @requirement("T25-RES-5")
    async def test_and_waits_for_results_are_kept_alive(self, session, upstream, harness):
        harness.gateways[0].front.door._keep_alive_s = 0.05
        task_id = await session.task("gate", {"name": "a"})
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/result", "params": {"taskId": task_id}}
        headers = {**session.session, "Content-Type": "application/json", "Accept": "text/event-stream"}
        async with session.http.post(session.url, data=json.dumps(body), headers=headers) as response:
            assert (await response.content.readuntil(b"\n\n")).startswith(b"id: ")
            assert (await response.content.readuntil(b"\n\n")).startswith(b":")
            upstream.open("a")
            assert b"through a" in await response.content.read()


@requirement("T25-CAP-4")
async def test_support_can_be_hidden_from_clients_that_drop_tools_with_it(harness):
    client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], "advertise_2025": False}})
    await client.initialize()
    tools = (await client.legacy("tools/list")).result["tools"]
    assert all("execution" not in tool for tool in tools)
    assert "task" in (await client.legacy_call("echo", task={})).result
