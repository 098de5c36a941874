"""A listener that repeats nothing of what it could not read, nor of what went wrong."""

import aiohttp
import pytest
from aiohttp import web

from gateway.edge.listener import Listener
from tests.requirements import requirement

CANARY = "SECRET-123"


@pytest.fixture
async def url(log):
    async def broken(request):
        if "late" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"begun")
        raise ValueError(f"{CANARY} {request.headers['Authorization']}")

    app = web.Application()
    app.router.add_get("/", broken)
    runner = Listener(app, log, 1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@requirement("OWN-QUIET")
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
async def test_a_fault_is_told_without_its_text(url, log, caplog, capfd, accept):
    headers = {"Authorization": f"Bearer {CANARY}", "Accept": accept}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        body = await response.text()
    assert response.status == 500
    assert log.events == ["fault"]
    assert '"where":"http","error":"ValueError"' in log.text
    assert CANARY not in log.text + body + caplog.text + "".join(capfd.readouterr())


@requirement("OWN-QUIET")
async def test_so_is_one_after_the_answer_began(url, log, caplog, capfd):
    async with aiohttp.ClientSession(headers={"Authorization": CANARY}) as session:
        with pytest.raises(aiohttp.ClientPayloadError):
            async with session.get(f"{url}?late=1") as response:
                await response.read()
    assert "fault" in log.events
    assert CANARY not in log.text + caplog.text + "".join(capfd.readouterr())
