"""A server over HTTP that hangs when its upstream is closed."""

import asyncio
import itertools

import pytest

from gateway.upstream import once
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import NotSent
from tests.requirements import requirement
from tests.stdio_server import ALICE
from tests.upstream_server import UpstreamServer


class Hanging(UpstreamServer):
    async def _initialize(self, message):
        await self.pass_gate("begin")
        return await super()._initialize(message)


@pytest.fixture
async def server():
    async with Hanging() as running:
        yield running


@pytest.fixture
def upstream(server):
    connections = Connections(server.url, dict, 5)
    return HttpUpstream(connections, max_sessions=10, session_idle_s=600, ids=itertools.count(1))


@requirement("OWN-DRAIN")
async def test_a_handshake_that_takes_long_keeps_nobody_from_stopping(server, upstream, monkeypatch):
    monkeypatch.setattr(once, "_LAST_WORDS_S", 0.05)
    opening = asyncio.ensure_future(upstream.open(ALICE))
    await server.until(lambda: server.seen)
    await upstream.close()
    with pytest.raises(NotSent, match="stopping"):
        await opening


async def test_a_session_that_was_just_about_to_begin_is_ended(server, upstream):
    opening = asyncio.ensure_future(upstream.open(ALICE))
    await server.until(lambda: server.seen)
    closing = asyncio.ensure_future(upstream.close())
    await asyncio.sleep(0)
    server.open("begin")
    await asyncio.gather(opening, closing)
    assert (server.sessions, server._count) == (set(), 1)
