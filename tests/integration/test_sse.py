"""A gateway in front of a server over HTTP+SSE, told so or found out: tasks in both dialects, plain calls, failures."""

import asyncio
import json

import pytest

from gateway.app import Gateway
from gateway.config.load import Loaded, Site
from gateway.config.models import Admin, Config, Runner, Server, Store, Upstream
from gateway.policy.decide import Policy
from gateway.policy.model import PolicyFile
from tests.client import TASKS, Client
from tests.integration.conftest import POLICY, eventually, soon
from tests.requirements import requirement
from tests.sse_client import result_of
from tests.sse_server import SseServer
from tests.unit.upstream.conftest import Log
from tests.upstream_server import ODD

CAN = {**TASKS, "elicitation": {}}


@pytest.fixture
async def sse():
    async with SseServer() as running:
        yield running


@pytest.fixture(params=["sse", "auto"])
async def start(request, redis, server, sse, tmp_path, http):
    """Starts a gateway, and gives a client of it with a session."""
    log, gateways = Log(), []

    async def run(tools=POLICY["tools"], **settings) -> Client:
        file = PolicyFile.model_validate(
            {"version": 1, "defaults": {**POLICY["defaults"], **settings}, "tools": tools},
        )
        upstream = Upstream(name="reports", transport=request.param, url=sse.url)
        config = Config(
            server=Server(listen="127.0.0.1:0", drain_deadline_s=5),
            admin=Admin(listen="127.0.0.1:0"),
            store=Store(url=server.url, timeout_s=1),
            runner=Runner(lease_s=1, takeover_grace_s=0.2, cancel_grace_s=0.3),
            upstreams=(upstream,),
        )
        gateway = Gateway(Loaded(config, [Site(upstream, Policy(file, "test"))]), tmp_path, log.telemetry, jitter=soon)
        await gateway.start()
        gateways.append(gateway)
        run.stop, run.log = gateway.stop, log
        client = Client(http, f"{gateway.address}/mcp")
        await client.initialize()
        return client

    yield run
    sse.close_gates()
    for gateway in gateways:
        await gateway.stop()
    await sse.until(lambda: not sse.streams)
    assert log.said("fault") == []


async def ended(client, task_id):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=CAN)).result

    return await eventually(look, lambda task: task["status"] not in ("working", "input_required"))


def text(result):
    return result["content"][0]["text"]


async def test_lists_and_plain_calls_pass_through(start, sse):
    client = await start()
    assert [tool["name"] for tool in (await client.legacy("tools/list")).result["tools"]][:2] == ["echo", "gate"]
    assert text((await client.legacy_call("plain", {"a": 1})).result) == '{"a": 1}'
    answer = await client.legacy_call("progress", {}, _meta={"progressToken": "t-1"})
    notes = [message["params"] for message in answer.messages if message.get("method") == "notifications/progress"]
    assert [(note["progressToken"], note["progress"]) for note in notes] == [("t-1", 1), ("t-1", 2)]
    assert sse.opened == 1


@requirement("T25-NEW-1", "T25-RES-2")
async def test_a_task_of_2025(start, sse):
    client = await start()
    task_id = await client.task("gate", {"name": "a"})
    await sse.until(lambda: sse.calls("gate"))
    assert (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == "working"
    sse.open("a")
    assert text((await client.legacy("tasks/result", {"taskId": task_id})).result) == "through a"
    assert (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == "completed"


@requirement("TX-GET-3", "OWN-BYTES")
async def test_a_task_of_the_extension_byte_for_byte(start):
    client = await start()
    task_id = (await client.call("odd")).result["taskId"]
    await ended(client, task_id)
    body = (await client.modern("tasks/get", {"taskId": task_id})).body
    assert b'"result":{"resultType":"complete",' + ODD[1:] in body


@requirement("T25-NEW-6")
async def test_progress_of_a_task(start, sse):
    client = await start(tools=[])
    created = await client.legacy_call("progress", {"name": "a"}, task={}, _meta={"progressToken": "t"})
    async with result_of(client, created.result["task"]["taskId"]) as stream:
        while (note := (await stream.message("notifications/progress"))["params"])["progress"] != 2:
            assert note["progressToken"] == "t"
        sse.open("a")
        await stream.message("")


@requirement("T25-CAN-1", "T25-CAN-3")
async def test_a_cancelled_task_is_told_to_the_server_once(start, sse):
    client = await start()
    task_id = await client.task("gate", {"name": "a"})
    await sse.until(lambda: sse.calls("gate"))
    assert (await client.legacy("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
    await sse.until(sse.cancelled)
    sse.open("a")
    assert sse.cancelled() == [sse.calls("gate")[0]["id"]]


@pytest.mark.parametrize(("tool", "code"), [("fail", None), ("error", -32002)])
async def test_errors_of_the_tool_and_of_the_protocol(start, tool, code):
    client = await start()
    task_id = await client.task(tool)
    answer = (await client.legacy("tasks/result", {"taskId": task_id})).messages[-1]
    assert (answer["result"]["isError"] if code is None else answer["error"]["code"] == code) is True
    assert (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == "failed"


@requirement("TX-UPD-1", "TX-GET-1")
async def test_a_question_of_the_server_reaches_the_client_and_its_answer_the_server(start):
    client = await start()
    task_id = (await client.call("form", {}, capabilities=CAN)).result["taskId"]

    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=CAN)).result

    task = await eventually(look, lambda task: task["status"] == "input_required")
    ((key, question),) = task["inputRequests"].items()
    assert (question["method"], question["params"]["message"]) == ("elicitation/create", "Who?")
    answers = {"taskId": task_id, "inputResponses": {key: {"action": "decline"}}}
    await client.modern("tasks/update", answers, capabilities=CAN)
    assert json.loads(text((await ended(client, task_id))["result"]))[0]["result"] == {"action": "decline"}


@requirement("OWN-ONCE")
class TestCut:
    async def test_in_a_call_is_told_to_be_unknown_and_the_next_call_works(self, start, sse, redis):
        client = await start()
        task_id = await client.task("gate", {"name": "a"})
        await sse.until(lambda: sse.calls("gate"))
        sse.cut()
        assert (await client.legacy("tasks/result", {"taskId": task_id})).error["code"] == 50305
        assert [await redis.hget(key, "st") for key in await redis.keys("*:o:*")] == [b"unknown"]
        after = await client.legacy("tasks/result", {"taskId": await client.task("echo", {"a": 1})})
        assert text(after.result) == '{"a": 1}'
        assert (len(sse.calls("gate")), sse.opened) == (1, 2)

    async def test_leaves_repeatable_work_to_the_next_stream(self, start, sse):
        client = await start(effect="read_only", on_lost="retry")
        task_id = await client.task("gate", {"name": "a"})
        await sse.until(lambda: sse.calls("gate"))
        sse.open("a")
        sse.cut()
        assert text((await client.legacy("tasks/result", {"taskId": task_id})).result) == "through a"

    async def test_between_two_calls_is_noticed_by_nobody(self, start, sse):
        client = await start()
        assert text((await client.legacy_call("plain", {"a": 1})).result) == '{"a": 1}'
        sse.cut()
        await sse.until(lambda: not sse.streams)
        assert text((await client.legacy_call("plain", {"a": 2})).result) == '{"a": 2}'


@requirement("OWN-DRAIN")
async def test_a_stopped_gateway_lets_a_call_finish(start, sse, redis):
    client = await start()
    await client.task("gate", {"name": "a"})
    await sse.until(lambda: sse.calls("gate"))
    stopping = asyncio.ensure_future(start.stop())

    async def said():
        return start.log.said("stopping")

    await eventually(said)
    sse.open("a")
    await stopping
    assert [await redis.hget(key, "st") for key in await redis.keys("*:o:*")] == [b"answered"]
    assert sse.streams == {}
