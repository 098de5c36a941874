"""Sessions over HTTP+SSE with a real server, in every way in which its streams and its answers to POSTs can fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web

from gateway.app import new_id
from gateway.upstream.exchange import Connections
from gateway.upstream.pool import Bounds
from gateway.upstream.port import Link, NotSent, NotSpoken, OutcomeUnknown
from gateway.upstream.sse import SseUpstream
from tests.requirements import requirement
from tests.sse_server import SseServer
from tests.stdio_server import ALICE, BOB, call_of, text_of
from tests.unit.upstream.conftest import Log
from tests.upstream_server import answer, event, stream

ELICITATION = '{"elicitation":{}}'


@pytest.fixture
async def server() -> AsyncIterator[SseServer]:
    async with SseServer() as running:
        yield running


@pytest.fixture
async def over(server: SseServer, log: Log) -> AsyncIterator[Callable[..., SseUpstream]]:
    """Makes upstreams, and shows that nothing is left of them."""
    made: list[SseUpstream] = []

    def make(*, sessions=100, idle_s=600.0, endpoint_s=10.0, headers=dict, connections=None):
        bounds = Bounds(sessions, idle_s)
        chosen = connections or Connections(server.url, headers, 5)
        made.append(SseUpstream(chosen, bounds, log.telemetry, new_id, endpoint_s=endpoint_s))
        return made[-1]

    yield make
    server.close_gates()
    for upstream in made:
        await upstream.close()
    await server.until(lambda: not server.streams)
    assert [fault["error"] for fault in log.said("fault")] == log.faults


def start(upstream, link, tool, **arguments):
    """A call under way."""
    return asyncio.ensure_future(upstream.perform(link, call_of(upstream, tool, **arguments)))


async def echo(upstream, owner=ALICE, capabilities="{}"):
    return await start(upstream, await upstream.open(owner, capabilities), "echo")


def says(status, body=b"", kind="text/plain"):
    """An answer to a GET or a POST."""

    async def answer(*_):
        return web.Response(status=status, body=body, content_type=kind)

    return answer


def for_calls(answer):
    async def posted(request, message):
        return await answer(request, message) if message.get("method") == "tools/call" else None

    return posted


class TestEndpoint:
    @pytest.mark.parametrize("absolute", [False, True])
    async def test_may_be_relative_or_absolute(self, over, server, absolute):
        if absolute:
            server.endpoint = server.url.replace("/sse", server.endpoint)
        assert text_of(await echo(over())) == "{}"

    @requirement("OWN-QUIET")
    async def test_of_another_origin_is_refused_and_gets_nothing(self, over, server):
        async with SseServer() as other:
            server.endpoint = other.url.replace("/sse", "/messages?session={session}")
            with pytest.raises(NotSent, match="another origin") as caught:
                await over().open(ALICE)
            assert (caught.value.reason, caught.value.again) == ("upstream_bad", False)
            assert not isinstance(caught.value, NotSpoken)
            assert (other.seen, server.seen) == ([], [])
        await server.until(lambda: not server.streams)

    async def test_that_never_comes_is_not_waited_for_without_end(self, over, server):
        async def silent(request):
            response = await stream(request)
            await event(response, {"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
            await server.pass_gate("never")
            return response

        server.opening = silent
        with pytest.raises(NotSpoken, match="named no endpoint within") as caught:
            await over(endpoint_s=0.1).open(ALICE)
        assert caught.value.again

    async def test_of_a_server_that_does_not_even_answer_says_nothing_of_what_it_speaks(self, over, server):
        async def hang(_):
            await server.pass_gate("never")
            return web.Response()

        server.opening = hang
        with pytest.raises(NotSent, match="named no endpoint within") as caught:
            await over(endpoint_s=0.1).open(ALICE)
        assert not isinstance(caught.value, NotSpoken)

    async def test_counts_once(self, over, server):
        upstream = over()
        await upstream.open(ALICE)
        await server.streams["session-1"].write(b"event: endpoint\ndata: http://127.0.0.1:9/m\n\n")
        assert text_of(await echo(upstream)) == "{}"

    async def test_has_a_bounded_size(self, over, server):
        server.endpoint = "/messages?session={session}&" + "x" * 100_000
        with pytest.raises(NotSent, match="larger") as caught:
            await over().open(ALICE)
        assert not caught.value.again


@pytest.mark.parametrize(
    ("answer", "kind", "again"),
    [
        (says(400), NotSpoken, False),
        (says(404), NotSpoken, False),
        (says(405), NotSpoken, False),
        (says(200, b"<html>", "text/html"), NotSpoken, False),
        (says(204), NotSpoken, False),
        (says(401), NotSent, False),
        (says(403), NotSent, False),
        (says(307), NotSent, False),
        (says(429), NotSent, True),
        (says(503), NotSent, True),
        (says(200, b"", "text/event-stream"), NotSent, True),
    ],
)
async def test_a_get_that_opens_no_stream_means_that_nothing_was_sent(over, server, answer, kind, again):
    server.opening = answer
    with pytest.raises(NotSent) as caught:
        await over().open(ALICE)
    assert (type(caught.value), caught.value.again) == (kind, again)
    assert server.seen == []


class TestHandshake:
    @pytest.mark.parametrize("status", [400, 404, 500])
    async def test_that_is_refused_means_that_nothing_was_sent_and_ends_the_stream(self, over, server, status):
        server.posting = says(status)
        with pytest.raises(NotSent) as caught:
            await over().open(ALICE)
        assert not isinstance(caught.value, NotSpoken)
        await server.until(lambda: server.opened and not server.streams)

    async def test_with_a_server_that_knows_none_of_our_revisions_ends_the_stream(self, over, server):
        async def greet(message):
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": "1999"}})

        server._initialize = greet
        with pytest.raises(NotSent, match="did not complete the handshake"):
            await over().open(ALICE)
        await server.until(lambda: server.opened and not server.streams)

    async def test_that_breaks_may_be_tried_again(self, over, server):
        upstream = over()

        async def cut(*_):
            server.cut()

        server.posting = cut
        with pytest.raises(NotSent) as caught:
            await upstream.open(ALICE)
        assert caught.value.again
        server.posting = None
        assert text_of(await echo(upstream)) == "{}"


@requirement("OWN-ONCE")
class TestLost:
    @pytest.mark.parametrize("end", [SseServer.cut, lambda server: server.end("session-1")])
    async def test_a_stream_fails_all_its_calls_at_once_and_the_next_call_opens_another(self, over, server, end):
        upstream = over()
        link = await upstream.open(ALICE)
        calls = [start(upstream, link, "gate", name=name) for name in "ab"]
        await server.until(lambda: len(server.calls("gate")) == 2)
        end(server)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, OutcomeUnknown)
            assert outcome.reason == "upstream_down"
        with pytest.raises(NotSent) as caught:
            await start(upstream, link, "echo")
        assert caught.value.again
        again = await upstream.open(ALICE)
        assert again.session_id != link.session_id
        assert text_of(await start(upstream, again, "echo")) == "{}"
        assert len(server.calls("gate")) == 2

    async def test_a_stream_takes_the_calls_of_others_with_it_no_more_than_a_process_would(self, over, server):
        upstream = over()
        alice, bob = await upstream.open(ALICE), await upstream.open(BOB)
        hers, his = (start(upstream, link, "gate", name="a") for link in (alice, bob))
        await server.until(lambda: len(server.calls("gate")) == 2)
        server.cut("session-1")
        with pytest.raises(OutcomeUnknown):
            await hers
        server.open("a")
        assert text_of(await his) == "through a"

    async def test_a_stream_while_the_post_still_connects_means_that_nothing_was_sent(self, over, server):
        connections = Gated(server.url)
        upstream = over(connections=connections)
        link = await upstream.open(ALICE)
        connections.gate.clear()
        running = start(upstream, link, "gate", name="a")
        await connections.waiting.wait()
        server.cut()
        with pytest.raises(NotSent) as caught:
            await running
        assert (caught.value.reason, caught.value.again) == ("upstream_down", True)
        connections.gate.set()
        assert text_of(await echo(upstream)) == "{}"
        assert server.calls("gate") == []

    async def test_a_server_that_takes_no_connection_any_more_got_nothing(self, over, server):
        upstream = over()
        link = await upstream.open(ALICE)
        for site in list(server._runner.sites):
            await site.stop()
        with pytest.raises(NotSent, match="cannot be reached") as caught:
            await start(upstream, link, "echo")
        assert caught.value.again

    async def test_a_post_that_breaks_may_have_acted(self, over, server):
        async def cut(request, _):
            request.transport.abort()

        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = for_calls(cut)
        with pytest.raises(OutcomeUnknown, match="was lost"):
            await start(upstream, link, "gate", name="a")
        assert len(server.calls()) == 1

    async def test_an_event_that_is_too_large_ends_the_stream(self, over, server):
        upstream = over()
        link = await upstream.open(ALICE)
        other = start(upstream, link, "gate", name="a")
        await server.until(lambda: server.calls("gate"))
        await server.push(b"x" * 2_000_000)
        with pytest.raises(OutcomeUnknown, match="larger than max_result_bytes") as caught:
            await other
        assert caught.value.reason == "upstream_bad"
        await server.until(lambda: not server.streams)
        assert text_of(await echo(upstream)) == "{}"


class Gated(Connections):
    """Makes connections only while its gate is open."""

    def __init__(self, url: str) -> None:
        super().__init__(url, dict, 5)
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def client(self, *, pooled: bool) -> aiohttp.ClientSession:
        gate, waiting = self.gate, self.waiting
        client = super().client(pooled=pooled)
        connect = type(client.connector).connect

        async def gated(*arguments, **options):
            if not gate.is_set():
                waiting.set()
                await gate.wait()
            return await connect(client.connector, *arguments, **options)

        client.connector.connect = gated
        return client


class TestRefused:
    @pytest.mark.parametrize(
        ("status", "again"), [(400, False), (401, False), (403, False), (405, False), (307, False), (429, True)]
    )
    async def test_means_that_nothing_was_done(self, over, server, status, again):
        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = for_calls(says(status))
        with pytest.raises(NotSent, match=f"HTTP {status}") as caught:
            await start(upstream, link, "echo")
        assert (caught.value.reason, caught.value.again) == ("upstream_bad", again)
        assert len(server.calls()) == 1
        server.posting = None
        assert text_of(await start(upstream, link, "echo")) == "{}"

    async def test_with_404_means_that_the_session_has_ended(self, over, server):
        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = for_calls(says(404))
        with pytest.raises(NotSent, match="ended the session") as caught:
            await start(upstream, link, "echo")
        assert caught.value.again
        server.posting = None
        assert (await upstream.open(ALICE)).session_id != link.session_id
        await server.until(lambda: list(server.streams) == ["session-2"])

    @pytest.mark.parametrize("status", [500, 502, 503])
    async def test_by_a_broken_server_may_have_been_done(self, over, server, status):
        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = for_calls(says(status))
        with pytest.raises(OutcomeUnknown, match=f"HTTP {status}"):
            await start(upstream, link, "echo")
        assert len(server.calls()) == 1

    async def test_after_the_call_has_begun_may_have_been_done(self, over, server):
        """Whatever the POST is answered with: the stream has told that somebody works on it."""
        heard = asyncio.Event()

        async def late(_, message):
            token = message["params"]["_meta"]["progressToken"]
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token}}
            await server.push(json.dumps(note).encode())
            await heard.wait()
            return web.Response(status=400)

        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = for_calls(late)
        with pytest.raises(OutcomeUnknown, match="HTTP 400"):
            await upstream.perform(link, call_of(upstream, "echo"), lambda _: heard.set())

    async def test_with_an_error_of_our_request_is_an_answer(self, over, server):
        async def refuse(_, message):
            error = {"code": -32602, "message": "bad", "data": 1.0}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=400)

        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = for_calls(refuse)
        response = await start(upstream, link, "echo")
        assert (response.ok, json.loads(response.body)["message"]) == (False, "bad")

    async def test_a_redirect_is_not_followed(self, over, server):
        async with SseServer() as other:

            async def elsewhere(*_):
                return web.Response(status=308, headers={"Location": other.url})

            upstream = over()
            link = await upstream.open(ALICE)
            server.posting = for_calls(elsewhere)
            with pytest.raises(NotSent, match="HTTP 308"):
                await start(upstream, link, "echo")
            server.opening = elsewhere
            with pytest.raises(NotSent, match="HTTP 308"):
                await upstream.open(BOB)
            assert (other.seen, other.opened) == ([], 0)


class TestAnswers:
    async def test_count_although_the_post_is_never_answered(self, over, server):
        async def held(request, message):
            told = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "early"}]}}
            await server.push(json.dumps(told).encode())
            await server.pass_gate("never")

        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = for_calls(held)
        assert text_of(await start(upstream, link, "gate", name="a")) == "early"

    @requirement("OWN-BYTES")
    async def test_may_come_in_any_pieces(self, over, server):
        async def pieces(request, message):
            response = await stream(request)
            lines = b'data: {"jsonrpc":"2.0",\r\ndata: "id":%d,\r\n' % message["id"]
            text = '"caf\u00e9 \U0001f600"'.encode()
            lines += b'data: "result":{"content":[{"type":"text","text":%s}],"n":1e400}}\r\n\r\n' % text
            for byte in b": a comment\r\nid: 7\r\n" + lines:
                await response.write(bytes([byte]))
            return response

        server.fault = pieces
        response = await echo(over())
        assert text_of(response) == "caf\u00e9 \U0001f600"
        assert b'"n":1e400' in response.body

    async def test_that_nobody_waits_for_and_noise_change_nothing(self, over, server, log):
        upstream = over()
        link = await upstream.open(ALICE)
        await server.push(b'{"jsonrpc":"2.0","id":999999,"result":{}}')
        for noise in (b"SECRET-123", b"[]", b'{"jsonrpc":"2.0"}'):
            await server.push(noise)
        running = start(upstream, link, "gate", name="a")
        await server.until(lambda: server.calls("gate"))
        other = b'event: other\ndata: {"jsonrpc":"2.0","id":%d,"result":{}}\n\n' % server.calls("gate")[0]["id"]
        await server.streams["session-1"].write(other)
        assert text_of(await start(upstream, link, "echo")) == "{}"
        server.open("a")
        assert text_of(await running) == "through a"
        assert [one["bytes"] for one in log.said("upstream_no_mcp")] == [len("SECRET-123")]
        assert "SECRET-123" not in log.stream.getvalue()

    async def test_of_any_allowed_size_are_taken(self, over, server):
        async def huge(_, message):
            return answer(message, {"content": [{"type": "text", "text": "x" * 5_000_000}]})

        server.fault = huge
        upstream = over()
        call = call_of(upstream, "huge", max_bytes=6_000_000)
        assert len(text_of(await upstream.perform(await upstream.open(ALICE), call))) == 5_000_000


class TestSessions:
    async def test_a_principal_has_more_of_them_where_calls_may_be_asked_something(self, over, server):
        upstream = over(sessions=2)
        links = [await upstream.open(ALICE, ELICITATION) for _ in range(3)]
        assert len({link.session_id for link in links}) == 2
        first = start(upstream, links[0], "gate", name="a")
        assert text_of(await start(upstream, links[1], "echo")) == "{}"
        server.open("a")
        assert text_of(await first) == "through a"

    async def test_one_whose_call_was_left_is_told_so_and_takes_no_other(self, over, server):
        upstream = over()
        link = await upstream.open(ALICE, ELICITATION)
        running = start(upstream, link, "gate", name="a")
        await server.until(lambda: server.calls("gate"))
        running.cancel()
        await server.until(lambda: server.cancelled() == [server.calls("gate")[0]["id"]])
        assert (await upstream.open(ALICE, ELICITATION)).session_id != link.session_id
        await server.until(lambda: list(server.streams) == ["session-2"])

    async def test_an_idle_one_ends_and_one_that_works_or_is_listened_to_does_not(self, over, server):
        upstream = over(idle_s=0.2)
        running = start(upstream, await upstream.open(ALICE), "gate", name="a")
        listening = asyncio.ensure_future(upstream.listen(await upstream.open(BOB), print, print))
        await server.until(lambda: server.calls("gate"))
        await upstream.open(ALICE, ELICITATION)
        await server.until(lambda: server.opened == 3 and len(server.streams) == 2)
        assert text_of(await echo(upstream, BOB)) == "{}"
        server.open("a")
        assert text_of(await running) == "through a"
        await server.until(lambda: list(server.streams) == ["session-2"])
        listening.cancel()
        await server.until(lambda: not server.streams)

    async def test_one_that_is_listened_to_makes_no_room(self, over, server):
        upstream = over(sessions=1)
        link = await upstream.open(ALICE)
        listening = asyncio.ensure_future(upstream.listen(link, print, print))
        assert text_of(await start(upstream, link, "echo")) == "{}"
        with pytest.raises(NotSent) as caught:
            await upstream.open(BOB)
        assert caught.value.busy
        listening.cancel()
        await asyncio.wait({listening})
        assert text_of(await echo(upstream, BOB)) == "{}"

    async def test_what_is_being_said_is_said_before_one_ends(self, over, server):
        connections = Gated(server.url)
        upstream = over(connections=connections)
        link = await upstream.open(ALICE)
        connections.gate.clear()
        telling = asyncio.ensure_future(upstream.tell(link, "notifications/roots/list_changed", {}))
        await connections.waiting.wait()
        closing = asyncio.ensure_future(upstream.close())
        for _ in range(10):
            await asyncio.sleep(0)
        connections.gate.set()
        await asyncio.gather(closing, telling)
        assert server.seen[-1]["method"] == "notifications/roots/list_changed"

    async def test_one_of_a_client_session_is_its_own_and_ends_with_it(self, over, server):
        upstream = over()
        shared, mine = await upstream.open(ALICE), await upstream.open(ALICE, "{}", "client-1")
        assert shared.session_id != mine.session_id
        assert await upstream.open(ALICE, "{}", "client-1") == mine
        await upstream.leave(shared)
        await upstream.leave(mine)
        await server.until(lambda: list(server.streams) == ["session-1"])
        assert text_of(await start(upstream, shared, "echo")) == "{}"

    async def test_an_id_opens_nobody_elses_session(self, over, server):
        upstream = over()
        link = await upstream.open(ALICE)
        for foreign in (Link(BOB, link.version, link.session_id), Link(ALICE, link.version, "1")):
            with pytest.raises(NotSent):
                await start(upstream, foreign, "echo")
            with pytest.raises(NotSent):
                await upstream.listen(foreign, print, print)
        assert server.calls() == []


class TestSaying:
    async def test_a_call_that_was_left_before_it_left_is_not_told_of(self, over, server):
        connections = Gated(server.url)
        upstream = over(connections=connections)
        link = await upstream.open(ALICE)
        connections.gate.clear()
        call = call_of(upstream, "gate", name="a")
        running = asyncio.ensure_future(upstream.perform(link, call))
        await connections.waiting.wait()
        running.cancel()
        await asyncio.wait({running})
        connections.gate.set()
        await upstream.cancel(link, call)
        assert text_of(await start(upstream, link, "echo")) == "{}"
        assert (len(server.calls()), server.cancelled()) == (1, [])

    async def test_to_a_server_that_does_not_listen_is_bounded(self, over, server, monkeypatch):
        """A server that asks and asks, and takes no answer, fills nothing."""
        monkeypatch.setattr("gateway.upstream.stream.TELL_S", 10)  # none is given up meanwhile
        connections = Gated(server.url)
        upstream = over(connections=connections)
        link = await upstream.open(ALICE)
        read = asyncio.Event()
        listening = asyncio.ensure_future(upstream.listen(link, lambda _: read.set(), print))
        await asyncio.sleep(0)
        connections.gate.clear()
        for number in range(1000):
            await server.push(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % number)
        await server.push(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        await read.wait()
        connections.gate.set()
        await server.until(lambda: len([one for one in server.seen if one.get("result") == {}]) == 256)
        assert text_of(await start(upstream, link, "echo")) == "{}"
        assert len([one for one in server.seen if one.get("result") == {}]) == 256
        listening.cancel()

    async def test_to_a_server_that_is_gone_is_no_error(self, over, server):
        async def cut(request, _):
            request.transport.abort()

        upstream = over()
        link = await upstream.open(ALICE)
        server.posting = cut
        await upstream.tell(link, "notifications/roots/list_changed", {})
        server.posting = None
        assert text_of(await start(upstream, link, "echo")) == "{}"


class TestListening:
    async def test_hears_what_belongs_to_no_call_and_answers(self, over, server):
        upstream = over()
        heard = []

        async def on_request(method, params):
            heard.append(method)
            return True, b'{"roots":[]}'

        link = await upstream.open(ALICE)
        listening = asyncio.ensure_future(upstream.listen(link, lambda note: heard.append(note.method), on_request))
        await asyncio.sleep(0)
        await server.push(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        await server.push(b'{"jsonrpc":"2.0","id":"q","method":"roots/list"}')
        await server.until(lambda: any(one.get("result") == {"roots": []} for one in server.seen))
        assert heard == ["notifications/tools/list_changed", "roots/list"]
        server.cut()
        with pytest.raises(NotSent) as caught:
            await listening
        assert caught.value.again

    async def test_without_anybody_a_question_is_refused(self, over, server):
        upstream = over()
        await upstream.open(ALICE, ELICITATION)
        await server.push(b'{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}')
        await server.until(lambda: any(one.get("error", {}).get("code") == -32601 for one in server.seen))


class TestHeaders:
    async def test_go_along_with_every_request_as_they_are_then(self, over, server):
        token = iter("abcdefgh")
        upstream = over(headers=lambda: {"Authorization": f"Bearer {next(token)}"})
        await echo(upstream)
        assert [one["Authorization"] for one in server.headers] == [f"Bearer {letter}" for letter in "abcd"]
        assert server.headers[0]["Accept"] == "text/event-stream"
        assert [one.get("MCP-Protocol-Version") for one in server.headers] == [None, None, *["2025-06-18"] * 2]

    async def test_that_cannot_be_read_mean_that_nothing_was_sent(self, over, server):
        readable = False

        def headers():
            if not readable:
                raise FileNotFoundError
            return {}

        upstream = over(headers=headers)
        with pytest.raises(NotSent, match="credentials"):
            await upstream.open(ALICE)
        readable = True
        link = await upstream.open(ALICE)
        readable = False
        with pytest.raises(NotSent, match="credentials") as caught:
            await start(upstream, link, "echo")
        assert caught.value.again
        assert server.calls() == []


async def test_closing_tells_the_truth_about_what_is_under_way_and_is_for_good(over, server):
    upstream = over()
    running = start(upstream, await upstream.open(ALICE), "gate", name="a")
    await server.until(lambda: server.calls("gate"))
    await upstream.close()
    with pytest.raises(OutcomeUnknown, match="the gateway closed"):
        await running
    with pytest.raises(NotSent, match="stopping"):
        await upstream.open(ALICE)
    await server.until(lambda: not server.streams)
