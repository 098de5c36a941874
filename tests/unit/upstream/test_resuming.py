"""Streams that break in the middle of a call, and are taken up again: by the same process, or by another one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from gateway.upstream import exchange
from gateway.upstream.port import Call, Link, NotSent, OutcomeUnknown, SessionEnded
from gateway.wire.jsonrpc import Response
from tests.contract.upstream_sites import over_http
from tests.requirements import requirement
from tests.resumable_server import ResumableServer
from tests.stdio_server import ALICE, BOB, call_of, text_of


@pytest.fixture
async def server() -> AsyncIterator[ResumableServer]:
    async with ResumableServer() as running:
        yield running
        running.close_gates()


@pytest.fixture
async def upstream(server, monkeypatch):
    monkeypatch.setattr(exchange, "AGAIN_S", 0.01)
    made = over_http(server.url, 10)
    yield made
    await made.close()


@pytest.fixture
async def other(server):
    """Another process."""
    made = over_http(server.url, 10)
    yield made
    await made.close()


class Running:
    """A call that has told where its stream can be taken up."""

    def __init__(self, upstream, link: Link, **arguments: Any) -> None:
        self.marks: list[str] = []
        self.heard: list[bytes] = []
        self.marked = asyncio.Event()
        self.call: Call = replace(call_of(upstream, "keep", name="a", **arguments), on_mark=self._mark)
        self.answer: asyncio.Future[Response] = asyncio.ensure_future(
            upstream.perform(link, self.call, lambda note: self.heard.append(bytes(note.params["progress"])))
        )

    def _mark(self, event: str) -> None:
        self.marks.append(event)
        self.marked.set()


@pytest.fixture
async def running(upstream) -> Running:
    made = Running(upstream, await upstream.open(ALICE))
    async with asyncio.timeout(5):
        while made.heard != [b"1"]:
            await made.marked.wait()
            made.marked.clear()
    return made


@requirement("OWN-REATTACH")
async def test_a_stream_that_breaks_is_taken_up_where_it_broke(running, server):
    server.cut()
    await server.until(lambda: server.asked)
    server.open("a")
    assert text_of(await running.answer) == "kept"
    assert server.asked == [f"{running.call.id}-1"]
    assert running.heard == [b"1", b"2"]
    assert len(server.calls()) == 1


@requirement("OWN-REATTACH")
async def test_another_process_gets_the_answer_without_sending_anything(running, upstream, other, server):
    link = await upstream.open(ALICE)
    running.answer.cancel()
    call = replace(running.call, on_mark=None)
    resumed = asyncio.ensure_future(other.resume(link, call, running.marks[0]))
    await server.until(lambda: server.asked)
    server.open("a")
    assert text_of(await resumed) == "kept"
    assert len(server.calls()) == len(server.sessions) == 1


@requirement("OWN-REATTACH")
async def test_an_answer_with_another_id_is_never_taken_for_ours(running, upstream, other, server):
    server.stray = {"jsonrpc": "2.0", "id": running.call.id + 1, "result": {"content": []}}
    running.answer.cancel()
    resumed = asyncio.ensure_future(other.resume(await upstream.open(ALICE), running.call, running.marks[0]))
    await server.until(lambda: server.asked)
    server.open("a")
    assert text_of(await resumed) == "kept"


@requirement("OWN-REATTACH", "OWN-ONCE")
@pytest.mark.parametrize("status", [400, 404, 405, 500])
async def test_a_stream_that_cannot_be_taken_up_makes_the_outcome_unknown(running, server, status):
    server.refusal = status
    server.cut()
    with pytest.raises(OutcomeUnknown, match="connection") as lost:
        await running.answer
    assert lost.value.reason == "upstream_down"
    assert len(server.asked) == (3 if status == 500 else 1)
    assert len(server.calls()) == 1


async def test_a_server_that_is_gone_is_not_asked_for_ever(running, server):
    await server._runner.cleanup()
    with pytest.raises(OutcomeUnknown, match="connection"):
        await running.answer


@requirement("OWN-REATTACH")
async def test_a_question_that_is_open_is_heard_again_by_whoever_takes_over(upstream, other, server):
    link = await upstream.open(ALICE, '{"elicitation":{}}')
    asked = asyncio.Event()

    async def nobody(_, __):
        asked.set()
        await asyncio.Event().wait()

    async def somebody(method, _):
        return True, b'{"action":"accept"}'

    marks: list[str] = []
    call = replace(call_of(upstream, "keep", name="a", ask=True), on_mark=marks.append)
    dying = asyncio.ensure_future(upstream.perform(link, call, None, nobody))
    await asked.wait()
    dying.cancel()
    server.open("a")
    assert not any(mark == f"{call.id}-2" for mark in marks)
    assert text_of(await other.resume(link, call, f"{call.id}-1", None, somebody)) == '{"action": "accept"}'


class TestForgottenSessions:
    """B07: what a server says of a session that it has forgotten, other than 404."""

    @requirement("OWN-HEALED")
    @pytest.mark.parametrize("said", [400, 401, 410, "error", "cut", "404"])
    async def test_are_opened_anew_by_the_next_call_and_once_for_all(self, upstream, server, said):
        link = await upstream.open(ALICE)
        server.sessions.clear()
        server.forgotten = refusing(said)
        with_error = call_of(upstream, "echo")
        if said == "error":
            assert not (await upstream.perform(link, with_error)).ok
        else:
            with pytest.raises((NotSent, OutcomeUnknown)):
                await upstream.perform(link, with_error)
        links = await asyncio.gather(*(upstream.open(ALICE) for _ in range(5)))
        assert len(set(links)) == 1
        assert links[0] != link
        assert text_of(await upstream.perform(links[0], call_of(upstream, "echo"))) == "{}"
        assert len([one for one in server.seen if one.get("method") == "initialize"]) == 2

    @requirement("OWN-HEALED")
    async def test_are_not_taken_for_those_of_a_server_that_is_away_for_a_moment(self, upstream, server):
        link = await upstream.open(ALICE)
        port = int(server.url.split(":")[2].partition("/")[0])
        for site in list(server._runner.sites):
            await site.stop()
        with pytest.raises(NotSent):
            await upstream.perform(link, call_of(upstream, "echo"))
        assert await upstream.open(ALICE) == link
        await server.listen(port)
        assert await upstream.open(ALICE) == link

    @requirement("OWN-HEALED")
    async def test_leave_the_calls_of_other_sessions_alone(self, upstream, server):
        mine, theirs = await upstream.open(ALICE), await upstream.open(BOB)
        running = asyncio.ensure_future(upstream.perform(theirs, call_of(upstream, "gate", name="a")))
        await server.until(lambda: server.calls("gate"))
        server.sessions.discard(mine.session_id)
        with pytest.raises(SessionEnded):
            await upstream.perform(mine, call_of(upstream, "echo"))
        assert await upstream.open(ALICE) != mine
        server.open("a")
        assert text_of(await running) == "through a"
        assert await upstream.open(BOB) == theirs

    async def test_cost_nothing_where_a_call_was_only_refused(self, upstream, server):
        link = await upstream.open(ALICE)

        server.fault = refusing("400")
        with pytest.raises(NotSent):
            await upstream.perform(link, call_of(upstream, "echo"))
        assert await upstream.open(ALICE) == link


def refusing(said: str):
    """What a server says in a session that it has forgotten."""

    async def answer(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if said == "cut":
            request.transport.abort()
        if said == "error":
            error = {"code": -32001, "message": "Session not found"}
            return web.json_response({"jsonrpc": "2.0", "id": message.get("id"), "error": error})
        return web.Response(status=int(said) if said.isdigit() else 500)

    return answer
