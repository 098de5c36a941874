"""What every upstream must do, whatever the transport: the same behaviours, each with a real server behind it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from aiohttp import web

from gateway.telemetry import Telemetry
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import Call, Link, NotSent, OutcomeUnknown, Upstream, WithId
from gateway.upstream.process import Command
from gateway.upstream.stdio import Bounds, StdioUpstream
from gateway.wire.intent import LEGACY_VERSIONS
from gateway.wire.jsonrpc import Response
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, Stdio, call_of, text_of
from tests.upstream_server import ODD, UpstreamServer, answer, event, stream

BOUNDS = Bounds(processes=10, idle_s=600)


class HttpSite:
    """A server over HTTP."""

    def __init__(self, _: object) -> None:
        self.server = UpstreamServer()
        self.upstream: Upstream

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        self.upstream = over_http(self.server.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close_gates()
        await self.upstream.close()
        await self.server.__aexit__()

    @property
    def seen(self) -> list[dict[str, Any]]:
        return self.server.seen

    def open(self, gate: str) -> None:
        self.server.open(gate)

    async def until(self, condition) -> None:
        await self.server.until(condition)

    def chatter(self) -> str:
        """The name of a tool that says what nobody asked for before it answers."""

        async def chatter(request, message):
            response = await stream(request)
            await event(response, {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            await event(response, {"jsonrpc": "2.0", "method": "notifications/unheard-of", "params": {"x": 1}})
            await event(response, {"jsonrpc": "2.0", "id": 999_999, "result": {}})
            told = {"content": [{"type": "text", "text": "done"}]}
            await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": told})
            return response

        self.server.fault = chatter
        return "chatter"

    def dying(self) -> str:
        """The name of a tool in whose calls the server dies."""

        async def cut(request, _):
            request.transport.abort()
            return web.Response()

        self.server.fault = cut
        return "die"

    def huge(self) -> str:
        async def huge(_, message):
            return answer(message, {"content": [{"type": "text", "text": "x" * 20_000}]})

        self.server.fault = huge
        return "huge"

    def nonsense(self) -> str:
        async def nonsense(_, message):
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": 5})

        self.server.fault = nonsense
        return "nonsense"

    def asking(self) -> str:
        """The name of a tool that asks something, and tells what it heard."""

        async def asking(request, message):
            response = await stream(request)
            await event(response, {"jsonrpc": "2.0", "id": "q9", "method": "elicitation/create", "params": {"n": 1}})
            await self.server.until(lambda: any(one.get("id") == "q9" for one in self.seen))
            (heard,) = [one for one in self.seen if one.get("id") == "q9"]
            told = {"content": [{"type": "text", "text": json.dumps(heard)}]}
            await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": told})
            return response

        self.server.fault = asking
        return "asking"

    def bounded(self, sessions: int) -> Upstream:
        """The same server with no more than so many sessions."""
        return over_http(self.server.url, sessions)

    def absent(self) -> Upstream:
        """An upstream with nothing behind it."""
        return over_http("http://127.0.0.1:9/mcp")


class StdioSite:
    """A server over standard streams."""

    def __init__(self, folder) -> None:
        self.server = Stdio(folder)
        self.upstream: Upstream

    async def __aenter__(self) -> Self:
        self.upstream = StdioUpstream(self.server.command(), BOUNDS, Telemetry(sys.stderr))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.upstream.close()

    @property
    def seen(self) -> list[dict[str, Any]]:
        return self.server.seen

    def open(self, gate: str) -> None:
        self.server.open(gate)

    async def until(self, condition) -> None:
        await self.server.until(condition)

    def chatter(self) -> str:
        return "chatter"

    def dying(self) -> str:
        return "exit"

    def huge(self) -> str:
        return "huge"

    def nonsense(self) -> str:
        return "garbage"

    def asking(self) -> str:
        return "question"

    def bounded(self, sessions: int) -> Upstream:
        return StdioUpstream(self.server.command(), Bounds(sessions, BOUNDS.idle_s), Telemetry(sys.stderr))

    def absent(self) -> Upstream:
        command = Command(["/no/such/program"], self.server.folder, dict)
        return StdioUpstream(command, BOUNDS, Telemetry(sys.stderr))


def over_http(url: str, sessions: int = BOUNDS.processes) -> HttpUpstream:
    return HttpUpstream(Connections(url, dict, 1), max_sessions=sessions, session_idle_s=BOUNDS.idle_s)


Site = HttpSite | StdioSite


@pytest.fixture(params=[HttpSite, StdioSite], ids=["http", "stdio"])
async def site(request, tmp_path) -> AsyncIterator[Site]:
    async with request.param(tmp_path) as made:
        yield made


@pytest.fixture
async def link(site: Site) -> Link:
    return await site.upstream.open(ALICE)


async def perform(site: Site, link: Link, tool: str, **arguments: Any) -> Response:
    return await site.upstream.perform(link, call_of(site.upstream, tool, **arguments))


def sent(site: Site, method: str) -> list[dict[str, Any]]:
    return [message for message in site.seen if message.get("method") == method]


async def test_the_handshake_comes_first_and_once(site, link):
    assert (link.owner, link.version, link.capabilities) == (ALICE, "2025-06-18", "{}")
    assert await site.upstream.open(ALICE) == link
    await site.until(lambda: sent(site, "notifications/initialized"))
    (initialize,) = sent(site, "initialize")
    assert initialize["params"]["protocolVersion"] == LEGACY_VERSIONS[0]
    assert initialize["params"]["capabilities"] == {}
    assert [message["method"] for message in site.seen] == ["initialize", "notifications/initialized"]


async def test_callers_that_come_together_share_one_handshake(site):
    links = await asyncio.gather(*(site.upstream.open(ALICE) for _ in range(10)))
    assert len(set(links)) == 1
    assert len(sent(site, "initialize")) == 1


async def test_another_principal_and_other_capabilities_have_a_session_of_their_own(site, link):
    other = await site.upstream.open(BOB)
    declaring = await site.upstream.open(ALICE, '{"elicitation":{}}')
    assert len({link.session_id, other.session_id, declaring.session_id}) == 3
    assert [message["params"]["capabilities"] for message in sent(site, "initialize")] == [{}, {}, {"elicitation": {}}]


async def test_a_call_is_answered(site, link):
    response = await perform(site, link, "echo", a=1)
    assert (response.ok, text_of(response)) == (True, '{"a": 1}')
    (call,) = sent(site, "tools/call")
    assert call["params"] == {
        "name": "echo",
        "arguments": {"a": 1},
        "_meta": {"progressToken": call["id"]},
    }


async def test_an_id_is_used_once(site, link):
    ids = {site.upstream.next_id() for _ in range(100)}
    assert len(ids) == 100


@requirement("OWN-BYTES")
async def test_an_answer_stays_as_it_was_written(site, link):
    assert (await perform(site, link, "odd")).body == ODD


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
async def test_a_cancellation_names_our_own_request(site, link):
    call = call_of(site.upstream, "gate", name="a")
    running = asyncio.ensure_future(site.upstream.perform(link, call))
    await site.until(lambda: sent(site, "tools/call"))
    await site.upstream.cancel(link, call)
    await site.until(lambda: sent(site, "notifications/cancelled"))
    site.open("a")
    await running
    assert [note["params"]["requestId"] for note in sent(site, "notifications/cancelled")] == [call.id]


async def test_a_caller_that_leaves_takes_nobody_with_it(site, link):
    leaving, staying = (asyncio.ensure_future(perform(site, link, "gate", name=name)) for name in "ab")
    await site.until(lambda: len(sent(site, "tools/call")) == 2)
    leaving.cancel()
    site.open("b")
    assert text_of(await staying) == "through b"


async def test_what_nobody_asked_for_is_ignored(site, link):
    assert text_of(await perform(site, link, site.chatter())) == "done"


@requirement("T25-INP-2")
async def test_a_ping_is_answered_and_an_undeclared_question_refused(site, link):
    heard = json.loads(text_of(await perform(site, link, "ask")))
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
async def test_a_question_is_put_to_whoever_called_and_the_answer_goes_back(site, answer_, heard):
    link = await site.upstream.open(ALICE, '{"elicitation":{}}')
    asked = []

    async def on_request(method, params):
        asked.append((method, {name: bytes(value) for name, value in params.items()}))
        return answer_

    call = call_of(site.upstream, site.asking(), params={"n": 1})
    told = json.loads(text_of(await site.upstream.perform(link, call, None, on_request)))
    assert asked == [("elicitation/create", {"n": b"1"})]
    assert {name: told[name] for name in told if name in ("result", "error")} == heard


@requirement("BR-3")
async def test_a_question_can_be_known_by_its_id_and_answered_in_another_way(site):
    link = await site.upstream.open(ALICE, '{"elicitation":{}}')
    asked = asyncio.get_running_loop().create_future()

    async def on_request(request_id, method, params):
        asked.set_result((request_id, method, bytes(params["n"])))
        await asyncio.Event().wait()

    call = call_of(site.upstream, site.asking(), params={"n": 1})
    calling = asyncio.ensure_future(site.upstream.perform(link, call, None, WithId(on_request)))
    request_id, *rest = await asked
    assert rest == ["elicitation/create", b"1"]
    await site.upstream.reply(link, request_id, ok=True, body=b'{"action":"decline"}')
    assert json.loads(text_of(await calling))["result"] == {"action": "decline"}


async def test_whoever_needs_no_id_of_a_question_gets_none():
    async def on_request(*asked):
        return True, repr(asked).encode()

    assert await WithId(on_request)("roots/list", {}) == (True, b"('', 'roots/list', {})")


@requirement("BR-3")
async def test_a_session_that_is_held_makes_no_room(site):
    upstream = site.bounded(1)
    link = await upstream.open(ALICE)
    await upstream.perform(link, call_of(upstream, "echo"))
    with upstream.holding(link):
        with pytest.raises(NotSent, match="busy"):
            await upstream.open(BOB)
        assert text_of(await upstream.perform(link, call_of(upstream, "echo"))) == "{}"
    await upstream.open(BOB)
    with pytest.raises(NotSent) as caught:
        await upstream.perform(link, call_of(upstream, "echo"))
    assert caught.value.ended
    with upstream.holding(link):
        await upstream.reply(link, "1", ok=False, body=b"{}")
    await upstream.close()


async def test_a_session_that_works_makes_no_room_and_one_that_is_idle_does(site):
    upstream = site.bounded(1)
    link = await upstream.open(ALICE)
    running = asyncio.ensure_future(upstream.perform(link, call_of(upstream, "gate", name="a")))
    await site.until(lambda: sent(site, "tools/call"))
    with pytest.raises(NotSent, match="busy") as caught:
        await upstream.open(BOB)
    assert (caught.value.reason, caught.value.again) == ("upstream_down", True)
    site.open("a")
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
