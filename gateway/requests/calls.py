"""`tools/call`: a task, a wait that may become a task, a bounded synchronous call, or a plain call."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gateway.core import engine
from gateway.core.engine import Refused
from gateway.core.model import Operation, OutcomeKind, Task, TaskState, Verified
from gateway.following.plainly import final
from gateway.pending import Background, Pending
from gateway.policy.decide import Ask, Decision, Mode
from gateway.policy.model import Settings
from gateway.requests.callers import Caller, Endpoint, draining, lacks_scope, store_away
from gateway.requests.first import FIRST_S, MORE_S, InputFirst
from gateway.requests.forwarding import Forwarding, Passage
from gateway.requests.intended import Intended, weighed
from gateway.requests.mirroring import Mirroring
from gateway.requests.outbox import Outbox
from gateway.requests.parked import Parked, Waiting
from gateway.requests.records import Asker, Existing, Records
from gateway.requests.repeated import settled
from gateway.store.keys import Ref
from gateway.store.port import Pair, StoreAway
from gateway.store.streams import StreamStore
from gateway.telemetry import Telemetry
from gateway.upstream.port import Link, NotSent
from gateway.wire import approval, asking, reply, tasks_2025, tasks_ext, work
from gateway.wire.errors import TASKS_EXTENSION, Era, Reject, needs_elicitation, needs_tasks, not_found
from gateway.wire.intent import TASKS_2025, CallTool, TaskAsk, era_of
from gateway.wire.jsonrpc import Response
from gateway.wire.reply import Reply

_GRACE_S: Final = 1.0
_FORMS: Final = '{"elicitation":{"form":{}}}'
"""What a client can be asked that declares the extension, and nothing else although it can answer."""


class Calls:
    """Serves `tools/call`."""

    def __init__(
        self,
        records: Records,
        forwarding: Forwarding,
        streams: StreamStore,
        new_id: Callable[[], str],
        background: Background,
        telemetry: Telemetry,
        cancel_grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._forwarding = forwarding
        self._streams = streams
        self._new_id = new_id
        self._parked = Parked(records, streams, new_id)
        self._background = background
        self._telemetry = telemetry
        self._grace_s = cancel_grace_s + _GRACE_S
        self._input_first = InputFirst(records)
        self._mirroring = Mirroring(forwarding, clock)

    async def serve(self, endpoint: Endpoint, caller: Caller, call: CallTool, *, begins: bool) -> Reply | Pending:
        """The answer to a `tools/call`. `begins`: it may be a new one, not only the retry of one. Raises StoreAway."""
        ask = ask_of(caller, call)
        decision = endpoint.policy.decide(call.name, ask)
        scopes = decision.settings.create_scopes
        reject = (
            lacks_scope(caller.principal, scopes) or _refused(decision, call, ask, caller) or _unasked(decision, caller)
        )
        if reject is None:
            reject = await self._mirroring.refuses(endpoint, caller, call)
        if reject is not None:
            return reply.refusal(call.id, reject, caller.era)
        bare = decision.mode is Mode.PLAIN and decision.settings.operation is None
        if bare and not await self._may_be_asked(endpoint, caller):
            return self._plain(endpoint, caller, call, decision.settings)
        return await self._recorded(caller, call, decision, begins=begins)

    async def _may_be_asked(self, endpoint: Endpoint, caller: Caller) -> bool:
        """BR-1: whether an upstream may ask a modern client something in the middle of a plain call."""
        if caller.era is not Era.MODERN or not asking.askable(caller.capabilities):
            return False
        with suppress(NotSent):
            link = await endpoint.upstream.open(caller.owner, caller.capabilities)
            return era_of(link.version) is Era.LEGACY
        return False

    async def _recorded(self, caller: Caller, call: CallTool, decision: Decision, *, begins: bool) -> Reply | Pending:
        settings = decision.settings
        asks_first = _asks_first(decision) and caller.era is Era.MODERN
        waits = decision.mode in (Mode.SYNC, Mode.PLAIN)
        if call.request_state is not None and caller.era is Era.MODERN and (asks_first or waits):
            resumed = await self._input_first.resume(caller.owner, call, settings)
            if isinstance(resumed, Reject):
                return reply.refusal(call.id, resumed, caller.era)
            return self._awaited(caller, call, resumed, decision)
        effect = await weighed(call, settings) if begins else draining()
        if isinstance(effect, Reject):
            return reply.refusal(call.id, effect, caller.era)
        record = await self._begin(caller, call, decision, effect)
        if isinstance(record, Reject) and record.reason == "switch" and _may_go_on(decision, caller, call):
            decision = replace(decision, mode=Mode.SYNC)
            record = await self._begin(caller, call, decision, effect)
        if isinstance(record, Reject):
            return reply.refusal(call.id, record, caller.era)
        if isinstance(record, Existing):
            return await self._again(caller, call, decision, record)
        if not record.hidden:
            return created(call.id, record, caller.era)
        return self._awaited(caller, call, Ref(caller.owner, record.id), decision)

    async def _begin(
        self, caller: Caller, call: CallTool, decision: Decision, effect: Intended
    ) -> Task | Existing | Reject:
        settings = decision.settings
        waits = decision.mode in (Mode.SYNC, Mode.PLAIN)
        hidden = decision.mode is not Mode.TASK or (_asks_first(decision) and caller.era is Era.MODERN)
        arguments = work.forwarded(call.params, log_level=caller.speech.log_level if waits else None, raw=call.raw)
        asker = _asker(caller, call, settings, waits=waits)
        exempt = decision.mode is Mode.PLAIN or (decision.mode is Mode.SYNC and _may_go_on(decision, caller, call))
        return await self._records.create(asker, call, arguments, settings, effect, hidden=hidden, exempt=exempt)

    async def _again(self, caller: Caller, call: CallTool, decision: Decision, existing: Existing) -> Reply | Pending:
        """The work of this idempotency key was begun before: whoever calls now waits for the same."""
        if (reject := settled(existing)) is not None:
            return reply.refusal(call.id, reject, caller.era)
        if decision.mode is Mode.TASK and not (_asks_first(decision) and caller.era is Era.MODERN):
            return await self._promoted(caller, call, existing.ref, decision.settings, existing.pair)
        return self._awaited(caller, call, existing.ref, decision, attached=True)

    def _awaited(
        self, caller: Caller, call: CallTool, ref: Ref, decision: Decision, *, attached: bool = False
    ) -> Pending:
        """`attached`: somebody else began the work, and it is not this client's to stop."""
        settings = decision.settings
        if decision.mode in (Mode.SYNC, Mode.PLAIN):
            return self._waited(caller, call, ref, decision, attached=attached)
        serve = self._first if _asks_first(decision) else self._inline
        answer = self._start(serve(caller, call, ref, settings), call.id, caller.era, begun=ref.id)

        def close() -> None:
            answer.cancel()
            if (
                caller.era is Era.MODERN and not attached
            ):  # TX-CAN-2; in 2025 a dropped connection cancels nothing (T25-HTTP-1)
                self._records.abandon(ref, settings)

        return Pending(answer, close, streamed=False)

    def _waited(self, caller: Caller, call: CallTool, ref: Ref, decision: Decision, *, attached: bool) -> Pending:
        """A call whose client waits for the answer itself."""
        settings = decision.settings
        timeout_s = settings.deadline_s if decision.mode is Mode.PLAIN else settings.sync_timeout_s
        outbox = Outbox(self._streams, self._background, caller.owner, caller.session, self._new_id(), timeout_s)
        waiting = Waiting(caller, call, ref, settings, timeout_s, outbox, attached)
        legacy = caller.era is Era.LEGACY

        async def answered() -> Reply:
            if not legacy:
                return await self._sync(waiting)
            found = await self._unless_cancelled(waiting)
            return replace(found, event_id=await outbox.answer(found.body))

        answer = self._start(answered(), call.id, caller.era, begun=ref.id)

        def cancel() -> None:
            answer.cancel()
            self._abandon(waiting)

        def close() -> None:
            if not legacy:  # TX-CAN-2; in 2025 a dropped connection cancels nothing (T25-HTTP-1)
                cancel()

        preamble = outbox.begin if legacy else None
        return Pending(answer, close, preamble=preamble, notes=outbox.notes, cancel=cancel)

    async def _unless_cancelled(self, waiting: Waiting) -> Reply:
        """T25-HTTP-1: to its client this is a plain call, which it may cancel."""
        stop, call = asyncio.Event(), waiting.call
        with self._forwarding.cancellable(waiting.caller, call.id, stop):
            syncing, stopping = asyncio.ensure_future(self._sync(waiting)), asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait({syncing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if syncing.done():
                    return syncing.result()
                self._abandon(waiting)
                return reply.refusal(call.id, Reject("cancelled", "The request was cancelled"), Era.LEGACY)
            finally:
                stopping.cancel()
                syncing.cancel()

    def _abandon(self, waiting: Waiting) -> None:
        if not waiting.attached:
            self._records.abandon(waiting.ref, waiting.settings)

    async def _sync(self, waiting: Waiting) -> Reply:
        """A bounded call. When the time is over the upstream is told to stop, and the truth is told."""
        call, ref, settings, era = waiting.call, waiting.ref, waiting.settings, waiting.caller.era
        pair = await self._parked.wait(waiting)
        if isinstance(pair, Reply):
            return pair
        if pair.task is not None and pair.task.state is TaskState.CANCELLED:
            return reply.refusal(call.id, _cancelled(pair.operation), era)
        goes_on = waiting.attached
        if pair.task is not None and not pair.task.terminal and not goes_on:
            stopped = await self._records.change(ref, engine.Cancel(final=False, unseen=True), settings)
            goes_on = stopped == Refused(engine.Refusal.HANDED_OUT)
            pair = await self._records.wait(ref, 0 if goes_on else self._grace_s)
        if pair.task is not None and pair.task.state is TaskState.DONE:
            return await self.final(call.id, ref, pair, era)
        return reply.refusal(call.id, timed_out(pair.operation, waiting.timeout_s, attached=goes_on), era)

    async def _first(self, caller: Caller, call: CallTool, ref: Ref, settings: Settings) -> Reply:
        """TX-NEW-3: questions first, the task afterwards."""
        patience = MORE_S if call.request_state is not None else max(FIRST_S, settings.inline_ms / 1000)
        pair = await self._records.wait(ref, patience, or_asked=True)
        asked = await self._input_first.question(call, ref, pair)
        return asked or await self._promoted(caller, call, ref, settings, pair)

    async def _inline(self, caller: Caller, call: CallTool, ref: Ref, settings: Settings) -> Reply:
        """TX-NEW-4: the plain result if it comes in time, else the task."""
        pair = await self._records.wait(ref, settings.inline_ms / 1000, or_asked=True)
        return await self._promoted(caller, call, ref, settings, pair)

    async def _promoted(self, caller: Caller, call: CallTool, ref: Ref, settings: Settings, pair: Pair) -> Reply:
        """A record that was waited for, handed out as a task unless it has ended."""
        ttl = self._records.ttl_ms(call, settings)
        promotion = engine.Promote(ttl, settings.keep_result_s * 1000)
        if pair.task is not None and not pair.task.terminal:
            promoted = await self._records.change(ref, promotion, settings)
            if not isinstance(promoted, Refused) and promoted.task is not None:
                task = promoted.task
                self._telemetry.created(
                    upstream=ref.owner.upstream, tool=call.name, dialect=task.dialect, task_id=task.id
                )
                return created(call.id, task, caller.era)
            if isinstance(promoted, Refused) and promoted.why is engine.Refusal.NOTHING_NEW:
                return created(call.id, pair.task, caller.era)
            pair = await self._records.store.load(ref)
        return await self.final(call.id, ref, pair, caller.era)

    async def final(self, request_id: bytes, ref: Ref, pair: Pair, era: Era) -> Reply:
        """What the call would have answered, from a record that has ended."""
        body = await self._records.store.body(ref)
        return answer_of(request_id, pair.task, body, era)

    def _plain(self, endpoint: Endpoint, caller: Caller, call: CallTool, settings: Settings) -> Pending:
        """A call of a tool that is never a task: to the upstream and back."""

        async def whole(link: Link, response: Response) -> Response:
            return await final(endpoint.upstream, link, response, settings, self._background.start)

        passage = Passage(
            call.id,
            "tools/call",
            call.params,
            settings.deadline_s,
            settings.max_result_bytes,
            call.progress_token,
            raw=call.raw,
            may_act=settings.effect != "read_only",
            resend=settings.resend_on_session_404,
            final=whole,
        )
        return self._forwarding.serve(endpoint, caller, passage)

    def _start(
        self, work_: Awaitable[Reply], request_id: bytes, era: Era, begun: str | None = None
    ) -> "asyncio.Task[Reply]":
        """Runs what answers. Once an operation has `begun`, a store that goes away makes its outcome unknown."""

        async def guarded() -> Reply:
            try:
                return await work_
            except StoreAway:
                return reply.refusal(request_id, store_away() if begun is None else _out_of_sight(begun), era)

        return self._background.start(guarded(), "answer")


def ask_of(caller: Caller, call: CallTool) -> Ask:
    """What the call means: only 2025-11-25 has `params.task`, only the modern era has declarations."""
    if caller.era is Era.MODERN:
        return Ask.EXTENSION if caller.speech.declares_tasks else Ask.WITHOUT_TASKS
    if caller.version != TASKS_2025:
        return Ask.WITHOUT_TASKS
    return Ask.PLAIN_2025 if call.task is None else Ask.TASK_2025


def created(request_id: bytes, task: Task, era: Era) -> Reply:
    """CreateTaskResult in the dialect of the era."""
    write = tasks_ext.create_result if era is Era.MODERN else tasks_2025.create_result
    body = write(task, Verified.PENDING)
    return reply.result(request_id, body)


def answer_of(request_id: bytes, task: Task | None, body: bytes | None, era: Era) -> Reply:
    """What the call would have answered, from a record that has ended (T25-RES-2 without the related task)."""
    if task is None or (task.state is TaskState.DONE and body is None):
        return reply.refusal(request_id, not_found(expired=True), era)
    if body is None or task.state is TaskState.CANCELLED:
        return reply.refusal(request_id, Reject("cancelled", "The task was cancelled"), era)
    write = reply.call_error if task.outcome_kind is OutcomeKind.ERROR else reply.call_result
    return write(request_id, body, era)


def _out_of_sight(operation_id: str) -> Reject:
    told = {"operation": {"id": operation_id, "outcome": "unknown"}}
    return Reject("outcome_unknown", "the gateway lost its store while the work went on", told)


def _capabilities(caller: Caller, settings: Settings) -> str:
    assumed = settings.assume_elicitation and caller.speech.declares_tasks and caller.capabilities == "{}"
    return _FORMS if assumed else caller.capabilities


def _unasked(decision: Decision, caller: Caller) -> Reject | None:
    """Why a call that has to be approved can never be: there is no use in beginning it."""
    settings = decision.settings
    if settings.operation is None or settings.operation.approval is None:
        return None
    return None if approval.can_be_asked(_capabilities(caller, settings)) else needs_elicitation()


def _asker(caller: Caller, call: CallTool, settings: Settings, *, waits: bool) -> Asker:
    capabilities = _capabilities(caller, settings)
    token = None if call.progress_token is None else call.progress_token.decode()
    if caller.era is Era.MODERN:  # TX-NOT-2: a task of this dialect has no progress
        return Asker(caller.owner, TASKS_EXTENSION, capabilities, progress_token=token if waits else None)
    return Asker(caller.owner, TASKS_2025, capabilities, caller.speech.session or "", token)


def _asks_first(decision: Decision) -> bool:
    return decision.settings.input_phase == "before" and decision.mode in (Mode.TASK, Mode.INLINE)


def _may_go_on(decision: Decision, caller: Caller, call: CallTool) -> bool:
    """T25-CAP-7: whether a call may be served without a task while a switch blocks tasks."""
    settings = decision.settings
    asks_for_a_task = ask_of(caller, call) is Ask.TASK_2025
    return settings.on_switch == "sync" and settings.task_support != "required" and not asks_for_a_task


def _refused(decision: Decision, call: CallTool, ask: Ask, caller: Caller) -> Reject | None:
    if ask is Ask.TASK_2025 and not isinstance(call.task, TaskAsk):
        return call.task
    if decision.mode is Mode.REFUSE:
        if decision.reason == "task_forbidden":
            return Reject("task_forbidden", "This tool does not support task-augmented calls")
        if caller.era is Era.MODERN:
            return needs_tasks("task_required", "This tool requires the Tasks extension")
        return Reject("task_required", "This tool must be called as a task")
    if len(call.arguments) > decision.settings.max_arguments_bytes:
        limit = decision.settings.max_arguments_bytes
        return Reject("too_large", f"arguments are larger than {limit} bytes", {"limit": limit})
    return None


def timed_out(operation: Operation | None, timeout_s: float, *, attached: bool) -> Reject:
    """What is told when the time of a bounded call is over: never more than is known of its effect."""
    outcome = Verified.UNKNOWN if operation is None else operation.outcome
    if operation is not None and outcome is Verified.PENDING and not attached:
        # It was told to stop, and nobody has written down yet that it did.
        outcome = Verified.UNKNOWN if operation.may_have_acted else Verified.NONE
    told = _told(operation, outcome)
    if outcome is Verified.UNKNOWN:
        return Reject("outcome_unknown", "no answer in time, and the work may have been done", told)
    becomes = "the work goes on" if outcome is Verified.PENDING else "the upstream was told to stop"
    return Reject("deadline", f"no answer within {timeout_s:g} s; {becomes}", told)


def _cancelled(operation: Operation | None) -> Reject:
    """What is told when somebody else cancelled the call: the operator, or whoever has its task."""
    outcome = Verified.UNKNOWN if operation is None else operation.outcome
    told = _told(operation, outcome)
    if outcome is Verified.UNKNOWN:
        return Reject("outcome_unknown", "the call was cancelled, and the work may have been done", told)
    return Reject("cancelled", "The call was cancelled", told)


def _told(operation: Operation | None, outcome: Verified) -> dict[str, object]:
    return {"operation": {"id": "" if operation is None else operation.id, "outcome": str(outcome)}}
