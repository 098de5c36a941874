"""MCP over the standard streams of child processes: a process for each principal and set of declared capabilities.

A process belongs to its principal, because a server may keep in it what its caller did. There are so many at most; one
that nothing runs on makes room for another principal's, and ends when it was not used for a while.
"""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from gateway.core.model import Owner
from gateway.telemetry import Telemetry
from gateway.upstream.child import Child, Hooks
from gateway.upstream.handshake import initialize
from gateway.upstream.port import NO_CAPABILITIES, SOON_S, Call, Link, NotSent, OnNote, OnRequest, WithId, put
from gateway.upstream.process import Command
from gateway.wire import asking
from gateway.wire.jsonrpc import Members, Notification, Request, Response

_Key: TypeAlias = tuple[Owner, str]
_SHORT_LIFE_S: Final = 1.0
_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 10.0
_PATIENCE_S: Final = 1.0
"""How long a start may be waited for by whoever wants to call."""
_FORGET_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many processes there may be, and after how many seconds an unused one ends."""

    processes: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Starts in a row that came to nothing, and when the next one may be, on the loop's clock."""

    count: int
    not_before: float
    why: str


class StdioUpstream:
    """One command, run as often as there are principals who use it."""

    def __init__(self, command: Command, bounds: Bounds, telemetry: Telemetry, *, first_id: int = 1) -> None:
        """Ids count from `first_id`: those of one gateway are none of another's."""
        self._command = command
        self._bounds = bounds
        self._telemetry = telemetry
        self._hooks = Hooks(self._lost, self._ended, self._heard, self._asks, self._soon)
        self._children: dict[str, Child] = {}
        self._current: dict[_Key, list[Child]] = {}
        self._starting: dict[_Key, asyncio.Task[Child | NotSent]] = {}
        self._troubles: dict[_Key, _Trouble] = {}
        self._ears: dict[_Key, list[tuple[OnNote, OnRequest]]] = {}
        self._listened: dict[_Key, asyncio.Event] = {}
        self._ids = itertools.count(first_id)
        self._closed = False

    def next_id(self) -> int:
        """An id for a request, used once."""
        return next(self._ids)

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:  # noqa: ARG002  # processes are the principal's
        """The principal's session; callers that come together share one start. Raises NotSent.

        A process that may ask something takes one call at a time, because nothing in a question tells which call it
        belongs to: further calls get processes of their own, and wait for a turn when there may be no more.
        """
        key = (owner, capabilities)
        child = self._free(key)
        while child is None:
            try:
                child = await self._start(key)
            except NotSent:
                child = self._least_busy(key)
                if child is None:
                    raise
                break
            if capabilities != NO_CAPABILITIES and not child.idle:
                child = self._free(key)
        child.hold()
        return child.link

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        child = self._child(link)
        if child is None:
            raise NotSent("upstream_down", "the upstream's process has ended", again=True, ended=True)
        return await child.perform(call, on_note, on_request)

    async def cancel(self, link: Link, call: Call) -> None:
        """T25-CAN-3: notifications/cancelled with the id of our own request."""
        child = self._child(link)
        if child is not None:
            child.cancel(call)

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Sends a notification of the client. Failing to is no error."""
        child = self._child(link)
        if child is not None:
            child.tell(method, params)

    async def listen(self, link: Link, on_note: OnNote, on_request: OnRequest) -> None:
        """Hears what belongs to no call, from every process of this principal that was told the same."""
        key = (link.owner, link.capabilities)
        ears = self._ears.setdefault(key, [])
        ear = (on_note, on_request)
        ears.append(ear)
        if (listened := self._listened.pop(key, None)) is not None:
            listened.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ears.remove(ear)
            if not ears:
                self._ears.pop(key, None)

    async def reply(self, link: Link, request_id: str, *, ok: bool, body: bytes) -> None:
        """Answers a request of the process, as long as it runs."""
        child = self._child(link)
        if child is not None:
            child.reply(request_id.encode(), ok=ok, body=body)

    @contextmanager
    def holding(self, link: Link) -> Iterator[None]:
        """Keeps a process from being ended for want of use."""
        child = self._child(link)
        if child is None:
            yield
        else:
            with child.kept():
                yield

    def spare(self, link: Link) -> bool:  # noqa: ARG002  # no process outlives its gateway
        """Processes end with their gateway: nobody else can use them."""
        return False

    async def leave(self, link: Link) -> None:
        """Processes belong to their principal, and end when nobody has used them for a while."""

    async def close(self) -> None:
        """Ends all processes, and waits until nothing is left of them."""
        self._closed = True
        while self._children or self._starting:
            for child in self._children.values():
                child.end()
            collecting = [asyncio.ensure_future(child.collected()) for child in self._children.values()]
            await asyncio.wait([*collecting, *self._starting.values()])

    def _child(self, link: Link) -> Child | None:
        """The process of a session, for its own principal only."""
        child = self._children.get(link.session_id or "")
        return child if child is not None and child.link.owner == link.owner else None

    def _free(self, key: _Key) -> Child | None:
        """A process that takes a call at once."""
        usable = [child for child in self._current.get(key, ()) if child.usable]
        if key[1] != NO_CAPABILITIES:
            usable = [child for child in usable if child.idle]
        return usable[0] if usable else None

    def _least_busy(self, key: _Key) -> Child | None:
        usable = [child for child in self._current.get(key, ()) if child.usable]
        return min(usable, key=lambda child: child.load) if usable else None

    async def _start(self, key: _Key) -> Child:
        """One start for all who wait for it; none of them ends it by going away. Raises NotSent."""
        starting = self._starting.get(key)
        if starting is None:
            starting = self._starting[key] = asyncio.get_running_loop().create_task(self._try(key))
            starting.add_done_callback(lambda _: self._starting.pop(key))
        await asyncio.wait({starting})
        outcome = starting.result()
        if isinstance(outcome, NotSent):
            raise NotSent(outcome.reason, str(outcome), again=outcome.again, busy=outcome.busy)
        return outcome

    async def _try(self, key: _Key) -> Child | NotSent:
        try:
            await self._wait_after_trouble(key)
            await self._make_room()
        except NotSent as error:
            return error
        link = Link(key[0], "", str(self.next_id()), key[1])
        child = Child(link, self._command, self._bounds.idle_s, self._telemetry, self._hooks)
        self._children[link.session_id or ""] = child
        try:
            await child.begin(initialize(self.next_id(), key[1]))
        except NotSent as error:
            self._note_trouble(key, str(error))
            return error
        self._current.setdefault(key, []).append(child)
        return child

    async def _wait_after_trouble(self, key: _Key) -> None:
        trouble = self._troubles.get(key)
        wait_s = 0.0 if trouble is None else trouble.not_before - asyncio.get_running_loop().time()
        if trouble is not None and wait_s > _PATIENCE_S:
            message = f"{trouble.why}; it is started again in {wait_s:.1f} s"
            raise NotSent("upstream_down", message, again=True)
        await asyncio.sleep(max(0.0, wait_s))

    async def _make_room(self) -> None:
        """Returns when one more process may be started, in the same turn of the loop. Raises NotSent."""
        while len(self._children) >= self._bounds.processes:
            removable = [child for child in self._children.values() if child.ending or child.idle]
            if not removable:
                message = f"all {self._bounds.processes} processes of the upstream are busy"
                raise NotSent("upstream_down", message, again=True, busy=True)
            leaving = min(removable, key=lambda child: (not child.ending, child.used))
            leaving.end()
            await leaving.collected()
        if self._closed:
            raise NotSent("upstream_down", "the gateway is stopping", again=False)

    def _note_trouble(self, key: _Key, why: str) -> None:
        now = asyncio.get_running_loop().time()
        known = self._troubles.get(key)
        count = 0 if known is None else known.count + 1
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(count, 16))
        self._troubles = {name: one for name, one in self._troubles.items() if one.not_before + _FORGET_S > now}
        self._troubles[key] = _Trouble(count, now + delay_s, why)

    def _lost(self, child: Child) -> None:
        """A process ended by itself."""
        key = (child.link.owner, child.link.capabilities)
        if not child.ready:
            return  # whoever waits for its start is told
        if asyncio.get_running_loop().time() - child.began < _SHORT_LIFE_S:
            self._note_trouble(key, child.epitaph)
        else:
            self._troubles.pop(key, None)

    def _heard(self, child: Child, note: Notification) -> None:
        """A notification that belongs to no call."""
        for on_note, _ in self._ears.get((child.link.owner, child.link.capabilities), ()):
            on_note(note)

    def _asks(self, child: Child) -> OnRequest | None:
        """Who answers a question that belongs to no call; None if nobody is there."""
        ears = self._ears.get((child.link.owner, child.link.capabilities))
        return None if not ears else ears[-1][1]

    def _soon(self, child: Child) -> OnRequest:
        """A task may ask before whoever made it has heard its name."""
        key = (child.link.owner, child.link.capabilities)

        async def ask(request_id: str, method: str, params: Members) -> tuple[bool, bytes]:
            listened = self._listened.setdefault(key, asyncio.Event())
            with suppress(TimeoutError):
                async with asyncio.timeout(SOON_S):
                    await listened.wait()
            ears = self._asks(child)
            if ears is None:
                self._listened.pop(key, None)
                return False, asking.UNDECLARED
            return await put(ears, Request(request_id.encode(), method, params))

        return WithId(ask)

    def _ended(self, child: Child) -> None:
        """Nothing is left of a process."""
        del self._children[child.link.session_id or ""]
        key = (child.link.owner, child.link.capabilities)
        others = [one for one in self._current.pop(key, []) if one is not child]
        if others:
            self._current[key] = others
