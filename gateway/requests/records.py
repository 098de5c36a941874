"""What the request loop does with records: create them, wait for them, cancel them, hand them out."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Final

from gateway.core import engine
from gateway.core.engine import Applied, Command, Refused, apply
from gateway.core.model import Effect, Operation, OperationState, Owner, Task, TaskState
from gateway.pending import Background
from gateway.policy.model import Settings
from gateway.requests.intended import Intended
from gateway.store.keys import Ref
from gateway.store.port import Change, Created, Creation, NewWork, Pair, Store, StoreAway, StoreUnfit, Verdict
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.wire.errors import Reject, switched_off
from gateway.wire.intent import CallTool

_REREAD_S: Final = 10.0
_STORE_BACKOFF_S: Final = 0.5
_ABANDON_S: Final = 60.0
_AT_ONCE_S: Final = 0.25
"""How long a store is asked once more that did not answer in time: it may have been this process that stood still."""
_APPEARS_MS: Final = 10_000
"""Longer than any script is good for: the store refuses what comes after the caller's own timeout."""
_HIDDEN_SLACK_MS: Final = 60_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Existing:
    """The operation that the idempotency key of a call stands for already."""

    ref: Ref
    pair: Pair


@dataclass(frozen=True, slots=True)
class Asker:
    """Who wants a record, and what it can be asked and told about it later."""

    owner: Owner
    dialect: str
    capabilities: str = "{}"
    session: str = ""
    progress_token: str | None = None


class Records:
    """The store as the request loop uses it."""

    def __init__(
        self,
        store: Store,
        wake: Wake,
        background: Background,
        telemetry: Telemetry,
        *,
        ttl_cap_ms: int | None,
        new_id: Callable[[], str],
        jitter: Callable[[], float],
        nudge: Callable[[], None],
    ) -> None:
        """`new_id` gives ids that nobody can guess, `nudge` tells the runner that there is work.

        `ttl_cap_ms` bounds how long tasks are kept whose callers are not told apart.
        """
        self.store = store
        self._wake = wake
        self._background = background
        self._telemetry = telemetry
        self._ttl_cap_ms = ttl_cap_ms
        self._new_id = new_id
        self._jitter = jitter
        self._nudge = nudge

    async def create(
        self,
        asker: Asker,
        call: CallTool,
        arguments: bytes,
        settings: Settings,
        effect: Intended,
        *,
        hidden: bool,
        exempt: bool = False,
    ) -> Task | Existing | Reject:
        """The record of a call, durable when this returns. Raises StoreAway; then no work goes on unseen.

        Where the store went away with its answer, the record may be there: then the outcome is told to be unknown.

        `exempt` calls are no tasks: the kill switch does not concern them.
        """
        task, operation = self._records(asker, call, settings, effect, hidden=hidden)
        retention = settings.ledger_retention_days * _DAY_MS
        limits = (settings.max_concurrent_per_principal, settings.max_concurrent_per_tenant)
        work = NewWork(task, operation, arguments, *limits, retention, effect.key_for_ms, exempt)
        creation = await self._create(work, settings)
        if creation is None:
            told = {"operation": {"id": task.id, "outcome": "unknown"}}
            return Reject("outcome_unknown", "the gateway lost its store while it recorded the call", told)
        match creation.verdict:
            case Created.EXISTS:
                ref = Ref(asker.owner, creation.which)
                return Existing(ref, await self.store.load(ref))
            case Created.CONFLICT:
                told = {"operation": {"id": creation.which}}
                return Reject("key_conflict", "The idempotency key was used with other arguments", told)
            case Created.SWITCH:
                return switched_off(creation.which)
            case Created.QUOTA_PRINCIPAL | Created.QUOTA_TENANT:
                limit = limits[creation.verdict is Created.QUOTA_TENANT]
                message = f"{limit} tasks of this {creation.verdict} are under way: wait until one ends"
                return Reject("quota", message, {"limit": limit, "scope": str(creation.verdict)})
        self._nudge()
        if not hidden:
            self._telemetry.created(upstream=task.owner.upstream, tool=call.name, dialect=task.dialect, task_id=task.id)
        return task

    def ttl_ms(self, call: CallTool, settings: Settings) -> int:
        """How long the task of a call is kept, from its creation."""
        ttl = clamp_ttl(call, settings)
        return ttl if self._ttl_cap_ms is None else min(ttl, self._ttl_cap_ms)

    async def wait(self, ref: Ref, timeout_s: float | None, *, or_asked: bool = False) -> Pair:
        """The pair once its task has ended or expired (or waits for input), or as it is when the time is over.

        A wake-up is only a hint: subscribed first, read then, and read again now and then. While the store is away
        this waits on; raises StoreAway only when the time is over.
        """
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        with self._wake.waiting(ref.member) as event:
            while True:
                event.clear()
                left = None if end is None else end - loop.time()
                try:
                    pair = await self.store.load(ref)
                    if pair.task is None or pair.task.terminal or (left is not None and left <= 0):
                        return pair
                    if or_asked and pair.task.state is TaskState.INPUT_REQUIRED:
                        return pair
                    pause = min(_REREAD_S * (0.5 + self._jitter()), (pair.task.expires_ms - pair.now) / 1000 + 0.01)
                except StoreAway:
                    if left is not None and left <= 0:
                        raise
                    pause = _STORE_BACKOFF_S * (0.5 + self._jitter())
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause if left is None else max(0, min(pause, left))):
                        await event.wait()

    def waking(self, ref: Ref) -> AbstractContextManager[asyncio.Event]:
        """An event that is set when this record may have changed."""
        return self._wake.waiting(ref.member)

    async def change(self, ref: Ref, command: Command, settings: Settings, body: bytes | None = None) -> Pair | Refused:
        """Applies a command of the request loop, against whoever is faster. Raises StoreAway.

        `body` is what the requestor gets to read if the command ends the task with a result or an error.
        """
        in_doubt = False
        while True:
            pair = await self.store.load(ref)
            if pair.operation is None:
                return Refused(engine.Refusal.TERMINAL)
            operation = _doubted(pair.operation, pair.now) if in_doubt else pair.operation
            after = apply(pair.task, operation, command, pair.now)
            if isinstance(after, Refused):
                return after
            verdict = await self._commit(ref, pair, after, settings, body)
            in_doubt = in_doubt or verdict is Verdict.DOUBTFUL
            if verdict is Verdict.GONE:
                return Refused(engine.Refusal.TERMINAL)
            if verdict not in (Verdict.STALE, Verdict.DOUBTFUL):
                self._tell(ref, after, command)
                return replace(pair, task=after.task, operation=after.operation)

    def abandon(self, ref: Ref, settings: Settings, *, appears_until_ms: int = 0) -> None:
        """Sets the cancel latch of a hidden record that nobody waits for any more, as soon as the store answers.

        A record that was handed out as a task meanwhile stays: only its own methods cancel a task (TX-CAN-2).

        A creation whose answer was lost may still be under way: until `appears_until_ms` on the store's clock.
        """
        self._background.start(self._abandon(ref, settings, appears_until_ms), "abandon")

    async def _abandon(self, ref: Ref, settings: Settings, until_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABANDON_S):
                while True:
                    with suppress(StoreAway):
                        pair = await self.store.load(ref)
                        found = pair.operation is not None
                        lost = until_ms > 0  # whoever was to be told of this record never was
                        if found and (lost or (pair.task is not None and pair.task.hidden)):
                            await self.change(ref, engine.Cancel(final=False, unseen=not lost), settings)
                        if found or self.store.now() > until_ms:
                            return
                    await asyncio.sleep(_STORE_BACKOFF_S)

    async def _create(self, work: NewWork, settings: Settings) -> Creation | None:
        """A lost answer does not tell whether the record exists, so the same id is created once more.

        When that fails too, whatever was created is dropped as soon as the store answers. Until then it may be taken
        up: None, where it is not known that there is nothing.
        """
        try:
            return await self.store.create(work)
        except StoreUnfit:
            raise  # it was not even asked
        except StoreAway as error:
            away, refused = error, error.refused
        ref = Ref(work.task.owner, work.task.id)
        if away.waited:
            if await self._is_there(ref):
                return Creation(Created.CREATED)
        else:
            try:
                return await self.store.create(work)
            except StoreAway as error:
                refused = refused and error.refused
        if refused:
            raise away
        if away.waited or not work.operation.idempotency_key:
            self.abandon(ref, settings, appears_until_ms=self.store.now() + _APPEARS_MS)
        if away.waited:
            raise away
        return None  # with a key, whoever asks again finds it by that

    async def _is_there(self, ref: Ref) -> bool:
        """Whether a creation happened whose answer was waited for too long: maybe it was this process that stood still.

        The store refuses a creation that it comes to by now, so that a look is harmless and a second one would not be.
        """
        with suppress(StoreAway, TimeoutError):
            async with asyncio.timeout(_AT_ONCE_S):
                return (await self.store.load(ref)).operation is not None
        return False

    def _records(
        self, asker: Asker, call: CallTool, settings: Settings, intended: Intended, *, hidden: bool
    ) -> tuple[Task, Operation]:
        now = self.store.now()
        task_id = self._new_id()
        interval = settings.poll_interval_ms
        deadline_ms = settings.deadline_s * 1000
        effect = Effect(settings.effect)
        task = Task(
            id=task_id,
            owner=asker.owner,
            tool=call.name,
            dialect=asker.dialect,
            state=TaskState.WORKING,
            created_ms=now,
            updated_ms=now,
            ttl_ms=deadline_ms + _HIDDEN_SLACK_MS if hidden else self.ttl_ms(call, settings),
            poll_interval_ms=interval if isinstance(interval, int) else 0,
            keep_result_ms=_HIDDEN_SLACK_MS if hidden else settings.keep_result_s * 1000,
            progress_token=asker.progress_token,
            capabilities=asker.capabilities,
            session=asker.session,
            hidden=hidden,
            ledger=settings.operation is not None,
        )
        operation = Operation(
            id=task_id,
            owner=asker.owner,
            tool=call.name,
            state=OperationState.PLANNED,
            effect=effect,
            created_ms=now,
            updated_ms=now,
            deadline_ms=now + deadline_ms,
            repeatable=settings.on_lost == "retry" and effect is not Effect.CONSEQUENTIAL,
            arguments_digest=intended.arguments_digest,
            idempotency_key=intended.key,
            derived=intended.derived,
            object_version=intended.object_version,
            intended_effect=intended.effect,
            inquiry=intended.inquiry,
            approval=intended.approval,
        )
        return task, operation

    async def _commit(self, ref: Ref, pair: Pair, after: Applied, settings: Settings, body: bytes | None) -> Verdict:
        retention = settings.ledger_retention_days * _DAY_MS
        return await self.store.commit(Change(ref, pair, after, retention, body if after.finished else None))

    def _tell(self, ref: Ref, after: Applied, command: Command) -> None:
        self._telemetry.transition(
            upstream=ref.owner.upstream,
            task_id=ref.id,
            task="expired" if after.task is None else after.task.state,
            operation=after.operation.state,
            cause=type(command).__name__.lower(),
        )


def _doubted(operation: Operation, now: int) -> Operation:
    """The operation as it has to be taken in a store that may have lost that it was sent."""
    after = apply(None, operation, engine.Doubt(), now)
    return after.operation if isinstance(after, Applied) else operation


def clamp_ttl(call: CallTool, settings: Settings) -> int:
    """T25-NEW-3: the wish within what policy allows, in milliseconds; the default where there is no wish."""
    wish = None if call.task is None or isinstance(call.task, Reject) else call.task.ttl_ms
    if wish is None:
        return settings.ttl_default_s * 1000
    return max(settings.ttl_min_s * 1000, min(wish, settings.ttl_max_s * 1000))
