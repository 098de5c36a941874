"""What every upstream must do, whatever the transport: the same behaviours, each with a real server behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.upstream.port import Call, Link, NotSent, OutcomeUnknown
from gateway.wire.intent import LEGACY_VERSIONS, MODERN_VERSIONS
from gateway.wire.jsonrpc import Response
from tests.contract.upstream_sites import HANDSHAKE_SITES, SITES, HandshakeSite, Site
from tests.fixtures_stdio import modern
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, call_of, text_of
from tests.upstream_server import ODD


@pytest.fixture(params=SITES.values(), ids=SITES)
async def site(request, tmp_path) -> AsyncIterator[Site]:
    async with request.param(tmp_path) as made:
        yield made


@pytest.fixture(params=HANDSHAKE_SITES.values(), ids=HANDSHAKE_SITES)
async def handshake(request, tmp_path) -> AsyncIterator[HandshakeSite]:
    """A server with sessions."""
    async with request.param(tmp_path) as made:
        yield made


@pytest.fixture
async def link(site: Site) -> Link:
    return await site.upstream.open(ALICE)


async def perform(site: Site, link: Link, tool: str, **arguments: Any) -> Response:
    return await site.upstream.perform(link, call_of(site.upstream, tool, **arguments))


def sent(site: Site, method: str) -> list[dict[str, Any]]:
    return [message for message in site.seen if message.get("method") == method]


async def test_the_handshake_comes_first_and_once(handshake):
    link = await handshake.upstream.open(ALICE)
    assert (link.owner, link.version, link.capabilities) == (ALICE, "2025-06-18", "{}")
    assert await handshake.upstream.open(ALICE) == link
    await handshake.until(lambda: sent(handshake, "notifications/initialized"))
    (initialize,) = sent(handshake, "initialize")
    assert initialize["params"]["protocolVersion"] == LEGACY_VERSIONS[0]
    assert initialize["params"]["capabilities"] == {}
    after = [message["method"] for message in handshake.seen if message["method"] != "server/discover"]
    assert after == ["initialize", "notifications/initialized"]


async def test_callers_that_come_together_share_one_handshake(handshake):
    links = await asyncio.gather(*(handshake.upstream.open(ALICE) for _ in range(10)))
    assert len(set(links)) == 1
    assert len(sent(handshake, "initialize")) == 1


async def test_another_principal_and_other_capabilities_have_a_session_of_their_own(handshake):
    link = await handshake.upstream.open(ALICE)
    other = await handshake.upstream.open(BOB)
    declaring = await handshake.upstream.open(ALICE, '{"elicitation":{}}')
    assert len({link.session_id, other.session_id, declaring.session_id}) == 3
    assert [message["params"]["capabilities"] for message in sent(handshake, "initialize")] == [
        {},
        {},
        {"elicitation": {}},
    ]


async def test_a_call_is_answered(site, link):
    response = await perform(site, link, "echo", a=1)
    assert (response.ok, text_of(response)) == (True, '{"a": 1}')
    (call,) = sent(site, "tools/call")
    meta = call["params"].pop("_meta")
    assert call["params"] == {"name": "echo", "arguments": {"a": 1}}
    assert meta["progressToken"] == call["id"]


async def test_an_id_is_used_once(site, link):
    ids = {site.upstream.next_id() for _ in range(100)}
    assert len(ids) == 100


@requirement("OWN-BYTES")
async def test_an_answer_stays_as_it_was_written(site, link):
    assert (await perform(site, link, "odd")).body == (modern.ODD if link.version == MODERN_VERSIONS[0] else ODD)


async def test_a_tool_error_is_an_answer(site, link):
    response = await perform(site, link, "fail")
    assert (response.ok, json.loads(response.body)["isError"]) == (True, True)


async def test_an_error_is_an_answer(site, link):
    response = await perform(site, link, "error")
    expected = {"code": -32002, "message": "no such thing", "data": {"uri": "x", "n": 1.0}}
    assert (response.ok, json.loads(response.body)) == (False, expected)


async def test_progress_comes_while_the_call_goes_on(site, link):
    heard = []
    call = call_of(site.upstream, "progress", name="a")
    running = asyncio.ensure_future(site.upstream.perform(link, call, heard.append))
    async with asyncio.timeout(10):
        while len(heard) < 2:
            await asyncio.sleep(0.005)
    assert not running.done()
    site.open("a")
    await running
    told = [tuple(bytes(note.params[name]) for name in ("progressToken", "progress", "message")) for note in heard]
    token = str(call.id).encode()
    assert told == [(token, b"1", b'"step 1"'), (token, b"2", b'"step 2"')]


async def test_calls_run_beside_each_other(site, link):
    first, second = (asyncio.ensure_future(perform(site, link, "gate", name=name)) for name in "ab")
    await site.until(lambda: len(sent(site, "tools/call")) == 2)
    site.open("b")
    assert text_of(await second) == "through b"
    site.open("a")
    assert text_of(await first) == "through a"


@requirement("T25-CAN-3")
async def test_a_cancellation_names_our_own_request(handshake):
    link = await handshake.upstream.open(ALICE)
    call = call_of(handshake.upstream, "gate", name="a")
    running = asyncio.ensure_future(handshake.upstream.perform(link, call))
    await handshake.until(lambda: sent(handshake, "tools/call"))
    await handshake.upstream.cancel(link, call)
    await handshake.until(lambda: sent(handshake, "notifications/cancelled"))
    handshake.open("a")
    await running
    assert [note["params"]["requestId"] for note in sent(handshake, "notifications/cancelled")] == [call.id]


async def test_a_caller_that_leaves_takes_nobody_with_it(site, link):
    leaving, staying = (asyncio.ensure_future(perform(site, link, "gate", name=name)) for name in "ab")
    await site.until(lambda: len(sent(site, "tools/call")) == 2)
    leaving.cancel()
    site.open("b")
    assert text_of(await staying) == "through b"


async def test_what_nobody_asked_for_is_ignored(site, link):
    assert text_of(await perform(site, link, site.chatter())) == "done"


@requirement("T25-INP-2")
async def test_a_ping_is_answered_and_an_undeclared_question_refused(handshake):
    link = await handshake.upstream.open(ALICE)
    heard = json.loads(text_of(await perform(handshake, link, "ask")))
    assert [(one["id"], one.get("error", {}).get("code"), one.get("result")) for one in heard] == [
        ("q1", -32601, None),
        ("q2", None, {}),
    ]


@pytest.mark.parametrize(
    ("answer_", "heard"),
    [
        ((True, b'{"action":"decline"}'), {"result": {"action": "decline"}}),
        ((False, b'{"code":-1,"message":"no"}'), {"error": {"code": -1, "message": "no"}}),
    ],
)
async def test_a_question_is_put_to_whoever_called_and_the_answer_goes_back(handshake, answer_, heard):
    link = await handshake.upstream.open(ALICE, '{"elicitation":{}}')
    asked = []

    async def on_request(method, params):
        asked.append((method, {name: bytes(value) for name, value in params.items()}))
        return answer_

    call = call_of(handshake.upstream, handshake.asking(), params={"n": 1})
    told = json.loads(text_of(await handshake.upstream.perform(link, call, None, on_request)))
    assert asked == [("elicitation/create", {"n": b"1"})]
    assert {name: told[name] for name in told if name in ("result", "error")} == heard


async def test_a_session_that_works_makes_no_room_and_one_that_is_idle_does(handshake):
    upstream = handshake.bounded(1)
    link = await upstream.open(ALICE)
    running = asyncio.ensure_future(upstream.perform(link, call_of(upstream, "gate", name="a")))
    await handshake.until(lambda: sent(handshake, "tools/call"))
    with pytest.raises(NotSent, match="busy") as caught:
        await upstream.open(BOB)
    assert (caught.value.reason, caught.value.again) == ("upstream_down", True)
    handshake.open("a")
    assert text_of(await running) == "through a"
    other = await upstream.open(BOB)
    assert text_of(await upstream.perform(other, call_of(upstream, "echo"))) == "{}"
    with pytest.raises(NotSent):
        await upstream.perform(link, call_of(upstream, "echo"))
    await upstream.close()


async def test_a_server_that_is_not_there_got_nothing(site):
    absent = site.absent()
    with pytest.raises(NotSent) as caught:
        await absent.open(ALICE)
    assert caught.value.reason == "upstream_down"
    await absent.close()


@requirement("OWN-ONCE")
async def test_a_server_that_dies_in_a_call_may_have_acted(site, link):
    with pytest.raises(OutcomeUnknown) as caught:
        await perform(site, link, site.dying())
    assert caught.value.reason == "upstream_down"
    assert str(caught.value)
    assert len(sent(site, "tools/call")) == 1


async def test_an_answer_larger_than_allowed_is_not_taken(site, link):
    with pytest.raises(OutcomeUnknown, match="larger than max_result_bytes") as caught:
        await site.upstream.perform(link, call_of(site.upstream, site.huge(), max_bytes=10_000, size=20_000))
    assert caught.value.reason == "upstream_bad"


async def test_an_answer_that_is_none_ends_the_call(site, link):
    with pytest.raises(OutcomeUnknown, match="not MCP"):
        await perform(site, link, site.nonsense())


async def test_what_is_no_tool_call_goes_the_same_way(site, link):
    listed = await site.upstream.perform(link, Call(site.upstream.next_id(), "tools/list", {}, 100_000))
    assert b'"x": 1.0' in listed.body
