"""Revision 2026-07-28 over HTTP: headers, mirrored arguments, answers and faults."""

import asyncio
import io
import json

import pytest
from aiohttp import web

from gateway.telemetry import Telemetry
from gateway.upstream import modern
from gateway.upstream.eras import BothEras
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.modern import ModernUpstream
from gateway.upstream.port import Call, NotSent, OutcomeUnknown
from gateway.wire import jsonrpc
from tests.modern_server import ModernServer
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, call_of, text_of

CAN = '{"elicitation":{}}'


@pytest.fixture
async def server():
    async with ModernServer() as running:
        yield running


class Made:
    """Upstreams at a URL, and what they logged."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        self.all: list[ModernUpstream | BothEras] = []

    def modern(self, url: str) -> ModernUpstream:
        ids = iter(range(1, 1_000_000))
        return self._kept(ModernUpstream(Connections(url, dict, 1), "reports", Telemetry(self.log), ids.__next__))

    def both(self, url: str) -> BothEras:
        connections = Connections(url, dict, 1)
        legacy = HttpUpstream(connections, max_sessions=10, session_idle_s=600)
        return self._kept(
            BothEras(connections, legacy, ModernUpstream(connections, "reports", Telemetry(self.log), legacy.next_id))
        )

    def _kept(self, upstream):
        self.all.append(upstream)
        return upstream


@pytest.fixture
async def made():
    found = Made()
    yield found
    for upstream in found.all:
        await upstream.close()


async def perform(upstream, tool, on_request=None, **arguments):
    link = await upstream.open(ALICE, CAN)
    return await upstream.perform(link, call_of(upstream, tool, **arguments), None, on_request)


def header(server, tool, name):
    """What a header of each call of a tool said."""
    pairs = zip(server.seen, server.headers, strict=True)
    return [headers.get(name) for message, headers in pairs if message.get("params", {}).get("name") == tool]


class TestHeaders:
    async def test_repeat_the_body_also_for_names_that_are_no_ascii(self, server, made):
        await perform(made.modern(server.url), "caf\u00e9")
        (headers,) = [one for one in server.headers if one.get("Mcp-Method") == "tools/call"]
        assert headers["Mcp-Name"] == "=?base64?Y2Fmw6k=?="
        assert headers["MCP-Protocol-Version"] == "2026-07-28"
        assert headers["Accept"] == "application/json, text/event-stream"
        assert "Mcp-Session-Id" not in headers

    async def test_mirror_the_arguments_that_the_tool_says(self, server, made):
        answer = await perform(made.modern(server.url), "region", region="caf\u00e9\r\nX-Evil: 1", limits={"rows": 5})
        assert json.loads(text_of(answer))["region"] == "caf\u00e9\r\nX-Evil: 1"
        assert header(server, "region", "Mcp-Param-Region") == ["=?base64?Y2Fmw6kNClgtRXZpbDogMQ==?="]
        assert header(server, "region", "Mcp-Param-Max-Rows") == ["5"]

    async def test_leave_out_what_is_not_there(self, server, made):
        await perform(made.modern(server.url), "region", region=None)
        assert header(server, "region", "Mcp-Param-Region") == [None]

    async def test_are_learnt_once_and_from_all_pages(self, server, made):
        upstream = made.modern(server.url)
        await asyncio.gather(*(perform(upstream, "region", region=str(number)) for number in range(5)))
        await perform(upstream, "unheard-of")
        assert len(server.sent("tools/list")) == 2
        assert sorted(header(server, "region", "Mcp-Param-Region")) == ["0", "1", "2", "3", "4"]

    async def test_are_learnt_anew_when_the_server_misses_them(self, server, made):
        upstream = made.modern(server.url)
        await perform(upstream, "region", region="a")
        server.modern.region_header = "Area"
        answer = await perform(upstream, "region", region="b")
        assert json.loads(text_of(answer)) == {"region": "b"}
        assert header(server, "region", "Mcp-Param-Area") == [None, None, "b"]
        ids = [call["id"] for call in server.calls("region")]
        assert len(set(ids)) == 3

    async def test_that_cannot_be_set_right_end_in_the_servers_answer(self, server, made):
        async def mismatch(_, message):
            if message["method"] != "tools/call":
                return None
            error = {"code": -32020, "message": "Header mismatch"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=400)

        server.fault = mismatch
        answer = await perform(made.modern(server.url), "echo")
        assert (answer.ok, json.loads(answer.body)["code"]) == (False, -32020)
        assert len(server.calls()) == 1

    async def test_a_list_that_cannot_be_had_stops_no_call(self, server, made, monkeypatch):
        async def stalled(_, message):
            if message["method"] == "tools/list":
                await asyncio.Event().wait()

        monkeypatch.setattr(modern, "_LEARN_S", 0.05)
        server.fault = stalled
        assert text_of(await perform(made.modern(server.url), "echo")) == "{}"

    async def test_a_list_without_end_is_read_for_so_long(self, server, made, monkeypatch):
        async def endless(_, message):
            if message["method"] == "tools/list":
                result = {"tools": [], "nextCursor": "more"}
                return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})
            return None

        monkeypatch.setattr(modern, "_MOST_PAGES", 3)
        server.fault = endless
        await perform(made.modern(server.url), "echo")
        assert len(server.sent("tools/list")) == 3


class TestList:
    async def list_of(self, upstream, **params):
        call = Call(upstream.next_id(), "tools/list", jsonrpc.members(jsonrpc.write(params)), 100_000)
        answer = await upstream.perform(await upstream.open(ALICE), call)
        return [tool["name"] for tool in json.loads(answer.body)["tools"]], answer

    async def test_leaves_out_tools_that_nobody_may_use_and_warns_once(self, server, made):
        upstream = made.modern(server.url)
        for _ in range(2):
            names, _ = await self.list_of(upstream, cursor="more")
            assert names == ["region"]
        entries = [json.loads(line) for line in made.log.getvalue().splitlines()]
        (warning,) = [entry for entry in entries if entry["event"] == "upstream_tool_unusable"]
        assert (warning["upstream"], warning["tool"]) == ("reports", "broken")

    @requirement("OWN-BYTES")
    async def test_stays_as_it_was_written_where_all_can_be_used(self, server, made):
        _, answer = await self.list_of(made.modern(server.url))
        assert b'"x": 1.0' in answer.body

    async def test_that_a_client_asked_for_is_learnt_from(self, server, made):
        upstream = made.modern(server.url)
        await self.list_of(upstream, cursor="more")
        await perform(upstream, "region", region="a")
        assert len(server.sent("tools/list")) == 1
        assert header(server, "region", "Mcp-Param-Region") == ["a"]


class TestAnswers:
    async def test_come_as_streams_or_not(self, server, made):
        upstream = made.modern(server.url)
        server.streams = True
        assert text_of(await perform(upstream, "echo", a=1)) == '{"a": 1}'

    async def test_without_an_end_leave_an_unknown_outcome(self, server, made):
        async def cut(request, message):
            if message["method"] != "tools/call":
                return None
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b": hello\n\n")
            return response

        server.fault = cut
        with pytest.raises(OutcomeUnknown, match="ended without an answer"):
            await perform(made.modern(server.url), "echo")
        assert len(server.calls()) == 1

    async def test_that_are_too_large_are_not_taken_from_a_stream(self, server, made):
        server.streams = True
        upstream = made.modern(server.url)
        with pytest.raises(OutcomeUnknown, match="larger than max_result_bytes"):
            await upstream.perform(
                await upstream.open(ALICE), call_of(upstream, "typed", max_bytes=1000, x="y" * 200_000)
            )

    @pytest.mark.parametrize(
        ("status", "error", "again"), [(403, NotSent, False), (429, NotSent, True), (503, OutcomeUnknown, None)]
    )
    async def test_that_are_refusals_say_whether_anything_was_done(self, server, made, status, error, again):
        async def refuse(_, message):
            return web.Response(status=status) if message["method"] == "tools/call" else None

        server.fault = refuse
        with pytest.raises(error) as caught:
            await perform(made.modern(server.url), "echo")
        assert getattr(caught.value, "again", None) is again

    async def test_of_a_server_that_went_away_between_rounds_are_unknown(self, server, made, monkeypatch):
        monkeypatch.setattr("gateway.upstream.rounds._PAUSES_S", (0.01,))
        upstream = made.modern(server.url)
        attempts = []

        async def away(_, message):
            if "requestState" in message["params"]:
                attempts.append(message["id"])
                return web.Response(status=429)
            return None

        async def on_request(method, params):
            server.fault = away
            return True, b'{"action":"decline"}'

        with pytest.raises(OutcomeUnknown) as caught:
            await perform(upstream, "form", on_request)
        assert (caught.value.reason, len(set(attempts))) == ("upstream_bad", 2)


class TestListening:
    @pytest.mark.parametrize(("status", "attempts"), [(405, 1), (503, 3), (429, 3)])
    async def test_goes_on_while_the_server_may_come_back(self, server, made, monkeypatch, status, attempts):
        monkeypatch.setattr(modern, "_RETRY_S", 0.01)

        async def refuse(_, message):
            return web.Response(status=status) if message["method"] == "subscriptions/listen" else None

        server.fault = refuse
        upstream = made.modern(server.url)
        listening = asyncio.ensure_future(upstream.listen(await upstream.open(ALICE), print, None))
        await server.until(lambda: len(server.sent("subscriptions/listen")) == attempts)
        if attempts == 1:
            async with asyncio.timeout(10):
                await listening
        listening.cancel()


class TestDiscovery:
    async def test_is_shared_by_all_and_repeated_after_a_failure(self, server, made):
        async def fail(_, message):
            return web.Response(status=500)

        server.fault = fail
        upstream = made.modern(server.url)
        for _ in range(2):
            with pytest.raises(NotSent) as caught:
                await upstream.open(ALICE)
            assert caught.value.again
        server.fault = None
        await asyncio.gather(*(upstream.open(owner) for owner in (ALICE, BOB, ALICE)))
        assert len(server.seen) == 3

    async def test_that_is_refused_says_how(self, server, made):
        async def refuse(_, message):
            return web.Response(status=401)

        server.fault = refuse
        with pytest.raises(NotSent, match="refused with HTTP 401"):
            await made.modern(server.url).open(ALICE)
        with pytest.raises(NotSent, match="refused with HTTP 401"):
            await made.both(server.url).open(ALICE)

    async def test_takes_no_longer_than_it_may(self, server, made, monkeypatch):
        async def silent(_, message):
            await asyncio.Event().wait()

        monkeypatch.setattr(modern, "PROBE_S", 0.05)
        server.fault = silent
        with pytest.raises(NotSent, match="did not answer within") as caught:
            await made.modern(server.url).open(ALICE)
        assert (caught.value.reason, caught.value.again) == ("upstream_down", True)

    async def test_of_a_modern_server_without_a_common_version_is_not_repeated(self, server, made):
        server.modern.versions = ["2031-01-01"]
        with pytest.raises(NotSent, match="no revision that the gateway speaks") as caught:
            await made.modern(server.url).open(ALICE)
        assert (caught.value.reason, caught.value.again) == ("upstream_bad", False)

    async def test_is_repeated_when_the_server_changed_its_versions(self, server, made):
        upstream = made.modern(server.url)
        await perform(upstream, "echo")
        server.modern.versions = ["2031-01-01"]
        answer = await perform(upstream, "echo")
        assert json.loads(answer.body)["code"] == -32022
        with pytest.raises(NotSent):
            await upstream.open(ALICE)
