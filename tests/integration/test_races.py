"""Cancellation and answer within two milliseconds of each other, two thousand times: one of them wins, once."""

import asyncio
import json
import random
from collections import Counter, defaultdict

import pytest
from aiohttp import web

from gateway.telemetry import short
from tests.integration.conftest import POLICY, Harness, eventually
from tests.oracle import OPERATIONS, TASKS, wrong_pairs, wrong_steps
from tests.requirements import requirement
from tests.upstream_server import UpstreamServer, answer

RACES = 1000
"""In each dialect."""
AT_ONCE = 8
WINDOW_S = 0.002
STEP_S = 0.0002
STUBBORN = ("0", "2", "4", "6", "8")
"""How calls end whose server does not heed a cancellation."""
ROOMY = {
    **POLICY,
    "defaults": {
        **POLICY["defaults"],
        **dict.fromkeys(("max_concurrent_per_principal", "max_concurrent_per_tenant", "max_concurrent_upstream"), 500),
    },
}


class Finish(UpstreamServer):
    """`gate` tells when a call has arrived. Half of its calls end at once when they are cancelled, with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = defaultdict(asyncio.Event)
        self.stopped = defaultdict(asyncio.Event)
        self.late = set()

    async def _post(self, request):
        message = json.loads(await request.read())
        if message.get("method") == "notifications/cancelled":
            self.stopped[message["params"]["requestId"]].set()
        return await super()._post(request)

    async def _gate(self, _, message):
        name = message["params"]["arguments"]["name"]
        stopped = self.stopped[message["id"]]
        self.reached[name].set()
        if name.endswith(STUBBORN):
            await self.pass_gate(name)
        else:
            await asyncio.wait(
                [asyncio.ensure_future(self.pass_gate(name)), asyncio.ensure_future(stopped.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            if stopped.is_set():
                self.late.add(name)
                error = {"code": -32800, "message": "cancelled"}
                return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return answer(message, {"content": [{"type": "text", "text": name}]})


@pytest.fixture
async def finish():
    async with Finish() as running:
        yield running


@pytest.fixture
async def replicas(any_server, finish, http):
    """Two gateways at an empty store, and their clients."""
    harness = Harness(any_server.url, finish, http)
    one, two = await harness.start(ROOMY), await harness.start(ROOMY)
    await one.initialize()
    two.session = one.session
    yield harness, one, two
    finish.close_gates()
    for gateway in harness.gateways:
        await gateway.stop()


class Race:
    """Races in one dialect. Who is asked to cancel is not always who was asked to begin."""

    def __init__(self, upstream, one, two, legacy, chance):
        self.upstream = upstream
        self.one, self.two = one, two
        self.legacy = legacy
        self.chance = chance
        self.ended = {}
        self.lead_s = 0.0
        """How much sooner the cancellation has to start to be there when the answer is: found out on the way."""

    async def run(self, number):
        name = f"{self.legacy}{number}"
        task = await self._begin(name)
        await self.upstream.reached[name].wait()
        cancelling = asyncio.create_task(self._cancel(task, self.chance.uniform(0, WINDOW_S)))
        await asyncio.sleep(max(0, self.lead_s) + self.chance.uniform(0, WINDOW_S))
        self.upstream.open(name)
        told = await cancelling
        self.ended[task] = (name, told)
        self._aim(told[0] if self.legacy else name)

    def _aim(self, seen):
        """Nearer to where either may win. In 2026-07-28 only an upstream that stops lets a cancellation win."""
        if self.legacy:
            self.lead_s += STEP_S if "error" in seen else -STEP_S
        elif not seen.endswith(STUBBORN):
            self.lead_s += STEP_S if seen not in self.upstream.late else -STEP_S

    async def _begin(self, name):
        if self.legacy:
            return await self.one.task("gate", {"name": name})
        return (await self.one.call("gate", {"name": name})).result["taskId"]

    async def _cancel(self, task, delay_s):
        await asyncio.sleep(delay_s)
        ask = self.two.legacy if self.legacy else self.two.modern
        return (await ask("tasks/cancel", {"taskId": task})).messages

    async def outcome(self, client, task):
        """What the task came to, as told by one replica."""
        if self.legacy:
            told = (await client.legacy("tasks/result", {"taskId": task})).messages
            status = "cancelled" if "error" in told[0] else "completed"
        else:
            look = lambda: client.modern("tasks/get", {"taskId": task})  # noqa: E731  # asked until it has ended
            found = await eventually(look, lambda one: one.result["status"] in ("completed", "cancelled", "failed"))
            told, status = found.messages, found.result["status"]
        assert len(told) == 1
        return status, told[0].get("result"), told[0].get("error", {}).get("code")


@requirement("OWN-RACE", "OWN-LATE", "T25-CAN-1", "T25-CAN-2", "TX-CAN-3", "T25-ST-1")
@pytest.mark.parametrize("legacy", [True, False], ids=["2025-11-25", "2026-07-28"])
async def test_a_cancellation_and_an_answer_race_and_both_truths_are_kept(replicas, finish, legacy):
    harness, one, two = replicas
    race = Race(finish, one, two, legacy, random.Random(20260728))  # noqa: S311  # to be repeated
    numbers = iter(range(RACES))

    async def worker():
        for number in numbers:
            await race.run(number)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    won = Counter()
    for task, (name, cancelled) in race.ended.items():
        assert len(cancelled) == 1
        status, result, code = await race.outcome(one, task)
        won[status] += 1
        if legacy:
            assert (status == "cancelled") is ("result" in cancelled[0])
            assert status == "cancelled" or cancelled[0]["error"]["code"] == -32602
            assert code == (49901 if status == "cancelled" else None)
        if status == "completed":
            body = result if legacy else result["result"]
            assert body["content"][0]["text"] == name
    assert set(won) == {"completed", "cancelled"}
    assert min(won.values()) > RACES / 20, won
    lines = steps(harness)
    for task in race.ended:
        tasks, operations = zip(*lines[short(task)], strict=True)
        assert operations[-1] == "answered"
        assert wrong_steps(["working", *tasks], TASKS) == []
        assert wrong_steps(["planned", *operations], OPERATIONS) == []
        assert wrong_pairs(zip(tasks, operations, strict=True)) == []
    assert len(finish.calls("gate")) == RACES


def steps(harness):
    """What the log says of each record, in order."""
    found = defaultdict(list)
    for line in map(json.loads, harness.log.getvalue().splitlines()):
        if line["event"] == "transition":
            found[line["id"]].append((line["task"], line["operation"]))
    return found
