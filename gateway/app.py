"""The composition root: builds everything from the configuration, starts it in order, drains it in order."""

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from gateway.config.load import Loaded, resolve
from gateway.config.models import Config
from gateway.config.models import Upstream as UpstreamConfig
from gateway.edge.admin import Admin
from gateway.edge.api import Api
from gateway.edge.auth import Authenticator, NoAuthentication, token_authentication
from gateway.edge.guard import Guard
from gateway.fronts import LAST_WORDS_S, Front, HttpFront, Served, listen
from gateway.operating.actions import Operating
from gateway.operating.audit import AuditFailed, Sink
from gateway.operating.exporting import Audit, Exporting
from gateway.operating.figures import Figures
from gateway.pending import Background, Patience
from gateway.pinning import StoredPins
from gateway.requests.callers import Endpoint
from gateway.requests.calls import Calls
from gateway.requests.forwarding import Forwarding
from gateway.requests.records import Records
from gateway.requests.service import Service
from gateway.running.performing import Site
from gateway.running.runner import Limits, Runner
from gateway.store.exports import Exports
from gateway.store.ledger import LedgerStore
from gateway.store.opening import open_store
from gateway.store.redis import RedisStore, connect
from gateway.store.streams import StreamStore
from gateway.store.switches import Switches
from gateway.store.wake import Wake
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
from gateway.wire.errors import Era

_SHORT_S = 0.5
"""How long a server may take to end after its input was closed, where nobody has the time to wait."""
_ID_BITS = 51
"""Requests of many processes in one upstream session begin far from each other, at numbers that every peer can read."""
_ANONYMOUS_TTL_MS = 3_600_000
"""How long tasks are kept at most whose callers are not told apart."""


class Gateway:
    """One process. `address` and `admin_address` are known once it has started."""

    def __init__(
        self,
        loaded: Loaded,
        base: Path,
        telemetry: Telemetry,
        front: Front | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`base` is what relative paths of the configuration are relative to. Without a `front` it is HTTP.

        `jitter` (0 to 1) spreads what many processes would do together.
        """
        self._jitter = jitter
        self._loaded = loaded
        self._base = base
        self._telemetry = telemetry
        self._stack = AsyncExitStack()
        self._runner: Runner | None = None
        self._admin: Admin | None = None
        self._service: Service | None = None
        self._background: Background | None = None
        self._hurried = asyncio.Event()
        self._patience: Patience | None = None
        self.front: Front = front or HttpFront()
        self.wake: Wake | None = None
        self.address = ""
        self.admin_address = ""

    async def start(self) -> None:
        """Store, upstreams, runner, front door: in this order.

        Raises EmbeddedFailed, AuditFailed, StoreAway or OSError.
        """
        config, telemetry = self._loaded.config, self._telemetry
        resolved = resolve(config.store.url, self._base)
        opened = await open_store(config, resolved, self._base, telemetry, self._stack)
        store = opened.store
        streams = StreamStore(store)
        endpoints = self._endpoints(StoredPins(streams, int(config.sessions.idle_ttl_s * 1000)))
        wake = self.wake = Wake(connect(opened.url, config.store.timeout_s), store.keys.channel)
        runner = self._make_runner(store, streams, wake, endpoints, config)
        wake.on_stop = runner.stop
        background = self._background = Background(lambda error: telemetry.fault("background", error))
        authenticator = await self._authenticator(config)
        records = Records(
            store,
            wake,
            background,
            telemetry,
            ttl_cap_ms=None if authenticator.tells_apart else _ANONYMOUS_TTL_MS,
            new_id=new_id,
            jitter=self._jitter,
            nudge=runner.nudge,
        )
        forwarding = Forwarding(streams, wake, background, telemetry, new_id)
        calls = Calls(records, forwarding, streams, new_id, background, telemetry, config.runner.cancel_grace_s)
        service = self._service = Service(
            records,
            calls,
            forwarding,
            streams,
            wake,
            background,
            telemetry,
            new_id,
            lists_tasks=authenticator.tells_apart,
        )
        await self._open_admin(store, records, authenticator, endpoints)
        self._stack.push_async_callback(wake.close)
        wake.start()
        self._runner = runner
        self._stack.push_async_callback(self._drain, runner)
        runner.start()
        self._stack.push_async_callback(background.close, LAST_WORDS_S)
        served = Served(config, service, endpoints, authenticator, telemetry)
        self.address = await self.front.open(served, self._stack)
        telemetry.store_answers()
        telemetry.log.info("started", listen=self.address, admin=self.admin_address, upstreams=list(endpoints))

    def drain(self, on: bool) -> int | None:  # noqa: FBT001  # a callback with one meaning
        """Takes no new work, or takes it again; how many calls still run here. None once the process stops."""
        if self._patience is not None or self._runner is None or self._service is None or self._admin is None:
            return None
        self._admin.draining = on
        self._service.takes_work = not on
        if on:
            self._runner.pause()
        else:
            self._runner.resume()
        return self._runner.running

    def cannot_reload(self) -> None:
        """Says that new policies need a restart."""
        self._telemetry.log.warning(
            "reload_refused", hint="restart the gateway to read configuration and policies again"
        )

    async def stop(self) -> None:
        """Unready, no new requests, running calls finish until the deadline, upstreams, the store last."""
        patience = self._patience = Patience(self._loaded.config.server.drain_deadline_s, self._hurried)
        if self._admin is not None:
            self._admin.draining = True
        if self._service is not None:
            self._service.drain()
        self._telemetry.log.info("stopping")
        if self._runner is not None and not self.front.alone:
            self._runner.pause()
        try:
            await self.front.settle(patience)
            if self._background is not None:  # T25-HTTP-1: calls go on whose clients have left
                await patience.wait(self._background.under_way("forward", "answer"))
        finally:
            if self._runner is not None:
                self._runner.pause()
            await self._stack.aclose()

    def hurry(self) -> None:
        """Waits for nothing any more: what still runs is cut off, and its record told so."""
        self._hurried.set()

    async def _drain(self, runner: Runner) -> None:
        await runner.drain(self._patience or Patience(0, self._hurried))

    async def _close(self, upstream: Upstream) -> None:
        """Politely, as long as there is time."""
        closing = asyncio.ensure_future(upstream.close())
        hurried = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait({closing, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not hurried.done():
            hurried.cancel()
        elif isinstance(upstream, StdioUpstream):
            await asyncio.wait({closing}, timeout=_SHORT_S)
            upstream.hurry()
        await closing

    async def _open_admin(
        self, store: RedisStore, records: Records, authenticator: Authenticator, endpoints: Mapping[str, Endpoint]
    ) -> None:
        """The operator's side: the audit sink, and the listener for everything else."""
        config, telemetry = self._loaded.config, self._telemetry
        policies = {name: endpoint.policy for name, endpoint in endpoints.items()}
        ledger, exports, audit = LedgerStore(store), Exports(store), await self._open_audit(config)
        if config.audit.file:
            exporting = Exporting(exports, audit, telemetry, random.random)
            self._stack.push_async_callback(exporting.close)
            exporting.start()
        switches = Switches(store)
        operating = Operating(records, ledger, switches, policies, telemetry, audit, new_id, self.drain)
        api = Api(operating, self._guard(config), telemetry)
        figures = Figures(ledger, exports, switches, list(endpoints), telemetry)
        admin = self._admin = Admin(store, telemetry, authenticator, api, figures)
        address = self.front.admin(config)
        if address is not None:
            self.admin_address = await listen(admin.application(), address, telemetry, self._stack)

    async def _open_audit(self, config: Config) -> Audit:
        if not config.audit.file:
            return Audit(None, self._telemetry)
        sink = Sink(self._base / config.audit.file)
        try:
            await sink.write(())
        except OSError as error:
            raise AuditFailed(f"audit.file: cannot be written: {error.strerror or error}") from error
        return Audit(sink, self._telemetry)

    def _guard(self, config: Config) -> Guard:
        token = config.admin.token
        return Guard(None if token is None else lambda: resolve(token, self._base))

    async def _authenticator(self, config: Config) -> Authenticator:
        """Keys that cannot be had are no reason not to start: their tokens are refused, and the process is unready."""
        if config.auth.mode == "none":
            return NoAuthentication()
        made = token_authentication(config.auth.issuers, self._base, self._telemetry, time.time, time.monotonic)
        self._stack.push_async_callback(made.close)
        await made.start()
        return made

    def _endpoints(self, pins: StoredPins) -> Mapping[str, Endpoint]:
        endpoints = {}
        self.upstreams: dict[str, Upstream] = {}
        for site in self._loaded.sites:
            config = site.upstream
            upstream = self._upstream(config, pins)
            self._stack.push_async_callback(self._close, upstream)
            self.upstreams[config.name] = upstream
            endpoints[config.name] = Endpoint(config.name, upstream, site.policy)
        return endpoints

    def _upstream(self, config: UpstreamConfig, pins: StoredPins) -> Upstream:
        ids = itertools.count(secrets.randbits(_ID_BITS))
        if config.transport == "stdio":
            command = Command(config.command, self._base / (config.cwd or ""), self._resolved(config.env))
            era = None if config.era == "auto" else Era(config.era)
            bounds = Bounds(config.max_sessions, config.session_idle_s)
            return StdioUpstream(command, bounds, self._telemetry, era, ids=ids)
        if config.transport == "auto":
            transports = {"streamable HTTP": self._http(config, pins, ids)}
            if config.era != "modern":
                transports["HTTP+SSE"] = self._sse(config, ids)
            return AutoUpstream(transports, ids, self._telemetry)
        return self._sse(config, ids) if config.transport == "sse" else self._http(config, pins, ids)

    def _http(self, config: UpstreamConfig, pins: StoredPins, ids: Iterator[int]) -> Upstream:
        connections = self._connections(config)
        modern = ModernUpstream(connections, config.name, self._telemetry, lambda: next(ids))
        if config.era == "modern":
            return modern
        legacy = HttpUpstream(
            connections,
            pins,
            max_sessions=config.max_sessions,
            session_idle_s=config.session_idle_s,
            ids=ids,
        )
        return legacy if config.era == "legacy" else BothEras(connections, legacy, modern)

    def _sse(self, config: UpstreamConfig, ids: Iterator[int]) -> Upstream:
        bounds = Bounds(config.max_sessions, config.session_idle_s)
        return SseUpstream(self._connections(config), bounds, self._telemetry, new_id, ids=ids)

    def _connections(self, config: UpstreamConfig) -> Connections:
        return Connections(config.url or "", self._resolved(config.headers), config.connect_timeout_s)

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
        return Runner(store, streams, sites, limits, new_id(), self._telemetry, wake, self._jitter)


def new_id() -> str:
    """T25-NEW-2: 192 bits from the system's source of randomness, in 32 characters."""
    return secrets.token_urlsafe(24)


async def serve(gateway: Gateway, stop: asyncio.Event) -> None:
    """Runs until `stop` is set."""
    try:
        await gateway.start()
        await stop.wait()
    finally:
        await gateway.stop()
