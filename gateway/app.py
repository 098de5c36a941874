"""The composition root: builds everything from the configuration, starts it in order, drains it in order."""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from gateway.calls import Calls, Endpoint
from gateway.config.load import Loaded, resolve
from gateway.config.models import Config, is_loopback, split_listen
from gateway.config.models import Upstream as UpstreamConfig
from gateway.edge.admin import Admin
from gateway.edge.auth import Authenticator, NoAuthentication, token_authentication
from gateway.edge.http import FrontDoor
from gateway.edge.listener import Listener
from gateway.edge.resource import Resources
from gateway.pending import Background
from gateway.records import Records
from gateway.runner import Limits, Runner, Site
from gateway.service import Service
from gateway.store.embedded import Embedded
from gateway.store.redis import RedisStore, connect
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.upstream.exchange import Connections
from gateway.upstream.http import HttpUpstream
from gateway.upstream.process import Command
from gateway.upstream.stdio import Bounds, StdioUpstream
from gateway.wire.hosts import Hosts

_EMBEDDED = "embedded:"
_LAST_WORDS_S = 5.0
_ANONYMOUS_TTL_MS = 3_600_000
"""How long tasks are kept at most whose callers are not told apart."""


class Gateway:
    """One process. `addresses` and `admin_address` are known once it has started."""

    def __init__(self, loaded: Loaded, base: Path, telemetry: Telemetry) -> None:
        """`base` is what relative paths of the configuration are relative to."""
        self._loaded = loaded
        self._base = base
        self._telemetry = telemetry
        self._stack = AsyncExitStack()
        self._runner: Runner | None = None
        self._admin: Admin | None = None
        self._service: Service | None = None
        self.door: FrontDoor | None = None
        self.wake: Wake | None = None
        self.address = ""
        self.admin_address = ""

    async def start(self) -> None:
        """Store, upstreams, runner, front door: in this order. Raises EmbeddedFailed, StoreAway or OSError."""
        config, telemetry = self._loaded.config, self._telemetry
        url = await self._store_url(config)
        store = RedisStore(
            connect(url, config.store.timeout_s),
            config.store.prefix,
            timeout_s=config.store.timeout_s,
            lease_ms=int(config.runner.lease_s * 1000),
            session_idle_ms=int(config.sessions.idle_ttl_s * 1000),
        )
        self._stack.push_async_callback(store.close)
        await store.check()
        endpoints = self._endpoints()
        wake = self.wake = Wake(connect(url, config.store.timeout_s), store.keys.channel)
        streams = StreamStore(store)
        runner = self._make_runner(store, streams, wake, endpoints, config)
        wake.on_stop = runner.stop
        background = Background(lambda error: telemetry.fault("background", error))
        authenticator = await self._authenticator(config)
        records = Records(
            store,
            wake,
            background,
            telemetry,
            ttl_cap_ms=None if authenticator.tells_apart else _ANONYMOUS_TTL_MS,
            new_id=new_id,
            jitter=random.random,
            nudge=runner.nudge,
        )
        calls = Calls(records, background, telemetry, config.runner.cancel_grace_s)
        service = self._service = Service(
            records, calls, streams, wake, background, telemetry, new_id, lists_tasks=authenticator.tells_apart
        )
        hosts = Hosts(is_loopback(config.server.listen), config.server.allowed_origins)
        door = self.door = FrontDoor(
            service,
            endpoints,
            hosts,
            telemetry,
            authenticator,
            Resources(config.server.origin, [one.issuer for one in config.auth.issuers]),
            max_body_bytes=config.server.max_body_bytes,
        )
        self._admin = Admin(store, telemetry, authenticator)

        self.admin_address = await self._listen(self._admin.application(), config.admin.listen)
        self._stack.push_async_callback(wake.close)
        wake.start()
        self._runner = runner
        self._stack.push_async_callback(runner.drain, config.server.drain_deadline_s)
        runner.start()
        self._stack.push_async_callback(background.close, _LAST_WORDS_S)
        self.address = await self._listen(door.application(), config.server.listen)
        telemetry.store_answers()
        telemetry.log.info("started", listen=self.address, admin=self.admin_address, upstreams=list(endpoints))

    def cannot_reload(self) -> None:
        """Says that new policies need a restart."""
        self._telemetry.log.warning(
            "reload_refused", hint="restart the gateway to read configuration and policies again"
        )

    async def stop(self) -> None:
        """Unready, no new requests, running calls finish until the deadline, upstreams, the store last."""
        if self._admin is not None:
            self._admin.draining = True
        if self._runner is not None:
            self._runner.pause()
        if self._service is not None:
            self._service.drain()
        self._telemetry.log.info("stopping")
        await self._stack.aclose()

    async def _store_url(self, config: Config) -> str:
        url = resolve(config.store.url, self._base)
        if not url.startswith(_EMBEDDED):
            return url
        embedded = Embedded(self._base / url.removeprefix(_EMBEDDED))
        await embedded.start()
        self._stack.push_async_callback(embedded.close)
        self._telemetry.log.info("embedded_store", adopted=embedded.adopted, socket=str(embedded.socket))
        return embedded.url

    async def _authenticator(self, config: Config) -> Authenticator:
        """Keys that cannot be had are no reason not to start: their tokens are refused, and the process is unready."""
        if config.auth.mode == "none":
            return NoAuthentication()
        made = token_authentication(config.auth.issuers, self._base, self._telemetry, time.time, time.monotonic)
        self._stack.push_async_callback(made.close)
        await made.start()
        return made

    def _endpoints(self) -> Mapping[str, Endpoint]:
        endpoints = {}
        self.upstreams: dict[str, HttpUpstream | StdioUpstream] = {}
        for site in self._loaded.sites:
            config = site.upstream
            upstream = self._upstream(config)
            self._stack.push_async_callback(upstream.close)
            self.upstreams[config.name] = upstream
            endpoints[config.name] = Endpoint(config.name, upstream, site.policy)
        return endpoints

    def _upstream(self, config: UpstreamConfig) -> HttpUpstream | StdioUpstream:
        if config.transport != "stdio":
            return HttpUpstream(
                Connections(config.url or "", self._resolved(config.headers), config.connect_timeout_s),
                max_sessions=config.max_sessions,
                session_idle_s=config.session_idle_s,
                first_id=first_id(),
            )
        command = Command(config.command, self._base / (config.cwd or ""), self._resolved(config.env))
        bounds = Bounds(config.max_sessions, config.session_idle_s)
        return StdioUpstream(command, bounds, self._telemetry, first_id=first_id())

    def _resolved(self, values: Mapping[str, str]) -> Callable[[], Mapping[str, str]]:
        return lambda: {name: resolve(value, self._base) for name, value in values.items()}

    def _make_runner(
        self, store: RedisStore, streams: StreamStore, wake: Wake, endpoints: Mapping[str, Endpoint], config: Config
    ) -> Runner:
        sites = {name: Site(endpoint.upstream, endpoint.policy) for name, endpoint in endpoints.items()}
        limits = Limits(
            concurrency=config.runner.concurrency,
            lease_s=config.runner.lease_s,
            takeover_grace_s=config.runner.takeover_grace_s,
            cancel_grace_s=config.runner.cancel_grace_s,
        )
        return Runner(store, streams, sites, limits, new_id(), self._telemetry, wake, random.random)

    async def _listen(self, app: web.Application, listen: str) -> str:
        # A client that goes away ends its handler; work that must go on is never the handler's own.
        runner = Listener(app, self._telemetry, _LAST_WORDS_S)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        host, port = split_listen(listen)
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = runner.addresses[0]
        return f"http://{host}:{bound[1]}"


def new_id() -> str:
    """T25-NEW-2: 192 bits from the system's source of randomness, in 32 characters."""
    return secrets.token_urlsafe(24)


def first_id() -> int:
    """Where ids of requests to an upstream begin: processes that speak in one session never use the same."""
    return secrets.randbelow(2**31) * 2**20


async def serve(gateway: Gateway, stop: asyncio.Event) -> None:
    """Runs until `stop` is set."""
    try:
        await gateway.start()
        await stop.wait()
    finally:
        await gateway.stop()
