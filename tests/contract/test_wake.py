"""The subscription behind the wake-ups."""

import asyncio

import pytest

from gateway.store.redis import connect
from gateway.store.wake import Wake
from tests.stores import Server


@pytest.mark.parametrize("steps", range(40))
async def test_it_ends_at_once_whatever_it_is_doing(any_server: Server, steps: int):
    client = connect(any_server.url, 5)
    wake = Wake(client, "mtg:wake")
    wake.start()
    for _ in range(steps):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await wake.close()
    await client.aclose()
