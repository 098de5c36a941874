"""Which era a URL speaks: asked once, whatever the server does when it is asked."""

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web

from gateway.upstream import discovery, modern
from gateway.upstream.exchange import Connections
from gateway.upstream.modern import probe
from gateway.upstream.port import Hello, NotSent, OutcomeUnknown
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, call_of, text_of
from tests.unit.upstream.test_modern import CAN, made, perform, server  # noqa: F401  # fixtures that both modules share
from tests.upstream_server import UpstreamServer


@pytest.fixture
async def legacy():
    async with UpstreamServer() as running:
        yield running


async def answering(response):
    """What a URL speaks that answers so."""
    app = web.Application()
    app.router.add_post("/mcp", response)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    connections = Connections(f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", dict, 1)
    try:
        return await probe(connections, 7)
    finally:
        await connections.close()
        await runner.cleanup()


def as_json(body, status=200):
    async def respond(_):
        return web.json_response(body, status=status)

    return respond


class TestProbe:
    @pytest.mark.parametrize(
        "response",
        [
            as_json({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no session"}}, 400),
            as_json({"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "no session"}}, 400),
            as_json({"jsonrpc": "2.0", "id": 7, "error": {"code": -32601, "message": "no such method"}}),
            as_json({"jsonrpc": "2.0", "id": 7, "error": {"code": -32601, "message": "no such method"}}, 404),
            as_json({"jsonrpc": "2.0", "id": 7, "result": {}}),
            as_json({"detail": "Method Not Allowed"}, 405),
            as_json({}, 404),
            as_json({}, 401),
            as_json({}, 500),
            as_json([], 200),
        ],
    )
    async def test_of_a_server_with_sessions_finds_nothing(self, response):
        assert await answering(response) is None

    async def test_of_a_server_that_says_nothing_is_over_soon(self, monkeypatch):
        async def silent(_):
            await asyncio.Event().wait()

        monkeypatch.setattr(modern, "PROBE_S", 0.05)
        assert await answering(silent) is None

    async def test_of_a_server_that_hangs_up_finds_nothing(self):
        async def cut(request):
            request.transport.abort()
            return web.Response()

        assert await answering(cut) is None

    async def test_of_a_modern_server_finds_its_version(self, server):
        connections = Connections(server.url, dict, 1)
        found = await probe(connections, 1)
        assert found.version == "2026-07-28"
        await connections.close()

    async def test_of_nothing_raises(self):
        connections = Connections("http://127.0.0.1:9/mcp", dict, 1)
        with pytest.raises(NotSent) as caught:
            await probe(connections, 1)
        assert caught.value.reason == "upstream_down"
        await connections.close()


class TestBothEras:
    async def test_speaks_to_a_modern_server_without_a_handshake(self, server, made):
        upstream = made.both(server.url)
        await asyncio.gather(*(perform(upstream, "echo") for _ in range(5)))
        assert len(server.sent("server/discover")) == 1
        assert server.sent("initialize") == []

    @requirement("OWN-ERA")
    async def test_speaks_to_an_old_one_with_one_question_more(self, legacy, made):
        upstream = made.both(legacy.url)
        links = await asyncio.gather(*(upstream.open(owner) for owner in (ALICE, BOB, ALICE)))
        assert {link.version for link in links} == {"2025-06-18"}
        assert text_of(await upstream.perform(links[0], call_of(upstream, "echo"))) == "{}"
        methods = [message["method"] for message in legacy.seen]
        assert (methods.count("server/discover"), methods.count("initialize")) == (1, 2)
        ids = [message["id"] for message in legacy.seen if "id" in message]
        assert len(set(ids)) == len(ids)

    @requirement("OWN-ERA")
    async def test_a_silent_server_is_waited_for_once(self, legacy, made, monkeypatch):
        async def silent(request):
            message = json.loads(await request.read())
            if message["method"] == "server/discover":
                await asyncio.Event().wait()
            return await type(legacy)._post(legacy, request)

        monkeypatch.setattr(modern, "PROBE_S", 0.05)
        monkeypatch.setattr(legacy, "_post", silent)
        upstream = made.both(legacy.url)
        for owner in (ALICE, BOB):
            assert (await upstream.open(owner)).version == "2025-06-18"

    async def test_a_server_that_changes_its_era_is_asked_again(self, server, made):
        upstream = made.both(server.url)
        await upstream.open(ALICE)

        async def old(_, message):
            if message["method"] != "initialize":
                return web.Response(status=400)
            result = {"protocolVersion": "2025-06-18", "capabilities": {}}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

        server.fault = old
        with pytest.raises(NotSent):
            await perform(upstream, "echo")
        assert (await upstream.open(ALICE)).version == "2025-06-18"
        server.fault = None
        assert (await upstream.open(BOB)).version == "2026-07-28"

    async def test_a_server_that_is_not_there_is_asked_again(self, made):
        upstream = made.both("http://127.0.0.1:9/mcp")
        for _ in range(2):
            with pytest.raises(NotSent, match="cannot be reached"):
                await upstream.open(ALICE)

    async def test_cancelling_and_telling_go_to_whom_the_link_belongs(self, server, legacy, made):
        for running, upstream in ((server, made.both(server.url)), (legacy, made.both(legacy.url))):
            link = await upstream.open(ALICE)
            call = call_of(upstream, "gate", name="a")
            waiting = asyncio.ensure_future(upstream.perform(link, call))
            await running.until(lambda running=running: running.calls())
            await upstream.tell(link, "notifications/roots/list_changed", {})
            await upstream.cancel(link, call)
            if running is server:
                with pytest.raises(OutcomeUnknown):
                    await waiting
                assert server.sent("notifications/roots/list_changed") == []
            else:
                legacy.open("a")
                await waiting
                assert legacy.cancelled() == [call.id]
            await upstream.leave(link)

    async def test_listening_goes_to_the_modern_server(self, server, made):
        upstream = made.both(server.url)
        heard: asyncio.Queue = asyncio.Queue()
        link = await upstream.open(ALICE)
        listening = asyncio.ensure_future(upstream.listen(link, heard.put_nowait, None, ["x"]))
        await server.until(lambda: server.modern.subscriptions)
        server.change({"method": "notifications/resources/updated", "params": {"uri": "x"}})
        async with asyncio.timeout(10):
            note = await heard.get()
        assert (note.method, bytes(note.params["uri"])) == ("notifications/resources/updated", b'"x"')
        listening.cancel()


@pytest.fixture
async def both(server, legacy, made):
    """A server that speaks both eras, and an upstream that is to find that out."""

    async def answer(request, _):
        return None if "MCP-Protocol-Version" in request.headers else await legacy._post(request)

    async def in_session(request, message):
        return await (legacy._post(request) if "Mcp-Session-Id" in request.headers else answer(request, message))

    server.fault = in_session
    return made.both(server.url)


class TestServersOfBothEras:
    @requirement("OWN-ERA", "BR-2")
    async def test_are_spoken_to_in_the_era_of_the_client(self, both, server, legacy):
        old, new = await both.open(ALICE, CAN, "session"), await both.open(ALICE, CAN)
        assert (old.version, old.client, new.version) == ("2025-06-18", "session", "2026-07-28")
        assert text_of(await both.perform(old, call_of(both, "echo"))) == "{}"
        assert text_of(await both.perform(new, call_of(both, "echo"))) == "{}"
        assert [message["method"] for message in legacy.seen] == [
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]
        assert len(server.sent("server/discover")) == 1

    async def test_are_not_taken_for_modern_ones_because_they_are_busy(self, both, server):
        answer = server.fault

        async def busy(request, message):
            return web.Response(status=503) if message["method"] == "initialize" else await answer(request, message)

        server.fault = busy
        with pytest.raises(NotSent):
            await both.open(ALICE, CAN, "session")
        server.fault = answer
        assert (await both.open(ALICE, CAN, "session")).version == "2025-06-18"

    @requirement("OWN-ERA")
    async def test_modern_ones_are_greeted_once_in_the_era_of_a_client(self, server, made):
        upstream = made.both(server.url)
        for client in ("one", "two"):
            link = await upstream.open(ALICE, CAN, client)
            assert (link.version, link.client) == ("2026-07-28", client)
        assert len(server.sent("initialize")) == 1
        await upstream.leave(link)


def test_the_probe_is_bounded():
    assert discovery.PROBE_S <= 5

    @requirement("BR-3", "OWN-ERA")
    async def test_are_asked_for_tasks_in_the_era_that_has_them(self, both, legacy):
        old, new = await both.open(ALICE, CAN, "session"), await both.open(ALICE, CAN)
        assert both.able(new) == new
        able = both.able(old)
        assert (able.version, able.session_id, able.capabilities) == ("2026-07-28", None, CAN)
        tasks = Hello(b'{"tasks":{"requests":{"tools":{"call":{}}}}}')
        own = replace(old, version="2025-11-25", hello=tasks)
        assert both.able(own) is own

    @requirement("OWN-ERA")
    async def test_without_tasks_keep_each_client_in_its_session(self, both, server):
        server.modern.capabilities = {"tools": {}}
        old = await both.open(ALICE, CAN, "session")
        assert both.able(old) is old
