"""Each way in which a server over HTTP can die in a call, in both eras: told as what it is, and never sent twice."""

import itertools
from collections.abc import AsyncIterator

import pytest

from gateway.upstream.exchange import Connections
from gateway.upstream.port import NotSent, OutcomeUnknown
from tests.contract.upstream_sites import modern_at, over_http
from tests.faults import CANNOT_HAVE_ACTED, MAY_HAVE_ACTED
from tests.modern_server import ModernServer
from tests.requirements import requirement
from tests.stdio_server import ALICE, call_of, text_of
from tests.upstream_server import UpstreamServer

BROKEN = ("cut", "cut after headers", "cut in the body")


@pytest.fixture(params=["legacy", "modern"])
async def site(request) -> AsyncIterator[tuple]:
    """A server and how it is spoken to."""
    legacy = request.param == "legacy"
    async with (UpstreamServer if legacy else ModernServer)() as server:
        connections = Connections(server.url, dict, 1)
        upstream = over_http(server.url, 10) if legacy else modern_at(connections, itertools.count(1))
        yield server, upstream
        await upstream.close()


async def struck(site, fault):
    """What a call says that meets the fault, after which the server is well again."""
    server, upstream = site

    async def strike(request, message):
        return await fault(request, message) if message["method"] == "tools/call" else None

    link = await upstream.open(ALICE)
    await upstream.perform(link, call_of(upstream, "echo"))
    server.fault = strike
    with pytest.raises((OutcomeUnknown, NotSent)) as caught:
        await upstream.perform(link, call_of(upstream, "gate", name="a"))
    server.fault = None
    assert len(server.calls("gate")) == 1
    after = await upstream.perform(await upstream.open(ALICE), call_of(upstream, "echo", a=1))
    assert text_of(after) == '{"a": 1}'
    return caught.value


@requirement("OWN-ONCE")
@pytest.mark.parametrize("fault", MAY_HAVE_ACTED)
async def test_that_may_have_acted(site, fault):
    said = await struck(site, MAY_HAVE_ACTED[fault])
    assert isinstance(said, OutcomeUnknown)
    assert said.reason == ("upstream_down" if fault in BROKEN else "upstream_bad")


@pytest.mark.parametrize("fault", CANNOT_HAVE_ACTED)
async def test_that_cannot_have_acted(site, fault):
    said = await struck(site, CANNOT_HAVE_ACTED[fault])
    assert isinstance(said, NotSent)
    assert (said.reason, said.again) == ("upstream_bad", False)


@pytest.mark.parametrize("site", ["legacy"], indirect=True)
async def test_nothing_is_kept_of_a_session_that_nobody_will_use(site):
    server, upstream = site
    link = await upstream.open(ALICE)
    upstream.spare(link)
    server.fault = MAY_HAVE_ACTED["cut"]
    with pytest.raises(OutcomeUnknown):
        await upstream.perform(link, call_of(upstream, "echo"))
    assert upstream._doubts._suspected == set()
