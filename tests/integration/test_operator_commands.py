"""The operator's commands against a gateway in this process: what they print where, and how they end."""

import asyncio
import json

import pytest

from gateway.cli.main import main
from gateway.edge.auth import ANONYMOUS
from tests.integration.test_admin import lost
from tests.requirements import requirement


@pytest.fixture
def command(client, harness, capsys, monkeypatch):
    """Runs a command; exit status, standard output, standard error."""
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)

    async def run(*words: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, [*words, "--admin", harness.gateways[0].admin_address])
        return status, *capsys.readouterr()

    return run


@requirement("OWN-OPERATE")
async def test_tasks_are_listed_shown_and_cancelled(client, command, upstream):
    await client.initialize()
    task_id = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    status, out, err = await command("tasks", "ls")
    titles, row = out.splitlines()
    assert (status, err) == (0, "")
    assert titles.split()[:5] == ["ID", "UPSTREAM/TOOL", "TASK", "OPERATION", "OUTCOME"]
    assert row.split()[1:5] == ["reports/gate", "working", "sent", "pending"]
    member = row.split()[0]
    status, out, err = await command("tasks", "show", member)
    shown = dict(line.split(maxsplit=1) for line in out.splitlines()[1:])
    assert (shown["id"], shown["task.state"], shown["operation.tool"]) == (member, "working", "gate")
    assert shown["operation.created"].startswith("20")
    status, out, err = await command("tasks", "cancel", task_id, "--by", "ada", "--json")
    assert (status, json.loads(out)["task"]["state"]) == (0, "cancelled")
    assert await command("tasks", "cancel", task_id) == (1, "", "the gateway said 409: the task has already ended\n")


async def test_a_list_goes_on_until_there_is_enough(client, command):
    await client.initialize()
    for _ in range(3):
        await client.legacy("tasks/result", {"taskId": await client.task("echo")})
    status, out, _ = await command("tasks", "ls", "--json")
    assert (status, len(json.loads(out)["entries"]), json.loads(out)["cursor"]) == (0, 3, None)


@requirement("OWN-OPERATE")
async def test_an_unknown_outcome_is_found_and_settled(client, command, upstream):
    await client.initialize()
    task_id = await lost(client, upstream)
    status, out, _ = await command("ledger", "ls", "--state", "unknown")
    member, *row = out.splitlines()[1].split()
    assert (status, row[:4]) == (0, ["reports/echo", "done", "unknown", "unknown"])
    words = ["--outcome", "failed", "--reason", "INC-1", "--by", "ada", "--json"]
    status, out, _ = await command("ledger", "resolve", member, *words)
    assert (status, json.loads(out)["operation"]["outcome"]) == (0, "failed")
    status, out, _ = await command("ledger", "show", task_id)
    assert ["operation.history.2.by", "ada"] in [line.split() for line in out.splitlines()]
    assert (await command("ledger", "resolve", member, *words))[0] == 1


@requirement("OWN-SWITCH")
async def test_starts_are_blocked_and_allowed(client, command):
    status, out, _ = await command("switch", "on", "--tool", "reports/echo", "--reason", "an incident", "--by", "ada")
    rows = [line.split(maxsplit=4) for line in out.splitlines()]
    assert (status, rows[0]) == (0, ["SCOPE", "STARTS", "SINCE", "BY", "REASON"])
    assert [row[:2] for row in rows[1:]] == [["all", "allowed"], ["tool:reports/echo", "blocked"]]
    assert rows[2][3:] == ["ada", "an incident"]
    await command("switch", "on", "--tenant", "https://idp", "acme", "--reason", "x")
    out = (await command("switch", "status"))[1]
    assert out.splitlines()[2].split()[:3] == ["tenant:https://idp", "acme", "blocked"]
    await command("switch", "off", "--tenant", "https://idp", "acme", "--reason", "x")
    out = (await command("switch", "off", "--tool", "reports/echo", "--reason", "x", "--json"))[1]
    assert [one["scope"] for one in json.loads(out)["switches"]] == ["all"]
    for scope in (("--all",), ("--upstream", "reports")):
        assert (await command("switch", "on", *scope, "--reason", "x"))[0] == 0
    assert (await command("switch", "status"))[1].count("blocked") == 2
    assert (await command("switch", "on", "--upstream", "x", "--reason", "x"))[0] == 1


@requirement("OWN-ERASE")
async def test_a_name_is_taken_out(client, command, upstream):
    await client.initialize()
    await client.legacy("tasks/result", {"taskId": await client.task("echo")})
    await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    status, out, err = await command("erase", "--subject", ANONYMOUS.subject, "--json")
    said = json.loads(out)
    assert (status, said["entries"], said["under_way"]) == (1, 1, 1)
    assert err == "1 calls were told to stop: run this again once they have ended\n"
    status, out, err = await command("erase", "--subject", "somebody", "--issuer", "x")
    assert (status, out.split()[:4], err) == (0, ["FIELD", "VALUE", "entries", "0"], "")


async def test_a_switch_that_cannot_be_read_is_told_as_such(client, command, redis):
    await redis.delete("mtg:{s0}:sw")
    out = (await command("switch", "status"))[1]
    assert out.splitlines()[1].split(maxsplit=4)[4].startswith("the record is not there or cannot be read")
    await command("switch", "off", "--all", "--reason", "x")


@requirement("OWN-DRAIN")
async def test_one_gateway_is_drained_and_taken_back(command):
    assert await command("drain", "--json") == (0, '{\n  "draining": true,\n  "running": 0\n}\n', "")
    status, out, _ = await command("drain", "--off")
    assert (status, out.split()) == (0, ["FIELD", "VALUE", "draining", "False", "running", "0"])


@requirement("OWN-ADMIN")
async def test_the_token_comes_from_a_reference(harness, http, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "right")
    file = tmp_path / "token"
    file.write_text("wrong")
    await harness.start(admin_token="env:GATEWAY_ADMIN_TOKEN")
    words = ["tasks", "ls", "--admin", harness.gateways[0].admin_address]
    wanted = "wants the token of admin.token: Authorization: Bearer TOKEN"
    for token, status, said in (
        ((), 0, ""),
        (("--token", f"file:{file}"), 1, f"the gateway said 401: {wanted}; set GATEWAY_ADMIN_TOKEN, or give --token"),
        (("--token", "file:absent"), 2, "--token: cannot be read: No such file or directory"),
        (("--token", "env:ABSENT"), 2, "--token: environment variable ABSENT is not set or empty"),
    ):
        assert await asyncio.to_thread(main, [*words, *token]) == status
        assert capsys.readouterr().err.startswith(said)


async def test_what_is_no_admin_listener_is_told_as_such(client, harness, capsys, upstream):
    for admin, said in (
        (harness.gateways[0].address, "the answer is no JSON: is it the admin listener?"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1 does not answer: [Errno 111] Connection refused"),
    ):
        assert await asyncio.to_thread(main, ["tasks", "ls", "--admin", admin]) == 1
        assert capsys.readouterr().err.startswith(said)
