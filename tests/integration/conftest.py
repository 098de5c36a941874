"""A gateway in this process, with a real store, a real upstream and a real client."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.config.load import Loaded, Site
from gateway.config.models import Admin, Audit, Auth, Config, Runner, Server, Store, Upstream
from gateway.edge import streams
from gateway.policy.decide import Policy
from gateway.policy.model import PolicyFile
from gateway.telemetry import Telemetry
from tests.client import Client
from tests.upstream_server import UpstreamServer

POLICY = {
    "version": 1,
    "defaults": {"task_support": "optional", "inline_ms": 0, "poll_interval_ms": 700, "effect": "consequential"},
    "tools": [
        {"match": "plain", "task_support": "forbidden"},
        {"match": "progress", "task_support": "forbidden"},
        {"match": "required", "task_support": "required"},
    ],
}


def soon() -> float:
    """The jitter of all gateways here: what is tried again is tried again soon, and as soon each time."""
    return 0.1


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamServer]:
    async with UpstreamServer() as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Harness:
    """Starts gateways that share a store, and remembers what they logged."""

    def __init__(self, store_url: str, upstream: UpstreamServer, http: aiohttp.ClientSession) -> None:
        self.store_url = store_url
        self.upstream = upstream
        self.http = http
        self.log = io.StringIO()
        self.gateways: list[Gateway] = []
        self.clients: list[Client] = []

    async def start(
        self,
        policy: dict | None = None,
        *,
        names=("reports",),
        drain_s=5.0,
        auth: Auth | None = None,
        public_url: str | None = None,
        era: str = "auto",
        transport: str = "streamable-http",
        store_s: float = 2,
        admin_token: str | None = None,
        audit: Path | None = None,
        store: dict | None = None,
        **runner,
    ) -> Client:
        """A new gateway, and a client of it."""
        file = PolicyFile.model_validate(policy or POLICY)
        upstreams = tuple(Upstream(name=name, url=self.upstream.url, era=era, transport=transport) for name in names)
        config = Config(
            server=Server(listen="127.0.0.1:0", public_url=public_url, drain_deadline_s=drain_s),
            auth=auth or Auth(),
            admin=Admin(listen="127.0.0.1:0", token=admin_token),
            audit=Audit(file=str(audit or "")),
            store=Store(**{"url": self.store_url, "timeout_s": store_s, **(store or {})}),
            runner=Runner(**{"lease_s": 1, "takeover_grace_s": 0.2, "cancel_grace_s": 0.3, **runner}),
            upstreams=upstreams,
        )
        sites = [Site(one, Policy(file, "test")) for one in upstreams]
        gateway = Gateway(Loaded(config, sites), Path(), Telemetry(self.log), jitter=soon)
        await gateway.start()
        self.gateways.append(gateway)
        self.clients.append(Client(self.http, f"{gateway.address}/mcp"))
        return self.clients[-1]

    async def forget_upstream_sessions(self) -> None:
        """As if the sessions at the upstream had not been opened yet."""
        for gateway in self.gateways:
            pool = gateway.upstreams["reports"]._legacy
            for link in pool._links:
                await pool._lost(link)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of whole bodies: what is answered at once is no stream, also where the machine takes a while for it."""
    monkeypatch.setattr(streams, "_FIRST_S", 10)


@pytest.fixture
async def harness(redis, server, upstream, http) -> AsyncIterator[Harness]:
    made = Harness(server.url, upstream, http)
    yield made
    upstream.close_gates()
    for gateway in made.gateways:
        await gateway.stop()


@pytest.fixture
async def client(harness: Harness) -> Client:
    return await harness.start()


async def eventually(look: Callable, wanted: Callable[[object], bool] = bool, timeout_s: float = 10):
    """What `look` gives once it is as wanted: for what another task or process does. Fails when it never is."""
    async with asyncio.timeout(timeout_s):
        while not wanted(seen := await look()):
            await asyncio.sleep(0.01)
    return seen
