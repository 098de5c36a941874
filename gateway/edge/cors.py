"""Browsers: which pages may talk to this gateway, and what they may see of its answers (the Fetch standard's CORS).

A page is allowed by its origin, exactly as every request is; credentials are tokens in a header, never cookies.
"""

import re
from collections.abc import Callable
from typing import Final

from aiohttp import web

from gateway.wire.hosts import Hosts

_MAY_SEND: Final = re.compile(
    r"mcp-[a-z0-9-]+|content-type|accept|authorization|last-event-id|traceparent|tracestate|baggage"
)
_EXPOSED: Final = "Mcp-Session-Id, WWW-Authenticate, Retry-After"
_MAX_AGE_S: Final = "7200"
_MOST_NAMES: Final = 50


class Cors:
    """Adds the headers. `public` tells which paths everybody may read."""

    def __init__(self, hosts: Hosts, public: Callable[[str], bool]) -> None:
        self._hosts = hosts
        self._public = public

    def install(self, app: web.Application) -> None:
        """Lets every answer of the application carry the headers, errors and streams included."""
        app.on_response_prepare.append(self._prepare)

    async def preflight(self, request: web.Request) -> web.Response:
        """What a page may send, asked before it does."""
        origin = request.headers.get("Origin")
        if origin is None or self._hosts.refuses(request.host, origin) is not None:
            return web.Response(status=403)
        asked = request.headers.get("Access-Control-Request-Headers", "").lower().split(",")[:_MOST_NAMES]
        names = [name for name in (one.strip() for one in asked) if _MAY_SEND.fullmatch(name)]
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": ", ".join(names),
            "Access-Control-Max-Age": _MAX_AGE_S,
        }
        return web.Response(status=204, headers=headers)

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("Origin")
        if self._public(request.path):
            response.headers["Access-Control-Allow-Origin"] = "*"
        elif origin is not None and self._hosts.refuses(request.host, origin) is None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
            response.headers.add("Vary", "Origin")
