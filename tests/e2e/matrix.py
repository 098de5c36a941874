"""The fault matrix: calls that are brought to each moment of their life, and then something is cut off.

One gateway, `near`, serves and works; another one at the same store, `far`, has no room for work of its own as long as
one call is under way at each upstream, and takes over what `near` leaves behind. Both reach the store through a socket
at which single steps are held back. All calls of a run meet the same fault at once.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import aiohttp
from redis.asyncio import Redis

from gateway.telemetry import short
from tests.e2e.bank import Banks
from tests.e2e.cells import LEGACY, MODERN, MOMENTS, Cell, Peer
from tests.e2e.processes import GatewayProcess
from tests.store_proxy import Hold, StoreProxy, script, word

OUTAGE_S = 3.3
"""Longer than the lease and the grace together."""
UPSTREAM_OUTAGE_S = 0.3
CONFIG = """
[server]
listen = "127.0.0.1:0"
drain_deadline_s = 1
[admin]
listen = "127.0.0.1:0"
[store]
url = "{store}"
timeout_s = 2
[runner]
lease_s = 1
takeover_grace_s = 2
cancel_grace_s = 0.2
[[upstreams]]
name = "http"
url = "{http}"
policy = "policy.toml"
[[upstreams]]
name = "stdio"
transport = "stdio"
command = {command}
policy = "policy.toml"
"""
POLICY = """
version = 1
[defaults]
task_support = "optional"
effect = "consequential"
inline_ms = 0
poll_interval_ms = 50
max_concurrent_per_principal = 1000
max_concurrent_per_tenant = 1000
max_concurrent_upstream = {room}
"""


class Stage:
    """Two gateways, a store, two banks."""

    def __init__(self, folder: Path, store: str) -> None:
        self.banks = Banks(folder)
        self.proxies = [StoreProxy(store), StoreProxy(store)]
        self._folder = folder
        self.sessions: dict[str, dict] = {}
        self.gateways: list[GatewayProcess] = []

    async def start(self) -> None:
        for name, proxy, room in zip(("near", "far"), self.proxies, (1000, 1), strict=True):
            folder = self._folder / name
            folder.mkdir()
            command = str(self.banks.stdio.arguments()).replace("'", '"')
            config = CONFIG.replace("{store}", proxy.url).replace("{http}", self.banks.http.url)
            made = GatewayProcess(folder, config=config.replace("{command}", command), policy=POLICY.format(room=room))
            self.gateways.append(made)
        await asyncio.gather(*(asyncio.to_thread(gateway.start) for gateway in self.gateways))

    async def __aenter__(self) -> Self:
        await self.banks.http.__aenter__()
        for proxy in self.proxies:
            await proxy.back()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in self.proxies:
            proxy.release()
        self.banks.http.close_gates()
        await asyncio.gather(*(asyncio.to_thread(gateway.stop) for gateway in self.gateways))
        for proxy in self.proxies:
            await proxy.__aexit__()
        await self.banks.http.__aexit__()


class Run:
    """All cells of one fault."""

    def __init__(self, stage: Stage, fault: str) -> None:
        self.stage = stage
        self.fault = fault
        self.cells = [
            Cell(fault, moment, dialect, upstream)
            for moment in MOMENTS
            for dialect in (LEGACY, MODERN)
            for upstream in ("http", "stdio")
        ]
        self.creating: list[asyncio.Future] = []
        self.waiting: list[asyncio.Future] = []

    async def play(self) -> list[Cell]:
        async with aiohttp.ClientSession() as one, aiohttp.ClientSession() as two:
            near = Peer(self.stage.gateways[0], one, self.stage.sessions)
            far = Peer(self.stage.gateways[1], two, self.stage.sessions)
            if not self.stage.sessions:
                await near.greet()
            await self._fill(far)
            await self._bring(near, far)
            await self._fault(one)
            await self._end(far)
        return self.cells

    def at(self, *moments: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.moment in moments]

    async def _fill(self, far: Peer) -> None:
        """One call at each upstream that lasts, so that `far` has no room."""
        fillers = [Cell(self.fault, "room", MODERN, upstream) for upstream in ("http", "stdio")]
        await each(fillers, lambda cell: far.create(cell, gate="room"))
        await self._arrived(*fillers)

    async def _arrived(self, *cells: Cell) -> None:
        """The calls have had their effect."""

        def charged() -> bool:
            effects = self.stage.banks.effects()
            return all(effects[cell.key] for cell in cells)

        await self.stage.banks.stdio.until(charged)

    async def _bring(self, near: Peer, far: Peer) -> None:
        """Each call to its moment. What is held back comes last, because nobody waits long for a store."""
        gated = self.at("sent", "completed", "answered", "written", "cancelling")
        await each(gated, lambda cell: near.create(cell, gate=cell.key))
        await each(self.at("asking"), lambda cell: near.create(cell, ask=True))
        await self._arrived(*gated)
        for cell in self.at("completed"):
            self.stage.banks.open(cell.key)
        await each(self.at("completed"), lambda cell: near.until(cell, "completed"))
        await each(self.at("asking"), lambda cell: near.until(cell, "input_required"))
        waited = [cell for cell in (*gated, *self.at("asking")) if cell.moment not in ("completed", "written")]
        await each(waited, near.look)
        self.waiting = [asyncio.ensure_future(far.wait(cell)) for cell in waited if cell.dialect == LEGACY]
        await self._hold(near, far)

    async def _hold(self, near: Peer, far: Peer) -> None:
        """What `far` is asked for cannot get caught in what is held back from `near`, and does not wake `near`."""
        proxy = self.stage.proxies[0]
        claims = await self._no_claims()
        await each(self.at("marked"), far.create)
        marks = proxy.hold(word("sent"), answers=True)
        claims.release()
        await marks.until(len(self.at("marked")))
        claims = await self._no_claims()
        await each(self.at("claimed"), far.create)
        claimed = proxy.hold(script("claim"), answers=True)
        claims.release()
        await claimed.until(1)
        await each(self.at("created"), far.create)
        await self._one_by_one("written", proxy.hold(word("answered"), answers=True), self._open)
        await self._one_by_one("answered", proxy.hold(word("answered")), self._open)
        await self._one_by_one("recorded", proxy.hold(script("create"), answers=True), near.create)
        await self._one_by_one("creating", proxy.hold(script("create")), near.create)

        async def cancel(cell: Cell) -> None:
            cell.cancel = await far.ask(cell, "tasks/cancel", {"taskId": cell.task})

        await each(self.at("cancelling"), cancel)

    async def _no_claims(self) -> Hold:
        """From here on `near` takes no work."""
        claims = self.stage.proxies[0].hold(script("claim"))
        await claims.until(1)
        return claims

    async def _one_by_one(self, moment: str, hold: Hold, begin: Callable[[Cell], Awaitable[None]]) -> None:
        """Commands of one moment travel together: each call gets there before the next one begins."""
        cells = self.at(moment)
        for count, cell in enumerate(cells, start=1):
            self.creating.append(asyncio.ensure_future(begin(cell)))
            await hold.until(count, last=count == len(cells))

    async def _open(self, cell: Cell) -> None:
        self.stage.banks.open(cell.key)

    async def _fault(self, near: aiohttp.ClientSession) -> None:
        proxies, banks = self.stage.proxies, self.stage.banks
        if self.fault == "cut":
            await near.close()
        elif self.fault == "killed":
            await asyncio.to_thread(self.stage.gateways[0].kill)
            await proxies[0].gone()
            banks.open("room")
        elif self.fault == "store":
            for proxy in proxies:
                await proxy.gone()
        else:
            await banks.gone()
        proxies[0].release()
        if self.fault == "store":
            self._open_all()
            await asyncio.sleep(OUTAGE_S)
            for proxy in proxies:
                await proxy.back()
        elif self.fault == "upstream":
            await asyncio.sleep(UPSTREAM_OUTAGE_S)
            await banks.back()
        await asyncio.gather(*self.creating, return_exceptions=True)

    async def _end(self, far: Peer) -> None:
        """What becomes of them, asked at the other gateway."""
        self._open_all()
        known = [cell for cell in self.cells if cell.task]

        async def answered(cell: Cell) -> None:
            await far.until(cell, "input_required", "failed")
            await far.respond(cell)

        await each(self.at("asking"), answered)
        await each(known, lambda cell: far.until(cell, "completed", "failed", "cancelled"))
        await each(known, lambda cell: self._final(far, cell))
        self.stage.banks.open("room")
        await asyncio.gather(*self.waiting)

    def _open_all(self) -> None:
        for cell in self.cells:
            self.stage.banks.open(cell.key)

    async def _final(self, far: Peer, cell: Cell) -> None:
        cell.finals.append(await far.final(cell))


async def each(cells: list[Cell], do: Callable[[Cell], Awaitable[object]]) -> None:
    """Does it with all of them at once."""
    await asyncio.gather(*(do(cell) for cell in cells))


async def played(folder: Path, store: str, fault: str) -> list[Cell]:
    """Every cell of a fault, with what became of it."""
    async with Stage(folder, store) as stage:
        run = Run(stage, fault)
        await run.play()
        await _conclude(stage, run.cells, store)
    return run.cells


def steps_of(gateway: GatewayProcess) -> dict[str, list[tuple[str, str]]]:
    """What a gateway changed, by record. The order of what two of them say is not known."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in gateway.said("transition"):
        found.setdefault(line["id"], []).append((line["task"], line["operation"]))
    return found


async def _conclude(stage: Stage, cells: list[Cell], store: str) -> None:
    """Asks once more about all of them, when all is over: nothing may have changed. Then looks behind the scenes."""
    effects, arrivals = stage.banks.effects(), stage.banks.arrivals()
    logs = [steps_of(gateway) for gateway in stage.gateways]
    redis = Redis.from_url(store)
    async with aiohttp.ClientSession() as http:
        far = Peer(stage.gateways[1], http, stage.sessions)
        for cell in cells:
            cell.effects, cell.arrivals = effects[cell.key], arrivals[cell.key]
            if not cell.finals:
                continue
            await far.look(cell)
            cell.finals.append(await far.final(cell))
            cell.steps = [log[short(cell.task)] for log in logs if short(cell.task) in log]
            (key,) = await redis.keys(f"*:o:*:{cell.task}")
            head = json.loads(await redis.hget(key, "head"))
            cell.operation, cell.history = head["state"], [step["state"] for step in head["history"]]
    await redis.aclose()
