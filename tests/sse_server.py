"""The scriptable MCP server over HTTP+SSE of revision 2024-11-05: one stream for a session, and POSTs that say 202."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.upstream_server import STREAM, UpstreamServer, stream


class SseServer(UpstreamServer):
    """`streams` are those that are open, by session; `endpoint` is what each of them begins with.

    `opening` may answer a GET, and `posting` a POST, in place of the server.
    """

    path = "/sse"

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, web.StreamResponse] = {}
        self.endpoint = "/messages?session={session}"
        self.opened = 0
        self.opening: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
        self.posting: Callable[[web.Request, dict[str, Any]], Awaitable[web.Response | None]] | None = None
        self._ended: dict[str, asyncio.Event] = {}
        self._serving: set[asyncio.Task[None]] = set()

    def close_gates(self) -> None:
        super().close_gates()
        for session in list(self._ended):
            self.end(session)

    def end(self, session: str) -> None:
        """Ends a stream in good order."""
        self._ended[session].set()

    def cut(self, session: str | None = None) -> None:
        """Breaks one connection, or all."""
        for name, response in list(self.streams.items()):
            if session in (None, name):
                response._req.transport.abort()

    async def push(self, body: bytes, session: str | None = None) -> None:
        """Says something in one stream, or in all."""
        for name, response in list(self.streams.items()):
            if session in (None, name):
                await response.write(b"event: message\ndata: " + body + b"\n\n")

    def _route(self, router: web.UrlDispatcher) -> None:
        router.add_get(self.path, self._get)
        router.add_post("/messages", self._message)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self.opened += 1
        self.arrived.set()
        session = f"session-{self.opened}"
        self.headers.append(dict(request.headers))
        said = None if self.opening is None else await self.opening(request)
        if said is not None:
            return said
        response = await stream(request)
        self.streams[session], self._ended[session] = response, asyncio.Event()
        self.sessions.add(session)
        try:
            await response.write(f"event: endpoint\ndata: {self.endpoint.format(session=session)}\n\n".encode())
            await self._ended[session].wait()
        finally:
            self.sessions.discard(session)
            del self.streams[session], self._ended[session]
            self.arrived.set()
        return response

    async def _message(self, request: web.Request) -> web.Response:
        session = request.query.get("session", "")
        message = json.loads(await request.read())
        self.seen.append(message)
        self.headers.append(dict(request.headers))
        self.arrived.set()
        said = None if self.posting is None else await self.posting(request, message)
        if said is not None:
            return said
        if session not in self.streams:
            return web.Response(status=404)
        if "id" in message and "method" in message:
            request[STREAM] = self.streams[session]
            serving = asyncio.ensure_future(self._serve(request, message, session))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        return web.Response(status=202, text="Accepted")

    async def _serve(self, request: web.Request, message: dict[str, Any], session: str) -> None:
        """What another transport answers a POST with goes into the stream."""
        serve = self._initialized if message["method"] == "initialize" else self.serve
        response = await serve(request, message)
        if isinstance(response, web.Response) and response.body:
            await self.push(response.body, session)

    async def _initialized(self, _: web.Request, message: dict[str, Any]) -> web.Response:
        return await self._initialize(message)
