"""The ledger reaches the audit sink, whole and without arguments, and waits while the sink does not work."""

import json

import pytest

from gateway.edge.auth import ANONYMOUS
from gateway.operating import exporting
from gateway.store import exports
from tests.integration.conftest import POLICY, eventually
from tests.integration.test_admin import Operator, lost
from tests.requirements import requirement

MIXED = {**POLICY, "tools": [{"match": "fail", "effect": "read_only"}]}


@pytest.fixture
async def audited(harness, tmp_path, monkeypatch):
    """A client of a gateway with a sink, and what reads the sink."""
    monkeypatch.setattr(exporting, "_PAUSE_S", 0.02)
    file = tmp_path / "audit.jsonl"
    client = await harness.start(MIXED, audit=file)
    await client.initialize()

    async def lines():
        return [json.loads(line) for line in file.read_text().splitlines()]

    return client, file, lines


@requirement("OWN-AUDIT", "T25-SEC-4")
async def test_everything_that_becomes_known_is_written_with_its_owner(audited, harness, http, upstream):
    client, _, lines = audited
    await client.legacy("tasks/result", {"taskId": await client.task("fail")})
    await client.legacy("tasks/result", {"taskId": await client.task("echo", {"password": "CANARY"})})
    task_id = await lost(client, upstream, arguments={"password": "CANARY"})
    done, unknown = await eventually(lines, lambda found: len(found) == 2)
    assert [one["entry"]["outcome"] for one in (done, unknown)] == ["succeeded", "unknown"]
    assert (done["event"], done["entry"]["owner"]["upstream"], done["entry"]["tool"]) == ("ledger", "reports", "echo")
    assert [step["state"] for step in done["entry"]["history"]] == ["sent", "answered"]
    settled = {"outcome": "failed", "reason": "INC-1", "by": "ada"}
    await Operator(http, harness.gateways[0]).post(f"/api/ledger/{task_id}/resolve", settled)
    by_event = {line["event"]: line for line in (await eventually(lines, lambda found: len(found) == 4))[2:]}
    member = unknown["id"].partition("@")[0]
    assert by_event["resolved"] == {**by_event["resolved"], "operation": member, **settled}
    assert by_event["ledger"]["entry"]["history"][-1]["by"] == "ada"
    assert len({line["id"] for line in await lines()}) == 4
    assert "CANARY" not in json.dumps(await lines())


@requirement("OWN-AUDIT", "OWN-SWITCH")
async def test_a_switch_of_a_tenant_says_whose_it_was_also_once_it_is_off(audited, harness, http):
    _, _, lines = audited
    whose = {"issuer": ANONYMOUS.issuer, "tenant": ANONYMOUS.tenant}
    for on in (True, False):
        await Operator(http, harness.gateways[0]).post("/api/switch", {**whose, "on": on, "reason": "INC-1"})
    told = [(line["event"], line["on"], line["issuer"], line["tenant"]) for line in await lines()]
    assert told == [("switch_changed", on, ANONYMOUS.issuer, ANONYMOUS.tenant) for on in (True, False)]


@requirement("OWN-AUDIT")
async def test_nothing_is_lost_while_the_sink_does_not_work(audited, harness, upstream, monkeypatch, http):
    client, file, lines = audited
    monkeypatch.setattr(exports, "HANDED_OUT_MS", 100)
    file.unlink()
    file.mkdir()
    await client.legacy("tasks/result", {"taskId": await client.task("echo")})

    async def metrics():
        async with http.get(f"{harness.gateways[0].admin_address}/metrics") as response:
            return await response.text()

    failed = await eventually(metrics, lambda text: "mtg_audit_up 0.0" in text)
    assert "mtg_ledger_unexported 1.0" in failed
    file.rmdir()
    assert len(await eventually(lambda: lines_if_there(file, lines), lambda found: len(found) == 1)) == 1
    await eventually(metrics, lambda text: "mtg_audit_up 1.0" in text and "mtg_ledger_unexported 0.0" in text)
    logged = [json.loads(line)["event"] for line in harness.log.getvalue().splitlines()]
    assert [event for event in logged if event.startswith("audit")] == ["audit_failed", "audit_back"]


async def lines_if_there(file, lines):
    return await lines() if file.is_file() else []


async def test_what_is_known_last_is_written_before_the_gateway_ends(audited, harness, upstream):
    client, _, lines = audited
    await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    upstream.open("a")
    await harness.gateways.pop().stop()
    assert [line["entry"]["outcome"] for line in await lines()] == ["succeeded"]


@requirement("OWN-UNKNOWN")
async def test_unknown_outcomes_are_counted_by_age(client, harness, upstream, redis, http):
    await client.initialize()
    await lost(client, upstream)
    (key,) = await redis.keys("*:un:reports")
    hour = 3_600_000
    ((_, since),) = await redis.zrange(key, 0, -1, withscores=True)
    others = {f"{age}": since - age * hour for age in (2, 23, 25, 167, 169, 1000)}
    await redis.zadd(key, others)
    async with http.get(f"{harness.gateways[0].admin_address}/metrics") as response:
        text = await response.text()
    counted = [line.split()[1] for line in text.splitlines() if line.startswith("mtg_ledger_unknown{")]
    assert counted == ["1.0", "2.0", "2.0", "2.0"]
    await redis.zrem(key, *others)
