"""A gateway in front of a server that runs as a child process: tasks in both dialects, crashes, principals, the end."""

import asyncio
import json
import os
import signal

import pytest

from gateway.app import Gateway
from gateway.config.load import Loaded, Site
from gateway.config.models import Admin, Config, Runner, Server, Store, Upstream
from gateway.policy.decide import Policy
from gateway.policy.model import PolicyFile
from tests.client import TASKS, Client
from tests.e2e.processes import alive
from tests.integration.conftest import POLICY, eventually, soon
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, SERVER, Stdio
from tests.unit.upstream.conftest import Log
from tests.upstream_server import ODD

CAN = {**TASKS, "elicitation": {}}


class StdioSite:
    """A gateway, a client of it, the server's folder and the log."""

    def __init__(self, store_url, folder, http, server=SERVER) -> None:
        self.store_url = store_url
        self.http = http
        self.stdio = Stdio(folder, server)
        self.log = Log()
        self.policy = POLICY
        self.gateway: Gateway | None = None

    async def start(self, mode: str = "", *, drain_s: float = 5, **settings) -> Client:
        policy = {**self.policy, "defaults": {**self.policy["defaults"], **settings}}
        upstream = Upstream(
            name="reports", transport="stdio", command=tuple(self.stdio.arguments(mode)), env={"LEVEL": "debug"}
        )
        config = Config(
            server=Server(listen="127.0.0.1:0", drain_deadline_s=drain_s),
            admin=Admin(listen="127.0.0.1:0"),
            store=Store(url=self.store_url, timeout_s=1),
            runner=Runner(lease_s=1, takeover_grace_s=0.2, cancel_grace_s=0.3),
            upstreams=(upstream,),
        )
        loaded = Loaded(config, [Site(upstream, Policy(PolicyFile.model_validate(policy), "test"))])
        self.gateway = Gateway(loaded, self.stdio.folder, self.log.telemetry, jitter=soon)
        await self.gateway.start()
        return Client(self.http, f"{self.gateway.address}/mcp")

    async def stop(self) -> None:
        if self.gateway is not None:
            await self.gateway.stop()
            self.gateway = None


@pytest.fixture
async def site(redis, server, tmp_path, http):
    made = StdioSite(server.url, tmp_path, http)
    yield made
    await made.stop()
    assert [pid for pid in made.log.pids() if alive(pid)] == []
    assert made.log.said("fault") == []


@pytest.fixture
async def client(site):
    made = await site.start()
    await made.initialize()
    return made


async def ended(client, task_id):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=CAN)).result

    return await eventually(look, lambda task: task["status"] not in ("working", "input_required"))


def text(result):
    return result["content"][0]["text"]


@requirement("T25-NEW-1", "T25-RES-2")
async def test_a_task_of_2025(site, client):
    task_id = await client.task("gate", {"name": "a"})
    await site.stdio.until(lambda: site.stdio.calls("gate"))
    assert (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == "working"
    site.stdio.open("a")
    assert text((await client.legacy("tasks/result", {"taskId": task_id})).result) == "through a"
    assert (await client.legacy("tasks/get", {"taskId": task_id})).result["status"] == "completed"


@requirement("TX-GET-3", "OWN-BYTES")
async def test_a_task_of_the_extension_byte_for_byte(client):
    task_id = (await client.call("odd")).result["taskId"]
    await ended(client, task_id)
    body = (await client.modern("tasks/get", {"taskId": task_id})).body
    assert b'"result":{"resultType":"complete",' + ODD[1:] in body


@requirement("T25-CAN-1", "T25-CAN-3")
async def test_a_cancelled_task_of_2025_is_told_to_the_server_once(site, client):
    task_id = await client.task("gate", {"name": "a"})
    await site.stdio.until(lambda: site.stdio.calls("gate"))
    assert (await client.legacy("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
    await site.stdio.until(site.stdio.cancelled)
    site.stdio.open("a")
    assert site.stdio.cancelled() == [site.stdio.calls("gate")[0]["id"]]


@requirement("TX-CAN-1")
async def test_a_cancelled_task_of_the_extension_is_told_to_the_server_once(site, client):
    task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
    await site.stdio.until(lambda: site.stdio.calls("gate"))
    await client.modern("tasks/cancel", {"taskId": task_id})
    assert (await ended(client, task_id))["status"] == "cancelled"
    assert site.stdio.cancelled() == [site.stdio.calls("gate")[0]["id"]]


async def test_plain_calls_and_lists_pass_through(site, client):
    assert [tool["name"] for tool in (await client.legacy("tools/list")).result["tools"]][:2] == ["echo", "gate"]
    assert text((await client.legacy_call("plain", {"a": 1})).result) == '{"a": 1}'
    answer = await client.legacy_call("progress", {}, _meta={"progressToken": "t-1"})
    notes = [message["params"] for message in answer.messages if message.get("method") == "notifications/progress"]
    assert [(note["progressToken"], note["progress"]) for note in notes] == [("t-1", 1), ("t-1", 2)]
    assert len(site.log.pids()) == 1


@requirement("TX-UPD-1", "TX-GET-1")
async def test_a_question_of_the_server_reaches_the_client_and_its_answer_the_server(client):
    task_id = (await client.call("question", {"params": {"message": "ok?"}}, capabilities=CAN)).result["taskId"]

    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=CAN)).result

    task = await eventually(look, lambda task: task["status"] == "input_required")
    ((key, question),) = task["inputRequests"].items()
    assert (question["method"], question["params"]["message"]) == ("elicitation/create", "ok?")
    answers = {"taskId": task_id, "inputResponses": {key: {"action": "decline"}}}
    await client.modern("tasks/update", answers, capabilities=CAN)
    assert json.loads(text((await ended(client, task_id))["result"]))["result"] == {"action": "decline"}


@requirement("OWN-ONCE", "OWN-EXIT")
class TestCrash:
    @pytest.mark.parametrize(("tool", "arguments"), [("exit", {"code": 3}), ("exit", {"signal": 9}), ("mute", {})])
    async def test_in_a_call_is_told_to_be_unknown_and_the_next_call_works(self, site, redis, tool, arguments):
        client = await site.start()
        await client.initialize()
        legacy = await client.legacy("tasks/result", {"taskId": await client.task(tool, arguments)})
        modern = await ended(client, (await client.call(tool, arguments)).result["taskId"])
        assert (legacy.error["code"], modern["status"], modern["error"]["code"]) == (50305, "failed", 50305)
        assert len(site.stdio.calls(tool)) == 2
        states = [await redis.hget(key, "st") for key in await redis.keys("*:o:*")]
        assert states == [b"unknown", b"unknown"]
        after = await client.legacy("tasks/result", {"taskId": await client.task("echo", {"a": 1})})
        assert text(after.result) == '{"a": 1}'
        assert len(set(site.log.pids())) == 3

    async def test_in_a_plain_call_is_told_to_be_unknown(self, site):
        client = await site.start(task_support="forbidden")
        await client.initialize()
        refused = (await client.legacy_call("exit", {"code": 3})).error
        assert refused["code"] == 50305
        assert "exit code 3" in refused["message"]

    async def test_leaves_repeatable_work_to_the_next_process(self, site):
        client = await site.start(effect="read_only", on_lost="retry")
        await client.initialize()
        task_id = await client.task("exit_once")
        assert text((await client.legacy("tasks/result", {"taskId": task_id})).result) == "survived"
        assert len(site.log.pids()) == 2

    async def test_at_the_start_fails_the_task_with_the_exit_code(self, site):
        client = await site.start("exit")
        task = (await client.call("echo")).result
        refused = (await ended(client, task["taskId"]))["error"]
        assert refused["code"] == 50201
        assert "exit code 7" in refused["message"]
        assert refused["data"]["retryable"] is True


@requirement("OWN-APART")
async def test_two_principals_do_not_share_a_process(site, client):
    upstream = site.gateway.upstreams["reports"]
    links = await asyncio.gather(upstream.open(ALICE), upstream.open(BOB))
    assert len({link.session_id for link in links}) == 2
    assert len(site.log.pids()) == 3  # and the client's own


@requirement("OWN-QUIET")
async def test_no_argument_and_no_result_is_logged(site, client):
    for tool in ("echo", "print", "exit"):
        await client.legacy("tasks/result", {"taskId": await client.task(tool, {"text": "SECRET-123"})})
    await site.stop()
    assert len(site.log.said("upstream_exited")) == 1
    assert "SECRET-123" not in site.log.stream.getvalue()


@requirement("OWN-DRAIN")
async def test_a_stopped_gateway_lets_a_call_finish_and_leaves_no_process(site, client):
    task_id = await client.task("gate", {"name": "a"})
    await site.stdio.until(lambda: site.stdio.calls("gate"))
    stopping = asyncio.ensure_future(site.stop())
    await site.stdio.until(lambda: site.log.said("stopping"))
    site.stdio.open("a")
    await stopping
    assert [(one["status"], one["wanted"]) for one in site.log.said("upstream_exited")] == [(0, True)]
    again = await site.start()
    again.session = client.session
    assert text((await again.legacy("tasks/result", {"taskId": task_id})).result) == "through a"


@requirement("BR-3")
class TestTasksOfTheirOwn:
    """A server over stdio that has Tasks itself. Its tasks end with its process, and that with the gateway."""

    async def test_are_shown_as_ours_and_their_questions_too(self, site):
        client = await site.start("tasks", observe_min_ms=10)
        task_ids = [(await client.call("question", capabilities=CAN)).result["taskId"] for _ in range(2)]
        for task_id in task_ids:
            task = await eventually(lambda one=task_id: status(client, one), lambda one: "inputRequests" in one)
            ((key, question),) = task["inputRequests"].items()
            assert question["params"]["message"] == f"Who, {task_id}?"
            answers = {key: {"action": "accept", "content": {"name": task_id}}}
            params = {"taskId": task_id, "inputResponses": answers}
            await client.modern("tasks/update", params, capabilities=CAN)
        for task_id in task_ids:
            assert text((await ended(client, task_id))["result"]) == str({"name": task_id})
        assert len(site.stdio.calls()) == 2

    async def test_may_ask_aside(self, site):
        client = await site.start("tasks", observe_min_ms=10)
        task_id = (await client.call("aside", capabilities=CAN)).result["taskId"]
        task = await eventually(lambda: status(client, task_id), lambda one: "inputRequests" in one)
        answers = {"taskId": task_id, "inputResponses": {key: {"action": "decline"} for key in task["inputRequests"]}}
        await client.modern("tasks/update", answers, capabilities=CAN)
        assert text((await ended(client, task_id))["result"]) == "None"

    async def test_are_cancelled(self, site):
        client = await site.start("tasks", observe_min_ms=10)
        task_id = (await client.call("job", {"name": "a"}, capabilities=CAN)).result["taskId"]
        await site.stdio.until(lambda: "tasks/get" in site.stdio.methods())
        await client.modern("tasks/cancel", {"taskId": task_id}, capabilities=CAN)
        assert (await ended(client, task_id))["status"] == "cancelled"
        assert site.stdio.methods().count("tasks/cancel") == 1
        assert site.stdio.cancelled() == []

    @requirement("OWN-DRAIN")
    async def test_that_go_on_when_the_gateway_stops_are_told_as_unknown(self, site, redis):
        client = await site.start("tasks", drain_s=0.05, observe_min_ms=10)
        await client.call("job", {"name": "a"}, capabilities=CAN)
        await site.stdio.until(lambda: "tasks/get" in site.stdio.methods())
        await site.stop()
        heads = [json.loads(await redis.hget(key, "head")) for key in await redis.keys("*:o:*")]
        assert [(head["state"], head["reason"][:19]) for head in heads] == [("unknown", "the gateway stopped")]

    @requirement("OWN-EXIT")
    async def test_end_with_their_process(self, site):
        client = await site.start("tasks", observe_min_ms=10, observe_max_ms=100)
        task_id = (await client.call("job", {"name": "a"}, capabilities=CAN)).result["taskId"]
        await site.stdio.until(lambda: "tasks/get" in site.stdio.methods())
        os.kill(site.log.pids()[0], signal.SIGKILL)
        task = await ended(client, task_id)
        assert (task["status"], task["error"]["code"]) == ("failed", 50305)
        assert len(site.stdio.calls()) == 1


async def status(client, task_id):
    return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=CAN)).result
