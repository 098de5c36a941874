"""A gateway that stands still for longer than its lease: it writes nothing that somebody else has taken over."""

import asyncio
import json
import signal

import pytest

from tests.client import Client
from tests.e2e.processes import GatewayProcess
from tests.e2e.test_kill import Bank
from tests.integration.conftest import eventually
from tests.requirements import requirement


@pytest.fixture
async def bank(tmp_path):
    async with Bank(tmp_path / "ledger") as running:
        yield running


async def state(store) -> str:
    (key,) = await store.keys("*:o:*")
    return (await store.hget(key, "st")).decode()


async def lapsed(store) -> bool:
    """Whether the lease of the one process that has one is over, by the store's own clock."""
    (key,) = await store.keys("*:hb:*")
    seconds, micros = await store.time()
    return int(await store.get(key)) < seconds * 1000 + micros // 1000


@requirement("OWN-FENCE", "OWN-GRACE", "OWN-ONCE")
async def test_it_goes_on_where_nobody_took_over_and_writes_nothing_where_somebody_did(
    tmp_path, any_server, store, bank, http
):
    gateways = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        made = GatewayProcess(folder, bank.url)
        config = folder / "config.toml"
        text = config.read_text().replace("embedded:data", any_server.url)
        config.write_text(text.replace("lease_s = 1", "lease_s = 0.4"))
        gateways.append(made)
    one, two = gateways
    await asyncio.to_thread(one.start)
    client = Client(http, one.url)
    await client.initialize()
    task_id = await client.task("charge", {"amount": 1})
    await bank.until(lambda: bank.calls("charge"))

    one.process.send_signal(signal.SIGSTOP)
    await eventually(lambda: lapsed(store))
    one.process.send_signal(signal.SIGCONT)

    async def renewed():
        return not await lapsed(store)

    await eventually(renewed)
    assert await state(store) == "sent"

    one.process.send_signal(signal.SIGSTOP)
    await eventually(lambda: lapsed(store))
    await asyncio.to_thread(two.start)
    client.url = two.url
    told = await client.legacy("tasks/result", {"taskId": task_id})
    assert told.error["code"] == 50305
    bank.open("charge")
    one.process.send_signal(signal.SIGCONT)

    async def refused():
        return one.said("write_refused")

    (refusal,) = await eventually(refused)
    assert (refusal["cause"], refusal["verdict"]) == ("answer", "fenced")
    assert await state(store) == "unknown"
    assert len(bank.ledger.read_text().splitlines()) == 1
    entry = json.loads(await store.hget((await store.keys("*:o:*"))[0], "head"))
    assert [step["state"] for step in entry["history"]] == ["sent", "unknown"]
    bank.close_gates()
    for gateway in gateways:
        assert await asyncio.to_thread(gateway.stop) == 0
