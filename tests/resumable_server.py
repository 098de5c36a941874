"""The test server with streams that can be taken up again: work goes on without its connection, events are kept."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.upstream_server import FORM, UpstreamServer, stream


@dataclass
class Kept:
    """What one call's stream brings. An event that is None is the first one, which has an id and says nothing."""

    events: list[dict[str, Any] | None] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    def say(self, event: dict[str, Any] | None, *, last: bool = False) -> None:
        self.events.append(event)
        self.over = last
        self.more.set()


class ResumableServer(UpstreamServer):
    """`refusal` is the status that asks for a stream again are answered with; `asked` are their event ids.

    The tool `keep` reports progress, asks a question if it is told to, waits at the gate `name` and answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Kept] = {}
        self.asked: list[str] = []
        self.refusal: int | None = None
        self.stray: dict[str, Any] | None = None
        self._works: list[asyncio.Task[None]] = []
        self._open: list[web.Request] = []

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        for work in self._works:
            work.cancel()
        await super().__aexit__(*error)

    def _route(self, router: web.UrlDispatcher) -> None:
        super()._route(router)
        router.add_get(self.path, self._get)

    def cut(self) -> None:
        """Breaks every stream that is open."""
        for request in self._open:
            request.transport.abort()

    async def _keep(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        kept = self.kept[message["id"]] = Kept()
        kept.say(None)
        self._works.append(asyncio.create_task(self._work(message, kept)))
        return await self._bring(request, message["id"], 0)

    async def _work(self, message: dict[str, Any], kept: Kept) -> None:
        arguments, told = message["params"]["arguments"], "kept"
        token = message["params"].get("_meta", {}).get("progressToken")
        kept.say(_note({"progressToken": token, "progress": 1}))
        if "ask" in arguments:
            ident = f"ask-{message['id']}"
            kept.say({"jsonrpc": "2.0", "id": ident, "method": "elicitation/create", "params": FORM})
            await self.until(lambda: any(one.get("id") == ident for one in self.seen), 60)
            told = json.dumps(next(one for one in self.seen if one.get("id") == ident)["result"])
        await self.pass_gate(arguments["name"])
        kept.say(_note({"progressToken": token, "progress": 2}))
        result = {"content": [{"type": "text", "text": told}]}
        kept.say({"jsonrpc": "2.0", "id": message["id"], "result": result}, last=True)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        if last is None:
            return web.Response(status=405)
        self.asked.append(last)
        self.arrived.set()
        if self.refusal is not None:
            return web.Response(status=self.refusal)
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            return web.Response(status=404)
        call, _, number = last.partition("-")
        return await self._bring(request, int(call), int(number) + 1)

    async def _bring(self, request: web.Request, call: int, number: int) -> web.StreamResponse:
        response, kept = await stream(request), self.kept[call]
        self._open.append(request)
        if self.stray is not None and number:
            await response.write(_event(f"{call}-{number - 1}", self.stray))
        while True:
            kept.more.clear()
            for event in kept.events[number:]:
                await response.write(_event(f"{call}-{number}", event))
                number += 1
            if kept.over or self.closing:
                return response
            await kept.more.wait()


def _note(params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def _event(ident: str, message: dict[str, Any] | None) -> bytes:
    data = b"" if message is None else json.dumps(message).encode()
    return b"id: " + ident.encode() + b"\ndata: " + data + b"\n\n"
