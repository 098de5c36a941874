"""The runner loop: claim -> open -> apply(sent) + commit -> perform -> apply(answer) + commit.

It never touches a client. A record that says `sent` was written before the first byte left; what becomes of it is
written by whoever holds the fence, and by nobody else.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from gateway.core import engine
from gateway.core.engine import Applied, Command, Refused, apply
from gateway.core.model import Operation, OperationState, Task
from gateway.policy.decide import Policy
from gateway.store.keys import Ref
from gateway.store.port import Change, Claim, ClaimAsk, ClaimKind, Pair, Store, StoreAway, Verdict
from gateway.telemetry import Telemetry
from gateway.upstream.port import Call, Link, NotSent, OutcomeUnknown, Upstream
from gateway.wire import work
from gateway.wire.errors import Reject

_TICK_S: Final = 0.5
_RECHECK_S: Final = 10.0
_OPEN_BACKOFF_S: Final = (0.1, 0.4)
_STORE_BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_MAX_ATTEMPTS: Final = 5
_LAST_WORDS_S: Final = 3.0
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process takes on. Durations are seconds."""

    concurrency: int
    lease_s: float
    takeover_grace_s: float
    cancel_grace_s: float


@dataclass(frozen=True, slots=True)
class Site:
    """An upstream as the runner sees it."""

    upstream: Upstream
    policy: Policy


@dataclass(slots=True)
class _Running:
    """An operation that this process holds."""

    ref: Ref
    fence: int
    pair: Pair
    arguments: bytes
    performing: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def operation(self) -> Operation:
        assert self.pair.operation is not None  # noqa: S101  # nothing is held that is not there
        return self.pair.operation


class Runner:
    """One process's runner. `process` names it uniquely, `jitter` spreads what many processes would do together."""

    def __init__(
        self,
        store: Store,
        sites: Mapping[str, Site],
        limits: Limits,
        process: str,
        telemetry: Telemetry,
        jitter: Callable[[], float],
    ) -> None:
        self._store = store
        self._sites = sites
        self._limits = limits
        self._process = process
        self._telemetry = telemetry
        self._jitter = jitter
        self._held: dict[str, _Running] = {}
        self._nudged = asyncio.Event()
        self._draining = False
        self._loops: list[asyncio.Task[None]] = []
        self._store_up = True

    def pause(self) -> None:
        """Takes nothing new from now on; what is held goes on, and so do the leases."""
        self._draining = True

    def start(self) -> None:
        """Begins to claim."""
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(self._claim_loop(), name="claim"), loop.create_task(self._recheck_loop())]

    def nudge(self) -> None:
        """There may be work now."""
        self._nudged.set()

    def stop(self, member: str) -> None:
        """The upstream of this operation must be told to stop, if this process holds it."""
        if member in self._held:
            self._held[member].stop.set()

    async def drain(self, deadline_s: float) -> None:
        """Takes nothing new, lets running calls finish, and tells the truth about those that do not."""
        self.pause()
        self.nudge()
        tasks = [running.task for running in self._held.values() if running.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def run_once(self) -> int:
        """Claims at every upstream and renews the lease; how many claims there were. Raises StoreAway."""
        answers = await asyncio.gather(*(self._claim(name, site) for name, site in self._sites.items()))
        return sum(answers)

    async def idle(self) -> None:
        """Waits until this process holds nothing."""
        while self._held:
            await asyncio.wait([running.task for running in self._held.values() if running.task is not None])

    async def _claim_loop(self) -> None:
        failures = 0
        while True:
            try:
                await self.run_once()
                self._note_store(up=True)
                failures = 0
                delay = min(_TICK_S, self._limits.lease_s / 4) * (0.5 + self._jitter())
            except StoreAway as error:
                self._note_store(up=False, error=str(error))
                delay = _STORE_BACKOFF_S[min(failures, len(_STORE_BACKOFF_S) - 1)] * (0.5 + self._jitter())
                failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._nudged.wait()
            self._nudged.clear()

    async def _recheck_loop(self) -> None:
        """Finds the cancellations whose wake-up was lost."""
        while True:
            await asyncio.sleep(_RECHECK_S * (0.5 + self._jitter()))
            for member, running in list(self._held.items()):
                with suppress(StoreAway):
                    task = (await self._store.load(running.ref)).task
                    if task is not None and task.cancel_asked_ms is not None:
                        self.stop(member)

    async def _claim(self, name: str, site: Site) -> int:
        limits = self._limits
        ask = ClaimAsk(
            upstream=name,
            process=self._process,
            lease_ms=int(limits.lease_s * 1000),
            grace_ms=int(limits.takeover_grace_s * 1000),
            connected_since=self._store.connected_since(),
            slots=0 if self._draining else max(0, limits.concurrency - len(self._held)),
            max_running=site.policy.defaults.max_concurrent_upstream,
        )
        claims = await self._store.claim(ask)
        for claim in claims:
            self._take(claim)
        return len(claims)

    def _take(self, claim: Claim) -> None:
        member = claim.ref.member
        if member in self._held:
            return
        running = _Running(claim.ref, claim.pair.fence, claim.pair, claim.arguments)
        self._held[member] = running
        self._telemetry.running.inc()
        running.task = asyncio.get_running_loop().create_task(self._guard(running, claim.kind), name=f"call-{member}")

    async def _guard(self, running: _Running, kind: ClaimKind) -> None:
        """Runs one claim to its end. Whatever happens, the record learns it and the slot is freed."""
        try:
            await self._handle(running, kind)
        except asyncio.CancelledError:
            await self._finish(running, engine.Lose() if running.performing else engine.Unsend(), work.LOST)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave a record without an end
            self._telemetry.fault("runner", error)
            await self._finish(running, engine.Lose(), work.LOST)
        finally:
            del self._held[running.ref.member]
            self._telemetry.running.dec()
            self.nudge()

    async def _handle(self, running: _Running, kind: ClaimKind) -> None:
        operation, task = running.operation, running.pair.task
        if kind in (ClaimKind.LOST, ClaimKind.HELD):
            await self._finish(running, engine.Lose(), work.LOST)
        elif kind is ClaimKind.DEADLINE or self._time_left(operation) <= 0:
            await self._finish(running, engine.Overdue(), work.DEADLINE)
        elif task is None or operation.attempt >= _MAX_ATTEMPTS:
            reject = Reject("upstream_down", f"given up after {operation.attempt} attempts")
            await self._finish(running, engine.GiveUp(reject.message), work.failure(reject))
        else:
            await self._start(running)

    async def _start(self, running: _Running) -> None:
        site = self._sites[running.ref.owner.upstream]
        try:
            link = await self._open(site.upstream, running)
        except NotSent as error:
            self._failed(running, error.reason, str(error))
            await self._finish(running, engine.GiveUp(str(error)), work.failure(Reject(error.reason, str(error))))
            return
        if not await self._send(running):
            return
        settings, _ = site.policy.settings(running.operation.tool)
        params = work.call_params(running.arguments)
        call = Call(site.upstream.next_id(), "tools/call", params, settings.max_result_bytes)
        command, body = await self._perform(site.upstream, link, call, running)
        await self._finish(running, command, body)

    async def _open(self, upstream: Upstream, running: _Running) -> Link:
        """A session, after a few attempts within about a second."""
        for backoff in _OPEN_BACKOFF_S:
            try:
                return await upstream.open(running.ref.owner)
            except NotSent as error:
                if not error.again:
                    raise
            await asyncio.sleep(backoff)
        return await upstream.open(running.ref.owner)

    async def _send(self, running: _Running) -> bool:
        """Commits `sent`. Nothing leaves this process unless the record says so under our fence."""
        failures = 0
        while True:
            if running.operation.state is OperationState.SENT:
                return True
            after = apply(running.pair.task, running.operation, engine.Send(), self._store.now())
            if isinstance(after, Refused):
                await self._finish(running, engine.GiveUp(engine.DEADLINE), work.DEADLINE)
                return False
            try:
                verdict = await self._commit(running, after, None)
                if verdict is Verdict.OK:
                    self._told(running, "send", verdict)
                    return True
                if verdict in (Verdict.FENCED, Verdict.GONE, Verdict.EXPIRED):
                    return False
                running.pair = await self._store.load(running.ref)
            except StoreAway:
                # Whether it was written is not known, but nothing has been sent: the record tells.
                failures = await self._wait_for_store(running, failures)
            if running.pair.operation is None or running.pair.fence != running.fence:
                return False

    async def _perform(self, upstream: Upstream, link: Link, call: Call, running: _Running) -> tuple[Command, bytes]:
        """The call itself: until it answers, until the deadline, or until it is cancelled and the grace is over."""
        running.performing = True
        performing = asyncio.ensure_future(upstream.perform(link, call))
        stopping = asyncio.ensure_future(running.stop.wait())
        try:
            await asyncio.wait(
                {performing, stopping}, timeout=self._time_left(running.operation), return_when=asyncio.FIRST_COMPLETED
            )
            if performing.done():
                return self._outcome(performing, running)
            await upstream.cancel(link, call)
            if not stopping.done():
                return engine.Overdue(), work.DEADLINE
            await asyncio.wait({performing}, timeout=self._limits.cancel_grace_s)
            return self._outcome(performing, running) if performing.done() else (engine.GraceOver(), work.LOST)
        finally:
            stopping.cancel()
            performing.cancel()
            with suppress(asyncio.CancelledError, NotSent, OutcomeUnknown):
                await performing

    def _outcome(self, performing: "asyncio.Future[work.Response]", running: _Running) -> tuple[Command, bytes]:
        try:
            kind, body = work.outcome(performing.result())
        except NotSent as error:
            self._failed(running, error.reason, str(error))
            if error.again and running.operation.attempt < _MAX_ATTEMPTS:
                return engine.Unsend(), b""
            return engine.GiveUp(str(error)), work.failure(Reject(error.reason, str(error)))
        except OutcomeUnknown as error:
            self._failed(running, error.reason, str(error))
            return engine.Lose(), work.LOST
        return engine.Answer(kind), body

    async def _finish(self, running: _Running, command: Command, body: bytes) -> None:
        """Commits what became of the operation, for as long as it takes and while nobody else took it over."""
        failures = 0
        while True:
            if running.pair.operation is None or running.pair.fence != running.fence:
                return
            after = self._settle(running, command)
            if after is None:
                return
            try:
                verdict = await self._commit(running, after, body if after.finished else None)
                if verdict is not Verdict.STALE:
                    self._told(running, type(command).__name__.lower(), verdict)
                    return
                running.pair = await self._store.load(running.ref)
            except StoreAway:
                failures = await self._wait_for_store(running, failures)

    def _settle(self, running: _Running, command: Command) -> Applied | None:
        """The records after the command, or after the next best truth; None if there is nothing left to say."""
        task, operation = running.pair.task, running.operation
        now = self._store.now()
        if command == engine.Overdue():
            now = max(now, operation.deadline_ms)
        after = apply(task, operation, command, now)
        if isinstance(after, Refused) and operation.state is OperationState.SENT:
            after = apply(task, operation, engine.Lose(), now)
        if isinstance(after, Refused) and operation.state is OperationState.PLANNED:
            return Applied(task, operation)  # nothing was sent: the work goes back as it is
        return None if isinstance(after, Refused) else after

    async def _commit(self, running: _Running, after: Applied, body: bytes | None) -> Verdict:
        settings, _ = self._sites[running.ref.owner.upstream].policy.settings(running.operation.tool)
        again = after.operation.state is OperationState.PLANNED
        unchanged = after.operation is running.operation
        change = Change(
            ref=running.ref,
            before=running.pair,
            after=after,
            retention_ms=settings.ledger_retention_days * _DAY_MS,
            body=body,
            fence=running.fence,
            give_back=again and unchanged,
            restart_in_ms=int(1000 * min(2**after.operation.attempt, 30) * self._jitter()) if again else 0,
        )
        verdict = await self._store.commit(change)
        if verdict in (Verdict.OK, Verdict.EXPIRED):
            running.pair = Pair(after.task, after.operation, running.fence, self._store.now())
        return verdict

    async def _wait_for_store(self, running: _Running, failures: int) -> int:
        """Waits, then reads the record anew. Returns the count of failures in a row."""
        await asyncio.sleep(_STORE_BACKOFF_S[min(failures, len(_STORE_BACKOFF_S) - 1)] * (0.5 + self._jitter()))
        with suppress(StoreAway):
            running.pair = await self._store.load(running.ref)
        return failures + 1

    def _time_left(self, operation: Operation) -> float:
        return max(0, operation.deadline_ms - self._store.now()) / 1000

    def _told(self, running: _Running, cause: str, verdict: Verdict) -> None:
        if verdict not in (Verdict.OK, Verdict.EXPIRED):
            self._telemetry.refused(task_id=running.ref.id, cause=cause, verdict=verdict)
            return
        task: Task | None = running.pair.task
        self._telemetry.transition(
            upstream=running.ref.owner.upstream,
            task_id=running.ref.id,
            task=task.state if task is not None else "expired",
            operation=running.operation.state,
            cause=cause,
        )

    def _failed(self, running: _Running, reason: str, message: str) -> None:
        self._telemetry.upstream_failed(upstream=running.ref.owner.upstream, reason=reason, message=message)

    def _note_store(self, *, up: bool, error: str = "") -> None:
        if up is not self._store_up:
            self._store_up = up
            self._telemetry.store_changed(up=up, error=error)
