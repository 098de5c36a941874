"""What every upstream of revision 2026-07-28 must do beyond the contract of all, over HTTP and over stdio."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw

from gateway.upstream import rounds as upstream_rounds
from gateway.upstream import stdio as pool
from gateway.upstream.port import Call, Link, OutcomeUnknown
from gateway.wire import rounds
from gateway.wire.jsonrpc import members, write
from tests.contract.upstream_sites import MODERN_SITES, ModernSite
from tests.fixtures_stdio.modern import CAPABILITIES, FORM, STATE, VERSION
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, call_of, text_of

CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
CAN = '{"elicitation":{}}'
ANN = {"action": "accept", "content": {"name": "Ann"}}


@pytest.fixture(params=MODERN_SITES.values(), ids=MODERN_SITES)
async def site(request, tmp_path, monkeypatch) -> AsyncIterator[ModernSite]:
    monkeypatch.setattr(pool, "_LISTEN_PAUSE_S", 0.01)
    monkeypatch.setattr("gateway.upstream.modern._RETRY_S", 0.01)
    async with request.param(tmp_path) as made:
        yield made


@pytest.fixture
async def link(site: ModernSite) -> Link:
    return await site.upstream.open(ALICE, CAN)


def sent(site: ModernSite, method: str) -> list[dict[str, Any]]:
    return [message for message in site.seen if message.get("method") == method]


def calls(site: ModernSite) -> list[dict[str, Any]]:
    return sent(site, "tools/call")


async def perform(site, link, tool, on_request=None, **arguments):
    return await site.upstream.perform(link, call_of(site.upstream, tool, **arguments), None, on_request)


async def accept(method, params):
    return True, json.dumps(ANN).encode()


async def test_a_server_is_asked_once_what_it_is(site):
    links = await asyncio.gather(*(site.upstream.open(ALICE, CAN) for _ in range(5)))
    assert len(set(links)) == 1
    assert await site.upstream.open(ALICE) != links[0]
    assert len(sent(site, "server/discover")) == 1
    assert sent(site, "initialize") == []
    (link, *_) = links
    assert (link.owner, link.version, link.capabilities) == (ALICE, "2026-07-28", CAN)
    assert json.loads(link.hello.capabilities)["tools"] == {"listChanged": True}
    assert json.loads(link.hello.info) == {"name": "m", "version": "1"}
    assert json.loads(link.hello.instructions) == "Hi."


async def test_each_request_says_who_speaks_and_what_can_be_asked(site, link):
    await perform(site, link, "echo")
    await perform(site, await site.upstream.open(ALICE, '{"roots":{"listChanged":true}}'), "echo")
    first, second = (call["params"]["_meta"] for call in calls(site))
    assert (first[VERSION], first[CAPABILITIES]) == ("2026-07-28", {"elicitation": {}})
    assert second[CAPABILITIES] == {"roots": {"listChanged": True}}
    assert first[CLIENT_INFO]["name"] == "mcp-task-gateway"
    assert LOG_LEVEL not in first


async def test_what_the_caller_says_of_itself_is_kept(site, link):
    meta = {CAPABILITIES: {"x": {}}, CLIENT_INFO: {"name": "c"}, LOG_LEVEL: "debug", "com.example/k": 1.0}
    params = members(write({"name": "echo", "_meta": meta, "more": Raw(b"1.0")}))
    await site.upstream.perform(link, Call(site.upstream.next_id(), "tools/call", params, 10_000))
    (call,) = calls(site)
    expected = {**meta, VERSION: "2026-07-28", CAPABILITIES: {"x": {}, "elicitation": {}}}
    assert call["params"] == {"name": "echo", "more": 1.0, "_meta": expected}


@requirement("BR-2")
async def test_questions_are_asked_and_the_request_is_sent_again_with_the_answers(site, link):
    asked = []

    async def on_request(method, params):
        asked.append((method, json.loads(write(params))))
        return await accept(method, params)

    call = call_of(site.upstream, "form", rounds=2)
    answer = await site.upstream.perform(link, call, None, on_request)
    assert json.loads(text_of(answer)) == {"who": ANN}
    assert answer.id == str(call.id).encode()
    assert asked == [("elicitation/create", FORM)] * 2
    first, second, third = calls(site)
    assert len({first["id"], second["id"], third["id"]}) == 3
    assert [one["params"].get("requestState") for one in (first, second, third)] == [None, "s", "ss"]
    assert "inputResponses" not in first["params"]
    assert {one["params"]["_meta"]["progressToken"] for one in (first, second, third)} == {call.id}
    assert all(one["params"]["arguments"] == {"rounds": 2} for one in (first, second, third))


@requirement("BR-2")
async def test_all_questions_of_an_answer_are_asked_at_once(site, link):
    both, count = asyncio.Event(), 0

    async def on_request(method, params):
        nonlocal count
        count += 1
        if count == 2:
            both.set()
        await both.wait()
        return await accept(method, params)

    assert json.loads(text_of(await perform(site, link, "both", on_request))) == {"a": ANN, "b": ANN}


@requirement("BR-2")
async def test_a_question_that_is_refused_ends_the_request_and_says_so(site, link):
    never = asyncio.Event()
    put = []

    async def on_request(method, params):
        put.append(method)
        if len(put) == 1:
            await never.wait()
        return False, b'{"code":-1,"message":"not today"}'

    call = call_of(site.upstream, "both")
    answer = await site.upstream.perform(link, call, None, on_request)
    error = json.loads(answer.body)
    assert (answer.ok, answer.id, error["code"]) == (False, str(call.id).encode(), 49902)
    assert error["message"] == "the upstream needs elicitation/create, which was refused: not today"
    refused = {"method": "elicitation/create", "error": {"code": -1, "message": "not today"}}
    assert error["data"]["inputRequests"] == {"b": refused}
    assert len(calls(site)) == 1


async def test_without_anybody_to_ask_the_questions_are_the_answer(site, link):
    answer = json.loads((await perform(site, link, "form")).body)
    assert (answer["resultType"], answer["requestState"]) == ("input_required", "s")
    assert answer["inputRequests"]["who"]["params"] == FORM


@requirement("OWN-BYTES")
async def test_a_state_goes_back_as_it_came_also_where_nothing_is_asked(site, link):
    heard = json.loads(text_of(await perform(site, link, "later", accept)))
    assert heard == {"inputResponses": None, "requestState": STATE}


async def test_a_server_that_never_ends_asking_is_given_up(site, link, monkeypatch):
    monkeypatch.setattr(rounds, "MOST_ROUNDS", 3)
    answer = await perform(site, link, "form", accept, rounds=1000)
    assert (answer.ok, json.loads(answer.body)["code"]) == (False, 50202)
    assert len(calls(site)) == 4


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "task", "taskId": "x"},
        {"resultType": 5},
        {"resultType": "input_required"},
        {"resultType": "input_required", "inputRequests": {}},
        {"resultType": "input_required", "inputRequests": []},
        {"resultType": "input_required", "inputRequests": {"a": {"params": {}}}},
        {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list", "params": 5}}},
        {"resultType": "input_required", "inputRequests": {str(n): {"method": "roots/list"} for n in range(21)}},
    ],
)
async def test_a_result_that_is_none_of_this_revision_ends_the_call(site, link, result):
    with pytest.raises(OutcomeUnknown) as caught:
        await perform(site, link, "typed", accept, **result)
    assert caught.value.reason == "upstream_bad"


async def test_a_result_without_a_type_is_a_complete_one(site, link):
    assert json.loads((await perform(site, link, "typed", accept, content=[])).body) == {"content": []}


async def test_cancelling_reaches_the_server(site, link):
    call = call_of(site.upstream, "slow", name="a")
    running = asyncio.ensure_future(site.upstream.perform(link, call))
    await site.until(lambda: calls(site))
    await site.upstream.cancel(link, call)
    await site.closed(calls(site)[0]["id"])
    running.cancel()
    with pytest.raises((asyncio.CancelledError, OutcomeUnknown)):
        await running


@pytest.mark.parametrize("tool", ["slow", "gate"])
async def test_a_caller_that_leaves_cancels_its_request(site, link, tool):
    running = asyncio.ensure_future(perform(site, link, tool, name="a"))
    await site.until(lambda: calls(site))
    running.cancel()
    await site.closed(calls(site)[0]["id"])
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cancelling_in_a_later_round_reaches_the_request_of_that_round(site, link):
    call = call_of(site.upstream, "ask_then_wait", name="a")
    running = asyncio.ensure_future(site.upstream.perform(link, call, None, accept))
    await site.until(lambda: len(calls(site)) == 2)
    await site.upstream.cancel(link, call)
    await site.closed(calls(site)[1]["id"])
    assert calls(site)[1]["id"] != call.id
    running.cancel()
    with pytest.raises((asyncio.CancelledError, OutcomeUnknown)):
        await running


async def test_a_round_that_cannot_be_sent_leaves_an_unknown_outcome(site, link, monkeypatch):
    monkeypatch.setattr(upstream_rounds, "_PAUSES_S", ())

    async def on_request(method, params):
        await site.upstream.close()
        return await accept(method, params)

    with pytest.raises(OutcomeUnknown):
        await perform(site, link, "form", on_request)


async def test_changes_are_told_without_the_mark_of_the_subscription(site, link):
    heard: asyncio.Queue[Any] = asyncio.Queue()
    listening = asyncio.ensure_future(site.upstream.listen(link, heard.put_nowait, accept))
    await site.change()
    async with asyncio.timeout(10):
        note = await heard.get()
    assert (note.method, note.params) == ("notifications/tools/list_changed", {})
    (asked,) = sent(site, "subscriptions/listen")
    assert asked["params"]["notifications"] == {"toolsListChanged": True}
    listening.cancel()
    await site.closed(asked["id"])


async def test_resources_can_be_listened_for(site, link):
    uris = ["file:///a", "x:\u00e9"]
    listening = asyncio.ensure_future(site.upstream.listen(link, print, accept, resources=uris))
    await site.until(lambda: sent(site, "subscriptions/listen"))
    (asked,) = sent(site, "subscriptions/listen")
    assert asked["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": uris}
    listening.cancel()


async def test_a_subscription_that_ends_is_made_again(site, link):
    heard: asyncio.Queue[Any] = asyncio.Queue()
    listening = asyncio.ensure_future(site.upstream.listen(link, heard.put_nowait, accept))
    await site.tear_down()
    await site.until(lambda: len(sent(site, "subscriptions/listen")) == 2)
    await site.change()
    async with asyncio.timeout(10):
        assert (await heard.get()).method == "notifications/tools/list_changed"
    listening.cancel()


async def test_a_server_that_has_nothing_to_tell_is_not_listened_to(site, link):
    from dataclasses import replace

    quiet = replace(link, hello=replace(link.hello, capabilities=b'{"tools":{}}'))
    async with asyncio.timeout(10):
        await site.upstream.listen(quiet, print, accept)
    assert sent(site, "subscriptions/listen") == []


async def test_a_server_that_refuses_is_not_asked_again(site, link):
    uris = ["refuse:x"]
    async with asyncio.timeout(10):
        await site.upstream.listen(link, print, accept, resources=uris)
    assert len(sent(site, "subscriptions/listen")) == 1


async def test_principals_do_not_hear_of_each_other(site):
    first, second = await site.upstream.open(ALICE, CAN), await site.upstream.open(BOB)
    await perform(site, first, "echo", a=1)
    await perform(site, second, "echo", b=1)
    assert [call["params"]["_meta"][CAPABILITIES] for call in calls(site)] == [{"elicitation": {}}, {}]
