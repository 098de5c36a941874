"""Work whose holder has gone, a store that is away, a gateway that is stopped."""

import asyncio
import json

import pytest

from gateway import app, fronts
from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement
from tests.sse_client import opened, session_stream

AWAY_AFTER_S = 1
RETRY = {**POLICY, "defaults": {**POLICY["defaults"], "effect": "read_only", "on_lost": "retry"}}


async def crash(gateway):
    """Ends a gateway the way SIGKILL does: nothing is written any more, nothing is told."""
    runner = gateway._runner
    for loop in runner._loops:
        loop.cancel()
    for running in list(runner._held.values()):
        running.fence = -1  # whatever it still wants to write is refused
        running.task.cancel()
    await asyncio.gather(*runner._loops, return_exceptions=True)
    await runner.idle()
    runner._loops = []


class TestLostHolder:
    @requirement("OWN-ONCE", "OWN-FENCE")
    async def test_of_work_that_may_have_acted_makes_it_unknown(self, harness, upstream, redis):
        client = await harness.start()
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        other = await harness.start()
        other.session = client.session
        waiting = asyncio.create_task(other.legacy("tasks/result", {"taskId": task_id}))
        await crash(harness.gateways[0])
        answer = await waiting
        assert answer.error["code"] == 50305
        assert (await other.legacy("tasks/get", {"taskId": task_id})).result["status"] == "failed"
        assert len(upstream.calls("gate")) == 1
        (key,) = await redis.keys("*:o:*")
        assert await redis.hget(key, "st") == b"unknown"
        assert await redis.pttl(key) == -1

    async def test_of_repeatable_work_starts_it_again(self, harness, upstream):
        client = await harness.start(RETRY)
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        other = await harness.start(RETRY)
        other.session = client.session
        await crash(harness.gateways[0])
        await upstream.until(lambda: len(upstream.calls("gate")) == 2)
        upstream.open("a")
        answer = await other.legacy("tasks/result", {"taskId": task_id})
        assert answer.result["content"][0]["text"] == "through a"

    async def test_of_work_that_was_not_sent_starts_it_once(self, harness, upstream):
        client = await harness.start(concurrency=1)
        await client.initialize()
        blocked = await client.task("gate", {"name": "a"})
        waiting = await client.task("gate", {"name": "b"})
        await upstream.until(lambda: upstream.calls("gate"))
        await crash(harness.gateways[0])
        other = await harness.start()
        other.session = client.session
        await upstream.until(lambda: len(upstream.calls("gate")) == 2)
        upstream.open("b")
        assert (await other.legacy("tasks/result", {"taskId": waiting})).result["content"][0]["text"] == "through b"
        assert (await other.legacy("tasks/result", {"taskId": blocked})).error["code"] == 50305

    async def test_work_that_a_living_process_forgot_is_found(self, harness, upstream):
        client = await harness.start()
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        runner = harness.gateways[0]._runner
        (running,) = runner._held.values()
        running.fence = -1
        running.task.cancel()
        answer = await client.legacy("tasks/result", {"taskId": task_id})
        assert answer.error["code"] == 50305


class TestStoreAway:
    @pytest.fixture
    async def hasty(self, monkeypatch, harness):
        """Of a gateway that is soon sure that its store does not answer, and stops soon."""
        monkeypatch.setattr(app, "LAST_WORDS_S", 0.05)  # for a look whether a record was created after all
        return await harness.start(store_s=AWAY_AFTER_S)

    @requirement("OWN-AWAY")
    async def test_starts_are_refused_and_nothing_is_sent(self, hasty, server, redis, upstream):
        await hasty.initialize()
        await hasty.legacy("tools/list")
        with server.away():
            refused = await asyncio.gather(
                hasty.call("echo"), hasty.legacy("tasks/get", {"taskId": "x" * 32}), hasty.legacy_call("plain")
            )
        for answer in refused:
            assert (answer.status, answer.error["code"]) == (200, 50303)
            assert answer.error["data"] == {"reason": "store_away", "retryable": True}
        assert upstream.calls() == []

        async def look():
            return (await hasty.call("echo")).messages[0]

        await eventually(look, lambda message: "result" in message)
        await eventually(lambda: no_active(redis), bool)
        assert len(upstream.calls("echo")) == 1

    @requirement("OWN-AWAY")
    async def test_an_answer_that_comes_while_the_store_is_away_is_written_later(self, hasty, server, upstream):
        await hasty.initialize()
        task_id = await hasty.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        with server.away():
            upstream.open("a")
            assert (await hasty.legacy("tasks/result", {"taskId": task_id})).error["code"] == 50303
        answer = await eventually(
            lambda: hasty.legacy("tasks/result", {"taskId": task_id}), lambda found: "result" in found.messages[-1]
        )
        assert answer.result["content"][0]["text"] == "through a"
        assert len(upstream.calls("gate")) == 1

    @requirement("OWN-AWAY")
    @pytest.mark.parametrize(("settings", "capabilities"), [({"inline_ms": 300}, None), ({"sync_timeout_s": 1}, {})])
    async def test_work_that_went_on_out_of_sight_is_not_called_a_refused_start(
        self, harness, server, upstream, settings, capabilities
    ):
        rules = {**POLICY, "defaults": {**POLICY["defaults"], **settings}}
        client = await harness.start(rules, store_s=AWAY_AFTER_S)
        calling = asyncio.create_task(client.call("gate", {"name": "a"}, capabilities=capabilities))
        await upstream.until(lambda: upstream.calls("gate"))
        with server.away():
            told = (await calling).error
        assert (told["code"], told["data"]["operation"]["outcome"]) == (50305, "unknown")
        assert not told["data"]["retryable"]

    @requirement("OWN-WAKE")
    async def test_a_lost_subscription_costs_time_and_nothing_else(self, client, redis, upstream):
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        waiting = asyncio.create_task(client.legacy("tasks/result", {"taskId": task_id}))
        await upstream.until(lambda: upstream.calls("gate"))
        await redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        upstream.open("a")
        assert (await waiting).result["content"][0]["text"] == "through a"

    @requirement("OWN-HEALTH")
    async def test_health_speaks_of_the_process_and_readiness_of_the_store(self, hasty, harness, server):
        admin = harness.gateways[0].admin_address

        async def status(path):
            async with hasty.http.get(admin + path) as response:
                return response.status

        paths = ("/healthz", "/readyz", "/api/tasks")
        assert await asyncio.gather(*map(status, paths)) == [200, 200, 200]
        with server.away():
            assert await asyncio.gather(*map(status, paths)) == [200, 503, 503]
        await eventually(lambda: status("/readyz"), lambda code: code == 200)


class TestStop:
    @requirement("OWN-DRAIN")
    async def test_lets_running_calls_finish(self, harness, upstream):
        client = await harness.start()
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        stopping = asyncio.create_task(harness.gateways[0].stop())
        upstream.open("a")
        await stopping
        other = await harness.start()
        other.session = client.session
        assert (await other.legacy("tasks/get", {"taskId": task_id})).result["status"] == "completed"

    @requirement("OWN-DRAIN")
    @pytest.mark.parametrize(("policy", "status"), [(POLICY, "failed"), (RETRY, "working")])
    async def test_tells_the_truth_about_calls_that_do_not(self, harness, upstream, policy, status):
        client = await harness.start(policy, drain_s=0.05)
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        await harness.gateways[0].stop()
        other = await harness.start(policy, concurrency=1)
        other.session = client.session
        assert (await other.legacy("tasks/get", {"taskId": task_id})).result["status"] == status

    @requirement("OWN-DRAIN")
    async def test_takes_nothing_new_from_its_first_moment(self, harness, upstream):
        client = await harness.start(concurrency=1)
        await client.initialize()
        first = await client.task("gate", {"name": "a"})
        second = await client.task("echo")
        await upstream.until(lambda: upstream.calls("gate"))
        stopping = asyncio.create_task(harness.gateways[0].stop())
        await asyncio.sleep(0)
        upstream.open("a")
        await stopping
        assert upstream.calls("echo") == []
        other = await harness.start()
        other.session = client.session
        for task_id in (first, second):
            assert "result" in (await other.legacy("tasks/result", {"taskId": task_id})).messages[-1]

    async def test_ends_the_sessions_at_the_upstream(self, harness, upstream):
        client = await harness.start()
        await client.modern("tools/list")
        assert len(upstream.sessions) == 1
        await harness.gateways[0].stop()
        assert upstream.sessions == set()

    @requirement("OWN-DRAIN")
    @pytest.mark.parametrize("era", ["legacy", "modern"])
    async def test_lets_plain_calls_that_are_under_way_end(self, harness, upstream, monkeypatch, era):
        monkeypatch.setattr(fronts, "LAST_WORDS_S", 0.05)
        tool = {"match": "gate", "task_support": "forbidden"}
        client = await harness.start({**POLICY, "tools": [tool]})
        await client.initialize()
        params = {"name": "gate", "arguments": {"name": "a"}}
        calling = asyncio.create_task(getattr(client, era)("tools/call", params))
        await upstream.until(lambda: upstream.calls("gate"))
        stopping = asyncio.create_task(harness.gateways[0].stop())
        done, _ = await asyncio.wait({stopping, calling}, timeout=0.3)
        assert not done
        upstream.open("a")
        assert (await calling).result["content"][0]["text"] == "through a"
        await stopping

    @requirement("OWN-DRAIN", "T25-HTTP-1")
    async def test_lets_a_plain_call_end_whose_client_has_left(self, harness, upstream, monkeypatch):
        monkeypatch.setattr(app, "LAST_WORDS_S", 0.05)
        client = await harness.start({**POLICY, "tools": [{"match": "gate", "task_support": "forbidden"}]})
        await client.initialize()
        params = {"name": "gate", "arguments": {"name": "a"}}
        body = {"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": params}
        async with opened(client, body, client.session) as stream:
            await stream.event()
        stopping = asyncio.create_task(harness.gateways[0].stop())
        done, _ = await asyncio.wait({stopping}, timeout=0.5)
        assert not done
        upstream.open("a")
        await stopping
        other = await harness.start()
        other.session = client.session
        async with session_stream(other, stream.ids[-1]) as again:
            assert (await again.message(""))["result"]["content"][0]["text"] == "through a"

    async def test_leaves_the_session_of_a_client_to_the_next_process(self, harness, upstream):
        client = await harness.start()
        await client.initialize()
        (session,) = upstream.sessions
        await harness.gateways[0].stop()
        other = await harness.start()
        other.session = client.session
        assert "tools" in (await other.legacy("tools/list")).result
        assert upstream.sessions == {session}


@requirement("OWN-QUIET")
async def test_nothing_secret_is_logged_or_counted(harness, upstream):
    client = await harness.start()
    await client.initialize()
    task_id = await client.task("fail", {"password": "CANARY-1"})
    await client.legacy("tasks/result", {"taskId": task_id})
    await client.legacy_call("plain", {"password": "CANARY-2"})
    body, headers = client.modern_request("tools/call", {"name": "CANARY-3", "arguments": {"x": "CANARY-4"}})
    await client.post(body, {**headers, "Authorization": "Bearer CANARY-5", "Mcp-Name": "CANARY-6"})
    await client.post(b'{"CANARY-7":')
    upstream.fault = None
    async with client.http.get(harness.gateways[0].admin_address + "/metrics") as response:
        metrics = await response.text()
    log = harness.log.getvalue()
    assert "CANARY" not in log + metrics
    assert task_id not in log + metrics
    assert client.session["Mcp-Session-Id"] not in log + metrics
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"request", "transition", "task_created", "started"} <= {line["event"] for line in lines}
    assert 'mtg_requests_total{era="legacy",method="CallTool",outcome="ok",upstream="reports"} 2.0' in metrics


@requirement("OWN-SCHEMA")
async def test_a_record_of_a_later_release_is_refused_by_name_and_others_go_on(client, redis):
    await client.initialize()
    task_id = await client.task("gate", {"name": "a"})
    (key,) = await redis.keys(f"*:t:*{task_id}")
    head = json.loads(await redis.hget(key, "head"))
    await redis.hset(key, "head", json.dumps({**head, "schema": 99}))
    refused = await client.legacy("tasks/get", {"taskId": task_id})
    assert (refused.status, refused.error["code"]) == (200, -32603)
    other = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
    assert other.result["content"][0]["text"] == "{}"


async def no_active(redis):
    keys = await redis.keys("*:qa:*")
    return not keys or await redis.zcard(keys[0]) == 0
