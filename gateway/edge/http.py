"""The MCP endpoint: reads one message, asks the request loop, writes the answer."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

from aiohttp import web

from gateway.core.model import Principal
from gateway.edge.auth import Authenticator
from gateway.edge.cors import Cors
from gateway.edge.resource import WELL_KNOWN, Resources
from gateway.edge.streams import KEEP_ALIVE_S, respond, written
from gateway.requests.callers import Endpoint
from gateway.requests.service import Service
from gateway.telemetry import Telemetry
from gateway.wire import reply
from gateway.wire.classify import SESSION_HEADER, Rejected, classify
from gateway.wire.errors import Era, Reject
from gateway.wire.hosts import Hosts
from gateway.wire.intent import Inbound, id_of
from gateway.wire.reply import Reply


class FrontDoor:
    """Serves `/mcp` (the first upstream) and `/{upstream}/mcp`."""

    def __init__(
        self,
        service: Service,
        endpoints: Mapping[str, Endpoint],
        hosts: Hosts,
        telemetry: Telemetry,
        authenticator: Authenticator,
        resources: Resources,
        *,
        max_body_bytes: int,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._service = service
        self._endpoints = endpoints
        self._first = next(iter(endpoints.values()))
        self._hosts = hosts
        self._telemetry = telemetry
        self._authenticator = authenticator
        self._resources = resources
        self._max_body = max_body_bytes
        self._keep_alive_s = keep_alive_s
        self._under_way: set[asyncio.Task[Any]] = set()

    @property
    def under_way(self) -> set["asyncio.Task[Any]"]:
        """The requests that are being answered now."""
        return set(self._under_way)

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=self._max_body)
        cors = Cors(self._hosts, lambda path: path.startswith(WELL_KNOWN))
        cors.install(app)
        for path in ("/mcp", "/{upstream}/mcp"):
            app.router.add_post(path, self._post)
            app.router.add_delete(path, self._delete)
            app.router.add_get(path, self._get, allow_head=False)
            app.router.add_options(path, cors.preflight)
        if self._resources.issuers:
            for path in ("", "/mcp", "/{upstream}/mcp"):
                app.router.add_get(f"{WELL_KNOWN}{path}", self._metadata)
        return app

    async def _post(self, request: web.Request) -> web.StreamResponse:
        handling = asyncio.current_task()
        assert handling is not None  # noqa: S101  # a handler always runs in a task
        self._under_way.add(handling)
        try:
            return await self._posted(request)
        finally:
            self._under_way.discard(handling)

    async def _posted(self, request: web.Request) -> web.StreamResponse:
        started = time.perf_counter()
        endpoint = self._endpoint(request)
        principal = await self._principal(request)
        inbound = await self._inbound(request) if isinstance(principal, Principal) else principal
        if isinstance(inbound, Rejected):
            era, method = inbound.era, "rejected"
            answer = reply.refusal(inbound.id, inbound.reject, era)
            response: web.StreamResponse = written(self._challenged(answer, request, endpoint))
        else:
            era, method = inbound.speech.era, type(inbound.intent).__name__
            response, answer = await self._answer(request, endpoint, cast("Principal", principal), inbound)
        self._telemetry.request(
            upstream=endpoint.name,
            era=era.value,
            method=method,
            outcome=answer.reason or "ok",
            status=response.status,
            seconds=time.perf_counter() - started,
        )
        return response

    async def _answer(
        self, request: web.Request, endpoint: Endpoint, principal: Principal, inbound: Inbound
    ) -> tuple[web.StreamResponse, Reply]:
        try:
            found = await self._service.handle(endpoint, principal, inbound)
            if isinstance(found, Reply):
                return written(self._challenged(found, request, endpoint)), found
            return await respond(request, found, self._keep_alive_s)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception as error:  # noqa: BLE001  # a client is told that it was our fault, and never in HTML
            self._telemetry.fault("request", error)
            if request.transport is not None and request.writer.output_size > 0:
                request.transport.close()  # its stream has begun: an end without an answer is all that is left
            answer = reply.refusal(id_of(inbound.intent), Reject("internal", "Internal error"), inbound.speech.era)
            return written(answer), answer

    async def _principal(self, request: web.Request) -> Principal | Rejected:
        """Host and Origin first, then the token."""
        refused = self._hosts.refuses(request.host, request.headers.get("Origin"))
        if refused is not None:
            return Rejected(Reject("origin", refused), Era.LEGACY)
        authorization = request.headers.getall("Authorization", [])
        resource = self._resources.url(request.match_info.get("upstream"))
        found = await self._authenticator.identify(authorization, resource)
        return Rejected(found, Era.LEGACY) if isinstance(found, Reject) else found

    def _challenged(self, answer: Reply, request: web.Request, endpoint: Endpoint) -> Reply:
        """A refusal for want of a token or of a scope, with the header that says what is wanted."""
        return self._resources.challenged(answer, request.match_info.get("upstream"), endpoint.policy.scopes)

    async def _metadata(self, request: web.Request) -> web.StreamResponse:
        """RFC 9728: open to everybody who may talk to this listener at all."""
        endpoint = self._endpoint(request)
        refused = self._hosts.refuses(request.host, None)
        if refused is not None:
            return written(reply.refusal(None, Reject("origin", refused), Era.LEGACY))
        body = self._resources.document(request.match_info.get("upstream"), endpoint.name, endpoint.policy.scopes)
        return web.Response(body=body, content_type="application/json")

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        """Ends a legacy session."""
        asked = await self._of_session(request)
        if isinstance(asked, web.StreamResponse):
            return asked
        endpoint, principal, session = asked
        return written(await self._service.end_session(endpoint, principal.owner_at(endpoint.name), session))

    async def _get(self, request: web.Request) -> web.StreamResponse:
        """The stream of a legacy session."""
        asked = await self._of_session(request)
        if isinstance(asked, web.StreamResponse):
            return asked
        endpoint, principal, session = asked
        if "text/event-stream" not in request.headers.get("Accept", ""):
            return web.Response(status=406, text="Accept must list text/event-stream\n")
        event = request.headers.get("Last-Event-ID")
        found = await self._service.open_stream(endpoint, principal, session, event)
        if isinstance(found, Reply):
            return written(found)
        response, _ = await respond(request, found, self._keep_alive_s)
        return response

    async def _of_session(self, request: web.Request) -> tuple[Endpoint, Principal, str] | web.StreamResponse:
        """Who speaks in which session; without a session this URL takes POST only (TX-HTTP-1)."""
        endpoint = self._endpoint(request)
        principal = await self._principal(request)
        if isinstance(principal, Rejected):
            answer = reply.refusal(None, principal.reject, Era.LEGACY)
            return written(self._challenged(answer, request, endpoint))
        session = request.headers.get(SESSION_HEADER)
        if session is None:
            return web.Response(status=405, headers={"Allow": "POST"})
        return endpoint, principal, session

    async def _inbound(self, request: web.Request) -> Inbound | Rejected:
        if request.content_type != "application/json":
            return Rejected(Reject("invalid_request", "Content-Type must be application/json"), Era.LEGACY)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            reject = Reject("too_large", f"the body is larger than {self._max_body} bytes", {"limit": self._max_body})
            return Rejected(reject, Era.LEGACY)
        headers = {name.lower(): request.headers.getall(name) for name in request.headers}
        return classify(headers, body)

    def _endpoint(self, request: web.Request) -> Endpoint:
        name = request.match_info.get("upstream")
        if name is None:
            return self._first
        if name not in self._endpoints:
            raise web.HTTPNotFound
        return self._endpoints[name]
