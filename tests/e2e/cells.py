"""A cell of the fault matrix, one call, and a client that brings it to its moment and asks what became of it."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.client import TASKS, Answer, Client
from tests.e2e.processes import GatewayProcess
from tests.sse_client import result_of

LEGACY, MODERN = "2025-11-25", "2026-07-28"
MOMENTS = {
    "creating": "the record of the call is about to be made",
    "recorded": "the record is made, and its maker does not know yet",
    "created": "the client has its task, and nobody has taken the work",
    "claimed": "the work is taken, and `sent` is about to be recorded",
    "marked": "`sent` is recorded, and the call has not left",
    "sent": "the upstream works",
    "asking": "the upstream waits for input",
    "answered": "the answer is there, and is about to be recorded",
    "written": "the answer is recorded, and its writer does not know yet",
    "completed": "the task has ended, and nobody has asked for the result",
    "cancelling": "the client has just cancelled",
}
FAULTS = {
    "cut": "the connections of the client",
    "store": "the store, for longer than lease and grace together",
    "upstream": "the upstream: its processes, its connections and its sessions",
    "killed": "the process that holds the work",
}
CAN = {"elicitation": {}}


@dataclass
class Cell:
    """One call: what it went through, and what came of it."""

    fault: str
    moment: str
    dialect: str
    upstream: str
    task: str = ""
    refused: dict[str, Any] | None = None
    statuses: list[str] = field(default_factory=list)
    finals: list[object] = field(default_factory=list)
    waited: list[object] | None = None
    effects: int = 0
    arrivals: int = 0
    operation: str = ""
    steps: list[list[tuple[str, str]]] = field(default_factory=list)
    """Of task and operation, as each gateway wrote them down."""
    history: list[str] = field(default_factory=list)
    """The states of the operation, as the store has them."""
    cancel: Answer | None = None

    @property
    def key(self) -> str:
        return f"{self.fault}-{self.moment}-{self.dialect}-{self.upstream}"

    @property
    def told(self) -> str:
        """What the client was told in the end."""
        if self.refused is not None:
            return "unknown" if self.refused["code"] == 50305 else "refused"
        if not self.task:
            return "nothing"
        error = self.finals[-1].get("error")
        if self.statuses[-1] == "failed":
            return "unknown" if error["code"] == 50305 else "not sent"
        return self.statuses[-1]


class Peer:
    """A client of one gateway, in both dialects and at both upstreams."""

    def __init__(self, gateway: GatewayProcess, http: aiohttp.ClientSession, sessions: dict[str, dict]) -> None:
        self._address = gateway.url.removesuffix("/mcp")
        self._http = http
        self.sessions = sessions

    def at(self, cell: Cell) -> Client:
        client = Client(self._http, f"{self._address}/{cell.upstream}/mcp")
        client.session = self.sessions[f"{cell.upstream}{cell.moment == 'asking'}"]
        return client

    async def greet(self) -> None:
        """The sessions of 2025-11-25."""
        for upstream in ("http", "stdio"):
            for asked in (False, True):
                client = Client(self._http, f"{self._address}/{upstream}/mcp")
                await client.initialize(capabilities=CAN if asked else {})
                self.sessions[f"{upstream}{asked}"] = client.session

    async def ask(self, cell: Cell, method: str, params: dict) -> Answer:
        """A request about a task, or for one."""
        if cell.dialect == LEGACY:
            return await self.at(cell).legacy(method, params)
        declared = {**TASKS, **CAN} if cell.moment == "asking" else TASKS
        return await self.at(cell).modern(method, params, capabilities=declared)

    async def create(self, cell: Cell, **arguments: object) -> None:
        params = {"name": "charge", "arguments": {"key": cell.key, **arguments}}
        if cell.dialect == LEGACY:
            params["task"] = {"ttl": 600_000}
        told = (await self.ask(cell, "tools/call", params)).messages[-1]
        if "error" in told:
            cell.refused = told["error"]
            return
        result = told["result"]
        cell.task = result["task"]["taskId"] if cell.dialect == LEGACY else result["taskId"]

    async def look(self, cell: Cell) -> str:
        """The status now, or nothing while the store is away."""
        answer = (await self.ask(cell, "tasks/get", {"taskId": cell.task})).messages
        assert len(answer) == 1
        if answer[0].get("error", {}).get("code") == 50303:
            return ""
        status = answer[0]["result"]["status"]
        cell.statuses.append(status)
        return status

    async def until(self, cell: Cell, *wanted: str) -> None:
        async with asyncio.timeout(20):
            while await self.look(cell) not in wanted:
                await asyncio.sleep(0.05)

    async def final(self, cell: Cell) -> dict[str, object]:
        """What the task came to, as often as it is asked."""
        method = "tasks/result" if cell.dialect == LEGACY else "tasks/get"
        answer = (await self.ask(cell, method, {"taskId": cell.task})).messages
        assert len(answer) == 1
        told = answer[0] if cell.dialect == LEGACY else answer[0]["result"]
        return {name: told[name] for name in ("status", "result", "error") if name in told}

    async def wait(self, cell: Cell) -> None:
        """A tasks/result that waits through it all: what it brings to the very end."""
        async with result_of(self.at(cell), cell.task, cell.key) as waiting:
            cell.waited = []
            while block := await asyncio.wait_for(waiting.event(), 20):
                cell.waited += [line for line in block.splitlines() if b'"result"' in line or b'"error"' in line]
            if not cell.waited and waiting.raw.startswith(b"{"):
                cell.waited = [waiting.raw]

    async def respond(self, cell: Cell) -> None:
        """Answers the question of the upstream."""
        answer = {"action": "accept", "content": {"name": "Ann"}}
        if cell.dialect == LEGACY:
            ident = f"{cell.task}:input-1:again"
            await self.at(cell).post({"jsonrpc": "2.0", "id": ident, "result": answer}, self.at(cell).session)
        else:
            await self.ask(cell, "tasks/update", {"taskId": cell.task, "inputResponses": {"input-1": answer}})
