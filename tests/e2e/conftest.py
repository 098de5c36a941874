"""What tests with processes share."""

import aiohttp
import pytest
from redis.asyncio import Redis

from tests.stores import leaks


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def store(any_server):
    client = Redis.from_url(any_server.url)
    await client.flushall()
    yield client
    assert await leaks(client) == []
    await client.aclose()
