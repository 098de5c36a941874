"""The runner loop: claim -> open -> apply(sent) + commit -> perform -> apply(answer) + commit.

It never touches a client. A record that says `sent` was written before the first byte left; what becomes of it is
written by whoever holds the fence, and by nobody else.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mcp_types.jsonrpc import METHOD_NOT_FOUND

from gateway.abilities import Abilities
from gateway.core import engine
from gateway.core.engine import Command
from gateway.core.model import Operation, OperationState, OutcomeKind
from gateway.holder import Held, Holder
from gateway.observing import Observing
from gateway.pending import Patience
from gateway.policy.decide import Policy
from gateway.progress import listener
from gateway.questions import Questions
from gateway.store.port import Claim, ClaimAsk, ClaimKind, Store, StoreAway
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.upstream.port import NO_CAPABILITIES, Call, Link, NotSent, OutcomeUnknown, Upstream
from gateway.wire import theirs_2025, theirs_ext, work
from gateway.wire.errors import Reject
from gateway.wire.intent import MODERN_VERSIONS, era_of
from gateway.wire.jsonrpc import Members, integer, members
from gateway.wire.taken import taken, unusable

_TICK_S: Final = 0.5
_RECHECK_S: Final = 10.0
_OPEN_BACKOFF_S: Final = (0.1, 0.4)
_STORE_BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_MAX_ATTEMPTS: Final = 5
_LAST_WORDS_S: Final = 3.0
_NAMED_S: Final = 1.0
_KEEP_MS: Final = 60_000
"""How long after our deadline an upstream is asked to keep its task."""


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


class Runner:
    """One process's runner. `process` names it uniquely, `jitter` spreads what many processes would do together."""

    def __init__(
        self,
        store: Store,
        streams: StreamStore,
        sites: Mapping[str, Site],
        limits: Limits,
        process: str,
        telemetry: Telemetry,
        wake: Wake,
        jitter: Callable[[], float],
    ) -> None:
        self._store = store
        self._streams = streams
        self._sites = sites
        policies = {name: site.policy for name, site in sites.items()}
        self._holder = Holder(store, policies, telemetry, jitter)
        self._questions = Questions(self._holder, wake)
        self._observing = Observing(
            self._holder, self._questions, telemetry, jitter, cancel_grace_s=limits.cancel_grace_s
        )
        self._abilities = {name: Abilities(site.upstream) for name, site in sites.items()}
        self._limits = limits
        self._process = process
        self._telemetry = telemetry
        self._jitter = jitter
        self._held: dict[str, Held] = {}
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

    async def drain(self, patience: Patience) -> None:
        """Takes nothing new, lets running calls finish, and tells the truth about those that do not."""
        self.pause()
        self.nudge()
        tasks = [running.task for running in self._held.values() if running.task is not None]
        await patience.wait(tasks)
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
        running = Held(claim.ref, claim.pair.fence, claim.pair, claim.arguments)
        self._held[member] = running
        self._telemetry.running.inc()
        running.task = asyncio.get_running_loop().create_task(self._guard(running, claim.kind), name=f"call-{member}")

    async def _guard(self, running: Held, kind: ClaimKind) -> None:
        """Runs one claim to its end. Whatever happens, the record learns it and the slot is freed."""
        try:
            await self._handle(running, kind)
        except asyncio.CancelledError:
            if running.operation.state is OperationState.ACCEPTED:
                await self._observing.leave(running, self._sites[running.ref.owner.upstream].upstream)
            else:
                command = engine.Lose() if running.performing else engine.Unsend()
                await self._holder.finish(running, command, work.LOST)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave a record without an end
            self._telemetry.fault("runner", error)
            await self._after_fault(running)
        finally:
            del self._held[running.ref.member]
            self._telemetry.running.dec()
            self.nudge()

    async def _after_fault(self, running: Held) -> None:
        """What was not sent is not tried again: the same fault would meet it each time."""
        if running.operation.state is OperationState.PLANNED:
            reject = Reject("internal", "a fault of the gateway: nothing was sent")
            await self._holder.finish(running, engine.GiveUp(reject.message), work.failure(reject))
        elif running.operation.state is OperationState.ACCEPTED:
            await self._holder.finish(running, engine.Forget(engine.LOST), work.LOST)
        else:
            await self._holder.finish(running, engine.Lose(), work.LOST)

    async def _handle(self, running: Held, kind: ClaimKind) -> None:
        operation, task = running.operation, running.pair.task
        if operation.state is OperationState.ACCEPTED:
            await self._follow(running, new=False)
        elif kind in (ClaimKind.LOST, ClaimKind.HELD):
            await self._holder.finish(running, engine.Lose(), work.LOST)
        elif kind is ClaimKind.DEADLINE or self._time_left(operation) <= 0:
            await self._holder.finish(running, engine.Overdue(), work.DEADLINE)
        elif task is None or operation.attempt >= _MAX_ATTEMPTS:
            reject = Reject("upstream_down", f"given up after {operation.attempt} attempts")
            await self._holder.finish(running, engine.GiveUp(reject.message), work.failure(reject))
        else:
            await self._start(running)

    async def _start(self, running: Held) -> None:
        site = self._sites[running.ref.owner.upstream]
        task = running.pair.task
        capabilities = NO_CAPABILITIES if task is None else task.capabilities
        try:
            link = await self._open(site.upstream, running, capabilities)
        except NotSent as error:
            self._failed(running, error.reason, str(error))
            if error.busy:
                await self._holder.finish(running, engine.Unsend(), b"")  # it goes back as it is, until its deadline
                return
            failure = work.failure(Reject(error.reason, str(error)))
            await self._holder.finish(running, engine.GiveUp(str(error)), failure)
            return
        with site.upstream.holding(link):
            await self._call(running, link)

    async def _call(self, running: Held, link: Link) -> None:
        """Sends the call, once, and sees to what becomes of it."""
        site, task = self._sites[running.ref.owner.upstream], running.pair.task
        as_task = await self._abilities[running.ref.owner.upstream].takes_task(link, running.operation.tool)
        if not await self._holder.send(running):
            return
        settings, _ = site.policy.settings(running.operation.tool)
        call_id = site.upstream.next_id()
        wants_progress = task is not None and task.progress_token is not None
        params = work.call_params(running.arguments, call_id if wants_progress else None, era=era_of(link.version))
        if as_task:
            params = self._asking(running, link, params)
        raw = work.as_written(running.arguments, params)
        call = Call(call_id, "tools/call", params, settings.max_result_bytes, raw=raw)
        command, body = await self._perform(link, call, running, as_task=as_task)
        if isinstance(command, engine.Accept):
            if await self._holder.accept(running, command):
                await self._follow(running, new=True)
            return
        if _refused_as_such(command, body) and await self._abilities[running.ref.owner.upstream].differs(
            link, running.operation.tool, asked=as_task
        ):
            command = engine.Unsend()  # it was refused for how it was called: nothing was done
        await self._holder.finish(running, command, body)

    def _asking(self, running: Held, link: Link, params: Members) -> Members:
        """The parameters of a call that an upstream may make a task of its own of."""
        if link.version in MODERN_VERSIONS:
            return theirs_ext.declaring(params)
        return theirs_2025.asking(params, int(self._time_left(running.operation) * 1000) + _KEEP_MS)

    async def _follow(self, running: Held, *, new: bool) -> None:
        """The upstream has the work. What becomes of it is asked, and never started again."""
        site = self._sites[running.ref.owner.upstream]
        settings, _ = site.policy.settings(running.operation.tool)
        progress = listener(self._streams, running.ref, running.pair.task)
        try:
            ending = await self._observing.follow(running, site.upstream, settings, progress, new=new)
        finally:
            if progress is not None:
                await progress.close()
        if ending is not None:
            await self._holder.finish(running, *ending)

    async def _open(self, upstream: Upstream, running: Held, capabilities: str) -> Link:
        """The upstream session of the client session that asked, after a few attempts within about a second."""
        session = "" if running.pair.task is None else running.pair.task.session
        for backoff in _OPEN_BACKOFF_S:
            try:
                return upstream.able(await upstream.open(running.ref.owner, capabilities, session))
            except NotSent as error:
                if not error.again:
                    raise
            await asyncio.sleep(backoff)
        return upstream.able(await upstream.open(running.ref.owner, capabilities, session))

    async def _perform(self, link: Link, call: Call, running: Held, *, as_task: bool) -> tuple[Command, bytes]:
        """The call itself: until it answers, until the deadline, or until it is cancelled and the grace is over."""
        running.performing = True
        site = self._sites[running.ref.owner.upstream]
        upstream, (settings, _) = site.upstream, site.policy.settings(running.operation.tool)
        on_request = self._questions.asker(running, link, settings.input_timeout_s)
        task = running.pair.task
        progress = listener(self._streams, running.ref, task)
        performing = asyncio.ensure_future(upstream.perform(link, call, progress, on_request))
        stopping = asyncio.ensure_future(running.stop.wait())
        try:
            await asyncio.wait(
                {performing, stopping}, timeout=self._time_left(running.operation), return_when=asyncio.FIRST_COMPLETED
            )
            if performing.done() and not running.input_expired:
                return self._outcome(performing, running, link, call)
            if as_task and not running.input_expired and await _soon(performing):
                return self._outcome(performing, running, link, call)  # a task is cancelled by its own name
            await upstream.cancel(link, call)
            if running.input_expired:
                return engine.InputExpired(), work.UNANSWERED
            if not stopping.done():
                return engine.Overdue(), work.DEADLINE
            await asyncio.wait({performing}, timeout=self._limits.cancel_grace_s)
            if not performing.done() or isinstance(performing.exception(), OutcomeUnknown):
                return engine.GraceOver(), work.LOST  # where closing its stream cancels a call, no answer can come
            return self._outcome(performing, running, link, call)
        finally:
            stopping.cancel()
            performing.cancel()
            with suppress(asyncio.CancelledError, NotSent, OutcomeUnknown):
                await performing
            if progress is not None:
                await progress.close()

    def _outcome(
        self, performing: "asyncio.Future[work.Response]", running: Held, link: Link, call: Call
    ) -> tuple[Command, bytes]:
        try:
            response = performing.result()
        except NotSent as error:
            self._failed(running, error.reason, str(error))
            if error.again and running.operation.attempt < _MAX_ATTEMPTS:
                return engine.Unsend(), b""
            return engine.GiveUp(str(error)), work.failure(Reject(error.reason, str(error)))
        except OutcomeUnknown as error:
            self._failed(running, error.reason, str(error))
            return engine.Lose(), work.LOST
        if (their := taken(response)) is not None:
            settings, _ = self._sites[running.ref.owner.upstream].policy.settings(running.operation.tool)
            return self._observing.acceptance(running, link, *their, settings, call.id), b""
        if unusable(response):
            self._failed(running, "upstream_bad", "the upstream made a task and does not say which")
            return engine.Lose(), work.LOST
        kind, body = work.outcome(response)
        return engine.Answer(kind), body

    def _time_left(self, operation: Operation) -> float:
        return max(0, operation.deadline_ms - self._store.now()) / 1000

    def _failed(self, running: Held, reason: str, message: str) -> None:
        self._telemetry.upstream_failed(upstream=running.ref.owner.upstream, reason=reason, message=message)

    def _note_store(self, *, up: bool, error: str = "") -> None:
        if up is not self._store_up:
            self._store_up = up
            self._telemetry.store_changed(up=up, error=error)


async def _soon(performing: "asyncio.Future[work.Response]") -> bool:
    """Whether an upstream that makes tasks answers in a moment: it has been asked to stop before it has named one."""
    await asyncio.wait({performing}, timeout=_NAMED_S)
    return performing.done()


def _refused_as_such(command: Command, body: bytes) -> bool:
    """Whether a server refused a call because it was a task, or because it was none."""
    error: Members = members(body) or {}
    is_error = isinstance(command, engine.Answer) and command.kind is OutcomeKind.ERROR
    return is_error and integer(error.get("code")) == METHOD_NOT_FOUND
