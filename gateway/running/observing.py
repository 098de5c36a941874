"""Follows work that an upstream does in a task of its own: asks until it has ended, carries questions, ends it.

The record knows all that is needed to ask again. When this process dies, another one claims the operation and asks on;
nothing here ever starts the work.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Raw

from gateway.core import engine
from gateway.core.engine import Command
from gateway.core.model import Place, Seen
from gateway.following.watching import Pace, Trouble, Watch, link_of, place_of
from gateway.policy.model import Settings
from gateway.running.holder import Held, Holder
from gateway.running.interview import Interview
from gateway.running.progress import Notes, Progress
from gateway.running.questions import Questions
from gateway.telemetry import Telemetry, short
from gateway.upstream.port import Link, NotSent, Upstream
from gateway.wire import theirs, work
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Notification, Response
from gateway.wire.theirs import Dialect, Sight

_AFTERMATH_S: Final = 60.0
"""How long work is looked at that nobody waits for any more."""
_MOST_FETCHES: Final = 3
"""How often a result is asked for that the upstream says is there and does not hand out."""
_PATIENCE_S: Final = 60.0
"""How long a result is waited for that is there."""
_NOT_HANDED_OUT: Final = "the upstream completed the work and does not hand out its result"
_NOBODY_WAITS: Final = "the upstream goes on, and nobody waits for it any more"

_T = TypeVar("_T")
Ending: TypeAlias = tuple[Command, bytes | Reject]
"""What became of the operation, and the body that a task gets which it finishes."""


class _Stage(Enum):
    """What the next limit in time means."""

    WORKING = "until the deadline"
    GRACE = "told to stop, until the grace is over"
    AFTER = "nobody waits any more"


@dataclass(frozen=True, slots=True)
class Observing:
    """What following a task takes. `cancel_grace_s` is how long an upstream has that was told to stop."""

    holder: Holder
    questions: Questions
    telemetry: Telemetry
    jitter: Callable[[], float]
    cancel_grace_s: float

    def acceptance(
        self, held: Held, link: Link, dialect: Dialect, sight: Sight, settings: Settings, token: int
    ) -> engine.Accept:
        """The command for a task that the upstream has just made. `token` is the progress token of the call."""
        place = place_of(link, dialect, sight, str(token))
        now = self.holder.store.now()
        next_ms = now + int(Pace.of(settings, self.jitter).after(sight) * 1000)
        self.telemetry.accepted(
            upstream=held.ref.owner.upstream, task_id=held.ref.id, theirs=sight.task, dialect=dialect.name
        )
        return engine.Accept(sight.task, place, Seen(sight.state, now, next_ms), short(sight.task))

    async def follow(
        self, held: Held, upstream: Upstream, settings: Settings, progress: Progress | Notes | None, *, new: bool
    ) -> Ending | None:
        """What became of it; None if it is somebody else's now. `new`: this process has just started it."""
        return await _Following(self, held, upstream, settings, progress, new=new).run()

    async def leave(self, held: Held, upstream: Upstream) -> None:
        """This process stops: others ask on where they can."""
        if upstream.spare(link_of(held.ref.owner, _place(held))):
            await self.holder.give_back(held)
        else:
            reason = "the gateway stopped, and nobody else can ask what became of it"
            await self.holder.finish(held, engine.Forget(reason), _unknown(reason))


class _Following:
    """One operation that is followed."""

    def __init__(
        self,
        means: Observing,
        held: Held,
        upstream: Upstream,
        settings: Settings,
        progress: Progress | Notes | None,
        *,
        new: bool,
    ) -> None:
        self._means = means
        self._held = held
        self._upstream = upstream
        self._settings = settings
        self._progress = progress
        self._new = new
        self._loop = asyncio.get_running_loop()
        self._pace = Pace.of(settings, means.jitter)
        place = _place(held)
        self._handle = held.operation.handle or ""
        self._watch = Watch(upstream, link_of(held.ref.owner, place), place, self._handle, new=new)
        seen = held.operation.seen
        self._told = seen is not None and seen.told
        self._next_s = 0 if seen is None else self._left_s(seen.next_ms)
        self._stage = _Stage.WORKING
        self._limit = self._loop.time() + self._left_s(held.operation.deadline_ms)
        self._looking: asyncio.Task[Sight | Trouble] | None = None
        self._look_at = self._looked_at = self._well = self._loop.time()
        self._fetching: asyncio.Task[Response | Trouble] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        timeout_s = settings.input_timeout_s
        self._interview = Interview(means.questions, held, self._watch, self._handle, timeout_s, self._changed)
        self._final: Sight | None = None
        self._fetched: Response | None = None
        self._failures = self._fetches = 0
        self._somebody_elses = False

    async def run(self) -> Ending | None:
        """Until it has ended, until nobody can tell, or until it is somebody else's."""
        task = self._held.pair.task
        if task is None or task.terminal or task.cancel_asked_ms is not None:
            self._held.stop.set()
        stopping = asyncio.ensure_future(self._held.stop.wait())
        try:
            with self._watch:
                self._listening = self._loop.create_task(self._listen(), name="follow")
                self._look_in(self._next_s)
                if not self._new and self._watch.dialect.fetches and task is not None:
                    self._interview.again(task.questions)
                ending = None
                while ending is None and not self._somebody_elses:
                    ending = await self._turn(stopping)
                return ending
        finally:
            await self._end(stopping)

    async def _turn(self, stopping: "asyncio.Future[Any]") -> Ending | None:
        """Waits for whatever happens next, and does what has to be done about it."""
        stopped = None if self._stage is not _Stage.WORKING else stopping
        waiting = {one for one in (self._looking, self._fetching, self._telling, stopped) if one is not None}
        left_s = max(0.0, self._limit - self._loop.time())
        await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if self._fetching is not None and self._fetching.done():
            fetched, self._fetching = self._fetching.result(), None
            return self._take(fetched)
        if self._looking is not None and self._looking.done():
            looked, self._looking = self._looking.result(), None
            return await self._consider(looked)
        if self._telling is not None and self._telling.done():
            self._telling = None
            if self._final is None:
                self._look_in(0)
        elif stopped is not None and stopped.done():
            await self._stop()
        elif self._loop.time() >= self._limit:
            return await self._limit_reached()
        return None

    # What the upstream says.

    async def _consider(self, looked: Sight | Trouble) -> Ending | None:
        self._looked_at = self._loop.time()
        if isinstance(looked, Trouble):
            return self._in_vain(looked, self._look_in)
        self._failures, self._well = 0, self._looked_at
        pause_s = self._pace.after(looked)
        if not await self._note(looked, pause_s):
            self._somebody_elses = True
            return None
        if looked.state in theirs.ENDED:
            return self._over(looked)
        self._fetched = None  # an answer to tasks/result before the task has ended is none
        if looked.state == theirs.INPUT_REQUIRED and self._watch.dialect.fetches and self._fetching is None:
            self._fetch_in(0)
        for key, question in looked.questions.items():
            self._interview.put(key, question)
        self._look_in(pause_s)
        return None

    async def _note(self, sight: Sight, pause_s: float) -> bool:
        """Writes down what was seen; whether the operation is still ours."""
        now = self._means.holder.store.now()
        seen = Seen(sight.state, now, now + int(pause_s * 1000), self._told)
        message = "" if sight.state in theirs.ENDED else theirs.shown(sight, self._held.ref.id)
        place = None if self._watch.place == self._held.operation.place else self._watch.place
        return await self._means.holder.observe(self._held, engine.Observe(seen, message, place))

    def _over(self, sight: Sight) -> Ending | None:
        """The task has ended. Some upstreams tell what it came to at once, others have to be asked for it."""
        first, self._final = self._final is None, sight
        if sight.state == theirs.CANCELLED or not self._watch.dialect.fetches:
            return self._ending(sight, sight.outcome)
        if self._fetched is not None:
            fetched, self._fetched = self._fetched, None
            return self._take(fetched)
        if self._fetching is not None and not first:  # a wait that broke, and nobody was told
            self._fetching.cancel()
            self._fetching = None
        if self._fetching is None:
            self._fetch_in(0)
        self._look_in(_PATIENCE_S)
        return None

    def _take(self, fetched: Response | Trouble) -> Ending | None:
        """What the task came to, or why that is not known."""
        if self._final is None:
            # An answer is believed once the task says that it has ended; a wait that broke is begun again by a look.
            if isinstance(fetched, Response):
                self._fetched = fetched
                self._look_in(0)
            return None
        if isinstance(fetched, Trouble):
            return self._in_vain(fetched, self._fetch_in)
        if fetched.ok or self._final.state == theirs.FAILED:
            return self._ending(self._final, fetched)
        self._fetches += 1
        return self._in_vain(Trouble(_NOT_HANDED_OUT, definite=self._fetches >= _MOST_FETCHES), self._fetch_in)

    def _ending(self, sight: Sight, answer: Response | None) -> Ending:
        kind, body = theirs.ending(sight, answer, self._held.ref.id)
        return engine.Answer(kind), body

    def _in_vain(self, trouble: Trouble, again: Callable[[float], None]) -> Ending | None:
        """A fault is no failure of the work. It is asked again, until that is of no use or was tried for too long."""
        self._means.telemetry.upstream_failed(
            upstream=self._held.ref.owner.upstream, reason=trouble.reason, message=trouble.why
        )
        if trouble.definite:
            if self._fetched is not None and self._fetched.ok:  # it handed out the result and forgot the task
                return self._ending(Sight(self._handle, theirs.COMPLETED), self._fetched)
            return self._forget(trouble.why)
        self._failures += 1
        if self._loop.time() - self._well > self._pace.budget_s:
            return self._forget(f"for {self._pace.budget_s:.0f} s the upstream did not tell of its task: {trouble.why}")
        again(self._pace.again(self._failures, trouble.after_s))
        return None

    def _forget(self, reason: str) -> Ending:
        return engine.Forget(reason), _unknown(reason)

    # What is asked of it.

    def _look_in(self, delay_s: float) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._look_at = self._loop.time() + delay_s
        self._looking = self._loop.create_task(_later(delay_s, self._watch.look))

    def _fetch_in(self, delay_s: float) -> None:
        async def fetch() -> Response | Trouble:
            return await self._watch.fetch(self._settings.max_result_bytes, self._hear, self._interview.on_request)

        self._fetching = self._loop.create_task(_later(delay_s, fetch))

    def _changed(self) -> None:
        """The upstream says that its task has changed: it is looked at as soon as may be."""
        now = self._loop.time()
        soonest = max(now, self._looked_at + self._pace.least_s)
        if self._looking is not None and now < self._look_at and soonest < self._look_at:
            self._look_in(soonest - now)

    async def _listen(self) -> None:
        """Nobody depends on it: what is missed here is found by looking."""
        with suppress(NotSent):  # the session has ended: whoever looks finds out
            await self._upstream.follow(self._watch.link, self._handle, self._heed, self._interview.on_request)

    def _heed(self, note: Notification) -> None:
        """What the upstream says outside of any call: progress may be another task's."""
        if self._watch.dialect.concerns(note.method, note.params) == self._handle:
            self._changed()
        elif bytes(note.params.get("progressToken", b"")) == self._watch.place.token.encode():
            self._hear(note)

    def _hear(self, note: Notification) -> None:
        if self._progress is not None and note.method == "notifications/progress":
            ours = self._held.ref.id
            told = {name: Raw(theirs.hidden(bytes(raw), self._handle, ours)) for name, raw in note.params.items()}
            self._progress(Notification(note.method, told))

    # When it has to stop.

    async def _stop(self) -> None:
        """Nobody wants it any more, or nobody answered what it asked."""
        self._tell()
        self._stage, self._limit = _Stage.GRACE, self._loop.time() + self._means.cancel_grace_s
        if self._held.input_expired:
            await self._nobody_waits(engine.InputExpired(), work.UNANSWERED)

    async def _limit_reached(self) -> Ending | None:
        if self._stage is _Stage.AFTER:
            return self._forget(_NOBODY_WAITS)
        if self._stage is _Stage.GRACE:
            await self._nobody_waits(engine.GraceOver(), work.LOST)
        else:
            self._tell()
            await self._nobody_waits(engine.Overdue(), work.DEADLINE)
        return None

    async def _nobody_waits(self, command: Command, body: Reject) -> None:
        """The task ends; what becomes of the work is looked at for a while, for the ledger."""
        self._stage, self._limit = _Stage.AFTER, self._loop.time() + _AFTERMATH_S
        await self._means.holder.finish(self._held, command, body)

    def _tell(self) -> None:
        """T25-CAN-3: the upstream is told once."""
        if not self._told:
            self._told = True
            self._telling = self._loop.create_task(self._watch.cancel())

    # Times, and the end.

    def _left_s(self, at_ms: int) -> float:
        return max(0, at_ms - self._means.holder.store.now()) / 1000

    async def _end(self, stopping: "asyncio.Future[Any]") -> None:
        own = (self._looking, self._fetching, self._telling, self._listening, stopping)
        left = [one for one in own if one is not None]
        for one in left:
            one.cancel()
        await self._interview.close()
        await asyncio.gather(*left, return_exceptions=True)


async def _later(delay_s: float, what: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    await asyncio.sleep(delay_s)
    return await what()


def _place(held: Held) -> Place:
    place = held.operation.place
    assert place is not None  # noqa: S101  # what was accepted has one
    return place


def _unknown(reason: str) -> Reject:
    return Reject("outcome_unknown", reason)
