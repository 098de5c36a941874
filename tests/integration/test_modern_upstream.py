"""A gateway in front of a server of revision 2026-07-28, over HTTP and over stdio, for clients of both eras."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from tests.client import CAPABILITIES, TASKS, Client
from tests.fixtures_stdio.modern import ODD
from tests.integration.conftest import Harness, eventually
from tests.integration.test_stdio import StdioSite
from tests.modern_server import ModernServer
from tests.requirements import requirement
from tests.sse_client import opened, session_stream
from tests.stdio_server import MODERN_SERVER, Stdio

CAN = {"elicitation": {"form": {}}}
EXTENSION = {**TASKS, **CAN}
EXTENSION_TO_IT = {**CAN, "extensions": {"io.modelcontextprotocol/tasks": {}}}
RELATED = "io.modelcontextprotocol/related-task"
LEVEL = "io.modelcontextprotocol/logLevel"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
ANN = {"action": "accept", "content": {"name": "Ann"}}
POLICY = {
    "version": 1,
    "defaults": {"task_support": "optional", "inline_ms": 0, "poll_interval_ms": 700, "effect": "consequential"},
    "tools": [
        {"match": "plain", "task_support": "forbidden"},
        {"match": "plain_*", "task_support": "forbidden"},
        {"match": "both", "input_phase": "before"},
        {"match": "job", "observe_min_ms": 10},
        {"match": "ask_then_wait", "input_timeout_s": 1},
        {"match": "shown", "effect": "read_only"},
        {"match": "approved", "operation": {"approval": {"message": "Do it?", "preview_tool": "shown"}}},
    ],
}


class Site:
    """A gateway behind which the modern test server runs."""

    def __init__(self, server: ModernServer | Stdio, client: Client, log: io.StringIO) -> None:
        self.server = server
        self.client = client
        self.log = log

    def said(self, event: str) -> list[dict]:
        """What was logged."""
        entries = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [entry for entry in entries if entry["event"] == event]

    def listened(self) -> list[str] | None:
        """The resources of the subscription that was begun last."""
        listened = [one for one in self.server.seen if one.get("method") == "subscriptions/listen"]
        return listened[-1]["params"]["notifications"].get("resourceSubscriptions") if listened else None

    async def change(self, uri: str) -> None:
        """Has the server say that a resource changed, once somebody listens to it."""
        await eventually(lambda: asyncio.sleep(0, uri in (self.listened() or ())))
        if isinstance(self.server, ModernServer):
            await eventually(lambda: asyncio.sleep(0, self.server.modern.subscriptions))
            self.server.change({"method": "notifications/resources/updated", "params": {"uri": uri}})
        else:
            await self.client.call("plain_updated", {"uri": uri})

    def closed(self) -> list[int]:
        """The requests of which the server knows that nobody waits for them."""
        if isinstance(self.server, ModernServer):
            return self.server.closed
        path = self.server.folder / "closed"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture(params=["http", "stdio"])
async def site(request, redis, server, tmp_path: Path, http):
    if request.param == "stdio":
        over_stdio = StdioSite(server.url, tmp_path, http, MODERN_SERVER)
        over_stdio.policy = POLICY
        yield Site(over_stdio.stdio, await over_stdio.start(), over_stdio.log.stream)
        await over_stdio.stop()
        assert over_stdio.log.said("fault") == []
        return
    async with ModernServer() as running:
        harness = Harness(server.url, running, http)
        yield Site(running, await harness.start(POLICY), harness.log)
        running.close_gates()
        for gateway in harness.gateways:
            await gateway.stop()
        assert '"event":"fault"' not in harness.log.getvalue()


@pytest.fixture
async def old(site):
    """A client of 2025-11-25."""
    await site.client.initialize(capabilities=CAN)
    return site.client


def sent(site):
    return site.server.calls()


def heard(result):
    return json.loads(result["content"][0]["text"])


async def status_of(client, task_id, *wanted):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id}, capabilities=EXTENSION)).result

    return await eventually(look, lambda task: task["status"] in wanted)


async def created(client, tool, arguments=None, capabilities=None):
    return (await client.call(tool, arguments, capabilities=capabilities or EXTENSION)).result["taskId"]


class TestModernClient:
    @requirement("BR-2", "TX-GET-3")
    async def test_a_task_ends_with_one_result_of_one_type(self, site):
        done = await status_of(site.client, await created(site.client, "echo", {"a": 1}), "completed")
        assert (done["resultType"], done["result"]["resultType"], heard(done["result"])) == (
            "complete",
            "complete",
            {"a": 1},
        )
        assert done["result"]["_meta"][SERVER_INFO]["name"] == "m"

    @requirement("OWN-BYTES")
    async def test_a_result_stays_as_it_was_written(self, site):
        task_id = await created(site.client, "odd")
        await status_of(site.client, task_id, "completed")
        body = (await site.client.modern("tasks/get", {"taskId": task_id}, capabilities=EXTENSION)).body
        assert b'"structuredContent":{"big":9007199254740993,"huge":1e400,"one":1.0,"zero":-0}' in body

    @requirement("BR-2", "TX-UPD-1")
    async def test_a_question_makes_the_task_ask_and_its_answer_goes_on(self, site):
        task_id = await created(site.client, "form", {"rounds": 2})
        for number in (1, 2):
            key = f"input-{number}"
            asked = await status_of(site.client, task_id, "input_required")
            assert list(asked["inputRequests"]) == [key]
            assert asked["inputRequests"][key]["params"]["message"] == "Who?"
            params = {"taskId": task_id, "inputResponses": {key: ANN}}
            await site.client.modern("tasks/update", params, capabilities=EXTENSION)
            await eventually(lambda: asyncio.sleep(0, len(sent(site))), lambda count, least=number: count > least)
        done = await status_of(site.client, task_id, "completed")
        assert heard(done["result"]) == {"who": ANN}
        assert [call["params"].get("requestState") for call in sent(site)] == [None, "s", "ss"]

    @requirement("OWN-APPROVE")
    async def test_what_is_to_be_approved_is_shown_by_the_server_and_sent_after_a_yes(self, site):
        task_id = await created(site.client, "approved", {"a": 1})
        asked = (await status_of(site.client, task_id, "input_required"))["inputRequests"]
        assert asked["approval"]["params"]["message"] == 'Do it? Preview: {"a": 1}'
        params = {"taskId": task_id, "inputResponses": {"approval": {"action": "accept", "content": {"approve": True}}}}
        await site.client.modern("tasks/update", params, capabilities=EXTENSION)
        assert heard((await status_of(site.client, task_id, "completed"))["result"]) == {"a": 1}
        assert [call["params"]["name"] for call in sent(site)] == ["shown", "approved"]

    async def test_questions_may_come_before_the_task(self, site):
        found = (await site.client.call("both", capabilities=EXTENSION)).result
        answered = []
        while found["resultType"] == "input_required":
            answered += found["inputRequests"]
            params = {"name": "both", "arguments": {}, "requestState": found["requestState"]}
            params["inputResponses"] = dict.fromkeys(found["inputRequests"], ANN)
            found = (await site.client.modern("tools/call", params, capabilities=EXTENSION)).result
        assert (sorted(answered), heard(found)) == (["input-1", "input-2"], {"a": ANN, "b": ANN})
        assert len(sent(site)) == 2

    @requirement("BR-2", "T25-INP-2")
    async def test_what_the_client_cannot_be_asked_ends_the_task_truthfully(self, site):
        done = await status_of(site.client, await created(site.client, "form", capabilities=TASKS), "failed")
        assert done["error"]["code"] == 49902
        told = done["error"]["data"]["inputRequests"]["who"]
        assert (told["method"], told["error"]["code"]) == ("elicitation/create", -32601)

    @requirement("T25-INP-3")
    async def test_nobody_waits_for_input_for_ever(self, site):
        done = await status_of(site.client, await created(site.client, "ask_then_wait", {"name": "a"}), "failed")
        assert done["error"]["code"] == 50402

    async def test_errors_and_tool_errors_are_told_apart(self, site):
        failed = await status_of(site.client, await created(site.client, "error"), "failed")
        assert (failed["error"]["code"], failed["error"]["data"]) == (-32602, {"uri": "x", "n": 1.0})
        done = await status_of(site.client, await created(site.client, "fail"), "completed")
        assert done["result"]["isError"] is True

    @requirement("TX-CAN-1")
    async def test_a_cancelled_task_reaches_the_server(self, site):
        task_id = await created(site.client, "slow", {"name": "a"})
        await eventually(lambda: asyncio.sleep(0, sent(site)))
        await site.client.modern("tasks/cancel", {"taskId": task_id}, capabilities=EXTENSION)
        await status_of(site.client, task_id, "cancelled")
        (call,) = sent(site)
        await eventually(lambda: asyncio.sleep(0, site.closed() == [call["id"]]))
        assert site.said("transition")[-1]["cause"] == "graceover"
        assert site.said("upstream_failed") == []

    @requirement("TX-HTTP-7")
    async def test_a_plain_call_whose_client_leaves_is_cancelled(self, site):
        body, headers = site.client.modern_request("tools/call", {"name": "plain_wait", "arguments": {"name": "a"}})
        async with opened(site.client, body, headers):
            await eventually(lambda: asyncio.sleep(0, sent(site)))
        await eventually(lambda: asyncio.sleep(0, site.closed() == [sent(site)[0]["id"]]))

    @requirement("OWN-BYTES", "BR-2")
    async def test_a_plain_call_passes_as_it_is(self, site):
        answer = await site.client.call("plain_odd")
        assert b',"result":' + ODD + b"}" in answer.body.replace(b"\n", b"")

    @requirement("BR-2")
    async def test_questions_of_a_plain_call_pass_with_their_state_and_so_do_the_answers(self, site):
        asked = (await site.client.call("plain_form", capabilities=CAN)).result
        assert (asked["resultType"], asked["requestState"], list(asked["inputRequests"])) == (
            "input_required",
            "s",
            ["who"],
        )
        params = {"name": "plain_form", "arguments": {}, "inputResponses": {"who": ANN}, "requestState": "s"}
        done = await site.client.modern("tools/call", params, capabilities=CAN)
        assert heard(done.result) == {"who": ANN}
        first, second = sent(site)
        assert "requestState" not in first["params"]
        assert first["params"]["_meta"][CAPABILITIES] == CAN
        assert (second["params"]["inputResponses"], second["params"]["requestState"]) == ({"who": ANN}, "s")

    async def test_what_a_client_answers_of_its_own_accord_does_not_begin_a_task(self, site):
        params = {"name": "echo", "arguments": {}, "inputResponses": {"who": ANN}}
        created = (await site.client.modern("tools/call", params, capabilities=EXTENSION)).result
        await status_of(site.client, created["taskId"], "completed")
        assert "inputResponses" not in sent(site)[0]["params"]

    @requirement("TX-NEW-3")
    async def test_a_bounded_call_asks_with_a_state_of_our_own(self, site):
        asked = (await site.client.call("form", capabilities=CAN)).result
        assert (asked["resultType"], asked["requestState"] == "s") == ("input_required", False)
        (key,) = asked["inputRequests"]
        params = {"name": "form", "arguments": {}, "inputResponses": {key: ANN}, "requestState": asked["requestState"]}
        done = await site.client.modern("tools/call", params, capabilities=CAN)
        assert heard(done.result) == {"who": ANN}
        assert len(sent(site)) == 2

    @requirement("BR-5")
    @pytest.mark.parametrize(
        ("method", "params", "uri"),
        [
            ("resources/read", {"uri": "x:1"}, True),
            ("prompts/get", {"name": "p"}, False),
            ("x/unheard-of", {"n": 1.0}, False),
        ],
    )
    async def test_requests_and_their_results_pass(self, site, method, params, uri):
        answer = await site.client.modern(method, params)
        told = answer.result["said"]
        assert {name: value for name, value in told.items() if name != "_meta"} == params
        assert answer.result["resultType"] == "complete"
        assert ("ttlMs" in answer.result, answer.result.get("cacheScope")) == (uri, "public" if uri else None)

    @requirement("TX-HTTP-6", "BR-5")
    @pytest.mark.parametrize(
        ("code", "status"), [(-32601, 404), (-32020, 400), (-32021, 400), (-32022, 400), (-32602, 200)]
    )
    async def test_an_error_keeps_its_meaning(self, site, code, status):
        answer = await site.client.modern("x/fail", {"code": code})
        assert (answer.error["code"], answer.status) == (code, status)
        assert answer.error["data"] == {"supported": [], "n": 1.0}

    async def test_a_level_goes_along_and_messages_come_back(self, site):
        found = await site.client.call_raw("plain_logging", meta={LEVEL: "info"})
        told = [one["method"] for one in found.messages[:-1]]
        known = ["notifications/unheard-of"] if isinstance(site.server, ModernServer) else []  # stdio: of which call?
        assert told == [*known, "notifications/message"]
        assert heard(found.result) == "info"
        silent = await site.client.call("plain_logging")
        assert (silent.body.count(b"notifications/message"), heard(silent.result)) == (0, None)

    @requirement("TX-CAP-1")
    async def test_what_the_server_can_do_is_told(self, site):
        told = (await site.client.modern("server/discover")).result
        assert told["capabilities"]["logging"] == {}
        assert list(told["capabilities"]["extensions"]) == ["x", "io.modelcontextprotocol/tasks"]
        assert told["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"] == {}

    @requirement("TX-NOT-1")
    async def test_resources_are_listened_to(self, site):
        params = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["x"]}}
        body, headers = site.client.modern_request("subscriptions/listen", params)
        async with opened(site.client, body, headers) as stream:
            told = await stream.message("notifications/subscriptions/acknowledged")
            assert told["params"]["notifications"] == params["notifications"]
            await site.change("x")
            note = await stream.message("notifications/resources/updated")
            assert note["params"]["uri"] == "x"

    async def test_the_list_is_told_once(self, site):
        answer = await site.client.modern("tools/list")
        assert answer.body.count(b'"resultType"') == 1
        assert (answer.result["ttlMs"], answer.result["cacheScope"]) == (0, "private")

    async def test_mirrored_arguments_reach_the_server(self, site):
        answer = await site.client.call(
            "region",
            {"region": "caf\u00e9"},
            capabilities=EXTENSION,
            headers={"Mcp-Param-Region": "=?base64?Y2Fmw6k=?="},
        )
        done = await status_of(site.client, answer.result["taskId"], "completed")
        assert heard(done["result"]) == {"region": "caf\u00e9"}

    @requirement("TX-HTTP-2")
    @pytest.mark.parametrize("header", [None, "eu", "=?base64?ZXU=?=", "=?base64?dXM?=", "caf\u00e9"])
    async def test_a_header_that_does_not_say_what_its_argument_says_is_refused(self, site, header):
        headers = {} if header is None else {"Mcp-Param-Region": header}
        answer = await site.client.call("region", {"region": "us"}, capabilities=EXTENSION, headers=headers)
        assert (answer.status, answer.error["code"]) == (400, -32020)
        assert sent(site) == []

    async def test_a_definition_that_has_changed_is_read_anew(self, modern):
        running, harness = modern
        client = await harness.start(POLICY)
        for name in ("Region", "Area"):
            running.modern.region_header = name
            headers = {f"Mcp-Param-{name}": "us"}
            answer = await client.call("plain_region", {"region": "us"}, headers=headers)
            assert heard(answer.result) == {"region": "us"}
        assert len(running.calls()) == 2


class TestLegacyClient:
    @requirement("BR-2", "T25-RES-2")
    async def test_a_task_ends_without_a_type(self, site, old):
        answer = await old.legacy("tasks/result", {"taskId": await old.task("echo", {"a": 1})})
        assert heard(answer.result) == {"a": 1}
        assert b"resultType" not in answer.body

    @requirement("BR-2", "T25-INP-1")
    async def test_a_question_comes_on_the_stream_and_its_answer_goes_on(self, site, old):
        async with session_stream(old) as stream:
            task_id = await old.task("form", {"rounds": 2})
            for _ in range(2):
                question = await stream.message("elicitation/create")
                assert question["params"]["message"] == "Who?"
                assert question["params"]["_meta"][RELATED] == {"taskId": task_id}
                await old.post({"jsonrpc": "2.0", "id": question["id"], "result": ANN}, old.session)
            done = await old.legacy("tasks/result", {"taskId": task_id})
        assert heard(done.result) == {"who": ANN}
        assert len(sent(site)) == 3

    @requirement("BR-2", "T25-INP-4")
    async def test_progress_reaches_the_client(self, site, old):
        async with session_stream(old) as stream:
            answer = await old.legacy_call("progress", {"name": "a"}, task={}, _meta={"progressToken": "t"})
            task_id = answer.result["task"]["taskId"]
            note = (await stream.message("notifications/progress"))["params"]
            assert (note["progressToken"], note["_meta"][RELATED]) == ("t", {"taskId": task_id})
            site.server.open("a")
            await old.legacy("tasks/result", {"taskId": task_id})

    @requirement("T25-CAN-3")
    async def test_a_cancelled_task_reaches_the_server(self, site, old):
        task_id = await old.task("slow", {"name": "a"})
        await eventually(lambda: asyncio.sleep(0, sent(site)))
        cancelled = await old.legacy("tasks/cancel", {"taskId": task_id})
        assert cancelled.result["status"] == "cancelled"
        await eventually(lambda: asyncio.sleep(0, site.closed() == [sent(site)[0]["id"]]))

    async def test_errors_are_those_of_the_upstream(self, site, old):
        answer = await old.legacy("tasks/result", {"taskId": await old.task("error")})
        assert answer.error == {"code": -32002, "message": "no such thing", "data": {"uri": "x", "n": 1.0}}

    @requirement("BR-2")
    async def test_a_plain_call_and_a_list_have_no_type(self, site, old):
        plain = await old.legacy_call("plain", {"a": 1})
        assert (heard(plain.result), b"resultType" in plain.body) == ({"a": 1}, False)
        listed = await old.legacy("tools/list")
        assert not listed.result.keys() & {"resultType", "ttlMs", "cacheScope"}
        assert "echo" in [tool["name"] for tool in listed.result["tools"]]

    @requirement("BR-2")
    @pytest.mark.parametrize("tool", ["form", "plain_form"])
    async def test_a_call_whose_client_waits_asks_on_its_stream(self, site, old, tool):
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
        async with opened(old, body, old.session) as stream:
            question = await stream.message("elicitation/create")
            assert question["params"]["message"] == "Who?"
            await old.post({"jsonrpc": "2.0", "id": question["id"], "result": ANN}, old.session)
            done = await stream.message("")
        assert (heard(done["result"]), b"resultType" in stream.raw) == ({"who": ANN}, False)

    @pytest.mark.parametrize("tool", ["form", "plain_form"])
    async def test_a_call_whose_client_cannot_be_asked_is_told_so(self, site, tool):
        await site.client.initialize()
        assert (await site.client.legacy_call(tool)).error["code"] == 49902

    @requirement("BR-4")
    @pytest.mark.parametrize("tool", ["logging", "plain_logging"])
    async def test_a_level_that_was_set_goes_with_every_later_request(self, site, old, tool):
        assert heard((await old.legacy_call(tool)).result) is None
        assert (await old.legacy("logging/setLevel", {"level": "error"})).result == {}
        assert heard((await old.legacy_call(tool)).result) == "error"
        wrong = await old.legacy("logging/setLevel", {"level": "loud"})
        assert wrong.error["code"] == -32602
        assert (await old.legacy("ping")).result == {}

    @requirement("BR-4")
    async def test_resources_are_listened_to_on_the_stream_of_the_session(self, site, old):
        async with session_stream(old) as stream:
            for uri in ("x", "y"):
                assert (await old.legacy("resources/subscribe", {"uri": uri})).result == {}
            await eventually(lambda: asyncio.sleep(0, site.listened() == ["x", "y"]))
            await site.change("y")
            assert (await stream.message("notifications/resources/updated"))["params"]["uri"] == "y"
            assert (await old.legacy("resources/unsubscribe", {"uri": "x"})).result == {}
            await eventually(lambda: asyncio.sleep(0, site.listened() == ["y"]))
        assert (await old.legacy("resources/subscribe", {})).error["code"] == -32602

    @requirement("BR-4")
    async def test_so_many_resources_are_listened_to(self, site, old):
        for number in range(100):
            await old.legacy("resources/subscribe", {"uri": str(number)})
        assert (await old.legacy("resources/subscribe", {"uri": "more"})).error["code"] == -32602
        assert (await old.legacy("resources/subscribe", {"uri": "5"})).result == {}

    @requirement("BR-2")
    async def test_requests_and_their_results_pass(self, site, old):
        answer = await old.legacy("resources/read", {"uri": "x:1"})
        assert answer.result["said"]["uri"] == "x:1"
        assert not answer.result.keys() & {"resultType", "ttlMs", "cacheScope"}

    async def test_an_older_client_is_served_too(self, site):
        await site.client.initialize("2025-03-26")
        answer = await site.client.legacy_call("echo", {"a": 1})
        assert (heard(answer.result), b"resultType" in answer.body) == ({"a": 1}, False)


@pytest.fixture
async def modern(redis, server, http):
    """A server over HTTP, and gateways in front of it that are told its era."""
    async with ModernServer() as running:
        harness = Harness(server.url, running, http)
        yield running, harness
        running.close_gates()
        for gateway in harness.gateways:
            await gateway.stop()


async def test_an_era_that_is_written_down_is_not_asked_for(modern):
    running, harness = modern
    told = await harness.start(POLICY, era="modern")
    assert heard((await told.call("plain", {"a": 1})).result) == {"a": 1}
    wrong = await harness.start(POLICY, era="legacy")
    assert (await wrong.call("plain")).error["code"] == 50202
    assert [message["method"] for message in running.seen].count("server/discover") == 1


async def test_a_gateway_behind_a_gateway_is_a_modern_server(modern, http):
    running, harness = modern
    first = await harness.start(POLICY)
    behind = Harness(harness.store_url, running, http)
    behind.upstream = type("Front", (), {"url": first.url})
    second = await behind.start({**POLICY, "tools": []}, names=("second",))
    done = await status_of(second, await created(second, "plain", {"a": 1}), "completed")
    assert heard(done["result"]) == {"a": 1}
    assert running.sent("initialize") == []
    for gateway in behind.gateways:
        await gateway.stop()


@requirement("OWN-ERA")
@pytest.mark.parametrize("era", ["auto", "modern"])
async def test_a_url_of_which_nothing_is_known_may_be_a_modern_server(modern, era):
    running, harness = modern
    client = await harness.start(POLICY, transport="auto", era=era)
    await client.initialize()
    assert heard((await client.legacy_call("plain", {"a": 1})).result) == {"a": 1}
    assert len(running.sent("initialize")) == (era == "auto")
    assert '"transport":"streamable HTTP"' in harness.log.getvalue()


def about(site, method):
    """The requests about tasks that the server got."""
    return [one for one in site.server.seen if one.get("method") == method]


def declared(call):
    return call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]


@requirement("BR-3")
class TestTasksOfTheirOwn:
    """The server makes tasks where it may: the gateway follows them, and shows its own."""

    async def test_are_shown_as_ours_and_ask(self, site):
        task_id = await created(site.client, "job", {"name": "a", "ask": True})
        asked = await status_of(site.client, task_id, "input_required")
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["message"] == f"Who, {task_id}?"
        answers = {"taskId": task_id, "inputResponses": {key: ANN}}
        await site.client.modern("tasks/update", answers, capabilities=EXTENSION)
        site.server.open("a")
        done = await status_of(site.client, task_id, "completed")
        assert done["result"]["content"][0]["text"] == f"{task_id}: {json.dumps({'their-key': ANN})}"
        assert [declared(call) for call in sent(site)] == [EXTENSION_TO_IT]
        assert all(
            declared(one) == EXTENSION_TO_IT for one in (*about(site, "tasks/get"), *about(site, "tasks/update"))
        )

    async def test_fail(self, site):
        site.server.open("a")
        task_id = await created(site.client, "job", {"name": "a", "fail": True})
        failed = await status_of(site.client, task_id, "failed")
        assert failed["error"]["message"] == f"{task_id} broke"

    async def test_are_cancelled_by_their_own_name(self, site):
        task_id = await created(site.client, "job", {"name": "a"})
        await eventually(lambda: asyncio.sleep(0, about(site, "tasks/get")))
        await site.client.modern("tasks/cancel", {"taskId": task_id}, capabilities=EXTENSION)
        await status_of(site.client, task_id, "cancelled")
        assert len(about(site, "tasks/cancel")) == len(sent(site)) == 1
        assert site.closed() == []

    async def test_serve_old_clients(self, site, old):
        site.server.open("a")
        made = (await old.legacy("tools/call", {"name": "job", "arguments": {"name": "a"}, "task": {}})).result
        answer = await old.legacy("tasks/result", {"taskId": made["task"]["taskId"]})
        assert answer.result["content"][0]["text"] == f"{made['task']['taskId']}: {{}}"
        assert len(sent(site)) == 1

    async def test_are_not_asked_for_by_plain_calls(self, site):
        plain = await site.client.call("plain_job", {"name": "a"}, capabilities=EXTENSION)
        assert plain.result["content"][0]["text"] == "no task"
        assert [declared(call) for call in sent(site)] == [CAN]
