"""The kill switch is looked at in the step that creates the record, so that nothing can come between the two."""

import asyncio

import pytest

from gateway.store.keys import Keys
from tests.integration.conftest import POLICY, Harness
from tests.requirements import requirement
from tests.store_proxy import StoreProxy, script


@requirement("OWN-SWITCH-ATOMIC")
@pytest.mark.parametrize("legacy", [True, False], ids=["2025-11-25", "2026-07-28"])
async def test_a_switch_that_is_set_while_a_creation_is_on_its_way_blocks_it(server, redis, upstream, http, legacy):
    async with StoreProxy(server.url) as proxy:
        harness = Harness(proxy.url, upstream, http)
        client = await harness.start(POLICY)
        await client.initialize()
        await (client.task("echo") if legacy else client.call("echo"))  # the store knows the script from now on
        await upstream.until(upstream.calls)
        hold = proxy.hold(script("create"))
        begun = client.legacy_call("echo", {}, task={}) if legacy else client.call("echo")
        creating = asyncio.create_task(begun)
        await hold.until(1)
        await redis.hset(Keys("mtg").switches, "all", "1 blocked")
        hold.release()
        assert (await creating).error["code"] == 50302
        assert len(upstream.calls()) == 1
        for gateway in harness.gateways:
            await gateway.stop()
