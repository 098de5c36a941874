"""A release that replaces the one before it, gateway by gateway, while clients wait; and one gateway that is killed."""

import asyncio
from collections import Counter

import aiohttp
import pytest

from tests.client import TASKS, Client
from tests.e2e.processes import GatewayProcess
from tests.integration.conftest import eventually
from tests.requirements import requirement
from tests.resumable_server import ResumableServer
from tests.sse_client import opened, result_of, session_stream
from tests.upstream_server import UpstreamServer

CONFIG = """
[server]
listen = "127.0.0.1:0"
drain_deadline_s = 0.3
[admin]
listen = "127.0.0.1:0"
[store]
url = "STORE"
[runner]
lease_s = 30
takeover_grace_s = 0.5
[[upstreams]]
name = "work"
url = "WORK"
policy = "policy.toml"
[[upstreams]]
name = "slow"
url = "SLOW"
policy = "policy.toml"
"""
POLICY = """
version = 1
[defaults]
task_support = "optional"
effect = "consequential"
inline_ms = 0
poll_interval_ms = 50
max_concurrent_upstream = 2
"""


class Slow(UpstreamServer):
    """Takes its time to begin the second session."""

    async def _initialize(self, message):
        if self._count == 1:
            self._count += 1
            await self.pass_gate("begin")
        return await super()._initialize(message)


@pytest.fixture
async def work():
    async with ResumableServer() as running:
        yield running


@pytest.fixture
async def slow():
    async with Slow() as running:
        yield running


@pytest.fixture
async def pair(tmp_path, any_server, store, work, slow):
    """Two gateways that are not started yet, whose leases do not end within this test."""
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        text = CONFIG.replace("STORE", any_server.url).replace("WORK", work.url).replace("SLOW", slow.url)
        made.append(GatewayProcess(folder, config=text, policy=POLICY))
    yield made
    work.close_gates()
    slow.close_gates()
    for gateway in made:
        if gateway.process is not None:
            await asyncio.to_thread(gateway.stop)


class Peer:
    """A client that moves from gateway to gateway. `tasks` are those that it began, by what they are about."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._session: dict[str, str] = {}
        self.tasks: dict[str, str] = {}

    def at(self, gateway: GatewayProcess, upstream: str = "work") -> Client:
        client = Client(self._http, gateway.url.removesuffix("/mcp") + f"/{upstream}/mcp")
        client.session = self._session
        return client

    async def greet(self, gateway: GatewayProcess) -> None:
        client = self.at(gateway)
        await client.initialize()
        self._session = client.session

    async def legacy(self, at: Client, tool: str, name: str) -> None:
        self.tasks[name] = await at.task(tool, {"name": name})

    async def modern(self, at: Client, tool: str, name: str, **options: object) -> None:
        self.tasks[name] = (await at.call(tool, {"name": name}, **options)).result["taskId"]

    async def completed(self, at: Client, *names: str) -> None:
        async def seen() -> list[str]:
            asked = [at.modern("tasks/get", {"taskId": self.tasks[name]}) for name in names]
            return [answer.result["status"] for answer in await asyncio.gather(*asked)]

        await eventually(seen, lambda states: states == ["completed"] * len(names))


def sent(*servers: UpstreamServer) -> Counter:
    """How often the work of each name reached an upstream."""
    return Counter(call["params"]["arguments"]["name"] for server in servers for call in server.calls())


def shorten(gateway: GatewayProcess) -> None:
    """What the new release brings along: a lease that ends soon."""
    config = gateway.folder / "config.toml"
    config.write_text(config.read_text().replace("lease_s = 30", "lease_s = 0.4"))


async def stopped(peer: Peer, gateway: GatewayProcess, other: GatewayProcess, work: ResumableServer, *names: str):
    """Stops a gateway at which one client waits for the first task and another one listens to the second.

    The first one ends before its deadline or afterwards: the client cannot tell.
    """
    at = peer.at(gateway)
    first, second = (peer.tasks[name] for name in names)
    listen = {"notifications": {"taskIds": [second]}}
    body, headers = at.modern_request("subscriptions/listen", listen, request_id="l")
    async with result_of(at, first, "mine") as blocked, opened(at, body, headers) as listening:
        await asyncio.gather(blocked.event(), listening.message("notifications/tasks"))
        stopping = asyncio.create_task(asyncio.to_thread(gateway.stop))
        raw = await blocked.end()
        assert raw.endswith(b"retry: 3000\n\n")
        assert b"jsonrpc" not in raw
        assert (await listening.message(""))["id"] == "l"
    async with session_stream(peer.at(other), blocked.ids[0]) as resumed:
        await resumed.event()
        work.open(names[0])
        told = await resumed.message("")
    assert (told["id"], told["result"]["content"][0]["text"]) == ("mine", "kept")
    assert await stopping == 0


@requirement("OWN-ROLL", "OWN-DRAIN", "OWN-ONCE", "OWN-REATTACH", "T25-RES-1", "TX-NOT-3")
async def test_nothing_is_lost_and_nothing_is_sent_twice(pair, store, work, slow, http):
    one, two = pair
    peer = Peer(http)
    await asyncio.to_thread(one.start)
    await peer.greet(one)
    await peer.modern(peer.at(one, "slow"), "echo", "warm")
    await slow.until(slow.calls)
    await peer.modern(peer.at(one, "slow"), "echo", "opening", capabilities={**TASKS, "elicitation": {}})
    await peer.legacy(peer.at(one), "keep", "a")
    await peer.modern(peer.at(one), "keep", "b")
    await work.until(lambda: len(work.calls()) == 2)
    await peer.legacy(peer.at(one), "echo", "queued-1")
    await peer.modern(peer.at(one), "echo", "queued-2")
    await asyncio.to_thread(two.start)

    await stopped(peer, one, two, work, "a", "b")  # `b` is left to the other one, like `opening`, which was not sent
    await work.until(lambda: work.asked)
    work.open("b")
    await peer.completed(peer.at(two), "b", "queued-1", "queued-2")
    await peer.completed(peer.at(two, "slow"), "warm", "opening")

    await peer.legacy(peer.at(two), "keep", "c")
    await peer.modern(peer.at(two), "keep", "d")
    await work.until(lambda: len(work.calls()) == 6)
    await peer.legacy(peer.at(two), "echo", "queued-3")
    shorten(one)
    await asyncio.to_thread(one.start)
    work.open("d")
    await stopped(peer, two, one, work, "c", "d")
    await peer.completed(peer.at(one), "d", "queued-3")

    await peer.modern(peer.at(one), "keep", "e")
    await eventually(lambda: store.keys("*:at:*"))
    await asyncio.to_thread(two.start)
    work.asked.clear()
    one.kill()
    await work.until(lambda: work.asked)  # taken up, long before anybody would call it lost
    work.open("e")
    await peer.completed(peer.at(two), "e")
    assert await asyncio.to_thread(two.stop) == 0
    counted = sent(work, slow)
    assert counted == dict.fromkeys(peer.tasks, 1)
