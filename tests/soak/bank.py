"""The upstream of the soak: a bank over HTTP that counts its effects in a file and takes its time."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.upstream_server import UpstreamServer, answer, event, stream

FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


class SoakBank(UpstreamServer):
    """`charge` asks first if told to, writes into the ledger, waits for as long as it is told, and answers."""

    def __init__(self, ledger: Path) -> None:
        super().__init__()
        self.ledger = ledger
        self.taken: Counter[str] = Counter()
        """How often a call with each key was taken."""
        self._asked: dict[str, asyncio.Event] = {}

    def effects(self) -> Counter[str]:
        """How often each key was charged."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return Counter(lines)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.read())
        method = message.get("method")
        if method == "initialize":
            return await self._initialize(message)
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            return web.Response(status=404)
        if "id" not in message:
            return web.Response(status=202)
        if method is None:
            if message["id"] in self._asked:
                self._asked.pop(message["id"]).set()
            return web.Response(status=202)
        if method != "tools/call":
            error = {"code": -32601, "message": "Method not found"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return await self._charged(request, message)

    async def _charged(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        arguments = message["params"]["arguments"]
        self.taken[arguments["key"]] += 1
        response = await self._question(request, message) if arguments.get("ask") else None
        with self.ledger.open("a") as ledger:
            ledger.write(arguments["key"] + "\n")
        if "gate" in arguments:
            await self.pass_gate(arguments["gate"])
        await asyncio.sleep(arguments.get("ms", 0) / 1000)
        told = {"content": [{"type": "text", "text": arguments["key"]}]}
        if response is None:
            return answer(message, told)
        await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": told})
        return response

    async def _question(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = await stream(request)
        ident = f"q-{message['id']}"
        heard = self._asked[ident] = asyncio.Event()
        await event(response, {"jsonrpc": "2.0", "id": ident, "method": "elicitation/create", "params": FORM})
        await heard.wait()
        return response
