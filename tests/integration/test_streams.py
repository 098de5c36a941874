"""Streams that stay open: resumption, the stream of a session, progress, subscriptions."""

import asyncio
import json

import pytest

from tests.client import TASKS
from tests.integration.conftest import eventually
from tests.requirements import requirement
from tests.sse_client import opened, result_of, session_stream

RELATED = "io.modelcontextprotocol/related-task"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
async def session(client):
    await client.initialize(capabilities={"elicitation": {}})
    return client


def listen(client, task_ids, request_id="sub-1", capabilities=None):
    params = {"notifications": {"taskIds": task_ids}} if task_ids is not None else {"notifications": {}}
    body, headers = client.modern_request(
        "subscriptions/listen", params, request_id=request_id, capabilities=capabilities
    )
    return opened(client, body, headers)


class TestResumption:
    @requirement("T25-RES-1", "T25-HTTP-2")
    async def test_a_broken_wait_is_resumed_on_another_replica_under_its_own_id(self, session, harness, upstream):
        task_id = await session.task("gate", {"name": "a"})
        async with result_of(session, task_id, request_id="mine") as stream:
            assert (await stream.event()).startswith(b"id: ")
            (event,) = stream.ids
        other = await harness.start()
        other.session = session.session
        async with session_stream(other, event) as resumed:
            assert (await resumed.event()) == f"id: {event}\nretry: 3000\ndata: \n\n".encode()
            upstream.open("a")
            answer = await resumed.message("")
            assert await resumed.end()
        assert (answer["id"], answer["result"]["content"][0]["text"]) == ("mine", "through a")
        async with session_stream(other, event) as again:
            assert (await again.message(""))["result"] == answer["result"]

    @requirement("T25-RES-1")
    async def test_a_gateway_that_stops_ends_the_wait_with_a_retry_and_invents_no_answer(
        self, session, harness, upstream
    ):
        task_id = await session.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        async with result_of(session, task_id) as stream, session_stream(session) as own:
            await asyncio.gather(stream.event(), own.event())
            stopping = asyncio.create_task(harness.gateways[0].stop())
            for one in (stream, own):
                raw = await one.end()
                assert raw.endswith(b"retry: 3000\n\n")
                assert b"jsonrpc" not in raw
        upstream.open("a")
        await stopping
        other = await harness.start()
        other.session = session.session
        async with session_stream(other, stream.ids[0]) as resumed:
            assert (await resumed.message(""))["result"]["content"][0]["text"] == "through a"

    @requirement("T25-HTTP-2")
    async def test_an_event_id_that_is_not_known_to_this_session_is_refused(self, session, harness):
        task_id = await session.task("gate", {"name": "a"})
        async with result_of(session, task_id) as stream:
            await stream.event()
        other = await harness.start()
        await other.initialize()
        for client, event in ((session, "x" * 32), (session, ""), (other, stream.ids[0]), (session, "é")):
            headers = {"Accept": "text/event-stream", "Last-Event-ID": event, **client.session}
            async with client.http.get(client.url, headers=headers) as response:
                assert response.status == 400


class TestSessionStream:
    @requirement("T25-HTTP-2")
    async def test_needs_a_session_that_is_there_and_a_client_that_takes_streams(self, session):
        async def status(headers):
            async with session.http.get(session.url, headers=headers) as response:
                return response.status

        takes = {"Accept": "text/event-stream"}
        assert await status(takes) == 405
        assert await status({**takes, "Mcp-Session-Id": "x" * 32}) == 404
        assert await status({"Accept": "application/json", **session.session}) == 406

    async def test_ends_with_its_session(self, session):
        async with session_stream(session) as stream:
            await stream.event()
            async with session.http.delete(session.url, headers=session.session) as response:
                assert response.status == 200
            assert b"retry: 3000" in await stream.end()

    @requirement("T25-ST-3")
    async def test_tells_each_change_on_exactly_one_stream_of_the_owner(self, session, harness, upstream):
        other = await harness.start()
        await other.initialize()
        async with session_stream(session) as mine, session_stream(other) as theirs:
            await asyncio.gather(mine.event(), theirs.event())
            task_id = await session.task("gate", {"name": "a"})
            upstream.open("a")
            told = await mine.message("notifications/tasks/status")
            while told["params"]["status"] != "completed":
                told = await mine.message("notifications/tasks/status")
            assert told["params"] == (await session.legacy("tasks/get", {"taskId": task_id})).result
            assert RELATED not in str(told)
            done = await other.task("echo")
            assert (await theirs.message("notifications/tasks/status"))["params"]["taskId"] == done
            assert done.encode() not in mine.raw
            assert task_id.encode() not in theirs.raw

    async def test_tells_a_session_whose_own_stream_has_gone_about_its_tasks(self, session, harness, upstream):
        task_id = await session.task("gate", {"name": "a"})
        other = await harness.start()
        await other.initialize()
        async with session_stream(other) as theirs:
            await theirs.event()
            upstream.open("a")
            assert (await theirs.message("notifications/tasks/status"))["params"]["taskId"] == task_id


class TestProgress:
    @requirement("T25-NEW-6", "T25-INP-4")
    @pytest.mark.parametrize("token", ["t", 0, ""])
    async def test_reaches_the_waiting_client_with_its_own_token(self, session, harness, upstream, token):
        policy = {"version": 1, "defaults": {"task_support": "optional", "inline_ms": 0}}
        client = await harness.start(policy)
        client.session = session.session
        meta = {"progressToken": token}
        created = await client.legacy_call("progress", {"name": "a"}, task={}, _meta=meta)
        task_id = created.result["task"]["taskId"]
        async with result_of(client, task_id) as stream:
            note = (await stream.message("notifications/progress"))["params"]
            while note["progress"] != 2:
                note = (await stream.message("notifications/progress"))["params"]
            assert note == {
                "progressToken": token,
                "progress": 2,
                "message": "step 2",
                "_meta": {RELATED: {"taskId": task_id}},
            }
            upstream.open("a")
            await stream.message("")
        sent = upstream.calls("progress")[0]
        assert sent["params"]["_meta"] == {"progressToken": sent["id"]}

    async def test_reaches_the_stream_of_the_session_when_nobody_waits(self, session, upstream, harness):
        client = await harness.start({"version": 1, "defaults": {"task_support": "optional"}})
        client.session = session.session
        async with session_stream(client) as stream:
            await client.legacy_call("progress", {"name": "a"}, task={}, _meta={"progressToken": "t"})
            while (note := (await stream.message("notifications/progress"))["params"])["progress"] != 2:
                assert note["progressToken"] == "t"

    async def test_that_was_brought_wakes_nobody_again(self, session, upstream, harness, redis):
        client = await harness.start({"version": 1, "defaults": {"task_support": "optional"}})
        client.session = session.session
        async with session_stream(client) as stream, redis.pubsub() as wakes:
            await client.legacy_call("progress", {"name": "a"}, task={}, _meta={"progressToken": "t"})
            while (await stream.message("notifications/progress"))["params"]["progress"] != 2:
                pass
            await wakes.subscribe("mtg:{s0}:wake")
            quiet = 0
            for _ in range(20):
                quiet += await wakes.get_message(ignore_subscribe_messages=True, timeout=0.05) is None
            assert quiet >= 17


class TestListen:
    @requirement("TX-NOT-1", "TX-NOT-2")
    async def test_acknowledges_own_tasks_and_tells_each_of_their_states(self, client, upstream):
        task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
        async with listen(client, [task_id, "x" * 32, "", task_id]) as stream:
            assert await stream.message() == {
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": {"taskIds": [task_id]}, "_meta": {SUBSCRIPTION: "sub-1"}},
            }
            first = await stream.message()
            assert (first["method"], first["params"]["status"]) == ("notifications/tasks", "working")
            upstream.open("a")
            told = await stream.message()
            assert told["params"]["_meta"] == {SUBSCRIPTION: "sub-1"}
            params = {key: value for key, value in told["params"].items() if key != "_meta"}
        got = (await client.modern("tasks/get", {"taskId": task_id})).result
        assert params == {key: value for key, value in got.items() if key not in ("_meta", "resultType")}
        assert params["result"]["content"][0]["text"] == "through a"
        assert stream.response.headers["X-Accel-Buffering"] == "no"

    @requirement("TX-NOT-1")
    async def test_tells_the_present_state_so_that_no_change_is_lost_in_between(self, client):
        task_id = (await client.call("echo")).result["taskId"]
        await eventually(lambda: client.modern("tasks/get", {"taskId": task_id}), lambda a: b"completed" in a.body)
        async with listen(client, [task_id], request_id=7) as stream:
            await stream.message()
            told = (await stream.message())["params"]
        assert (told["status"], told["_meta"]) == ("completed", {SUBSCRIPTION: 7})

    @requirement("TX-NOT-3")
    async def test_a_change_on_another_replica_arrives_and_a_stop_ends_it_with_the_result(self, client, harness):
        other = await harness.start()
        task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
        async with listen(other, [task_id]) as stream:
            await stream.message()
            await stream.message()
            await client.modern("tasks/cancel", {"taskId": task_id})
            while (told := (await stream.message())["params"])["status"] != "cancelled":
                assert told["status"] == "working"
            await harness.gateways[1].stop()
            done = await stream.message("")
        assert done["id"] == "sub-1"
        assert (done["result"]["resultType"], done["result"]["_meta"][SUBSCRIPTION]) == ("complete", "sub-1")

    @requirement("TX-CAP-5")
    async def test_needs_the_declaration_for_tasks_only(self, client):
        body, headers = client.modern_request(
            "subscriptions/listen", {"notifications": {"taskIds": []}}, capabilities={}
        )
        refused = await client.post(body, headers)
        assert (refused.status, refused.error["code"]) == (400, -32021)
        async with listen(client, None, capabilities={}) as stream:
            assert (await stream.message())["params"]["notifications"] == {}

    @pytest.mark.parametrize(
        "notifications", [None, [], {"taskIds": "x"}, {"taskIds": [1]}, {"taskIds": ["x"] * 101}, {"taskIds": {}}]
    )
    async def test_of_something_odd_is_refused(self, client, notifications):
        refused = await client.modern("subscriptions/listen", {"notifications": notifications}, capabilities=TASKS)
        assert (refused.status, refused.error["code"]) == (200, -32602)

    @requirement("TX-NOT-3")
    async def test_is_kept_alive(self, client, harness):
        harness.gateways[0].front.door._keep_alive_s = 0.05
        task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
        async with listen(client, [task_id]) as stream:
            await stream.message()
            await stream.message()
            assert (await stream.event()).startswith(b":")


async def test_a_stream_that_was_left_leaves_nothing_behind(session, redis, harness):
    task_id = await session.task("gate", {"name": "a"})
    before = len(asyncio.all_tasks())
    for _ in range(20):
        async with result_of(session, task_id) as stream, listen(session, [task_id]) as other:
            await asyncio.gather(stream.event(), other.event())

    async def tasks():
        return len(asyncio.all_tasks())

    await eventually(tasks, lambda count: count <= before + 4)
    wake = harness.gateways[0].wake
    await eventually(lambda: count_of(wake), lambda count: count <= 1)
    assert json.loads(await redis.hget((await redis.keys("*:t:*"))[0], "head"))["state"] == "working"


async def count_of(wake):
    return sum(map(len, wake._waiting.values())) + sum(map(len, wake._watching.values()))
