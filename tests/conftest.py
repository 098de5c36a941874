"""What all tests share: stores, each looked through for leaked keys afterwards."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.store.embedded import find_server
from gateway.store.redis import RedisStore, connect
from tests.stores import LEASE_MS, SESSION_IDLE_MS, Server, leaks

pytest_plugins = ["pytest_asyncio"]


def servers() -> dict[str, str]:
    """The store servers that this machine has, by name: the bundled one, and a Redis where one is installed."""
    found = {"embedded": find_server()}
    redis = shutil.which("redis-server")
    if redis is not None:
        found["redis"] = redis
    return found


@pytest.fixture(scope="session", params=list(servers()))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server of each kind, for the whole run."""
    with Server(servers()[request.param], tmp_path_factory.mktemp("store", numbered=True)) as running:
        yield running


@pytest.fixture(scope="session")
def any_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server, where its kind does not matter."""
    with Server(find_server(), tmp_path_factory.mktemp("any")) as running:
        yield running


@pytest.fixture
async def redis(server: Server) -> AsyncIterator["Redis"]:
    """A client of an empty server. Afterwards no key may be left that lives for ever without permission."""
    client = connect(server.url, 5)
    await client.flushall()
    yield client
    assert await leaks(client) == []
    await client.aclose()


@pytest.fixture
async def store(server: Server, redis: "Redis") -> AsyncIterator[RedisStore]:
    """A store on an empty server."""
    made = RedisStore(connect(server.url, 5), "mtg", timeout_s=5, lease_ms=LEASE_MS, session_idle_ms=SESSION_IDLE_MS)
    await made.check()
    yield made
    await made.close()


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def _no_processes_left() -> Iterator[None]:
    """No test leaves an embedded store running."""
    yield
    left = subprocess.run(["pgrep", "-f", "mcp-task-gateway-.*pytest"], capture_output=True, text=True, check=False)
    assert left.stdout == ""
