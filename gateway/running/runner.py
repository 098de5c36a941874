"""The runner loop: claim -> open -> apply(sent) + commit -> perform -> apply(answer) + commit.

It never touches a client. A record that says `sent` was written before the first byte left; what becomes of it is
written by whoever holds the fence, and by nobody else.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gateway.core import engine
from gateway.core.model import IN_FLIGHT, OperationState
from gateway.pending import Patience
from gateway.running.holder import Held, Holder
from gateway.running.performing import MAX_ATTEMPTS, Performing, Site
from gateway.running.reconciling import PAUSES, Pauses, Reconciling, Vain
from gateway.store.port import Claim, ClaimAsk, ClaimKind, Store, StoreAway
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.wire import work
from gateway.wire.errors import Reject

_TICK_S: Final = 0.5
_RECHECK_S: Final = 10.0
_STORE_BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_LAST_CLAIM_S: Final = 1.0
_LAST_WORDS_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process takes on. Durations are seconds."""

    concurrency: int
    lease_s: float
    takeover_grace_s: float
    cancel_grace_s: float


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
        pauses: Pauses = PAUSES,
    ) -> None:
        self._store = store
        self._sites = sites
        policies = {name: site.policy for name, site in sites.items()}
        self._holder = Holder(store, policies, telemetry, jitter, process)
        self._performing = Performing(
            self._holder, streams, sites, wake, telemetry, jitter, cancel_grace_s=limits.cancel_grace_s
        )
        self._reconciling = Reconciling(self._holder, sites, telemetry, jitter, pauses)
        self._limits = limits
        self._process = process
        self._telemetry = telemetry
        self._jitter = jitter
        self._held: dict[str, Held] = {}
        self._nudged = asyncio.Event()
        self._draining = self._ending = False
        self._loops: list[asyncio.Task[None]] = []
        self._store_up = True
        self._epoch = 0
        self._longest_pause_s = max(_STORE_BACKOFF_S[0], limits.takeover_grace_s / 4)

    def pause(self) -> None:
        """Takes nothing new from now on; what is held goes on, and so do the leases."""
        self._draining = True

    def resume(self) -> None:
        """Takes on work again."""
        self._draining = False
        self.nudge()

    @property
    def running(self) -> int:
        """How many calls this process holds."""
        return len(self._held)

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
        await patience.wait(self._tasks())
        await self._end_loops()
        tasks = self._tasks()  # work of others that was taken over meanwhile too
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)

    async def run_once(self) -> int:
        """Claims at every upstream and renews the lease; how many claims there were. Raises StoreAway."""
        answers = await asyncio.gather(*(self._claim(name, site) for name, site in self._sites.items()))
        return sum(answers)

    async def idle(self) -> None:
        """Waits until this process holds nothing."""
        while self._held:
            await asyncio.wait(self._tasks())

    def _tasks(self) -> "list[asyncio.Task[None]]":
        return [running.task for running in self._held.values() if running.task is not None]

    async def _end_loops(self) -> None:
        """What this process lets go of from now on is for others. A claim that is under way ends: it may bring work."""
        self._ending = True
        self.nudge()
        if self._loops:
            await asyncio.wait(self._loops[:1], timeout=_LAST_CLAIM_S)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _claim_loop(self) -> None:
        failures = 0
        while not self._ending:
            try:
                await self.run_once()
                await self._remind()
                unfit = self._store.unfit()
                self._note_store(up=not unfit, error=unfit)
                if failures:
                    self._holder.store_is_back()
                failures = 0
                delay = min(_TICK_S, self._limits.lease_s / 4) * (0.5 + self._jitter())
            except StoreAway as error:
                self._note_store(up=False, error=str(error))
                # Whoever comes back long after the others may find its work taken over: the grace bounds the pause.
                pause = min(_STORE_BACKOFF_S[min(failures, len(_STORE_BACKOFF_S) - 1)], self._longest_pause_s)
                delay = pause * (0.5 + self._jitter())
                failures += 1
            except Exception as error:  # noqa: BLE001  # the leases of all that runs here depend on this loop
                self._telemetry.fault("claim", error)
                delay = self._longest_pause_s
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._nudged.wait()
            self._nudged.clear()

    async def _remind(self) -> None:
        """A store that has become another one is told what this process holds, which it may have forgotten."""
        epoch = self._store.epoch()
        if epoch == self._epoch:
            return
        if self._epoch:
            self._telemetry.store_doubted(epoch=epoch, held=len(self._held))
            await asyncio.gather(*(self._holder.remind(held) for held in list(self._held.values())))
        self._epoch = epoch

    async def _recheck_loop(self) -> None:
        """Finds the cancellations whose wake-up was lost."""
        while True:
            await asyncio.sleep(_RECHECK_S * (0.5 + self._jitter()))
            for member, running in list(self._held.items()):
                try:
                    task = (await self._store.load(running.ref)).task
                    if task is not None and task.cancel_asked_ms is not None:
                        self.stop(member)
                except StoreAway:
                    continue
                except Exception as error:  # noqa: BLE001  # one record that cannot be read stands for no other
                    self._telemetry.fault("recheck", error)

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
        running.known = running.operation if running.operation.state in IN_FLIGHT else None
        self._held[member] = running
        self._telemetry.running.inc()
        running.task = asyncio.get_running_loop().create_task(self._guard(running, claim.kind), name=f"call-{member}")

    async def _guard(self, running: Held, kind: ClaimKind) -> None:
        """Runs one claim to its end. Whatever happens, the record learns it and the slot is freed."""
        try:
            await self._handle(running, kind)
        except asyncio.CancelledError:
            if running.operation.state is OperationState.ACCEPTED:
                await self._performing.leave(running)
            elif running.operation.state is OperationState.UNKNOWN:
                await self._reconciling.leave(running)
            elif not await self._performing.hand_over(running):
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
            await self._holder.finish(running, engine.GiveUp(reject.message), reject)
        elif running.operation.state is OperationState.ACCEPTED:
            await self._holder.finish(running, engine.Forget(engine.LOST), work.LOST)
        elif running.operation.state is OperationState.UNKNOWN:
            await self._reconciling.in_vain(running, Vain("fault"))
        else:
            await self._holder.finish(running, engine.Lose(), work.LOST)

    async def _handle(self, running: Held, kind: ClaimKind) -> None:
        operation, task = running.operation, running.pair.task
        if operation.state is OperationState.ACCEPTED:
            await self._performing.follow(running, new=False)
        elif kind is ClaimKind.DOUBTFUL:
            await self._holder.finish(running, engine.Doubt(), work.IN_DOUBT)
        elif operation.state is OperationState.UNKNOWN:
            await self._reconciling.ask(running)
        elif kind in (ClaimKind.LOST, ClaimKind.HELD) and operation.state is OperationState.SENT:
            await self._performing.take_over(running)
        elif kind in (ClaimKind.LOST, ClaimKind.HELD):
            await self._holder.finish(running, engine.Lose(), work.LOST)
        elif kind is ClaimKind.DEADLINE or self._performing.time_left(operation) <= 0:
            await self._holder.finish(running, engine.Overdue(), work.DEADLINE)
        elif task is None or operation.attempt >= MAX_ATTEMPTS:
            reject = Reject("upstream_down", f"given up after {operation.attempt} attempts")
            await self._holder.finish(running, engine.GiveUp(reject.message), reject)
        else:
            await self._performing.start(running)

    def _note_store(self, *, up: bool, error: str = "") -> None:
        if up is not self._store_up:
            self._store_up = up
            self._telemetry.store_changed(up=up, error=error)
