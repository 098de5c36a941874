"""What the holder of an operation writes, and nobody else: every change goes through here, under its fence."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.core import engine
from gateway.core.engine import Applied, Command, Outcome, Refused, apply
from gateway.core.model import IN_FLIGHT, Effect, Operation, OperationState, OutcomeKind, Task
from gateway.core.operation import OperationEvent
from gateway.policy.decide import Policy
from gateway.store.keys import Ref
from gateway.store.port import Change, Pair, Store, StoreAway, Verdict
from gateway.telemetry import Telemetry
from gateway.upstream.port import Link
from gateway.wire import work
from gateway.wire.errors import Reject

_STORE_BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_DAY_MS: Final = 86_400_000


@dataclass(slots=True)
class Held:
    """An operation that this process holds. `attached` is the session in which another one could have its answer.

    `resent`: it was sent before, in a session that its upstream had ended. `known` is it in flight, as this process
    wrote it last.
    """

    ref: Ref
    fence: int
    pair: Pair
    arguments: bytes
    performing: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    input_expired: bool = False
    attached: Link | None = None
    resent: bool = False
    task: "asyncio.Task[None] | None" = None
    known: Operation | None = None

    @property
    def operation(self) -> Operation:
        """The operation as it was last seen."""
        assert self.pair.operation is not None  # noqa: S101  # nothing is held that is not there
        return self.pair.operation

    @property
    def member(self) -> str:
        """How indexes and wake-ups name it."""
        return self.ref.member


class Holder:
    """Writes for what `process`, this one, holds. `jitter` spreads what many processes would do together."""

    def __init__(
        self,
        store: Store,
        policies: Mapping[str, Policy],
        telemetry: Telemetry,
        jitter: Callable[[], float],
        process: str,
    ) -> None:
        self.store = store
        self._process = process
        self._policies = policies
        self._telemetry = telemetry
        self._jitter = jitter
        self._back = asyncio.Event()

    def store_is_back(self) -> None:
        """Whoever waits to write tries again at once."""
        self._back.set()
        self._back = asyncio.Event()

    async def send(self, held: Held) -> bool:
        """Commits `sent`. Nothing leaves this process unless the record says so under our fence."""
        failures = 0
        while True:
            if held.operation.state is OperationState.SENT:
                held.known = held.operation
                return not self._must_be_sure(held) or await self._not_sure(held)
            after = apply(held.pair.task, held.operation, engine.Send(), self.store.now())
            if isinstance(after, Refused):
                await self.finish(held, engine.GiveUp(engine.DEADLINE), work.DEADLINE)
                return False
            try:
                verdict = await self._commit(held, after, None)
                if verdict is not Verdict.STALE:
                    return await self._leaves(held, verdict)
                held.pair = await self.store.load(held.ref)
            except StoreAway:
                # Whether it was written is not known, but nothing has been sent: the record tells.
                failures = await self._wait_for_store(held, failures)
            if held.pair.operation is None or held.pair.fence > held.fence:
                return False

    async def _leaves(self, held: Held, verdict: Verdict) -> bool:
        """Whether the call may leave, after what became of its mark. If not, the record is told why."""
        if verdict is Verdict.OK:
            self._told(held, "send", verdict)
            return True
        if verdict is Verdict.UNSURE:
            return await self._not_sure(held)
        if verdict is Verdict.EXPIRED:
            # Nobody is left who could be told, and nothing has left: the operation is over before it began.
            held.pair = replace(held.pair, task=None)
            await self.finish(held, engine.Unsend(), b"")
        elif verdict is Verdict.DOUBTFUL:
            await self.finish(held, engine.Doubt(), work.IN_DOUBT)
        return False

    def _must_be_sure(self, held: Held) -> bool:
        return held.operation.effect is Effect.CONSEQUENTIAL and self.store.makes_sure()

    async def _not_sure(self, held: Held) -> bool:
        """The record says that it was sent, and may be forgotten: nothing leaves, and it is tried again later."""
        self._telemetry.sent_not_durable(upstream=held.ref.owner.upstream, task_id=held.ref.id)
        await self.finish(held, engine.Unsend(untried=True), b"")
        return False

    async def finish(self, held: Held, command: Command, body: bytes | Reject, *, give_back: bool = False) -> None:
        """Commits what became of the operation, for as long as it takes and while nobody else took it over.

        `body` is what a task gets that this finishes; of a refusal, with what is known of the effect.
        """
        command = self._proved(held, command, body)
        failures = 0
        while True:
            if held.pair.operation is None:
                self._forgotten(held, command)
                return
            if held.pair.fence > held.fence:
                return
            after = self._settle(held, command)
            if after is None:
                return
            try:
                verdict = await self._commit(held, after, _written(after, body), give_back=give_back)
                if verdict is Verdict.DOUBTFUL:
                    command, body = engine.Doubt(), work.IN_DOUBT
                    continue
                if verdict is not Verdict.STALE:
                    if verdict is not Verdict.OK or _news(command, after):
                        self._told(held, type(command).__name__.lower(), verdict)
                    if verdict is Verdict.GONE:
                        self._forgotten(held, command)
                    return
                held.pair = await self.store.load(held.ref)
            except StoreAway:
                failures = await self._wait_for_store(held, failures)

    async def accept(self, held: Held, command: engine.Accept) -> bool:
        """Commits that the upstream took the work, for as long as it takes; False if it is somebody else's now."""

        def accepted(operation: Operation) -> bool:
            return operation.state is OperationState.ACCEPTED and operation.handle == command.handle

        return await self._insist(held, command, accepted)

    async def approve(self, held: Held) -> bool:
        """Commits that the requestor agreed, and keeps the work; False if it is nobody's or somebody else's now."""
        return await self._insist(held, engine.Approve(), lambda operation: operation.approved)

    async def _insist(self, held: Held, command: Command, done: Callable[[Operation], bool]) -> bool:
        failures = 0
        while True:
            operation = held.pair.operation
            if operation is None or held.pair.fence > held.fence:
                return False
            if done(operation):
                return True  # the answer to an earlier attempt was lost
            try:
                written = await self._try(held, command)
            except StoreAway:
                failures = await self._wait_for_store(held, failures)
                continue
            if written is not None:
                return written

    async def observe(self, held: Held, command: engine.Observe) -> bool:
        """Commits what was seen, unless the store is away: it is seen again. False if it is somebody else's now."""
        with suppress(StoreAway):
            while (written := await self._try(held, command)) is None:
                pass
            return written
        return True

    async def give_back(self, held: Held) -> None:
        """Leaves to others what the upstream took; whoever claims it next asks on."""
        await self.finish(held, engine.Lose(), b"", give_back=True)

    async def hand_over(self, held: Held) -> None:
        """Leaves to others what was sent, as it is: whoever claims it takes up its stream, or loses it."""
        with suppress(StoreAway):  # then they find it when the lease of this process has ended
            held.pair = await self.store.load(held.ref)
            if held.pair.operation is not None and held.pair.fence <= held.fence:
                await self._commit(held, Applied(held.pair.task, held.operation), None, give_back=True)

    async def remind(self, held: Held) -> None:
        """Tells a store that may have forgotten it how far the work has come. Raises StoreAway."""
        while held.known is not None:
            pair = await self.store.load(held.ref)
            if pair.operation is None or pair.fence > held.fence:
                return
            after = apply(pair.task, pair.operation, engine.Recall(held.known), pair.now)
            if isinstance(after, Refused):
                return
            if await self.store.commit(self._request(held, pair, after, None)) is not Verdict.STALE:
                self._telemetry.reminded(upstream=held.ref.owner.upstream, task_id=held.ref.id)
                return

    async def _try(self, held: Held, command: Command) -> bool | None:
        """One attempt; None if somebody changed the records in between. Raises StoreAway."""
        if held.pair.operation is None or held.pair.fence > held.fence:
            return False
        after = self._applied(held, held.pair, command, self.store.now())
        if isinstance(after, Refused):
            return False
        verdict = await self._commit(held, after, None, keep=isinstance(command, engine.Approve))
        if verdict is Verdict.STALE:
            held.pair = await self.store.load(held.ref)
            return None
        written = verdict in (Verdict.OK, Verdict.EXPIRED)
        if not written or not isinstance(command, engine.Observe):  # one more look is no news
            self._told(held, type(command).__name__.lower(), verdict)
        return written

    async def change(self, held: Held, command: Command) -> Pair | None:
        """Applies a command that does not end the work; the records after it, or None if it was refused or fenced."""
        while True:
            pair = await self.store.load(held.ref)
            if pair.operation is None or pair.fence > held.fence:
                return None
            after = self._applied(held, pair, command, pair.now)
            if isinstance(after, Refused):
                return None
            verdict = await self.store.commit(self._request(held, pair, after, None))
            if verdict is Verdict.OK:
                return Pair(after.task, after.operation, held.fence, pair.now)
            if verdict is not Verdict.STALE:
                return None

    def _proved(self, held: Held, command: Command, body: bytes | Reject) -> Command:
        """An answer with the receipt that the policy says is in it."""
        settings, _ = self._policies[held.ref.owner.upstream].settings(held.operation.tool)
        if not isinstance(command, engine.Answer) or isinstance(body, Reject) or settings.operation is None:
            return command
        return replace(command, receipt=work.receipt(body, settings.operation.receipt))

    def _settle(self, held: Held, command: Command) -> Applied | None:
        """The records after the command, or after the next best truth; None if there is nothing left to say."""
        pair, operation = held.pair, held.operation
        now = self.store.now()
        if pair.task is not None and pair.task.expires_ms <= now:
            pair = replace(pair, task=None)  # what is learnt now is learnt late: it was there when it was last read
        if command == engine.Overdue():
            now = max(now, operation.deadline_ms)
        after = self._applied(held, pair, command, now)
        sent = operation.state is OperationState.SENT
        if isinstance(after, Refused) and (sent or (operation.state is OperationState.PLANNED and held.known)):
            after = self._applied(held, pair, engine.Lose(), now)
        if isinstance(after, Refused) and operation.state is OperationState.PLANNED:
            return Applied(pair.task, operation)  # nothing was sent: the work goes back as it is
        return None if isinstance(after, Refused) else after

    def _applied(self, held: Held, pair: Pair, command: Command, now: int) -> Outcome:
        """The records after the command, and before it after what the store has forgotten and this process knows."""
        assert pair.operation is not None  # noqa: S101  # seen by all callers
        task, operation = pair.task, pair.operation
        if held.known is not None:
            recalled = apply(task, operation, engine.Recall(held.known), now)
            if isinstance(recalled, Applied):
                task, operation = recalled.task, recalled.operation
        return apply(task, operation, command, now)

    async def _commit(
        self, held: Held, after: Applied, body: bytes | None, *, give_back: bool = False, keep: bool = False
    ) -> Verdict:
        request = self._request(held, held.pair, after, body, give_back=give_back)
        verdict = await self.store.commit(replace(request, keep=keep))
        if verdict in (Verdict.OK, Verdict.EXPIRED, Verdict.UNSURE):
            held.pair = Pair(after.task, after.operation, held.fence, self.store.now())
            held.known = after.operation if after.operation.state in IN_FLIGHT else None
        return verdict

    def _request(
        self, held: Held, before: Pair, after: Applied, body: bytes | None, *, give_back: bool = False
    ) -> Change:
        settings, _ = self._policies[held.ref.owner.upstream].settings(after.operation.tool)
        again = after.operation.state is OperationState.PLANNED
        return Change(
            ref=held.ref,
            before=before,
            after=after,
            retention_ms=settings.ledger_retention_days * _DAY_MS,
            body=body,
            fence=held.fence,
            holder=self._process,
            durable=_leaving(before, after) and after.operation.effect is Effect.CONSEQUENTIAL,
            give_back=give_back or (again and after.operation is before.operation),
            restart_in_ms=self._restart_ms(after.operation) if again else 0,
        )

    def _restart_ms(self, operation: Operation) -> int:
        """How long work waits that is planned again. Where a reason is remembered, what was in the way is gone."""
        return 0 if operation.reason else int(1000 * min(2 ** _tries(operation), 30) * self._jitter())

    async def _wait_for_store(self, held: Held, failures: int) -> int:
        """Waits, though no longer than until the store is back, then reads the record anew.

        Returns the count of failures in a row.
        """
        pause_s = _STORE_BACKOFF_S[min(failures, len(_STORE_BACKOFF_S) - 1)] * (0.5 + self._jitter())
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._back.wait()
        with suppress(StoreAway):
            held.pair = await self.store.load(held.ref)
        return failures + 1

    def _forgotten(self, held: Held, command: Command) -> None:
        """What became of the work is known, and there is no record any more that could say so: the log does."""
        kind = str(command.kind) if isinstance(command, engine.Answer) else type(command).__name__.lower()
        self._telemetry.record_gone(upstream=held.ref.owner.upstream, task_id=held.ref.id, outcome=kind)

    def _told(self, held: Held, cause: str, verdict: Verdict) -> None:
        if verdict not in (Verdict.OK, Verdict.EXPIRED):
            self._telemetry.refused(task_id=held.ref.id, cause=cause, verdict=verdict)
            return
        task: Task | None = held.pair.task
        self._telemetry.transition(
            upstream=held.ref.owner.upstream,
            task_id=held.ref.id,
            task=task.state if task is not None else "expired",
            operation=held.operation.state,
            cause=cause,
        )


def _news(command: Command, after: Applied) -> bool:
    """One more question that told nothing is none, unless a task could not wait any longer."""
    return after.finished or not isinstance(command, engine.Inquired)


def _written(after: Applied, body: bytes | Reject) -> bytes | None:
    if not after.finished:
        return None
    if isinstance(body, Reject):
        return work.failure(body, after.operation)
    told = after.task is not None and after.task.ledger and after.task.outcome_kind is not OutcomeKind.ERROR
    return work.with_operation(body, after.operation) if told else body


def _leaving(before: Pair, after: Applied) -> bool:
    """Whether the call is about to leave."""
    planned = before.operation is not None and before.operation.state is OperationState.PLANNED
    return planned and after.operation.state is OperationState.SENT


def _tries(operation: Operation) -> int:
    """How often it was tried, or was about to be."""
    return max(operation.attempt, sum(step.cause == OperationEvent.NOT_SENT for step in operation.history))
