"""MCP over the standard streams of child processes: a process for each principal and set of declared capabilities.

A server of revision 2026-07-28 is told with each request what its client can do, so that one process serves all calls
of a principal.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from msgspec import Raw

from gateway.core.model import Owner
from gateway.telemetry import Telemetry
from gateway.upstream.child import Child
from gateway.upstream.discovery import MAX_BYTES
from gateway.upstream.greeting import Greet, Greeter
from gateway.upstream.links import Key, key_of
from gateway.upstream.pool import Bounds, Pool
from gateway.upstream.port import NO_CAPABILITIES, Call, Link, NotSent, OnNote, OnRequest
from gateway.upstream.process import Command
from gateway.upstream.rounds import Rounds
from gateway.upstream.session import Session
from gateway.wire import modern_client
from gateway.wire.errors import Era
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Notification, Response, write

_SHORT_LIFE_S: Final = 1.0
_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 10.0
_PATIENCE_S: Final = 1.0
"""How long a start may be waited for by whoever wants to call."""
_FORGET_S: Final = 60.0
_LISTEN_PAUSE_S: Final = 1.0
"""Between two subscriptions, so that a server which ends each at once is not asked without end."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Starts in a row that came to nothing, and when the next one may be, on the loop's clock."""

    count: int
    not_before: float
    why: str


class StdioUpstream(Pool):
    """One command, run as often as there are principals who use it."""

    WHAT: ClassVar[str] = Child.WHAT
    MANY: ClassVar[str] = "processes"

    def __init__(
        self,
        command: Command,
        bounds: Bounds,
        telemetry: Telemetry,
        era: Era | None = None,
        *,
        ids: Iterator[int] | None = None,
    ) -> None:
        """`era` is None where it has to be found out. Of `ids`, those of one gateway are none of another's."""
        super().__init__(bounds, ids)
        self._command = command
        self._telemetry = telemetry
        self._troubles: dict[Key, _Trouble] = {}
        self._greeter = Greeter(era, self.next_id)
        self._rounds = Rounds(self.next_id)
        self._started = asyncio.Event()

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        if link.version not in MODERN_VERSIONS:
            return await super().perform(link, call, on_note, on_request)

        async def send(one: Call) -> Response:
            session = self._of(link)
            if one is not call and (session is None or not session.usable):
                session = self._of(await self.open(link.owner, link.capabilities))
            if session is None:
                raise self._over()
            params = modern_client.params(one.params, link.version, link.capabilities)
            return await session.perform(replace(one, params=params, raw=None), on_note, None)

        return await self._rounds.perform(call, send, on_request)

    async def cancel(self, link: Link, call: Call) -> None:
        """T25-CAN-3: notifications/cancelled with the id of the request that is under way."""
        await super().cancel(link, self._rounds.current(call) or call)

    async def listen(self, link: Link, on_note: OnNote, on_request: OnRequest, resources: Sequence[str] = ()) -> None:
        """Hears what belongs to no call, from every process of this principal that was told the same.

        A modern server is asked for changes of its lists and of `resources`, in one process that runs anyhow.
        """
        if link.version in MODERN_VERSIONS:
            await self._subscribe(link, on_note, resources)
            return
        with self._hearing(key_of(link), on_note, on_request):
            await asyncio.get_running_loop().create_future()

    async def leave(self, link: Link) -> None:
        """Processes belong to their principal, and end when nobody has used them for a while."""

    def _key(self, owner: Owner, capabilities: str, client: str) -> Key:  # noqa: ARG002  # processes are the principal's
        return owner, NO_CAPABILITIES if self._greeter.era is Era.MODERN else capabilities, ""

    def hurry(self) -> None:
        """Ends what `close` waits for without a further word."""
        for session in self._sessions.values():
            session.kill()

    def _name(self) -> str:
        return str(self.next_id())

    def _made(self, link: Link) -> Session:
        return Child(link, self._command, self._bounds.idle_s, self._telemetry, self._hooks)

    def _greeting(self, key: Key) -> Greet:
        return self._greeter.greet(key[1])

    async def _begin(self, key: Key) -> Session | NotSent:
        era = self._greeter.era
        outcome = await super()._begin(key)
        if isinstance(outcome, NotSent) and self._greeter.era not in (era, None):
            outcome = await super()._begin(key)  # what is known by now was not known to the first start
        return outcome

    def _begun(self, session: Session) -> None:  # noqa: ARG002  # whoever waits for one looks
        self._started.set()

    async def _subscribe(self, link: Link, on_note: OnNote, resources: Sequence[str]) -> None:
        """Listens for as long as the principal has a process, and again when there is a new one."""
        wanted = modern_client.subscription(link.hello.capabilities, resources)

        def relay(note: Notification) -> None:
            told = modern_client.told(note)
            if told is not None:
                on_note(told)

        while wanted:
            self._started.clear()
            session = self._free((link.owner, NO_CAPABILITIES, ""))
            if session is None:
                await self._started.wait()
                continue
            asked = modern_client.params({"notifications": Raw(write(wanted))}, link.version, NO_CAPABILITIES)
            if not await session.subscribe(Call(self.next_id(), modern_client.LISTEN, asked, MAX_BYTES), relay):
                return
            await asyncio.sleep(_LISTEN_PAUSE_S)

    async def _prepare(self, key: Key) -> None:
        """Waits after trouble."""
        trouble = self._troubles.get(key)
        wait_s = 0.0 if trouble is None else trouble.not_before - asyncio.get_running_loop().time()
        if trouble is not None and wait_s > _PATIENCE_S:
            message = f"{trouble.why}; it is started again in {wait_s:.1f} s"
            raise NotSent("upstream_down", message, again=True)
        await asyncio.sleep(max(0.0, wait_s))

    def _failed(self, key: Key, why: str) -> None:
        now = asyncio.get_running_loop().time()
        known = self._troubles.get(key)
        count = 0 if known is None else known.count + 1
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(count, 16))
        self._troubles = {name: one for name, one in self._troubles.items() if one.not_before + _FORGET_S > now}
        self._troubles[key] = _Trouble(count, now + delay_s, why)

    def _lost(self, session: Session) -> None:
        key = key_of(session.link)
        if not session.ready:
            return  # whoever waits for its start is told
        if asyncio.get_running_loop().time() - session.began < _SHORT_LIFE_S:
            self._failed(key, session.epitaph)
        else:
            self._troubles.pop(key, None)
