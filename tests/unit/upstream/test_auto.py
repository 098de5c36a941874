"""What a URL speaks, found out by asking: once for all who come together, and again when another server answers."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from gateway.app import new_id
from gateway.upstream.auto import AutoUpstream
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.pool import Bounds
from gateway.upstream.port import NotSent
from gateway.upstream.sse import SseUpstream
from tests.sse_server import SseServer
from tests.stdio_server import ALICE, BOB, call_of, text_of
from tests.unit.upstream.conftest import Log
from tests.upstream_server import UpstreamServer


class Both(SseServer):
    """One URL behind which a test puts a server of either kind, or one that refuses all with a status."""

    def __init__(self) -> None:
        super().__init__()
        self.speaks = "sse"
        self.posts = 0
        self.status = 405
        self.refuse: Callable[[web.Request], Awaitable[web.Response]] | None = None

    def _route(self, router: web.UrlDispatcher) -> None:
        super()._route(router)
        router.add_post(self.path, self._either)
        router.add_delete(self.path, self._delete)

    async def _either(self, request: web.Request) -> web.StreamResponse:
        self.posts += 1
        self.arrived.set()
        if self.speaks == "http":
            return await self._post(request)
        return web.Response(status=self.status) if self.refuse is None else await self.refuse(request)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return await super()._get(request) if self.speaks == "sse" else web.Response(status=405)


@pytest.fixture
async def server() -> AsyncIterator[Both]:
    async with Both() as running:
        yield running


@pytest.fixture
async def make(log: Log):
    made: list[AutoUpstream] = []

    def over(url, **options):
        ids = itertools.count(1)
        http = HttpUpstream(Connections(url, dict, 5), max_sessions=10, session_idle_s=60, ids=ids)
        sse = SseUpstream(Connections(url, dict, 5), Bounds(10, 60), log.telemetry, new_id, ids=ids)
        made.append(AutoUpstream({"http": http, "sse": sse}, ids, log.telemetry, **options))
        return made[-1]

    yield over
    for upstream in made:
        await upstream.close()


async def ask(upstream, owner=ALICE):
    link = await upstream.open(owner)
    return text_of(await upstream.perform(link, call_of(upstream, "echo")))


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_refused_handshake_leads_to_the_older_transport(make, server, log, status):
    server.status = status
    upstream = make(server.url)
    assert await ask(upstream) == "{}"
    assert (upstream.spoken, server.posts, server.opened) == ("sse", 1, 1)
    (told,) = log.said("upstream_speaks")
    assert (told["upstream"], told["transport"]) == ("reports", "sse")


async def test_an_error_that_comes_with_the_status_is_no_handshake(make, server):
    async def refuse(request):
        body = {"jsonrpc": "2.0", "id": (await request.json())["id"], "error": {"code": -32000, "message": "no"}}
        return web.json_response(body, status=400)

    server.refuse = refuse
    upstream = make(server.url)
    assert await ask(upstream) == "{}"
    assert upstream.spoken == "sse"


async def test_a_handshake_that_works_is_the_newer_transport(make):
    async with UpstreamServer() as server:
        upstream = make(server.url)
        assert await ask(upstream) == "{}"
        assert upstream.spoken == "http"


@pytest.mark.parametrize("speaks", ["sse", "http"])
async def test_callers_that_come_together_share_what_was_found_out(make, server, speaks):
    server.speaks = speaks
    upstream = make(server.url)
    links = await asyncio.gather(*(upstream.open(owner) for owner in [ALICE, BOB] * 10))
    assert len({link.session_id for link in links}) == 2
    assert (server.posts, server.opened) == ((1, 2) if speaks == "sse" else (server.posts, 0))
    assert len([message for message in server.seen if message.get("method") == "initialize"]) == 2


async def test_a_caller_that_leaves_ends_it_for_nobody(make, server):
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()

    server.opening = wait
    upstream = make(server.url)
    leaving, staying = (asyncio.ensure_future(upstream.open(ALICE)) for _ in range(2))
    await server.until(lambda: server.opened)
    leaving.cancel()
    gate.set()
    assert (await staying).spoken == "sse"
    assert server.posts == 1


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_any_other_failure_says_nothing_of_what_it_speaks(make, server, status):
    server.status = status
    upstream = make(server.url)
    with pytest.raises(NotSent, match=f"HTTP {status}"):
        await upstream.open(ALICE)
    assert (upstream.spoken, server.opened) == (None, 0)
    server.status = 405
    assert await ask(upstream) == "{}"


async def test_a_server_that_is_down_is_remembered_as_nothing(make, server):
    port = int(server.url.split(":")[2].split("/")[0])
    upstream = make(server.url)
    for site in list(server._runner.sites):
        await site.stop()
    with pytest.raises(NotSent, match="cannot be reached") as caught:
        await upstream.open(ALICE)
    assert (caught.value.again, upstream.spoken) == (True, None)
    await server.listen(port)
    assert await ask(upstream) == "{}"


async def test_a_server_that_speaks_nothing_of_it_is_told_so_each_time(make, server):
    server.speaks = "nothing"
    upstream = make(server.url)
    for attempt in (1, 2):
        with pytest.raises(NotSent, match=r"speaks none of what was tried: http: .* 405; sse: .* 405") as caught:
            await upstream.open(ALICE)
        assert (caught.value.reason, caught.value.again, server.posts) == ("upstream_bad", False, attempt)


@pytest.mark.parametrize(("before", "after"), [("sse", "http"), ("http", "sse")])
async def test_another_server_at_the_same_url_is_found_out(make, server, before, after):
    server.speaks = before
    upstream = make(server.url)
    assert await ask(upstream) == "{}"
    server.speaks = after
    server.sessions.clear()
    server.cut()
    links = await asyncio.gather(*(upstream.open(BOB) for _ in range(5)))
    assert {link.spoken for link in links} == {after}
    assert upstream.spoken == after
    assert await ask(upstream, BOB) == "{}"


async def test_a_link_stays_with_its_transport(make, server):
    upstream = make(server.url)
    link = await upstream.open(ALICE)
    call = call_of(upstream, "gate", name="a")
    running = asyncio.ensure_future(upstream.perform(link, call))
    await server.until(lambda: server.calls("gate"))
    server.speaks = "http"
    assert (await upstream.open(ALICE)).spoken == "sse"
    assert (await upstream.open(BOB)).spoken == "http"
    posts = server.posts
    await upstream.cancel(link, call)
    assert (server.cancelled(), server.posts) == ([call.id], posts)
    server.open("a")
    assert text_of(await running) == "through a"


async def test_finding_out_takes_no_longer_than_it_may(make, server):
    async def hang(_):
        await server.pass_gate("never")
        return web.Response()

    server.opening = hang
    upstream = make(server.url, probe_s=0.1)
    with pytest.raises(NotSent, match="was not found out within") as caught:
        await upstream.open(ALICE)
    assert (caught.value.again, upstream.spoken) == (True, None)
    server.close_gates()


async def test_closing_while_it_is_found_out_tells_those_who_wait(make, server):
    async def hang(_):
        await server.pass_gate("never")
        return web.Response()

    server.opening = hang
    upstream = make(server.url)
    opening = asyncio.ensure_future(upstream.open(ALICE))
    await server.until(lambda: server.opened)
    await upstream.close()
    with pytest.raises(NotSent, match="stopping") as caught:
        await opening
    assert not caught.value.again


async def test_what_is_told_heard_and_left_goes_the_way_of_the_link(make, server):
    upstream = make(server.url)
    link = await upstream.open(ALICE, "{}", "client-1")
    heard = asyncio.Event()
    listening = asyncio.ensure_future(upstream.listen(link, lambda _: heard.set(), print))
    await upstream.tell(link, "notifications/roots/list_changed", {})
    assert server.seen[-1]["method"] == "notifications/roots/list_changed"
    await server.push(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
    await heard.wait()
    await upstream.leave(link)
    with pytest.raises(NotSent):
        await listening
    await server.until(lambda: not server.streams)
