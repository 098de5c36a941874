"""A bank over HTTP and one over stdio that share one ledger: a file with a line for each charge that was made."""

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.e2e.processes import alive
from tests.stdio_server import Stdio
from tests.upstream_server import UpstreamServer, answer, event, stream

FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


class HttpBank(UpstreamServer):
    """`charge` asks first if told to, then writes into the ledger, and answers when its gate is open."""

    def __init__(self, ledger: Path) -> None:
        super().__init__()
        self.ledger = ledger
        self.served: list[dict[str, Any]] = []

    async def serve(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["method"] == "tools/call":  # what belongs to no session was answered with 404: nobody served it
            self.served.append(message)
            return await self._charge(request, message)
        error = {"code": -32601, "message": "Method not found"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})

    async def gone(self) -> None:
        """As if its machine had lost its power: connections are cut, nobody listens, sessions are forgotten."""
        for site in list(self._runner.sites):
            await site.stop()
        for connection in list(self._runner.server.connections):
            connection.transport.abort()
        self.sessions.clear()

    async def back(self) -> None:
        await self.listen(int(self.url.split(":")[2].split("/")[0]))

    async def _charge(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        arguments = message["params"]["arguments"]
        response = await self._asked(request, message) if arguments.get("ask") else None
        with self.ledger.open("a") as ledger:
            ledger.write(json.dumps(arguments) + "\n")
        self.arrived.set()
        if "gate" in arguments:
            await self.pass_gate(arguments["gate"])
        told = {"content": [{"type": "text", "text": "charged"}]}
        if response is None:
            return answer(message, told)
        await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": told})
        return response

    async def _asked(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = await stream(request)
        ident = f"q-{message['id']}"
        await event(response, {"jsonrpc": "2.0", "id": ident, "method": "elicitation/create", "params": FORM})

        def heard() -> bool:
            return any("method" not in one and one.get("id") == ident for one in self.seen)

        await self.until(lambda: heard() or self.closing, 60)
        return response


class Banks:
    """Both of them, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.http = HttpBank(folder / "ledger")
        self.stdio = Stdio(folder)

    def effects(self) -> Counter[str]:
        """How often each key was charged."""
        ledger = self.folder / "ledger"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return Counter(json.loads(line)["key"] for line in lines)

    def arrivals(self) -> Counter[str]:
        """How often a call with each key was taken."""
        calls = [*self.http.served, *self.stdio.calls()]
        return Counter(call["params"]["arguments"]["key"] for call in calls)

    def open(self, gate: str) -> None:
        self.http.open(gate)
        self.stdio.open(gate)

    async def gone(self) -> None:
        """Both end at once, and cannot be started again."""
        (self.folder / "down").touch()
        for pid in {entry["pid"] for entry in self.stdio.entries}:
            if alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self.http.gone()

    async def back(self) -> None:
        (self.folder / "down").unlink()
        await self.http.back()
