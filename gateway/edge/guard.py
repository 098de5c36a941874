"""Who may use the operator's API: whoever has the token, or where there is none, whoever is on this machine."""

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from gateway.wire.hosts import is_local

_SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is not served. `message` tells the operator what to do."""

    status: int
    reason: str
    message: str
    retryable: bool = False

    def response(self) -> web.Response:
        """As JSON, like everything that the API says."""
        error = {"reason": self.reason, "message": self.message, "retryable": self.retryable}
        headers = {"WWW-Authenticate": "Bearer"} if self.status == _UNAUTHENTICATED else {}
        return answer({"error": error}, self.status, {**headers, **({"Retry-After": "1"} if self.retryable else {})})


def answer(body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer of the API, which nobody keeps."""
    kept = {"Cache-Control": "no-store", **(headers or {})}
    return web.Response(text=json.dumps(body), status=status, content_type="application/json", headers=kept)


class Guard:
    """Looks at each request before anything else does."""

    def __init__(self, token: Callable[[], str] | None) -> None:
        """`token` reads what callers must show, at each request; raises LookupError or OSError. None: no token."""
        self._token = token

    def refuses(self, request: web.Request) -> Problem | None:
        """Why a request is not served, or None."""
        problem = _from_a_page(request) if self._token is None else self._without_token(request, self._token)
        if problem is None and request.method != "GET" and request.content_type != "application/json":
            return Problem(415, "content_type", "Content-Type must be application/json")
        return problem

    def _without_token(self, request: web.Request, token: Callable[[], str]) -> Problem | None:
        try:
            wanted = token()
        except (LookupError, OSError):
            return Problem(503, "no_token", "the gateway cannot read admin.token: nobody is served until it can")
        shown = request.headers.getall("Authorization", [])
        scheme, _, given = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), wanted.encode())
        if scheme.lower() == _SCHEME and same:
            return None
        message = "wants the token of admin.token: Authorization: Bearer TOKEN"
        return Problem(_UNAUTHENTICATED, "unauthenticated", message)


def _from_a_page(request: web.Request) -> Problem | None:
    """Without a token every program of this machine is served, but no page that a browser shows here."""
    if "Origin" in request.headers:
        return Problem(403, "origin", "requests of web pages are not served: an Origin header came along")
    if not is_local(f"//{request.host}"):
        return Problem(403, "host", "only loopback names are served: call it 127.0.0.1 or localhost")
    return None


_UNAUTHENTICATED: Final = 401
