"""One MCP session in which the server says everything in one stream: the greeting, calls, turns, use and disuse.

How what is said gets there and back is for the classes that build on this one. Callers wait for futures, so one that
is cancelled or fails leaves the others alone.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from gateway.telemetry import Telemetry
from gateway.upstream.dialogue import Dialogue, Ears, Waiting
from gateway.upstream.doubts import PING_S
from gateway.upstream.followers import Followers
from gateway.upstream.greeting import Greet
from gateway.upstream.handshake import HANDSHAKE_S
from gateway.upstream.links import key_of
from gateway.upstream.port import NO_CAPABILITIES, TOO_LARGE, Call, Link, NotSent, OnNote, OnRequest, OutcomeUnknown
from gateway.wire import jsonrpc
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Members, Notification, Response

_HOLD_S: Final = 5.0
"""How long a session that was opened is kept for the call that it was opened for."""
_PING: Final = "ping"
_MAX_PING_BYTES: Final = 65_536
_RETIRED_S: Final = 0.5
"""How long one that takes no more calls is left to end by itself."""
_ABOUT_TASKS: Final = "tasks/"
"""Calls that need no turn of their own, because a question that comes with them names its task."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the owner of a session is told: that it was lost, that nothing is left of it, what it heard.

    `heard` and `asks` are for what belongs to no call; `asks` gives who answers, or None.
    """

    lost: "Callable[[Session], None]"
    ended: "Callable[[Session], None]"
    heard: "Callable[[Session, Notification], None]"
    asks: "Callable[[Session], OnRequest | None]"


class Session(ABC):
    """A session. `used` is when it was last used, on the loop's clock; `epitaph` says why it was lost."""

    WHAT: ClassVar[str]
    """What messages call it."""

    def __init__(self, link: Link, idle_s: float, telemetry: Telemetry, hooks: Hooks) -> None:
        self.link = link
        self._idle_s = idle_s
        self._telemetry = telemetry
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self.followers = Followers()
        ears = Ears(
            say=self._say,
            heard=lambda note: hooks.heard(self, note),
            asks=lambda: hooks.asks(self),
            odd=self._odd,
            followers=self.followers,
        )
        self._dialogue = Dialogue(ears, telemetry)
        self._turn = asyncio.Lock()
        self._holds: deque[float] = deque()
        self._users = 0
        self._listeners = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pid: int | None = None
        self._warned = False
        self._retired = False
        self._doubt: asyncio.Task[bool] | None = None
        self.epitaph = ""
        self.ready = False
        self.ending = False
        self.used = self.began = self._loop.time()

    @property
    def usable(self) -> bool:
        """Whether it takes calls."""
        return self.ready and not self._retired and not self.ending

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it and nobody is about to call."""
        while self._holds and self._holds[0] <= self._loop.time():
            self._holds.popleft()
        return self.ready and self._users == 0 and not self._holds

    @property
    def removable(self) -> bool:
        """Whether nobody misses it."""
        return self.ending or (self.idle and not self._listeners)

    @property
    def load(self) -> int:
        """How many calls run on it or wait for their turn."""
        return self._users + len(self._holds)

    @property
    def modern(self) -> bool:
        """Whether it speaks a revision in which everything is in each request."""
        return self.link.version in MODERN_VERSIONS

    @property
    def exclusive(self) -> bool:
        """Whether it takes one call at a time: where capabilities were declared a question must belong to a call."""
        return self.link.capabilities != NO_CAPABILITIES

    def serves(self, link: Link) -> bool:
        """Whether a link that bears its id is one of its own, and not of another process."""
        return link.owner == self.link.owner if self.modern else key_of(link) == key_of(self.link)

    async def begin(self, greet: Greet) -> None:
        """Returns when the session is there. Raises NotSent, and then the session ends."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._reached()
                version, hello = await greet(lambda call: self._exchange(call, None, None, alone=False))
        except TimeoutError:
            self.kill()
            message = f"{self.WHAT} did not complete the handshake within {HANDSHAKE_S:.0f} s"
            raise NotSent("upstream_down", message, again=True) from None
        except OutcomeUnknown as error:
            self.kill()
            message = f"{error} (during the handshake)"
            raise NotSent(error.reason, message, again=error.reason == "upstream_down") from error
        except NotSent:
            self.kill()
            raise
        self.link = replace(self.link, version=version, hello=hello)
        if self.modern:
            self.link = replace(self.link, capabilities=NO_CAPABILITIES)  # each request declares its own
            self._dialogue.modern = True
        else:
            await _said(self._say(jsonrpc.notification("notifications/initialized", {})))
        self.ready = True
        self._touch()

    def hold(self) -> None:
        """Keeps the session for somebody who is about to call."""
        self._holds.append(self._loop.time() + _HOLD_S)
        self._touch()

    async def perform(self, call: Call, on_note: OnNote | None, on_request: OnRequest | None) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        if self._holds:
            self._holds.popleft()
        self._users += 1
        try:
            if not self.usable or not await self._there():
                raise self._gone()
            if not self.exclusive:
                return await self._exchange(call, on_note, None)
            if call.method.startswith(_ABOUT_TASKS):
                return await self._exchange(call, on_note, on_request, alone=False)
            async with self._turn:
                if not self.usable:
                    raise self._gone()
                return await self._exchange(call, on_note, on_request)
        finally:
            self._users -= 1
            self._touch()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """It is in use meanwhile, although nothing is asked of it: the server works on something."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._touch()

    async def reply(self, request_id: bytes, *, ok: bool, body: bytes) -> None:
        """Answers a request of the server that was heard earlier."""
        if not self.ending and not self.modern:
            await _said(self._say((jsonrpc.result if ok else jsonrpc.error)(request_id, body)))

    async def subscribe(self, call: Call, on_note: OnNote) -> bool:
        """Listens on a subscription until it ends. Whether the server took it. It keeps no session from ending."""
        try:
            return (await self._exchange(call, on_note, None)).ok
        except (NotSent, OutcomeUnknown):
            return True

    async def cancel(self, call: Call) -> None:
        """T25-CAN-3: tells the server once, and only of a request that it got and has not answered."""
        await _said(self._withdraw(call))

    async def tell(self, method: str, params: Members) -> None:
        """Sends a notification of the client, in revisions that have them."""
        if self.usable and not self.modern:
            await _said(self._say(jsonrpc.notification(method, params)))

    @abstractmethod
    async def collected(self) -> None:
        """Waits until nothing is left of it. Call `end` or `kill` first."""

    @abstractmethod
    def end(self) -> None:
        """Ends it, politely at first. Returns at once; what is under way may still be answered."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once: it is of no use. Returns at once."""

    @abstractmethod
    async def _reached(self) -> None:
        """Returns when the server can be spoken to. Raises NotSent."""

    @abstractmethod
    async def _ask(self, waiting: Waiting, body: bytes) -> Response | OutcomeUnknown:
        """Sends a request and gives what became of it. Raises NotSent."""

    @abstractmethod
    def _say(self, body: bytes) -> "asyncio.Task[None] | None":
        """Sends what needs no answer; the task that does it, where it takes a while. Failing to is no error."""

    def _odd(self, size: int) -> None:
        """The server said something that is no MCP, of so many bytes: told once."""
        if not self._warned:
            self._warned = True
            self._telemetry.upstream_no_mcp(upstream=self.link.owner.upstream, pid=self._pid, size=size)

    async def _exchange(
        self, call: Call, on_note: OnNote | None, on_request: OnRequest | None, *, alone: bool = True
    ) -> Response:
        waiting = self._dialogue.begin(call, on_note, on_request, alone=alone)
        try:
            answer = await self._ask(waiting, jsonrpc.request(str(call.id).encode(), call.method, call.written))
        except asyncio.CancelledError:
            self._left(waiting)
            raise
        except NotSent:
            self._dialogue.withdraw(call.id)
            raise
        finally:
            self._dialogue.part(waiting)
        if isinstance(answer, OutcomeUnknown):
            raise OutcomeUnknown(answer.reason, str(answer))
        if len(answer.body) > call.max_bytes:
            raise OutcomeUnknown("upstream_bad", TOO_LARGE)
        return answer

    def _left(self, waiting: Waiting) -> None:
        """Nobody waits for this call any more. In revisions with a handshake the server may go on and ask.

        What it asks then must not be taken for a question of the next call.
        """
        if self.ready and (self.modern or (self.exclusive and waiting.alone)):
            self._withdraw(waiting.call)
            if not self.modern:
                self._retire()

    def _withdraw(self, call: Call) -> "asyncio.Task[None] | None":
        if not self._dialogue.withdraw(call.id):
            return None
        params = {"requestId": call.id, "reason": "cancelled by the requestor"}
        saying = self._say(jsonrpc.notification("notifications/cancelled", params))
        if not self.modern and call.method != _PING and not self.ending:
            self._doubt = self._loop.create_task(self._pings(-call.id), name="ping")
        return saying

    async def _there(self) -> bool:
        """Whether the server still answers: some old ones end the session in which something was cancelled."""
        doubt = self._doubt
        if doubt is None:
            return True
        await asyncio.wait({doubt})
        if not doubt.result():
            self._retire()
            return False
        if self._doubt is doubt:
            self._doubt = None
        return self.usable

    async def _pings(self, call_id: int) -> bool:
        try:
            async with asyncio.timeout(PING_S):
                await self._exchange(Call(call_id, _PING, {}, _MAX_PING_BYTES), None, None)
        except (TimeoutError, NotSent, OutcomeUnknown):
            return False
        return True

    def _lose(self, why: OutcomeUnknown) -> None:
        """The stream is over: every caller is told."""
        unexpected = not self.ending
        self.ending = True
        self._dialogue.lose(why)
        if unexpected:
            self._hooks.lost(self)

    def _gone(self) -> NotSent:
        return NotSent("upstream_down", self.epitaph or f"{self.WHAT} takes no more calls", again=True)

    def _retire(self) -> None:
        """Takes no more calls. Ends when those under way are over, unless it is about to end by itself."""
        self._retired = True
        self._touch()

    def _touch(self) -> None:
        self.used = self._loop.time()
        self._stop_timer()
        if not self.ending:
            self._timer = self._loop.call_later(_RETIRED_S if self._retired else self._idle_s, self._rest)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _rest(self) -> None:
        if self.ready and self._users == 0 and (self._retired or not self._listeners):
            self.end()


async def _said(saying: "asyncio.Task[None] | None") -> None:
    if saying is not None:
        await asyncio.wait({saying})
