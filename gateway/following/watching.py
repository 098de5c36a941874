"""One task of an upstream, asked about: what it says, or what went wrong when it was asked.

Nothing here starts work, and nothing is believed that one failed look says: whether it is over is for the loop to
decide, which knows how long asking has failed.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Self

from mcp_types.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND

from gateway.core.model import Owner, Place
from gateway.policy.model import Settings
from gateway.upstream.port import TOO_LARGE, Call, Link, NotSent, OnNote, OnRequest, OutcomeUnknown, Upstream
from gateway.wire import theirs_2025, theirs_ext
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Members, Response, integer, members
from gateway.wire.taken import DIALECTS
from gateway.wire.theirs import Ask, Dialect, Sight

_LOOK_S: Final = 20.0
_SETTLE_S: Final = 5.0
"""How long a server may take until it finds the task that it has just made."""
_LOST_FOR_GOOD: Final = 2
"""How often a session must be said to have ended, one after the other, until that is believed."""
_MAX_STATE_BYTES: Final = 1_048_576
_DEFINITE: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})
_FIRST_PAUSE_S: Final = 0.5
_MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Trouble:
    """A look that told nothing. `definite`: asking again is of no use. `after_s`: so long it wants to be left alone."""

    why: str
    reason: str = "upstream_bad"
    definite: bool = False
    after_s: float = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often an upstream is asked, and for how long in vain. Durations are seconds; `jitter` is from 0 to 1."""

    least_s: float
    most_s: float
    usual_s: float
    budget_s: float
    jitter: Callable[[], float]

    @classmethod
    def of(cls, settings: Settings, jitter: Callable[[], float]) -> Self:
        """The pace that a policy allows."""
        least_s, most_s = settings.observe_min_ms / 1000, settings.observe_max_ms / 1000
        wanted = settings.poll_interval_ms
        usual_s = wanted / 1000 if isinstance(wanted, int) else most_s
        return cls(least_s, most_s, usual_s, settings.observe_budget_s, jitter)

    def after(self, sight: Sight) -> float:
        """How long to wait after a look that told something: as the upstream wishes, within the bounds."""
        wish_s = self.usual_s if sight.interval_ms is None else sight.interval_ms / 1000
        return self._within(wish_s) * (1 + self.jitter() / 10)

    def again(self, failures: int, after_s: float) -> float:
        """How long to wait after so many failures in a row: twice as long each time, and not all together."""
        pause_s = self._within(_FIRST_PAUSE_S * 2.0 ** min(failures, _MOST_DOUBLINGS)) * (0.5 + self.jitter())
        return max(pause_s, min(after_s, self.budget_s))

    def _within(self, wish_s: float) -> float:
        return max(self.least_s, min(wish_s, self.most_s))


def place_of(link: Link, dialect: Dialect, sight: Sight, token: str = "") -> Place:
    """Where a task is that was just made in this session. `token` is the progress token of its call (JSON text)."""
    cancels = not dialect.fetches or theirs_2025.cancels(link.hello.capabilities)
    said = (link.version, link.session_id, link.capabilities)
    where = {"client": link.client, "spoken": link.spoken}
    return Place(dialect.name, *said, cancels=cancels, created=sight.created, token=token, **where)


def link_of(owner: Owner, place: Place) -> Link:
    """The session that knows a task, from any process."""
    said = (place.version, place.session, place.capabilities)
    return Link(owner, *said, client=place.client, spoken=place.spoken)


class Watch:
    """Asks about one task. Used as a context manager, it keeps the session that knows the task."""

    def __init__(self, upstream: Upstream, link: Link, place: Place, task: str, *, new: bool) -> None:
        """`new`: the task was made a moment ago."""
        self.link = link
        self.place = place
        self.dialect = DIALECTS[place.dialect]
        self._upstream = upstream
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._settled = self._loop.time() + (_SETTLE_S if new else 0)
        self._lost = 0
        self._moved = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Takes hold of the session."""
        self._stack.enter_context(self._upstream.holding(self.link))
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go of it."""
        self._stack.close()

    async def look(self) -> Sight | Trouble:
        """What the upstream says of the task now."""
        if self._lost >= _LOST_FOR_GOOD and (trouble := await self._move()) is not None:
            return trouble
        answer = await self._ask(self.dialect.get(self._task))
        if isinstance(answer, Trouble):
            return answer
        if not answer.ok:
            return self._refused(answer)
        sight = self.dialect.seen(self._task, answer.body)
        if sight is None:
            return Trouble("the upstream's answer about its task cannot be understood")
        if self._moved and self.place.created and sight.created != self.place.created:
            return Trouble("the upstream has another task of this name", definite=True)
        self._moved = False
        return sight

    async def fetch(self, max_bytes: int, on_note: OnNote, on_request: OnRequest) -> Response | Trouble:
        """What the task came to, for as long as that takes; questions come meanwhile."""
        ask = self.dialect.result(self._task)
        if ask is None:
            return Trouble("the state of this task tells all that it comes to", definite=True)
        return await self._ask(ask, max_bytes, on_note, on_request, timeout_s=None)

    async def cancel(self) -> None:
        """Tells the upstream to stop. Failing to tell is no error: the task goes on and is looked at."""
        if self.place.cancels:
            await self._ask(self.dialect.cancel(self._task))

    async def update(self, key: str, answer: bytes) -> bool:
        """Brings the answer to a question that came with the state; whether it arrived."""
        ask = self.dialect.update(self._task, key, answer)
        told = None if ask is None else await self._ask(ask)
        return isinstance(told, Response) and told.ok

    async def reply(self, request_id: str, *, ok: bool, body: bytes) -> None:
        """Brings the answer to a question that came as a request to somebody else."""
        await self._upstream.reply(self.link, request_id, ok=ok, body=body)

    def answer(self, body: bytes) -> bytes:
        """An answer as the upstream wants to read it."""
        return self.dialect.answer(self._task, body)

    async def _ask(
        self,
        ask: Ask,
        max_bytes: int = _MAX_STATE_BYTES,
        on_note: OnNote | None = None,
        on_request: OnRequest | None = None,
        *,
        timeout_s: float | None = _LOOK_S,
    ) -> Response | Trouble:
        modern = self.link.version in MODERN_VERSIONS
        params = theirs_ext.declaring(ask.params) if modern else ask.params
        call = Call(self._upstream.next_id(), ask.method, params, max_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._upstream.perform(self.link, call, on_note, on_request)
        except NotSent as error:
            self._lost += error.ended
            return Trouble(str(error), error.reason, after_s=error.after_s)
        except OutcomeUnknown as error:
            return Trouble(str(error), error.reason, str(error) == TOO_LARGE, error.after_s)
        except TimeoutError:
            return Trouble("the upstream does not tell of its task", "upstream_down")
        self._lost = 0
        return answer

    async def _move(self) -> Trouble | None:
        """The session has ended: servers that know their tasks by who asks find them in another one."""
        try:
            link = await self._upstream.open(self.link.owner, self.link.capabilities, self.link.client)
        except NotSent as error:
            return Trouble(str(error), error.reason, after_s=error.after_s)
        self._stack.close()
        self._stack.enter_context(self._upstream.holding(link))
        self.link, self._lost, self._moved = link, 0, True
        self.place = replace(self.place, version=link.version, session=link.session_id, spoken=link.spoken)
        return None

    def _refused(self, answer: Response) -> Trouble:
        """An error of the request says that the task is not there, or nothing. Its words are not passed on."""
        error: Members = members(answer.body) or {}
        definite = integer(error.get("code")) in _DEFINITE
        settling = self._loop.time() < self._settled and not self._moved
        why = "the upstream does not know its task any more" if definite else "the upstream cannot tell of its task"
        return Trouble(why, definite=definite and not settling)
