"""Every way an upstream can die, as a plain call, as a task in each dialect: told at once, and never sent twice."""

import asyncio
import json

import pytest
from aiohttp import web

from gateway.core.model import Owner
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import Call, NotSent
from gateway.wire.jsonrpc import members
from tests.client import Client
from tests.faults import CANNOT_HAVE_ACTED, MAY_HAVE_ACTED, huge, status
from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement
from tests.upstream_server import answer


async def outcomes(harness, fault, **policy):
    """A plain call, a bounded one, a task of the extension and one of 2025-11-25, all of them into the fault."""
    client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], **policy}})
    await client.initialize()
    await client.legacy("tools/list")
    harness.upstream.fault = fault
    plain, bounded = [(await client.legacy_call(tool)).error["code"] for tool in ("plain", "echo")]
    task_id = (await client.call("echo")).result["taskId"]

    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id})).result

    modern = await eventually(look, lambda task: task["status"] == "failed")
    legacy = (await client.legacy("tasks/result", {"taskId": await client.task("echo")})).error["code"]
    return plain, bounded, modern["error"]["code"], legacy


@requirement("OWN-ONCE")
@pytest.mark.parametrize("fault", MAY_HAVE_ACTED)
async def test_what_may_have_acted_is_told_to_be_unknown(harness, upstream, redis, fault):
    assert await outcomes(harness, MAY_HAVE_ACTED[fault]) == (50305,) * 4
    assert len(upstream.calls()) == 4
    states = [await redis.hget(key, "st") for key in await redis.keys("*:o:*")]
    assert states == [b"unknown"] * 3


@pytest.mark.parametrize("fault", CANNOT_HAVE_ACTED)
async def test_what_cannot_have_acted_is_told_to_have_failed(harness, upstream, redis, fault):
    assert await outcomes(harness, CANNOT_HAVE_ACTED[fault]) == (50202,) * 4
    assert len(upstream.calls()) == 4
    states = [await redis.hget(key, "st") for key in await redis.keys("*:o:*")]
    assert states == [b"dropped"] * 3


async def test_an_answer_larger_than_allowed_is_not_taken(harness):
    assert await outcomes(harness, huge, max_result_bytes=10_000) == (50305,) * 4


async def test_a_plain_read_only_call_says_what_was_wrong(harness):
    client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], "effect": "read_only"}})
    await client.initialize()
    harness.upstream.fault = MAY_HAVE_ACTED["html"]
    assert (await client.legacy_call("plain")).error["code"] == 50202


async def test_an_error_that_comes_with_a_status_is_an_error(harness, upstream):
    async def refuse(_, message):
        error = {"code": -32602, "message": "bad", "data": 1.0}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=400)

    client = await harness.start()
    await client.initialize()
    upstream.fault = refuse
    assert (await client.legacy_call("plain")).error == {"code": -32602, "message": "bad", "data": 1.0}


@requirement("OWN-ONCE")
@pytest.mark.parametrize(("tool", "times"), [("echo", 1), ("lookup", 2), ("plain", 1)])
async def test_what_a_busy_server_refused_is_sent_again_only_if_it_is_repeatable(harness, upstream, tool, times):
    repeatable = {"match": "lookup", "effect": "read_only", "on_lost": "retry"}
    client = await harness.start({**POLICY, "tools": [*POLICY["tools"], repeatable]})
    await client.initialize()
    seen = 0

    async def busy_once(request, message):
        nonlocal seen
        seen += 1
        return web.Response(status=429) if seen == 1 else await upstream._echo(request, message)

    upstream.fault = busy_once
    if tool == "plain":
        answer = await client.legacy_call(tool)
    else:
        answer = await client.legacy("tasks/result", {"taskId": await client.task(tool)})
    assert seen == times
    if times == 1:
        assert (answer.error["code"], "429" in answer.error["message"]) == (50202, True)
    else:
        assert answer.result["content"] == [{"type": "text", "text": "{}"}]


@requirement("T25-INP-2")
async def test_a_question_that_was_not_declared_is_refused_upstream_and_the_call_goes_on(client, upstream):
    await client.initialize()
    answer = await client.legacy("tasks/result", {"taskId": await client.task("ask")})
    heard = json.loads(answer.result["content"][0]["text"])
    assert [(one["id"], one.get("error", {}).get("code"), one.get("result")) for one in heard] == [
        ("q1", -32601, None),
        ("q2", None, {}),
    ]
    (initialize,) = [message for message in upstream.seen if message.get("method") == "initialize"]
    assert initialize["params"]["capabilities"] == {}


class TestSessions:
    async def test_an_ended_session_is_opened_anew_and_the_call_is_sent(self, client, upstream):
        await client.initialize()
        assert (await client.legacy_call("plain", {"a": 1})).status == 200
        upstream.sessions.clear()
        assert (await client.legacy_call("plain", {"a": 2})).result["content"][0]["text"] == '{"a": 2}'
        upstream.sessions.clear()
        assert "tools" in (await client.legacy("tools/list")).result
        upstream.sessions.clear()
        answer = await client.legacy("tasks/result", {"taskId": await client.task("echo", {"a": 3})})
        assert answer.result["content"][0]["text"] == '{"a": 3}'

    @requirement("OWN-404")
    @pytest.mark.parametrize("effect", ["consequential", "read_only"])
    async def test_that_ended_are_no_proof_of_anything_where_policy_says_so(self, harness, upstream, redis, effect):
        codes = await outcomes(harness, status(404), resend_on_session_404=False, effect=effect)
        assert codes == ((50305 if effect == "consequential" else 50201), 50305, 50305, 50305)
        assert len(upstream.calls()) == 4
        assert [await redis.hget(key, "st") for key in await redis.keys("*:o:*")] == [b"unknown"] * 3
        upstream.fault = None
        client = Client(harness.http, f"{harness.gateways[0].address}/mcp")
        await client.initialize()
        assert "result" in (await client.legacy_call("plain")).messages[-1]

    @requirement("OWN-404")
    async def test_that_end_each_time_have_a_call_sent_twice_and_no_more(self, harness, upstream, redis):
        assert await outcomes(harness, status(404)) == (50201,) * 4
        assert len(upstream.calls()) == 8
        assert [await redis.hget(key, "st") for key in await redis.keys("*:o:*")] == [b"dropped"] * 3

    async def test_callers_that_come_together_share_one_handshake(self, client, upstream):
        await client.initialize()
        await asyncio.gather(*(client.legacy_call("plain") for _ in range(10)))
        assert len([message for message in upstream.seen if message.get("method") == "initialize"]) == 1

    async def test_nothing_of_the_clients_headers_travels(self, client, upstream):
        secret = dict.fromkeys(("Authorization", "Cookie", "X-Api-Key", "X-Forwarded-For", "traceparent"), "SECRET")
        await client.initialize()
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "plain", "arguments": {}}}
        await client.post(body, {**client.session, **secret})
        assert "SECRET" not in str(upstream.headers)
        assert client.session["Mcp-Session-Id"] not in str(upstream.headers)
        assert upstream.headers[-1]["MCP-Protocol-Version"] == "2025-06-18"


class TestPool:
    async def test_sessions_at_an_upstream_are_bounded_and_the_oldest_idle_one_ends(self, harness, upstream, http):
        pool = HttpUpstream(Connections(upstream.url, dict, 5), max_sessions=2, session_idle_s=60)
        owners = [Owner("i", name, "t", "u") for name in "abc"]
        links = [await pool.open(owner) for owner in owners[:2]]
        assert await pool.open(owners[0]) is links[0]
        call = Call(pool.next_id(), "tools/call", members(b'{"name":"gate","arguments":{"name":"a"}}'), 10_000)
        calling = asyncio.create_task(pool.perform(links[0], call))
        await upstream.until(lambda: upstream.calls("gate"))
        third = await pool.open(owners[2])
        await upstream.until(lambda: upstream.sessions == {links[0].session_id, third.session_id})
        other = Call(pool.next_id(), "tools/call", call.params, 10_000)
        both = asyncio.create_task(pool.perform(third, other))
        await upstream.until(lambda: len(upstream.calls("gate")) == 2)
        with pytest.raises(NotSent, match="max_sessions") as refused:
            await pool.open(owners[1])
        assert refused.value.again
        upstream.open("a")
        await asyncio.gather(calling, both)
        assert (await pool.open(owners[1])).owner == owners[1]
        await pool.close()
        assert upstream.sessions == set()


class TestCredentials:
    async def test_that_cannot_be_read_any_more_mean_that_nothing_was_sent(self, harness, upstream):
        client = await harness.start()
        await client.initialize()
        await client.legacy("tools/list")

        def gone():
            raise FileNotFoundError

        await harness.forget_upstream_sessions()
        harness.gateways[0].upstreams["reports"]._connections._headers = gone
        answer = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
        assert (answer.error["code"], upstream.calls()) == (50201, [])
        del harness.gateways[0].upstreams["reports"]._connections._headers
        harness.gateways[0].upstreams["reports"]._connections._headers = dict


class TestDown:
    async def test_an_upstream_that_is_down_fails_calls_and_lists_with_the_same_word(self, harness, upstream):
        client = await harness.start()
        await client.initialize()
        await upstream._runner.cleanup()
        assert (await client.legacy("tools/list")).error["code"] == 50201
        assert (await client.legacy_call("plain")).error["code"] == 50201
        await harness.forget_upstream_sessions()  # else the task is tried again later, more than once
        answer = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
        assert (answer.error["code"], answer.error["data"]["retryable"]) == (50201, True)
        assert harness.upstream.url.split("/")[2] not in str(answer.body)

    async def test_a_server_that_is_no_mcp_is_told_so(self, harness, upstream):
        client = await harness.start()
        await client.initialize()

        async def greet(message):
            return answer(message, {"protocolVersion": "1999-01-01"})

        upstream._initialize = greet
        upstream.sessions.clear()
        assert (await client.legacy_call("plain")).error["code"] == 50202


class TestDeadline:
    @pytest.mark.parametrize(("effect", "state"), [("read_only", b"dropped"), ("consequential", b"unknown")])
    async def test_ends_the_task_tells_the_upstream_and_the_truth(self, harness, upstream, redis, effect, state):
        limits = {"deadline_s": 1, "effect": effect}
        client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], **limits}})
        await client.initialize()
        answer = await client.legacy("tasks/result", {"taskId": await client.task("gate", {"name": "a"})})
        assert answer.error["code"] == 50401
        await upstream.until(upstream.cancelled)
        (key,) = await redis.keys("*:o:*")
        assert await redis.hget(key, "st") == state

    async def test_of_a_plain_call_tells_the_upstream_too(self, harness, upstream):
        client = await harness.start({**POLICY, "defaults": {**POLICY["defaults"], "deadline_s": 1}})
        await client.initialize()
        answer = await client.legacy_call("progress", {"name": "a"})
        assert answer.error["code"] == 50401
        await upstream.until(upstream.cancelled)

    async def test_ends_work_that_never_got_a_turn(self, harness, upstream):
        limits = {**POLICY["defaults"], "max_concurrent_upstream": 1}
        client = await harness.start({**POLICY, "defaults": limits, "tools": [{"match": "echo", "deadline_s": 1}]})
        await client.initialize()
        await client.task("gate", {"name": "a"})
        told = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
        assert told.error["code"] == 50401
        assert upstream.calls("echo") == []
