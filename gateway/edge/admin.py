"""Health, readiness, metrics and the operator's API, on a listener of their own."""

import asyncio

from aiohttp import web

from gateway.edge.api import MOST_BYTES, Api
from gateway.edge.auth import Authenticator
from gateway.operating.figures import Figures
from gateway.store.port import Store, StoreAway, StoreUnfit
from gateway.telemetry import Telemetry


class Admin:
    """Liveness speaks of this process only, readiness of what it needs to take requests."""

    def __init__(
        self, store: Store, telemetry: Telemetry, authenticator: Authenticator, api: Api, figures: Figures
    ) -> None:
        self._store = store
        self._api = api
        self._figures = figures
        self._authenticator = authenticator
        self._telemetry = telemetry
        self.draining = False

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_routes(self._api.routes())
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        if self.draining:
            return web.Response(status=503, text="draining\n")
        if not self._authenticator.ready:
            return web.Response(status=503, text="the keys of an issuer were never there\n")
        try:
            await self._store.check()
        except StoreUnfit as error:
            return web.Response(status=503, text=f"{error}\n")
        except StoreAway as error:
            return web.Response(status=503, text=f"the store does not answer: {error}\n")
        return web.Response(text="ready\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        await self._figures.refresh()
        # Writing hundreds of series takes milliseconds: not on the loop that serves requests.
        body = await asyncio.to_thread(self._telemetry.exposition)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
