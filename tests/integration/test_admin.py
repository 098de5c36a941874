"""The operator's API: who may use it, what it takes, and what it does to tasks."""

import asyncio
import json
from dataclasses import dataclass

import pytest
from multidict import CIMultiDict

from gateway.edge.auth import ANONYMOUS
from tests.faults import cut
from tests.integration.conftest import eventually
from tests.requirements import requirement

TOKEN = "a-token-of-the-operator"


@dataclass
class Said:
    status: int
    headers: dict[str, str]
    body: dict


class Operator:
    """Speaks to the admin listener of one gateway."""

    def __init__(self, http, gateway, headers=None):
        self.http, self.gateway, self.headers = http, gateway, headers or {}

    async def ask(self, method, path, *, data=None, headers=None) -> Said:
        known = CIMultiDict(self.headers)
        known.extend(headers or {})
        async with self.http.request(method, self.gateway.admin_address + path, data=data, headers=known) as response:
            return Said(response.status, dict(response.headers), json.loads(await response.read()))

    async def get(self, path) -> Said:
        return await self.ask("GET", path)

    async def post(self, path, body=None) -> Said:
        data = json.dumps({} if body is None else body)
        return await self.ask("POST", path, data=data, headers={"Content-Type": "application/json"})

    async def ready(self) -> int:
        async with self.http.get(self.gateway.admin_address + "/readyz") as response:
            return response.status


@pytest.fixture
def operator(client, harness, http) -> Operator:
    return Operator(http, harness.gateways[0])


class TestWho:
    @requirement("OWN-ADMIN")
    async def test_wants_the_token_where_there_is_one(self, harness, http, monkeypatch):
        monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
        await harness.start(admin_token="env:ADMIN_TOKEN")
        operator = Operator(http, harness.gateways[0])
        right = ("Authorization", f"Bearer {TOKEN}")
        page = ("Origin", "https://app.example.com")
        for shown in ([right], [("Authorization", f"bearer {TOKEN}"), page]):
            assert (await operator.ask("GET", "/api/tasks", headers=shown)).status == 200
        wrong = [[("Authorization", value)] for value in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer ", TOKEN, "é")]
        for shown in ([], [right, right], *wrong):
            said = await operator.ask("GET", "/api/tasks", headers=shown)
            assert (said.status, said.body["error"]["reason"]) == (401, "unauthenticated")
            assert said.headers["WWW-Authenticate"] == "Bearer"
        for path in ("/api", "/api/nowhere", "/%61pi/tasks"):
            assert (await operator.get(path)).status == 401
        async with http.get(harness.gateways[0].admin_address + "/metrics") as response:
            metrics = await response.text()
        assert 'mtg_admin_requests_total{outcome="unauthenticated"} 10.0' in metrics
        assert 'mtg_admin_requests_total{outcome="ok"} 2.0' in metrics
        assert await operator.ready() == 200

    @requirement("OWN-ADMIN")
    async def test_reads_the_token_at_each_request(self, harness, http, tmp_path):
        file = tmp_path / "token"
        file.write_text("first\n")
        await harness.start(admin_token=f"file:{file}")
        operator = Operator(http, harness.gateways[0], {"Authorization": "Bearer first"})
        assert (await operator.get("/api/tasks")).status == 200
        file.write_text("second\n")
        assert (await operator.get("/api/tasks")).status == 401
        file.unlink()
        assert (await operator.get("/api/tasks")).status == 503

    @requirement("OWN-ADMIN")
    async def test_without_a_token_no_web_page_is_served_and_changes_want_json(self, operator):
        for headers, reason in (
            ({"Origin": "http://127.0.0.1:8081"}, "origin"),
            ({"Origin": "null"}, "origin"),
            ({"Host": "rebound.example.com"}, "host"),
        ):
            said = await operator.ask("GET", "/api/tasks", headers=headers)
            assert (said.status, said.body["error"]["reason"]) == (403, reason)
        said = await operator.ask("POST", "/api/drain", data='{"on": true}', headers={"Content-Type": "text/plain"})
        assert (said.status, said.body["error"]["reason"]) == (415, "content_type")
        assert await operator.ready() == 200


class TestWhat:
    @requirement("OWN-ADMIN")
    async def test_says_what_is_wrong_with_a_body_and_does_nothing(self, operator):
        for body, message in (
            (b"{", "the body is no JSON"),
            (b"\xff", "the body is no JSON"),
            (b"[" * 10_000, "the body is no JSON"),
            (b"[]", "the body must be a JSON object"),
            (b'{"on": true, "on": false}', "on: given more than once"),
            (b"{}", "on: is missing"),
            (b'{"on": "CANARY"}', "on: must be a valid boolean"),
            (b'{"on": true, "bye": "CANARY"}', 'bye: unknown key; did you mean "by"?'),
            (b'{"on": true, "by": "CANARY\\n"}', "by: must be one line without control characters"),
        ):
            said = await operator.ask("POST", "/api/drain", data=body, headers={"Content-Type": "application/json"})
            assert (said.status, said.body["error"]["message"]) == (400, message)
        said = await operator.post("/api/drain", {"by": "x" * 20_000})
        assert (said.status, said.body["error"]["reason"]) == (413, "too_large")
        assert await operator.ready() == 200

    @requirement("OWN-ADMIN")
    async def test_says_what_is_wrong_with_a_query(self, operator):
        for query, message in (
            ("state=gone", "state: must be 'working', 'input_required', 'done' or 'cancelled'"),
            ("limit=0", "limit: must be greater than or equal to 1"),
            ("limit=1&limit=2", "limit: given more than once"),
            ("limits=1", 'limits: unknown key; did you mean "limit"?'),
            ("older_than_s=x", "older_than_s: must be a valid integer, unable to parse string as an integer"),
        ):
            said = await operator.get(f"/api/tasks?{query}")
            assert (said.status, said.body["error"]["message"]) == (400, message)

    async def test_what_is_not_there_is_said_in_json(self, operator):
        for method, path in (("GET", "/api"), ("GET", "/api/x/y"), ("GET", "/api/drain"), ("DELETE", "/api/tasks/x")):
            said = await operator.ask(method, path, headers={"Content-Type": "application/json"})
            assert (said.status, said.body["error"]["reason"]) == (404, "not_found")


class TestTasks:
    @requirement("OWN-OPERATE")
    async def test_a_task_is_listed_and_shown_by_either_name(self, client, operator, upstream):
        await client.initialize()
        task_id = await client.task("fail", {"password": "CANARY"})
        await client.legacy("tasks/result", {"taskId": task_id})
        await client.legacy_call("echo", {"password": "CANARY"})  # bounded, synchronous: no task for anybody
        (entry,) = (await operator.get("/api/tasks")).body["entries"]
        assert entry["id"].endswith(f":{task_id}")
        assert (entry["task"], entry["operation"], entry["outcome"]) == ("done", "answered", "failed")
        assert entry["owner"]["upstream"] == "reports"
        for name in (task_id, entry["id"]):
            said = await operator.get(f"/api/tasks/{name}")
            assert said.body["id"] == entry["id"]
            assert (said.body["task"]["state"], said.body["operation"]["attempt"]) == ("done", 1)
            assert "CANARY" not in json.dumps(said.body)
        assert len((await operator.get("/api/ledger")).body["entries"]) == 2

    async def test_a_list_holds_what_is_asked_for(self, client, operator, upstream):
        await client.initialize()
        running = await client.task("gate", {"name": "a"})
        await client.legacy("tasks/result", {"taskId": await client.task("echo")})
        await upstream.until(lambda: upstream.calls("gate"))

        async def ids(query):
            entries = (await operator.get(query)).body["entries"]
            return [one["id"].partition(":")[2] for one in entries]

        assert await ids("/api/tasks?state=working") == [running]
        assert await ids("/api/ledger?state=sent") == [running]
        assert len(await ids("/api/tasks?upstream=reports")) == 2
        assert await ids("/api/tasks?upstream=other") == []
        assert await ids("/api/tasks?older_than_s=3600") == []

    async def test_what_is_not_there_or_no_id_is_not_found(self, operator):
        for name in ("x" * 32, "*", f"{'y' * 22}:{'x' * 32}", "a%2Fb"):
            assert (await operator.get(f"/api/tasks/{name}")).status == 404

    @requirement("OWN-OPERATE")
    async def test_a_task_is_cancelled_once_as_its_client_would(self, client, operator, upstream, harness):
        await client.initialize()
        task_id = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        said = await operator.post(f"/api/tasks/{task_id}/cancel", {"by": "ada"})
        assert (said.status, said.body["task"]["state"]) == (200, "cancelled")
        await upstream.until(upstream.cancelled)
        again = await operator.post(f"/api/tasks/{task_id}/cancel")
        assert (again.status, again.body["error"]["message"]) == (409, "the task has already ended")
        (line,) = [line for line in map(json.loads, harness.log.getvalue().splitlines()) if line["event"] == "operator"]
        assert (line["action"], line["by"], task_id in json.dumps(line)) == ("cancel", "ada", False)

    async def test_a_task_of_the_extension_is_asked_to_stop(self, client, operator, upstream):
        task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
        await upstream.until(lambda: upstream.calls("gate"))
        said = await operator.post(f"/api/tasks/{task_id}/cancel")
        assert (said.status, said.body["task"]["state"]) == (200, "working")
        again = await operator.post(f"/api/tasks/{task_id}/cancel")
        assert (again.status, again.body["error"]["reason"]) == (409, "refused")


async def no_value():
    return None


async def lost(client, upstream, tool="echo", arguments=None) -> str:
    """A task whose call was sent and never answered."""
    upstream.fault = cut
    task_id = await client.task(tool, arguments)
    await client.legacy("tasks/result", {"taskId": task_id})
    upstream.fault = None
    return task_id


class TestLedger:
    @requirement("OWN-OPERATE", "OWN-RECONCILE")
    async def test_an_unknown_outcome_is_settled_once_and_nothing_is_sent(self, client, operator, upstream, harness):
        await client.initialize()
        task_id = await lost(client, upstream)
        (entry,) = (await operator.get("/api/ledger?state=unknown")).body["entries"]
        assert (entry["id"].partition(":")[2], entry["outcome"]) == (task_id, "unknown")
        settled = {"outcome": "succeeded", "reason": "INC-1: it is there", "by": "ada"}
        said = await operator.post(f"/api/ledger/{task_id}/resolve", settled)
        operation = said.body["operation"]
        assert (said.status, operation["outcome"], operation["learnt"]) == (200, "succeeded", "resolved")
        assert (operation["reason"], operation["history"][-1]["by"]) == ("INC-1: it is there", "ada")
        again = await operator.post(f"/api/ledger/{task_id}/resolve", {**settled, "outcome": "failed"})
        assert (again.status, again.body["error"]["reason"]) == (409, "refused")
        task = (await client.legacy("tasks/get", {"taskId": task_id})).result
        assert (task["status"], len(upstream.calls())) == ("failed", 1)
        assert (await operator.get("/api/ledger?state=unknown")).body["entries"] == []

    @requirement("OWN-OPERATE")
    async def test_what_is_known_is_not_settled(self, client, operator, upstream):
        await client.initialize()
        done = await client.task("echo")
        await client.legacy("tasks/result", {"taskId": done})
        running = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        for task_id in (done, running):
            said = await operator.post(f"/api/ledger/{task_id}/resolve", {"outcome": "failed", "reason": "x"})
            assert (said.status, said.body["error"]["reason"]) == (409, "refused")
        for body in ({"outcome": "unknown", "reason": "x"}, {"outcome": "failed"}, {"outcome": "failed", "reason": ""}):
            assert (await operator.post(f"/api/ledger/{done}/resolve", body)).status == 400


class TestErase:
    @requirement("OWN-ERASE")
    async def test_takes_the_name_out_and_leaves_what_happened(self, client, operator, upstream, redis):
        await client.initialize()
        done = await client.task("echo")
        await client.legacy("tasks/result", {"taskId": done})
        unknown = await lost(client, upstream)
        other = await operator.post("/api/erase", {"subject": ANONYMOUS.subject, "tenant": "another"})
        assert other.body == {"entries": 0, "tasks": 0, "under_way": 0, "subjects": [], "cursor": None}
        said = await operator.post("/api/erase", {"subject": ANONYMOUS.subject, "by": "ada"})
        (subject,) = said.body["subjects"]
        assert (said.body["entries"], said.body["tasks"], said.body["under_way"]) == (2, 2, 0)
        for task_id, outcome in ((done, "succeeded"), (unknown, "unknown")):
            entry = (await operator.get(f"/api/ledger/{task_id}")).body
            assert (entry["task"], entry["operation"]["outcome"]) == (None, outcome)
            assert entry["operation"]["owner"]["subject"] == subject
            assert (await client.legacy("tasks/get", {"taskId": task_id})).error["code"] == -32602
        for key in await redis.keys():
            kind = await redis.type(key)
            found = await (
                redis.hgetall(key) if kind == b"hash" else redis.get(key) if kind == b"string" else no_value()
            )
            assert ANONYMOUS.subject not in str(found)
        assert (await operator.post("/api/erase", {"subject": ANONYMOUS.subject})).body["entries"] == 0
        settled = {"outcome": "succeeded", "reason": "INC-1"}
        assert (await operator.post(f"/api/ledger/{unknown}/resolve", settled)).status == 200
        assert (await operator.get("/api/ledger?state=unknown")).body["entries"] == []

    @requirement("OWN-ERASE")
    async def test_what_is_under_way_is_told_to_stop_first(self, client, operator, upstream):
        await client.initialize()
        await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        erase = {"subject": ANONYMOUS.subject}
        said = await operator.post("/api/erase", erase)
        assert (said.body["entries"], said.body["under_way"]) == (0, 1)
        await upstream.until(upstream.cancelled)
        assert (
            await eventually(lambda: operator.post("/api/erase", erase), lambda one: one.body["entries"])
        ).status == 200
        assert (await operator.post("/api/erase", {**erase, "cursor": "x"})).status == 400


class TestSwitch:
    @requirement("OWN-SWITCH")
    async def test_blocks_new_starts_on_every_gateway_and_what_runs_goes_on(self, operator, client, harness, upstream):
        other = await harness.start()
        await other.initialize()
        running = await other.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        anonymous = {"issuer": ANONYMOUS.issuer, "tenant": ANONYMOUS.tenant}
        for scope in ({"all": True}, {"upstream": "reports"}, {"upstream": "reports", "tool": "echo"}, anonymous):
            said = await operator.post("/api/switch", {**scope, "on": True, "reason": "INC-1", "by": "ada"})
            (blocked,) = [one for one in said.body["switches"] if one["on"]]
            assert (said.status, blocked["reason"], blocked["by"], blocked["readable"]) == (200, "INC-1", "ada", True)
            refused = (await other.legacy_call("echo", task={})).error
            assert (refused["code"], refused["data"]["retryable"]) == (50302, True)
            said = await operator.post("/api/switch", {**scope, "on": False, "reason": "over"})
            assert [(one["scope"], one["on"]) for one in said.body["switches"]] == [("all", False)]
            assert await other.task("echo")
        upstream.open("a")
        assert (await other.legacy("tasks/result", {"taskId": running})).result
        lines = [json.loads(line) for line in harness.log.getvalue().splitlines()]
        changes = [line for line in lines if line["event"] == "switch_changed"]
        assert (len(changes), changes[2]["scope"], changes[2]["reason"]) == (8, "upstream:reports", "INC-1")

    @requirement("OWN-SWITCH")
    async def test_what_was_begun_is_ended_although_nobody_waits(self, operator, client, redis, harness):
        await redis.execute_command("CLIENT", "PAUSE", 200, "ALL")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await operator.post("/api/switch", {"all": True, "on": True, "reason": "INC-1"})

        async def told():
            return [line for line in harness.log.getvalue().splitlines() if '"event":"switch_changed"' in line]

        assert await eventually(told)

    @requirement("OWN-SWITCH")
    async def test_what_is_lost_or_unreadable_is_told_and_repaired(self, operator, client, redis, http, harness):
        await client.initialize()
        for damage in (redis.hdel("mtg:{s0}:sw", "all"), redis.hset("mtg:{s0}:sw", "all", "?")):
            await damage
            (switch,) = (await operator.get("/api/switch")).body["switches"]
            assert (switch["scope"], switch["on"], switch["readable"]) == ("all", True, False)
            assert (await client.legacy_call("echo", task={})).error["code"] == 50302
            async with http.get(harness.gateways[0].admin_address + "/metrics") as response:
                assert 'mtg_switch{scope="all"} 1.0' in await response.text()
            await operator.post("/api/switch", {"all": True, "on": False, "reason": "repaired"})
            assert await client.task("echo")
        await redis.hset("mtg:{s0}:sw", "upstream:gone", "1")
        said = await operator.post("/api/switch", {"upstream": "gone", "on": False, "reason": "there is none"})
        assert [one["scope"] for one in said.body["switches"]] == ["all"]

    @requirement("OWN-SWITCH")
    async def test_a_scope_that_is_none_is_refused(self, operator):
        told = "scope: must be all, or upstream, or upstream and tool, or issuer and tenant"
        for scope, message in (
            ({}, told),
            ({"tool": "t"}, told),
            ({"all": True, "upstream": "reports"}, told),
            ({"tenant": "t"}, told),
            ({"upstream": "report"}, "upstream: there is none of this name; there are: reports"),
        ):
            said = await operator.post("/api/switch", {**scope, "on": True, "reason": "x"})
            assert (said.status, said.body["error"]["message"]) == (400, message)
        assert [one["on"] for one in (await operator.get("/api/switch")).body["switches"]] == [False]


class TestDrain:
    @requirement("OWN-DRAIN")
    async def test_takes_no_new_work_and_goes_on_with_what_it_has(self, client, operator, upstream, harness):
        await client.initialize()
        running = await client.task("gate", {"name": "a"})
        await upstream.until(lambda: upstream.calls("gate"))
        said = await operator.post("/api/drain", {"on": True, "by": "ada"})
        assert (said.status, said.body) == (200, {"draining": True, "running": 1})
        assert await operator.ready() == 503
        for tool in ("echo", "plain"):
            refused = (await client.legacy_call(tool, task={} if tool == "echo" else None)).error
            assert (refused["code"], refused["data"]["retryable"]) == (50306, True)
        retry = {"name": "echo", "arguments": {}, "requestState": "of nothing that was begun"}
        for answer in (await client.modern("tools/call", retry), await client.legacy("tools/call", retry)):
            assert answer.error["code"] == 50306
        upstream.open("a")
        result = await client.legacy("tasks/result", {"taskId": running})
        assert result.result["content"][0]["text"] == "through a"
        assert (await client.legacy("tools/list")).result["tools"]

    @requirement("OWN-DRAIN")
    async def test_planned_work_waits_until_it_is_over(self, client, operator, upstream, harness):
        await client.initialize()
        await operator.post("/api/drain", {"on": True})
        other = await harness.start()
        other.session = client.session
        harness.gateways[1].drain(True)
        harness.gateways[1]._service.takes_work = True
        planned = await other.task("echo")
        waiting = asyncio.create_task(other.legacy("tasks/result", {"taskId": planned}))
        await operator.post("/api/drain", {"on": False})
        assert (await waiting).result["content"][0]["text"] == "{}"
        assert await operator.ready() == 200
        assert (await client.legacy_call("plain")).result
