"""The fronts: how clients reach the request loop. Which one there is is the only difference between two gateways."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from gateway.config.models import Config, is_loopback, split_listen
from gateway.edge.auth import ANONYMOUS, Authenticator
from gateway.edge.http import FrontDoor
from gateway.edge.listener import Listener
from gateway.edge.resource import Resources
from gateway.edge.standard import LineReader, LineWriter
from gateway.edge.stdio import StdioDoor
from gateway.pending import Patience
from gateway.requests.callers import Endpoint
from gateway.requests.service import Service
from gateway.telemetry import Telemetry
from gateway.wire.hosts import Hosts

LAST_WORDS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Served:
    """What a front brings to clients."""

    config: Config
    service: Service
    endpoints: Mapping[str, Endpoint]
    authenticator: Authenticator
    telemetry: Telemetry


class Front(Protocol):
    """One way in. `alone` tells that no other gateway can do the work that is planned for its clients."""

    alone: bool

    def admin(self, config: Config) -> str | None:
        """Where health and metrics are served; None where they are not."""

    async def open(self, served: Served, stack: AsyncExitStack) -> str:
        """Begins to serve; what ends it goes onto the stack. Returns how clients reach it. Raises OSError."""

    async def settle(self, patience: Patience) -> None:
        """Takes nothing new. Answers that are under way may come until the patience is over."""


class HttpFront:
    """Clients connect to `server.listen`."""

    alone = False

    def __init__(self) -> None:
        self.door: FrontDoor | None = None

    def admin(self, config: Config) -> str | None:
        """As configured."""
        return config.admin.listen

    async def open(self, served: Served, stack: AsyncExitStack) -> str:
        """Listens."""
        config = served.config
        self.door = FrontDoor(
            served.service,
            served.endpoints,
            Hosts(is_loopback(config.server.listen), config.server.allowed_origins),
            served.telemetry,
            served.authenticator,
            Resources(config.server.origin, [one.issuer for one in config.auth.issuers]),
            max_body_bytes=config.server.max_body_bytes,
        )
        return await listen(self.door.application(), config.server.listen, served.telemetry, stack)

    async def settle(self, patience: Patience) -> None:
        """Requests that are being answered may end; what comes after that has the listener's last words."""
        if self.door is not None:
            await patience.wait(self.door.under_way)


class StdioFront:
    """One client, which started this process, at two descriptors. It is the one principal there is."""

    alone = True

    def __init__(self, source: int, sink: int, ended: asyncio.Event, admin: str | None = None) -> None:
        """`ended` is set when the client has closed either of them."""
        self._source = source
        self._sink = sink
        self._ended = ended
        self._admin = admin
        self._door: StdioDoor | None = None

    def admin(self, config: Config) -> str | None:
        """Only where it was asked for: a client may start many gateways with one configuration."""
        del config
        return self._admin

    async def open(self, served: Served, stack: AsyncExitStack) -> str:
        """Begins to read. The first upstream is the one that is spoken to."""
        del stack  # `settle` ends all of it
        reader = LineReader(self._source, served.config.server.max_body_bytes)
        writer = LineWriter(self._sink)
        endpoint = next(iter(served.endpoints.values()))
        self._door = StdioDoor(served.service, endpoint, ANONYMOUS, served.telemetry, reader, writer, self._ended)
        self._door.start()
        return "stdio"

    async def settle(self, patience: Patience) -> None:
        """Answers what was asked, then lets go."""
        if self._door is not None:
            await self._door.settle(patience)


async def listen(app: web.Application, address: str, telemetry: Telemetry, stack: AsyncExitStack) -> str:
    """Serves an application at HOST:PORT until the stack unwinds; the URL that it has. Raises OSError."""
    # A client that goes away ends its handler; work that must go on is never the handler's own.
    runner = Listener(app, telemetry, LAST_WORDS_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, port = split_listen(address)
    site = web.TCPSite(runner, host, port)
    await site.start()
    bound = runner.addresses[0]
    return f"http://{host}:{bound[1]}"
