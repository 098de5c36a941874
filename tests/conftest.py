"""What all tests share: stores, each looked through for leaked keys afterwards."""

import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from redis.asyncio import Redis

from gateway.store.embedded import find_server
from gateway.store.redis import RedisStore, connect
from tests.stores import LEASE_MS, SESSION_IDLE_MS, Server, leaks

pytest_plugins = ["pytest_asyncio"]

# A busy machine is no fault of what is tested, and a run tells the same as the one before it.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("steady")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Properties are not traced: that takes as long as they do, and lines are for the tests that name an example."""
    if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
        item.add_marker(pytest.mark.no_cover)


def servers() -> dict[str, str]:
    """The store servers that this machine has, by name: the bundled one, and a Redis where one is installed."""
    found = {"embedded": find_server()}
    redis = shutil.which("redis-server")
    if redis is not None:
        found["redis"] = redis
    return found


LONGEST_S = 60
"""What no test takes, its fixtures included: one that hangs fails, instead of the whole run."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Ends a test that hangs."""

    def hangs(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)  # once more, for what the end of the test does
        pytest.fail(f"took longer than {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
    await made.bootstrap()
    yield made
    await made.close()


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def _no_processes_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves an embedded store running. Those of other workers and other runs are theirs."""
    yield
    ours = f"mcp-task-gateway-.*{tmp_path_factory.getbasetemp()}/"
    left = subprocess.run(["pgrep", "-f", ours], capture_output=True, text=True, check=False)
    assert left.stdout == ""
