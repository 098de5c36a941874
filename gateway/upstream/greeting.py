"""How a server is greeted that says everything in one stream: which era it speaks is asked once, and remembered.

The question is `server/discover`. A server that knows it is modern; any other answer, or none for a while, means
`initialize`. Servers that end at what they do not know are started once more and greeted with `initialize` at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from gateway.upstream import discovery
from gateway.upstream.handshake import greeted, initialize
from gateway.upstream.port import Call, Hello, NotSent, OutcomeUnknown
from gateway.wire.errors import Era
from gateway.wire.jsonrpc import Response
from gateway.wire.modern_client import Discovered

Exchange: TypeAlias = Callable[[Call], Awaitable[Response]]
Greet: TypeAlias = Callable[[Exchange], Awaitable[tuple[str, Hello]]]
"""Agrees with a server on a version; gives it and what the server said of itself. Raises NotSent or OutcomeUnknown."""


def handshake(call: Call) -> Greet:
    """How a server is greeted that has nothing but `initialize`."""

    async def greet(exchange: Exchange) -> tuple[str, Hello]:
        return greeted(await exchange(call))

    return greet


_LATE: Final = "the upstream's process told its era after it had been greeted in the other one"
_OTHER_ERA: Final = "the upstream's process does not speak the era in which it is greeted"


class Greeter:
    """Knows the era of one upstream. `era` is None while it has to be found out; `fixed` eras never change."""

    def __init__(self, era: Era | None, next_id: Callable[[], int]) -> None:
        self.era = era
        self._fixed = era is not None
        self._sure = self._fixed
        self._next_id = next_id
        self._asked = asyncio.Event()
        self._asking = False

    def greet(self, capabilities: str) -> Greet:
        """How to greet a server for a client with these capabilities."""

        async def greet(exchange: Exchange) -> tuple[str, Hello]:
            if self.era is None and self._asking:
                await self._wait()
            if self.era is None:
                return await self._find_out(exchange, capabilities)
            if self.era is Era.MODERN:
                return self._modern(await self._meant(exchange))
            return await self._legacy(exchange, capabilities)

        return greet

    async def _wait(self) -> None:
        """Somebody asks already; but nobody waits for longer than asking may take."""
        try:
            async with asyncio.timeout(discovery.PROBE_S):
                await self._asked.wait()
        except TimeoutError:
            return

    async def _find_out(self, exchange: Exchange, capabilities: str) -> tuple[str, Hello]:
        self._asking = True
        self._asked.clear()
        try:
            return await self._probed(exchange, capabilities)
        except OutcomeUnknown as error:
            if self.era is None and error.reason == "upstream_down":
                self.era, self._sure = Era.LEGACY, False  # it may have ended because of what it was asked
            raise
        finally:
            self._asking = False
            self._asked.set()

    async def _probed(self, exchange: Exchange, capabilities: str) -> tuple[str, Hello]:
        asking = asyncio.ensure_future(self._meant(exchange))
        asking.add_done_callback(_heed)
        greeting: asyncio.Future[tuple[str, Hello]] | None = None
        try:
            await asyncio.wait({asking}, timeout=discovery.PROBE_S)
            if asking.done():
                return self._modern(found) if (found := asking.result()) else await self._legacy(exchange, capabilities)
            self._asked.set()
            greeting = asyncio.ensure_future(self._legacy(exchange, capabilities))
            greeting.add_done_callback(_heed)
            await asyncio.wait({asking, greeting}, return_when=asyncio.FIRST_COMPLETED)
            if _failed(greeting):
                await asyncio.wait({asking}, timeout=discovery.PROBE_S)
            greets_back = greeting.done() and not _failed(greeting)
            if asking.done() and not _failed(asking) and asking.result() is not None and not greets_back:
                self.era, self._sure = Era.MODERN, True
                raise NotSent("upstream_down", _LATE, again=True)
            return await greeting
        finally:
            for one in (asking, greeting):
                if one is not None:
                    one.cancel()

    async def _meant(self, exchange: Exchange) -> Discovered | None:
        """What the server says to `server/discover`; None for what only a server of the other era says."""
        try:
            return discovery.meant(await exchange(discovery.discover(self._next_id())))
        except OutcomeUnknown as error:
            if error.reason == "upstream_down":
                raise
            return None

    def _modern(self, found: Discovered | None) -> tuple[str, Hello]:
        if found is None:
            self._forget()
            raise NotSent("upstream_bad", _OTHER_ERA, again=not self._fixed)
        self.era, self._sure = Era.MODERN, True
        return found.version, discovery.hello_of(found)

    async def _legacy(self, exchange: Exchange, capabilities: str) -> tuple[str, Hello]:
        try:
            version, hello = greeted(await exchange(initialize(self._next_id(), capabilities)))
        except NotSent:
            self._forget()
            raise
        except OutcomeUnknown:
            if not self._sure:
                self._forget()
            raise
        self.era, self._sure = Era.LEGACY, True
        return version, hello

    def _forget(self) -> None:
        if not self._fixed:
            self.era, self._sure = None, False


def _failed(one: "asyncio.Future[Any]") -> bool:
    return one.done() and one.exception() is not None


def _heed(one: "asyncio.Future[Any]") -> None:
    """Of two that fail together only one is waited for."""
    if not one.cancelled():
        one.exception()
