"""A store that is away for much longer than a lease while a hundred calls run: none is lost, none becomes unknown."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from redis.asyncio import Redis

from gateway.running import holder, runner
from tests.integration.conftest import POLICY, Harness, eventually
from tests.requirements import requirement
from tests.sse_client import result_of
from tests.store_proxy import StoreProxy, script
from tests.stores import leaks

CALLS = 100
LEASE_S, GRACE_S = 0.2, 0.6
OUTAGE_S = 10 * LEASE_S + 0.2
ROOMY = {
    **POLICY,
    "defaults": {
        **POLICY["defaults"],
        **dict.fromkeys(("max_concurrent_per_principal", "max_concurrent_per_tenant", "max_concurrent_upstream"), 500),
    },
}


@asynccontextmanager
async def frozen(server, _):
    """Connections stay open, and nobody answers."""
    with server.away():
        yield


@asynccontextmanager
async def gone(_, proxy):
    """Connections are cut, and nobody listens."""
    await proxy.gone()
    yield
    await proxy.back()


@pytest.fixture
async def proxy(any_server):
    redis = Redis.from_url(any_server.url)
    await redis.flushall()
    async with StoreProxy(any_server.url) as made:
        yield made
    assert await leaks(redis) == []
    await redis.aclose()


@pytest.fixture
async def harness(proxy, upstream, http, monkeypatch):
    """Gateways whose pauses while the store is away would be longer than the grace, if nothing bounded them."""
    monkeypatch.setattr(runner, "_STORE_BACKOFF_S", (0.05, 20.0))
    monkeypatch.setattr(holder, "_STORE_BACKOFF_S", (0.05, 0.2))
    made = Harness(proxy.url, upstream, http)
    yield made
    upstream.close_gates()
    for gateway in made.gateways:
        await gateway.stop()


@requirement("OWN-AWAY", "OWN-GRACE", "OWN-ONCE")
@pytest.mark.parametrize("outage", [gone, frozen])
async def test_no_running_call_is_lost_or_unknown(any_server, proxy, harness, upstream, outage):
    times = {"lease_s": LEASE_S, "takeover_grace_s": GRACE_S, "store_s": 0.5}
    one, two = [await harness.start(ROOMY, **times) for _ in range(2)]
    await one.initialize()
    two.session = one.session
    numbers = range(CALLS // 2)
    legacy = [await (one, two)[n % 2].task("gate", {"name": f"l{n}"}) for n in numbers]
    calls = [await (one, two)[n % 2].call("gate", {"name": f"m{n}"}) for n in numbers]
    modern = [answer.result["taskId"] for answer in calls]
    await upstream.until(lambda: len(upstream.calls("gate")) == CALLS)
    async with AsyncExitStack() as streams:
        asked = [result_of((one, two)[n % 2], legacy[n]) for n in range(10)]
        waiting = [await streams.enter_async_context(stream) for stream in asked]
        for stream in waiting:
            await stream.event()
        async with outage(any_server, proxy):
            await asyncio.sleep(OUTAGE_S / 2)
            if outage is frozen:  # some answers come while nobody can write them down
                open_gates(upstream, numbers[::2])
            await asyncio.sleep(OUTAGE_S / 2)
        await eventually(lambda: logged(harness, "store_back"), lambda count: count == 2)
        open_gates(upstream, numbers)
        for n, stream in enumerate(waiting):
            assert (await stream.message(""))["result"]["content"][0]["text"] == f"through l{n}"
            assert await stream.event() == b""
    for n in numbers:
        told = await eventually(lambda n=n: one.legacy("tasks/result", {"taskId": legacy[n]}), answered)
        assert told.result["content"][0]["text"] == f"through l{n}"
        task = await eventually(lambda n=n: two.modern("tasks/get", {"taskId": modern[n]}), ended)
        assert task.result["result"]["content"][0]["text"] == f"through m{n}"
    assert len(upstream.calls("gate")) == CALLS


@requirement("OWN-AWAY", "OWN-ONCE")
@pytest.mark.parametrize("legacy", [True, False], ids=["2025-11-25", "2026-07-28"])
async def test_a_creation_whose_answer_comes_too_late_is_found_again(proxy, harness, upstream, legacy):
    client = await harness.start(ROOMY, store_s=0.5)
    await client.initialize()
    await client.task("echo")  # the store knows the script from now on
    hold = proxy.hold(script("create"), answers=True)
    begun = client.legacy_call("echo", {"a": 1}, task={}) if legacy else client.call("echo", {"a": 1})
    creating = asyncio.create_task(begun)
    await hold.until(1)
    told = (await creating).result
    task_id = told["task"]["taskId"] if legacy else told["taskId"]
    hold.release()
    ask = client.legacy if legacy else client.modern
    await eventually(
        lambda: ask("tasks/get", {"taskId": task_id}), lambda answer: answer.result["status"] == "completed"
    )
    await upstream.until(lambda: len(upstream.calls("echo")) >= 2)  # the one before may still be on its way
    assert len(upstream.calls("echo")) == 2


@requirement("OWN-AWAY")
@pytest.mark.parametrize("legacy", [True, False], ids=["2025-11-25", "2026-07-28"])
async def test_a_creation_that_may_have_happened_is_not_called_refused(proxy, harness, upstream, legacy):
    client = await harness.start(ROOMY, store_s=0.5)
    await client.initialize()
    await client.task("echo")
    hold = proxy.hold(script("create"), answers=True)
    begun = client.legacy_call("echo", {}, task={}) if legacy else client.call("echo")
    creating = asyncio.create_task(begun)
    await hold.until(1)
    await proxy.gone()
    told = (await creating).error
    assert (told["code"], told["data"]["retryable"], told["data"]["operation"]["outcome"]) == (50305, False, "unknown")
    refused = (await client.call("echo")).error
    assert (refused["code"], refused["data"]["retryable"]) == (50303, True)
    await proxy.back()
    ask = client.legacy if legacy else client.modern
    look = lambda: ask("tasks/get", {"taskId": told["data"]["operation"]["id"]})  # noqa: E731  # until the store is back
    found = await eventually(look, ended)
    assert found.result["status"] in ("completed", "cancelled")


@requirement("OWN-AWAY")
async def test_what_waits_to_be_written_is_written_as_soon_as_the_store_is_back(proxy, harness, upstream, monkeypatch):
    monkeypatch.setattr(holder, "_STORE_BACKOFF_S", (600.0,))
    client = await harness.start(ROOMY, takeover_grace_s=GRACE_S)
    await client.initialize()
    task_id = await client.task("gate", {"name": "a"})
    await upstream.until(lambda: upstream.calls("gate"))
    (held,) = harness.gateways[0]._runner._held.values()
    await proxy.gone()
    upstream.open("a")
    await eventually(lambda: waiting(harness.gateways[0]))
    await eventually(lambda: logged(harness, "store_away"))
    await proxy.back()
    await asyncio.wait({held.task}, timeout=10)
    assert held.task.done()
    assert (await client.legacy("tasks/result", {"taskId": task_id})).result["content"][0]["text"] == "through a"


async def waiting(gateway):
    """How many wait for the store in order to write."""
    return len(gateway._runner._holder._back._waiters)


def open_gates(upstream, numbers):
    for n in numbers:
        upstream.open(f"l{n}")
        upstream.open(f"m{n}")


async def logged(harness, event):
    """How many gateways have said so."""
    return harness.log.getvalue().count(f'"event":"{event}"')


def answered(told):
    return told.messages[-1].get("error", {}).get("code") != 50303


def ended(told):
    return answered(told) and told.result["status"] not in ("working", "input_required")
