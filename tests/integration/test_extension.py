"""The dialect of the extension, from a client's side."""

import asyncio
import json

import pytest

from tests.client import CAPABILITIES, VERSION
from tests.integration.conftest import POLICY, eventually
from tests.requirements import requirement
from tests.upstream_server import ODD


def policy(**defaults):
    return {**POLICY, "defaults": {**POLICY["defaults"], **defaults}}


async def ended(client, task_id):
    async def look():
        return (await client.modern("tasks/get", {"taskId": task_id})).result

    return await eventually(look, lambda task: task["status"] not in ("working", "input_required"))


@requirement("TX-CAP-1", "TX-HTTP-5")
async def test_discovery_names_the_extension_and_no_tasks_capability(client):
    result = (await client.modern("server/discover")).result
    assert result["capabilities"] == {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert result["supportedVersions"] == ["2026-07-28"]
    assert (result["resultType"], result["cacheScope"]) == ("complete", "private")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "u"  # the upstream's own


@requirement("TX-NEW-1", "TX-NEW-2", "T25-NEW-2", "TX-CAP-3")
async def test_a_call_becomes_a_task_that_can_be_asked_for_at_once(client, harness):
    other = await harness.start()
    answer = await client.modern("tools/call", {"name": "gate", "arguments": {"name": "a"}, "task": "ignored"})
    task = answer.result
    assert (answer.status, task["resultType"], task["status"]) == (200, "task", "working")
    assert task["ttlMs"] == 3_600_000
    assert task["pollIntervalMs"] == 700
    assert len(task["taskId"]) == 32
    assert not {"task", "ttl", "pollInterval"} & task.keys()
    assert (await other.modern("tasks/get", {"taskId": task["taskId"]})).result["status"] == "working"


@requirement("TX-GET-1", "TX-GET-3", "OWN-BYTES")
async def test_a_finished_task_holds_the_result_byte_for_byte(client):
    task_id = (await client.call("odd")).result["taskId"]
    await ended(client, task_id)
    body = (await client.modern("tasks/get", {"taskId": task_id})).body
    assert b'"result":{"resultType":"complete",' + ODD[1:] in body
    result = json.loads(body)["result"]
    assert (result["resultType"], result["status"]) == ("complete", "completed")
    assert not {"error", "inputRequests"} & result.keys()


@requirement("TX-GET-2", "T25-ST-2")
async def test_an_error_of_the_tool_is_completed_and_an_error_of_the_protocol_is_failed(client):
    task = await ended(client, (await client.call("fail")).result["taskId"])
    assert task["status"] == "completed"
    assert task["result"]["isError"] is True
    assert task["result"]["structuredContent"] == {"errors": [1]}
    task = await ended(client, (await client.call("error")).result["taskId"])
    assert task["status"] == "failed"
    assert "result" not in task


@requirement("TX-HTTP-6")
async def test_a_reserved_code_of_the_upstream_is_not_shown(client):
    plain = await client.call("plain")
    assert plain.status == 200
    task = await ended(client, (await client.call("error")).result["taskId"])
    assert task["error"]["code"] == -32602
    assert task["error"]["data"] == {"uri": "x", "n": 1.0}


@requirement("TX-CAP-4", "TX-CAP-2")
async def test_without_the_declaration_there_is_no_task(client):
    assert (await client.call("echo")).result["resultType"] == "task"
    plain = await client.call("echo", {"a": 1}, capabilities={})
    assert plain.result["resultType"] == "complete"
    assert plain.result["content"][0]["text"] == '{"a": 1}'
    refused = await client.call("required", capabilities={"extensions": {}})
    assert (refused.status, refused.error["code"]) == (400, -32021)
    wanted = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert refused.error["data"]["requiredCapabilities"] == wanted


@requirement("TX-CAP-5")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_without_the_declaration_a_task_cannot_be_asked_for(client, method):
    task_id = (await client.call("echo")).result["taskId"]
    params = {"taskId": task_id, "inputResponses": {}}
    refused = await client.modern(method, params, capabilities={})
    assert (refused.status, refused.error["code"]) == (400, -32021)


@requirement("TX-CAP-6", "TX-HTTP-4")
@pytest.mark.parametrize("method", ["tasks/result", "tasks/list", "initialize", "ping", "no/such"])
async def test_what_this_revision_does_not_have_is_not_found(client, method):
    refused = await client.modern(method, {"taskId": "x"})
    assert (refused.status, refused.error["code"]) == (404, -32601)


@requirement("TX-GET-4", "TX-UPD-1")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_an_unknown_task_is_an_invalid_parameter(client, method):
    for task_id in ("x" * 32, "", "no such", "é"):
        params = {"taskId": task_id, "inputResponses": {}}
        body, headers = client.modern_request(method, params)
        del headers["Mcp-Name"]
        refused = await client.post(body, headers)
        assert (refused.status, refused.error["code"]) == (200, -32602)
        assert refused.error["message"] == "Task not found"


@requirement("TX-UPD-1", "TX-UPD-2")
async def test_answers_to_nothing_are_acknowledged_and_change_nothing(client):
    task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
    before = (await client.modern("tasks/get", {"taskId": task_id})).result
    told = await client.modern("tasks/update", {"taskId": task_id, "inputResponses": {"k": {"action": "accept"}}})
    assert {key: value for key, value in told.result.items() if key != "_meta"} == {"resultType": "complete"}
    assert (await client.modern("tasks/get", {"taskId": task_id})).result == before
    wrong = await client.modern("tasks/update", {"taskId": task_id})
    assert (wrong.status, wrong.error["code"]) == (200, -32602)


@requirement("TX-CAN-1", "T25-CAN-3")
async def test_a_cancelled_task_tells_the_upstream_once_and_ends(client, upstream):
    task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
    await upstream.until(lambda: upstream.calls("gate"))
    for _ in range(3):
        told = await client.modern("tasks/cancel", {"taskId": task_id})
        assert {key: value for key, value in told.result.items() if key != "_meta"} == {"resultType": "complete"}
    assert (await ended(client, task_id))["status"] == "cancelled"
    assert upstream.cancelled() == [upstream.calls("gate")[0]["id"]]


@requirement("TX-CAN-3")
async def test_work_that_won_the_race_ends_completed(client, upstream):
    task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
    await upstream.until(lambda: upstream.calls("gate"))
    await client.modern("tasks/cancel", {"taskId": task_id})
    upstream.open("a")
    task = await ended(client, task_id)
    assert (task["status"], task["result"]["content"][0]["text"]) == ("completed", "through a")
    again = await client.modern("tasks/cancel", {"taskId": task_id})
    assert again.result["resultType"] == "complete"
    assert (await client.modern("tasks/get", {"taskId": task_id})).result == task


@requirement("TX-NEW-4")
async def test_a_fast_call_answers_directly_and_a_slow_one_becomes_a_task(harness, upstream):
    client = await harness.start(policy(inline_ms=300))
    direct = (await client.call("echo", {"a": 1})).result
    assert direct["resultType"] == "complete"
    assert direct["content"] == [{"type": "text", "text": '{"a": 1}'}]
    failed = await client.call("error")
    assert (failed.status, failed.error["code"], failed.error["message"]) == (200, -32602, "no such thing")
    slow = (await client.call("gate", {"name": "a"})).result
    assert (slow["resultType"], slow["status"], slow["ttlMs"]) == ("task", "working", 3_600_000)
    upstream.open("a")
    assert (await ended(client, slow["taskId"]))["status"] == "completed"
    assert [len(upstream.calls(tool)) for tool in ("echo", "error", "gate")] == [1, 1, 1]


@requirement("TX-CAN-2")
async def test_a_stream_closed_during_the_inline_wait_stops_the_work(harness, upstream):
    client = await harness.start(policy(inline_ms=30_000))
    calling = asyncio.create_task(client.call("gate", {"name": "a"}))
    await upstream.until(lambda: upstream.calls("gate"))
    calling.cancel()
    await upstream.until(upstream.cancelled)
    assert upstream.cancelled() == [upstream.calls("gate")[0]["id"]]


@requirement("TX-CAN-2")
async def test_a_cancellation_of_the_request_does_not_cancel_its_task(client, upstream):
    task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    told = await client.post(note, {"MCP-Protocol-Version": "2026-07-28"})
    assert (told.status, told.body) == (202, b"")
    upstream.open("a")
    assert (await ended(client, task_id))["status"] == "completed"


@requirement("TX-HTTP-7")
async def test_closing_the_stream_of_a_plain_call_cancels_it_upstream(client, upstream):
    calling = asyncio.create_task(client.call("progress", {"name": "a", "_meta": {}}, capabilities={}))
    await upstream.until(lambda: upstream.calls("progress"))
    calling.cancel()
    await upstream.until(upstream.cancelled)
    assert upstream.cancelled() == [upstream.calls("progress")[0]["id"]]


@requirement("TX-HTTP-7", "TX-NOT-2")
async def test_progress_of_a_plain_call_carries_the_clients_token_and_none_is_sent_for_tasks(client, upstream):
    meta = {"progressToken": "my-token"}
    answer = await client.modern("tools/call", {"name": "progress", "arguments": {}, "_meta": meta})
    if "event-stream" in answer.headers["Content-Type"]:
        assert answer.headers["X-Accel-Buffering"] == "no"
    notes = [message["params"] for message in answer.messages[:-1]]
    assert [(note["progressToken"], note["progress"], note["message"]) for note in notes] == [
        ("my-token", 1, "step 1"),
        ("my-token", 2, "step 2"),
    ]
    assert answer.result["resultType"] == "complete"
    sent = upstream.calls("progress")[0]["params"]["_meta"]["progressToken"]
    assert sent != "my-token"
    await client.modern("tools/call", {"name": "echo", "arguments": {}, "_meta": meta})
    await upstream.until(lambda: upstream.calls("echo"))
    assert "_meta" not in upstream.calls("echo")[0]["params"]


@requirement("TX-HTTP-5", "TX-HTTP-1")
async def test_the_tool_list_says_nothing_about_tasks_and_is_not_cached(client):
    result = (await client.modern("tools/list")).result
    assert all("execution" not in tool for tool in result["tools"])
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
    assert result["nextCursor"] == "more"


@requirement("TX-HTTP-1")
async def test_both_eras_live_on_one_url(client):
    await client.initialize()
    body, headers = client.modern_request("server/discover")
    assert (await client.post(body, {**headers, **client.session})).result["resultType"] == "complete"
    async with client.http.get(client.url) as response:
        assert response.status == 405


@requirement("TX-HTTP-2", "TX-HTTP-3", "TX-HTTP-4")
@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"Mcp-Method": "tools/list"}, 400, -32020),
        ({"Mcp-Name": "other"}, 400, -32020),
        ({"MCP-Protocol-Version": "2025-11-25"}, 400, -32020),
        ({"meta": VERSION}, 400, -32602),
        ({"meta": CAPABILITIES}, 400, -32602),
        ({"version": "2099-01-01"}, 400, -32022),
    ],
)
async def test_the_ladder_stands_in_front_of_everything(client, upstream, change, status, code):
    change = dict(change)
    body, headers = client.modern_request("tools/call", {"name": "echo", "arguments": {}})
    meta = body["params"]["_meta"]
    meta.pop(change.pop("meta", None), None)
    if "version" in change:
        meta[VERSION] = headers["MCP-Protocol-Version"] = change.pop("version")
    refused = await client.post(body, {**headers, **change})
    assert (refused.status, refused.error["code"]) == (status, code)
    assert upstream.calls() == []
