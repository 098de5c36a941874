"""The stage of the soak: two gateways at one store, clients of both dialects, and a driver that breaks things."""

import asyncio
import itertools
import random
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from redis.asyncio import Redis

from gateway.store.embedded import find_server
from gateway.store.keys import Keys
from tests.client import TASKS, Answer, Client
from tests.e2e.processes import GatewayProcess
from tests.oracle import FINAL
from tests.soak.bank import SoakBank
from tests.stores import PREFIX, Server

LEGACY, MODERN = "2025-11-25", "2026-07-28"
CAN = {"elicitation": {}}
CONFIG = """
[server]
listen = "127.0.0.1:{port}"
drain_deadline_s = 5
[admin]
listen = "127.0.0.1:0"
[store]
url = "{store}"
{runner}
[[upstreams]]
name = "bank"
url = "{bank}"
policy = "policy.toml"
"""
POLICY = """
version = 1
[defaults]
task_support = "optional"
effect = "consequential"
inline_ms = 0
poll_interval_ms = 100
deadline_s = 300
max_concurrent_per_principal = 100000
max_concurrent_per_tenant = 100000
max_concurrent_upstream = 400
"""
KEPT = ("--appendonly", "yes")
"""What the store has answered is there again after it was killed."""
RUNNER = "[runner]\nlease_s = {lease_s}\ntakeover_grace_s = {grace_s}\ncancel_grace_s = 0.5"


@dataclass
class Plan:
    """How much, and how rough. Times in seconds."""

    tasks: int
    at_once: int = 64
    between_s: tuple[float, float] = (0.5, 2.0)
    pause_s: tuple[float, float] = (0.2, 5.0)
    seed: int = 1
    lease_s: float | None = 1
    """None: the defaults of the gateway."""
    grace_s: float = 2


@dataclass
class Call:
    """One call and what its client saw of it."""

    key: str
    dialect: str
    kind: str
    task: str = ""
    statuses: list[str] = field(default_factory=list)
    refused: int | None = None
    error: int | None = None

    @property
    def arguments(self) -> dict[str, object]:
        return {"key": self.key, "ask": self.kind == "ask", "ms": int(self.key.rsplit("-", 1)[1]) % 100}


class Soak:
    """The stage: a store that keeps what it answered, two gateways at it, a bank behind them."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)  # noqa: S311  # to be repeated
        self.server = Server(shutil.which("redis-server") or find_server(), folder)
        self.bank = SoakBank(folder / "ledger")
        self.calls: list[Call] = []
        self.deeds: Counter[str] = Counter()
        self.gateways: list[GatewayProcess] = []
        self._folder = folder
        self._runner = "" if plan.lease_s is None else RUNNER.format(lease_s=plan.lease_s, grace_s=plan.grace_s)
        self._http: aiohttp.ClientSession | None = None
        self._sessions: dict[bool, dict[str, str]] = {}
        self.urls: list[str] = []
        self._deed: asyncio.Future[object] | None = None
        self._made = 0

    async def start(self, stack: AsyncExitStack) -> None:
        await asyncio.to_thread(self.server.start, *KEPT)
        stack.callback(self.server.__exit__)
        await stack.enter_async_context(self.bank)
        self._http = await stack.enter_async_context(aiohttp.ClientSession())
        for number in range(2):
            folder = self._folder / f"gateway-{number}"
            folder.mkdir()
            port = free_port()
            config = CONFIG.format(port=port, store=self.server.url, bank=self.bank.url, runner=self._runner)
            self.gateways.append(GatewayProcess(folder, config=config, policy=POLICY))
            self.urls.append(f"http://127.0.0.1:{port}/mcp")
        await asyncio.gather(*(asyncio.to_thread(gateway.start) for gateway in self.gateways))
        stack.push_async_callback(self._stop)
        for asks in (False, True):
            client = Client(self._http, self.urls[0])
            await client.initialize(capabilities=CAN if asks else {})
            self._sessions[asks] = client.session

    async def _stop(self) -> None:
        self.bank.close_gates()
        await asyncio.gather(*(asyncio.to_thread(gateway.stop) for gateway in self.gateways))

    async def run(self) -> None:
        """All calls, in the midst of it all."""
        chaos = asyncio.create_task(self._chaos())
        names = itertools.count()
        try:
            await asyncio.gather(*(self._client(names) for _ in range(self.plan.at_once)))
        finally:
            chaos.cancel()
            await asyncio.gather(chaos, return_exceptions=True)
            if self._deed is not None:
                await self._deed  # what was broken last is put right
        await self._settle()

    async def _client(self, names: Iterator[int]) -> None:
        for number in names:
            if self._made >= self.plan.tasks:
                return
            kind = self.chance.choices(("plain", "cancel", "ask"), (8, 1, 1))[0]
            call = Call(f"soak-{number}", self.chance.choice((LEGACY, MODERN)), kind)
            self.calls.append(call)
            await self._begin(call)
            if call.task:  # a call that was refused has made none
                self._made += 1
                await self.follow(call)

    def client(self, call: Call) -> Client:
        """A client at either gateway."""
        made = Client(self._http, self.chance.choice(self.urls))
        made.session = self._sessions[call.kind == "ask"]
        return made

    async def ask(self, call: Call, method: str, params: dict[str, object]) -> Answer | None:
        """None where nobody answered."""
        client = self.client(call)
        declared = {**TASKS, **CAN} if call.kind == "ask" else TASKS
        timeout = aiohttp.ClientTimeout(total=10)
        try:
            if call.dialect == LEGACY:
                return await client.legacy(method, params, timeout=timeout)
            body, headers = client.modern_request(method, params, capabilities=declared)
            return await client.post(body, headers, timeout=timeout)
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.1)  # nothing has left: the other one may be there
            return await self.ask(call, method, params)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _begin(self, call: Call) -> None:
        params: dict[str, object] = {"name": "charge", "arguments": call.arguments}
        if call.dialect == LEGACY:
            params["task"] = {"ttl": 3_600_000}
        answer = await self.ask(call, "tools/call", params)
        if answer is None:
            return
        told = answer.messages[-1]
        if "error" in told:
            call.refused = told["error"]["code"]
            await asyncio.sleep(0.2)  # a client that is refused does not come again at once
        else:
            call.task = told["result"]["task"]["taskId"] if call.dialect == LEGACY else told["result"]["taskId"]

    async def follow(self, call: Call, *, patience_s: float = 120) -> None:
        """Until it has ended: cancels it, or answers what it asks, if that is its kind."""
        with suppress(TimeoutError):  # the verdict tells which have not ended
            await asyncio.wait_for(self._followed(call), patience_s)

    async def _followed(self, call: Call) -> None:
        cancelled = call.kind != "cancel"
        while not call.statuses or call.statuses[-1] not in FINAL:
            if not cancelled:
                cancelled = await self.ask(call, "tasks/cancel", {"taskId": call.task}) is not None
            answer = await self.ask(call, "tasks/get", {"taskId": call.task})
            self._note(call, answer)
            if call.statuses and call.statuses[-1] == "input_required":
                await self._respond(call)
            await asyncio.sleep(self.chance.uniform(0.05, 0.3))

    def _note(self, call: Call, answer: Answer | None) -> None:
        told = {} if answer is None else answer.messages[-1]
        if "result" in told:
            call.statuses.append(told["result"]["status"])
            call.error = told["result"].get("error", {}).get("code")
        elif told and told["error"]["code"] != 50303:
            raise AssertionError(f"{call.key}: {told['error']}")

    async def _respond(self, call: Call) -> None:
        answer = {"action": "accept", "content": {"name": "Ann"}}
        if call.dialect == MODERN:
            await self.ask(call, "tasks/update", {"taskId": call.task, "inputResponses": {"input-1": answer}})
            return
        client = self.client(call)
        try:
            body = {"jsonrpc": "2.0", "id": f"{call.task}:input-1:soak", "result": answer}
            await client.post(body, client.session, timeout=aiohttp.ClientTimeout(total=10))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return  # asked again with the next look

    async def _chaos(self) -> None:
        """Breaks one thing after the other, and puts each right again."""
        deeds: list[Callable[[], object]] = [self._kill, self._pause, self._kill_store, self._pause_store]
        while True:
            await asyncio.sleep(self.chance.uniform(*self.plan.between_s))
            self._deed = asyncio.ensure_future(self.chance.choices(deeds, (3, 3, 1, 2))[0]())
            await asyncio.shield(self._deed)

    async def _kill(self) -> None:
        self.deeds["gateways killed"] += 1
        gateway = self.chance.choice(self.gateways)
        await asyncio.to_thread(gateway.kill)
        await asyncio.to_thread(gateway.start)

    async def _pause(self) -> None:
        self.deeds["gateways paused"] += 1
        await self._stopped(self.chance.choice(self.gateways).process)

    async def _kill_store(self) -> None:
        self.deeds["store killed"] += 1
        self.server.process.kill()
        await asyncio.to_thread(self.server.process.wait)
        await asyncio.sleep(self.chance.uniform(0, 1))
        await asyncio.to_thread(self.server.start, *KEPT)

    async def _pause_store(self) -> None:
        self.deeds["store paused"] += 1
        await self._stopped(self.server.process)

    async def _stopped(self, process) -> None:
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.chance.uniform(*self.plan.pause_s))
        finally:
            process.send_signal(signal.SIGCONT)

    async def _settle(self) -> None:
        """Waits until nothing is under way any more: also what nobody knows that it was begun."""
        redis = Redis.from_url(self.server.url)
        keys, end = Keys(PREFIX), time.monotonic() + 60
        while await redis.zcard(keys.watch("bank")) + await redis.zcard(keys.due("bank")) and time.monotonic() < end:
            await asyncio.sleep(0.2)
        await redis.aclose()


def free_port() -> int:
    """A port for a gateway that comes again at the same place."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
