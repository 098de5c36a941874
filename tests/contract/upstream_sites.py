"""The servers behind which the contract of upstreams is tested: each transport in each era."""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any, Self

from aiohttp import web

from gateway.app import new_id
from gateway.telemetry import Telemetry
from gateway.upstream.auto import AutoUpstream
from gateway.upstream.eras import BothEras
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.modern import ModernUpstream
from gateway.upstream.pool import Bounds
from gateway.upstream.port import Upstream
from gateway.upstream.process import Command
from gateway.upstream.sse import SseUpstream
from gateway.upstream.stdio import StdioUpstream
from tests.modern_server import ModernServer
from tests.sse_server import SseServer
from tests.stdio_server import ALICE, MODERN_SERVER, Stdio, call_of
from tests.upstream_server import UpstreamServer, answer, event, stream

BOUNDS = Bounds(sessions=10, idle_s=600)


class HttpSite:
    """A server over HTTP."""

    def __init__(self, _: object) -> None:
        self.server = UpstreamServer()
        self.upstream: Upstream

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        self.upstream = self.over(self.server.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close_gates()
        await self.upstream.close()
        await self.server.__aexit__()

    @property
    def seen(self) -> list[dict[str, Any]]:
        return self.server.seen

    def open(self, gate: str) -> None:
        self.server.open(gate)

    async def until(self, condition) -> None:
        await self.server.until(condition)

    def chatter(self) -> str:
        """The name of a tool that says what nobody asked for before it answers."""

        async def chatter(request, message):
            response = await stream(request)
            await event(response, {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            await event(response, {"jsonrpc": "2.0", "method": "notifications/unheard-of", "params": {"x": 1}})
            await event(response, {"jsonrpc": "2.0", "id": 999_999, "result": {}})
            told = {"content": [{"type": "text", "text": "done"}]}
            await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": told})
            return response

        self.server.fault = chatter
        return "chatter"

    def dying(self) -> str:
        """The name of a tool in whose calls the server dies."""

        async def cut(request, _):
            request.transport.abort()
            return web.Response()

        self.server.fault = cut
        return "die"

    def huge(self) -> str:
        async def huge(_, message):
            return answer(message, {"content": [{"type": "text", "text": "x" * 20_000}]})

        self.server.fault = huge
        return "huge"

    def nonsense(self) -> str:
        async def nonsense(_, message):
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": 5})

        self.server.fault = nonsense
        return "nonsense"

    def asking(self) -> str:
        """The name of a tool that asks something, and tells what it heard."""

        async def asking(request, message):
            response = await stream(request)
            await event(response, {"jsonrpc": "2.0", "id": "q9", "method": "elicitation/create", "params": {"n": 1}})
            await self.server.until(lambda: any(one.get("id") == "q9" for one in self.seen))
            (heard,) = [one for one in self.seen if one.get("id") == "q9"]
            told = {"content": [{"type": "text", "text": json.dumps(heard)}]}
            await event(response, {"jsonrpc": "2.0", "id": message["id"], "result": told})
            return response

        self.server.fault = asking
        return "asking"

    def bounded(self, sessions: int) -> Upstream:
        """The same server with no more than so many sessions."""
        return self.over(self.server.url, sessions)

    def absent(self) -> Upstream:
        """An upstream with nothing behind it."""
        return self.over("http://127.0.0.1:9/mcp")

    def over(self, url: str, sessions: int = BOUNDS.sessions) -> Upstream:
        """How this transport speaks to a URL."""
        return over_http(url, sessions)


class SseSite(HttpSite):
    """A server over HTTP+SSE."""

    def __init__(self, folder: object) -> None:
        super().__init__(folder)
        self.server: SseServer = SseServer()

    def dying(self) -> str:
        async def cut(*_):
            self.server.cut()
            return web.Response()

        self.server.fault = cut
        return "die"

    def over(self, url: str, sessions: int = BOUNDS.sessions) -> Upstream:
        return over_sse(url, sessions)


class FoundHttpSite(HttpSite):
    """A server over HTTP of which only the URL is known."""

    def over(self, url: str, sessions: int = BOUNDS.sessions) -> Upstream:
        return found_out(url, sessions)


class FoundSseSite(SseSite):
    """A server over HTTP+SSE of which only the URL is known."""

    def over(self, url: str, sessions: int = BOUNDS.sessions) -> Upstream:
        return found_out(url, sessions)


class StdioSite:
    """A server over standard streams."""

    def __init__(self, folder) -> None:
        self.server = Stdio(folder)
        self.upstream: Upstream

    async def __aenter__(self) -> Self:
        self.upstream = StdioUpstream(self.server.command(), BOUNDS, Telemetry(sys.stderr))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.upstream.close()

    @property
    def seen(self) -> list[dict[str, Any]]:
        return self.server.seen

    def open(self, gate: str) -> None:
        self.server.open(gate)

    async def until(self, condition) -> None:
        await self.server.until(condition)

    def chatter(self) -> str:
        return "chatter"

    def dying(self) -> str:
        return "exit"

    def huge(self) -> str:
        return "huge"

    def nonsense(self) -> str:
        return "garbage"

    def asking(self) -> str:
        return "question"

    def bounded(self, sessions: int) -> Upstream:
        return StdioUpstream(self.server.command(), Bounds(sessions, BOUNDS.idle_s), Telemetry(sys.stderr))

    def absent(self) -> Upstream:
        command = Command(["/no/such/program"], self.server.folder, dict)
        return StdioUpstream(command, BOUNDS, Telemetry(sys.stderr))


class ModernHttpSite:
    """A server of revision 2026-07-28 over HTTP."""

    def __init__(self, _: object) -> None:
        self.server = ModernServer()
        self.upstream: Upstream

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        self.upstream = self.at(self.server.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close_gates()
        await self.upstream.close()
        await self.server.__aexit__()

    @property
    def seen(self) -> list[dict[str, Any]]:
        return self.server.seen

    def open(self, gate: str) -> None:
        self.server.open(gate)

    async def until(self, condition) -> None:
        await self.server.until(condition)

    async def closed(self, call_id: int) -> None:
        """Waits until the server knows that nobody waits for this request."""
        await self.server.until(lambda: call_id in self.server.closed)

    async def change(self) -> None:
        """Has the server tell its subscriptions that its tools changed."""
        await self.server.until(lambda: self.server.modern.subscriptions)
        self.server.change({"method": "notifications/tools/list_changed"})

    async def tear_down(self) -> None:
        """Has the server end its subscriptions."""
        await self.server.until(lambda: self.server.modern.subscriptions)
        self.server.change(None)

    def chatter(self) -> str:
        return "chatter"

    def dying(self) -> str:
        async def cut(request, message):
            if message["method"] != "tools/call":
                return None
            request.transport.abort()
            return web.Response()

        self.server.fault = cut
        return "die"

    def huge(self) -> str:
        return "huge"

    def nonsense(self) -> str:
        return "nonsense"

    def at(self, url: str) -> Upstream:
        """How this transport speaks to a URL."""
        return modern_at(Connections(url, dict, 1), itertools.count(1))

    def absent(self) -> Upstream:
        return self.at("http://127.0.0.1:9/mcp")


class FoundModernSite(ModernHttpSite):
    """The same server, of which only the URL is known."""

    def at(self, url: str) -> Upstream:
        return found_out(url, BOUNDS.sessions)


class ModernStdioSite:
    """The same server over standard streams."""

    def __init__(self, folder) -> None:
        self.server = Stdio(folder, MODERN_SERVER)
        self.upstream: Upstream

    async def __aenter__(self) -> Self:
        self.upstream = StdioUpstream(self.server.command(), BOUNDS, Telemetry(sys.stderr))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.upstream.close()

    @property
    def seen(self) -> list[dict[str, Any]]:
        return self.server.seen

    def open(self, gate: str) -> None:
        self.server.open(gate)

    async def until(self, condition) -> None:
        await self.server.until(condition)

    async def closed(self, call_id: int) -> None:
        path = self.server.folder / "closed"
        await self.server.until(lambda: path.exists() and str(call_id) in path.read_text().split())

    async def change(self) -> None:
        await self._call("changed")

    async def tear_down(self) -> None:
        await self._call("tear-down")

    async def _call(self, tool: str) -> None:
        await self.until(lambda: any(one.get("method") == "subscriptions/listen" for one in self.seen))
        await self.upstream.perform(await self.upstream.open(ALICE), call_of(self.upstream, tool))

    def chatter(self) -> str:
        return "chatter"

    def dying(self) -> str:
        return "die"

    def huge(self) -> str:
        return "huge"

    def nonsense(self) -> str:
        return "nonsense"

    def absent(self) -> Upstream:
        command = Command(["/no/such/program"], self.server.folder, dict)
        return StdioUpstream(command, BOUNDS, Telemetry(sys.stderr))


def over_http(url: str, sessions: int) -> HttpUpstream:
    return http_at(Connections(url, dict, 1), sessions, None)


def http_at(connections: Connections, sessions: int, ids: Iterator[int] | None) -> HttpUpstream:
    return HttpUpstream(connections, max_sessions=sessions, session_idle_s=BOUNDS.idle_s, ids=ids)


def modern_at(connections: Connections, ids: Iterator[int]) -> ModernUpstream:
    return ModernUpstream(connections, "reports", Telemetry(sys.stderr), lambda: next(ids))


def over_sse(url: str, sessions: int, ids: Iterator[int] | None = None) -> SseUpstream:
    bounds = Bounds(sessions, BOUNDS.idle_s)
    return SseUpstream(Connections(url, dict, 1), bounds, Telemetry(sys.stderr), new_id, ids=ids)


def found_out(url: str, sessions: int) -> AutoUpstream:
    """As the gateway builds it."""
    ids, connections = itertools.count(1), Connections(url, dict, 1)
    both = BothEras(connections, http_at(connections, sessions, ids), modern_at(connections, ids))
    return AutoUpstream({"http": both, "sse": over_sse(url, sessions, ids)}, ids, Telemetry(sys.stderr))


HandshakeSite = HttpSite | StdioSite
ModernSite = ModernHttpSite | ModernStdioSite
Site = HandshakeSite | ModernSite
HANDSHAKE_SITES = {
    "http": HttpSite,
    "sse": SseSite,
    "stdio": StdioSite,
    "auto-http": FoundHttpSite,
    "auto-sse": FoundSseSite,
}
MODERN_SITES = {"modern-http": ModernHttpSite, "modern-stdio": ModernStdioSite, "auto-modern": FoundModernSite}
SITES = {**HANDSHAKE_SITES, **MODERN_SITES}
