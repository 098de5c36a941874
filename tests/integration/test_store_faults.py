"""A store that hangs, refuses, cannot write or is another one: nothing starts, nothing is lost, all of it recovers."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from gateway.requests import records
from gateway.store.port import StoreAway
from gateway.store.redis import RedisStore, connect
from tests.conftest import servers
from tests.integration.conftest import Harness, eventually
from tests.requirements import requirement
from tests.store_proxy import StoreProxy
from tests.stores import Server, leaks

SHORT = {"timeout_s": 0.3}


class Bench:
    """A server, the way to it, and a gateway that knows the way only."""

    def __init__(self, server: Server, redis, way: StoreProxy, harness: Harness) -> None:
        self.server = server
        self.redis = redis
        self.way = way
        self.harness = harness

    async def start(self, **runner):
        client = await self.harness.start(store=SHORT, **runner)
        await client.initialize()
        return client

    async def ready(self) -> tuple[int, str]:
        async with self.harness.http.get(self.harness.gateways[0].admin_address + "/readyz") as response:
            return response.status, await response.text()


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    """A Redis where there is one: what breaks is set up with commands that it has had for longest."""
    there = servers()
    with Server(there.get("redis", there["embedded"]), tmp_path_factory.mktemp("fragile")) as running:
        yield running


@pytest.fixture
async def bench(fragile, upstream, monkeypatch):
    monkeypatch.setattr(records, "_APPEARS_MS", 320)  # longer than the store is waited for here
    redis = connect(fragile.url, 5)
    await redis.flushall()
    async with aiohttp.ClientSession() as http, StoreProxy(fragile.url) as way:
        harness = Harness(way.url, upstream, http)
        yield Bench(fragile, redis, way, harness)
        upstream.close_gates()
        for gateway in harness.gateways:
            await gateway.stop()
    assert await leaks(redis) == []
    await redis.aclose()


@asynccontextmanager
async def hanging(bench):
    bench.way.hang()
    yield
    bench.way.flow()


@asynccontextmanager
async def refusing(bench):
    await bench.way.gone()
    yield
    await bench.way.back()


@asynccontextmanager
async def replica(bench):
    await bench.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    yield
    await bench.redis.execute_command("REPLICAOF", "NO", "ONE")


@asynccontextmanager
async def without_memory(bench):
    await bench.redis.config_set("maxmemory", 1)
    yield
    await bench.redis.config_set("maxmemory", 0)


@asynccontextmanager
async def pausing(bench):
    await bench.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    yield
    await bench.redis.execute_command("CLIENT", "UNPAUSE")


@asynccontextmanager
async def without_disk(bench):
    """A dump cannot be written where a directory is in its place."""
    place = bench.server.folder / "dump.rdb"
    place.unlink(missing_ok=True)
    (place / "in the way").mkdir(parents=True)
    await bench.redis.config_set("save", "3600 1000000")

    async def saved(status):
        if (info := await bench.redis.info("persistence"))["rdb_last_bgsave_status"] != status:
            if not info["rdb_bgsave_in_progress"]:
                await bench.redis.bgsave()
            return False
        return True

    await eventually(lambda: saved("err"))
    yield
    (place / "in the way").rmdir()
    place.rmdir()
    await eventually(lambda: saved("ok"))
    await bench.redis.config_set("save", "")


@asynccontextmanager
async def loading(bench):
    for number in range(60):
        await bench.redis.set(f"large-{number}", "x" * 4096, px=60_000)
    await bench.redis.config_set("loading-process-events-interval-bytes", 1024)
    await bench.redis.config_set("key-load-delay", 10_000)
    other = connect(bench.server.url, 10)
    reading = asyncio.create_task(other.execute_command("DEBUG", "RELOAD"))
    yield
    await reading
    await other.aclose()
    await bench.redis.config_set("key-load-delay", 0)


@asynccontextmanager
async def forbidding(bench):
    await bench.redis.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    yield
    await bench.redis.execute_command("ACL", "SETUSER", "default", "+evalsha", "+eval")


@asynccontextmanager
async def locked(bench):
    await bench.redis.config_set("requirepass", "secret")
    await bench.way.cut()
    yield
    await bench.redis.config_set("requirepass", "")


@asynccontextmanager
async def evicting(bench):
    await bench.redis.config_set("maxmemory-policy", "volatile-lru")
    yield
    await bench.redis.config_set("maxmemory-policy", "noeviction")


FAULTS = {
    hanging: "TimeoutError",
    refusing: "ConnectionError",
    replica: "the address must lead to the master",
    without_memory: "raise maxmemory",
    pausing: "TimeoutError",
    without_disk: "it cannot write to its disk",
    loading: "it is reading its files",
    forbidding: "may not run a command",
    locked: "does not take the password",
    evicting: "set maxmemory-policy to noeviction",
}


@requirement("OWN-AWAY", "OWN-SENT", "OWN-HEALTH", "OWN-EVICT")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_nothing_starts_nothing_is_lost_and_all_of_it_recovers(bench, upstream, fault):
    client = await bench.start()
    running = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    async with fault(bench):
        unready = await eventually(bench.ready, lambda told: told[0] == 503)
        assert FAULTS[fault] in unready[1]
        refused = await client.call("echo")
        assert refused.error["data"] == {"reason": "store_away", "retryable": True}
        upstream.open("a")
        await eventually(lambda: said(bench, "store_away"))
        assert upstream.calls("echo") == []
    answer = await eventually(
        lambda: client.legacy("tasks/result", {"taskId": running}), lambda found: "result" in found.messages[-1]
    )
    assert answer.result["content"][0]["text"] == "through a"
    assert await eventually(bench.ready, lambda told: told[0] == 200)
    again = await eventually(lambda: client.call("echo"), lambda found: "result" in found.messages[-1])
    task_id = again.result["taskId"]
    await eventually(
        lambda: client.modern("tasks/get", {"taskId": task_id}), lambda found: found.result["status"] == "completed"
    )
    assert (len(upstream.calls("gate")), len(upstream.calls("echo"))) == (1, 1)


async def said(bench, event):
    return [line for line in bench.harness.log.getvalue().splitlines() if json.loads(line)["event"] == event]


@requirement("OWN-AWAY")
async def test_scripts_that_the_store_has_forgotten_cost_nothing(bench, upstream):
    client = await bench.start()
    for _ in range(3):
        await bench.redis.script_flush()
        answer = await client.legacy("tasks/result", {"taskId": await client.task("echo")})
        assert answer.result["content"][0]["text"] == "{}"
    assert await said(bench, "store_away") == []


@requirement("OWN-AWAY")
async def test_one_call_that_hangs_gives_up_all_connections(bench):
    store = RedisStore(connect(bench.way.url, 0.2), "mtg", timeout_s=0.2, lease_ms=1000, session_idle_ms=1000)

    async def look_five_times():
        """Each on a connection of its own."""
        await bench.redis.execute_command("CLIENT", "PAUSE", 50, "WRITE")
        looks = []
        for _ in range(5):
            looks.append(asyncio.create_task(store.check()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*looks)

    await look_five_times()
    assert len(store._client.connection_pool._available_connections) == 5
    bench.way.strand()
    with pytest.raises(StoreAway, match="TimeoutError"):
        await store.check()
    await look_five_times()
    await store.close()


@requirement("OWN-DOUBT", "OWN-ONCE", "OWN-AWAY")
async def test_a_failover_that_forgets_what_was_sent_makes_no_second_call(bench, upstream, tmp_path):
    """The replica is cut off before the call is claimed, and takes over while it is under way."""
    with Server(servers()["embedded"] if "redis" not in servers() else servers()["redis"], tmp_path) as other:
        client = await bench.start(concurrency=2)
        blocked = [await client.task("gate", {"name": name}) for name in "ab"]
        await upstream.until(lambda: len(upstream.calls("gate")) == 2)
        waiting = await client.task("gate", {"name": "c"})
        await take_over(bench.redis, other)
        upstream.open("b")
        await client.legacy("tasks/result", {"taskId": blocked[1]})
        await upstream.until(lambda: len(upstream.calls("gate")) == 3)
        await bench.way.lead_to(other.url)
        await eventually(lambda: said(bench, "store_doubted"))
        for name in "ac":
            upstream.open(name)
        for task_id in (blocked[0], waiting):
            answer = await eventually(
                lambda task_id=task_id: client.legacy("tasks/result", {"taskId": task_id}),
                lambda found: "result" in found.messages[-1],
            )
            assert answer.result["content"][0]["text"].startswith("through")
        assert len(upstream.calls("gate")) == 3
        assert len(await said(bench, "store_reminded")) == 1


async def take_over(redis, other: Server) -> None:
    """The other server has what the first one has now, and is a master of its own."""
    copy = connect(other.url, 5)
    async for key in redis.scan_iter():
        await copy.restore(key, max(0, await redis.pttl(key)), await redis.dump(key), replace=True)
    await copy.aclose()
