"""One upstream session for one client session, whichever replica uses it: two replicas that share a store."""

import asyncio

import pytest

from gateway.core.model import Owner
from gateway.pinning import StoredPins
from gateway.store.redis import RedisStore, connect
from gateway.store.streams import StreamStore
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import Call
from tests.full_server import FullServer
from tests.requirements import requirement
from tests.stores import PREFIX

OWNER = Owner("i", "s", "t", "u")
CLIENT, OTHER = "c" * 32, "d" * 32
IDLE_S, PIN_S = 100.0, 1000.0


class Replica:
    """An adapter with a clock of its own."""

    def __init__(self, upstream, store):
        self.now = 0.0
        pins = StoredPins(StreamStore(store), int(PIN_S * 1000))
        connections = Connections(upstream.url, dict, 5)
        self.pool = HttpUpstream(
            connections, pins, max_sessions=1, session_idle_s=IDLE_S, clock=lambda: self.now, ids=iter(range(1, 99))
        )

    async def open(self, client=CLIENT):
        return await self.pool.open(OWNER, "{}", client)

    async def ask(self, link):
        return await self.pool.perform(link, Call(self.pool.next_id(), "prompts/list", {}, 10_000))


@pytest.fixture(scope="session")
def server(any_server):
    """One kind of store is enough: what is shown here does not depend on it."""
    return any_server


@pytest.fixture
async def upstream():
    async with FullServer() as running:
        yield running


@pytest.fixture
async def replicas(upstream, store: RedisStore):
    made = [Replica(upstream, store) for _ in "ab"]
    yield made
    for one in made:
        await one.pool.close()


async def pin(redis):
    (key,) = await redis.keys(f"*:us:*{CLIENT}")
    return key


async def test_is_shared_and_outlives_a_replica(replicas, upstream):
    first, second = replicas
    link = await first.open()
    assert await second.open() == link
    await first.pool.close()
    assert upstream.sessions == {link.session_id}
    assert (await second.ask(link)).ok


@requirement("OWN-APART")
async def test_that_another_replica_uses_is_not_ended_to_make_room(replicas, upstream):
    first, second = replicas
    link = await first.open()
    await second.open()
    first.now = PIN_S  # nothing was done with it here for long
    await first.open(OTHER)
    assert link.session_id in upstream.sessions
    assert (await second.ask(link)).ok
    assert await first.open() == link


async def test_that_nobody_uses_makes_room(replicas, upstream, redis):
    first, _ = replicas
    link = await first.open()
    await redis.pexpire(await pin(redis), 1)
    first.now = PIN_S
    other = await first.open(OTHER)
    await upstream.until(lambda: upstream.sessions == {other.session_id})
    assert await first.open() != link


async def test_is_asked_for_now_and_then_and_given_up_where_another_took_its_place(replicas, upstream, redis):
    first, second = replicas
    link = await first.open()
    key = await pin(redis)
    await redis.pexpire(key, 500_000)
    assert await first.open() == link
    assert await redis.pttl(key) <= 500_000  # not each time
    first.now = IDLE_S
    assert await first.open() == link
    assert await redis.pttl(key) > 500_000
    await second.pool.leave(await second.open())
    first.now = 2 * IDLE_S
    assert await first.open() != link


async def test_is_opened_once_by_replicas_that_come_together(replicas, upstream, store):
    links = [await replica.open() for replica in (*replicas, Replica(upstream, store))]
    assert len({link.session_id for link in links}) == 1
    assert len(upstream.methods("initialize")) == 1


async def test_of_two_that_are_opened_at_once_one_counts_and_the_other_ends(replicas, upstream):
    links = await asyncio.gather(*(replica.open() for replica in replicas))
    assert links[0] == links[1]
    assert len(upstream.methods("initialize")) == 2
    await upstream.until(lambda: upstream.sessions == {links[0].session_id})


async def test_is_not_begun_while_the_store_is_away(upstream, server, redis):
    store = RedisStore(connect(server.url, 0.5), PREFIX, timeout_s=0.5, lease_ms=1000, session_idle_ms=1000)
    await store.check()
    replica = Replica(upstream, store)
    with server.away(), pytest.raises(Exception, match="cannot reach its store") as refused:
        await replica.open()
    await replica.pool.close()
    await store.close()
    assert (refused.value.reason, refused.value.busy, upstream.sessions) == ("store_away", True, set())
