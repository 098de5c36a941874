"""`tools/call`: a task, a wait that may become a task, a bounded synchronous call, or a plain call."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from gateway.core import engine
from gateway.core.engine import Refused
from gateway.core.model import Operation, OperationState, OutcomeKind, Owner, Principal, Task, TaskState
from gateway.first import FIRST_S, MORE_S, InputFirst
from gateway.pending import Background, Pending
from gateway.plainly import final
from gateway.policy.decide import Ask, Decision, Mode, Policy
from gateway.policy.model import Settings
from gateway.records import Asker, Records
from gateway.store.keys import Ref
from gateway.store.port import Pair, StoreAway
from gateway.telemetry import Telemetry
from gateway.upstream.port import Call, Link, NotSent, OnNote, OutcomeUnknown, Upstream
from gateway.wire import jsonrpc, reply, sse, tasks_2025, tasks_ext, work
from gateway.wire.errors import TASKS_EXTENSION, Era, Reject, needs_tasks, not_found
from gateway.wire.intent import TASKS_2025, CallTool, Speech, TaskAsk
from gateway.wire.jsonrpc import Members, Notification, Response
from gateway.wire.reply import Reply

_GRACE_S: Final = 1.0
_FORMS: Final = '{"elicitation":{"form":{}}}'
"""What a client can be asked that declares the extension, and nothing else although it can answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An upstream as the request loop sees it."""

    name: str
    upstream: Upstream
    policy: Policy


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and how they speak. In legacy eras `version` is the session's."""

    principal: Principal
    owner: Owner
    speech: Speech
    version: str
    capabilities: str

    @property
    def era(self) -> Era:
        """The era of the request."""
        return self.speech.era


class Calls:
    """Serves `tools/call` and whatever else goes straight to an upstream."""

    def __init__(self, records: Records, background: Background, telemetry: Telemetry, cancel_grace_s: float) -> None:
        self._records = records
        self._background = background
        self._telemetry = telemetry
        self._grace_s = cancel_grace_s + _GRACE_S
        self._input_first = InputFirst(records)

    async def serve(self, endpoint: Endpoint, caller: Caller, call: CallTool) -> Reply | Pending:
        """The answer to a `tools/call`. Raises StoreAway."""
        ask = ask_of(caller, call)
        decision = endpoint.policy.decide(call.name, ask)
        scopes = decision.settings.create_scopes
        reject = lacks_scope(caller.principal, scopes) or _refused(decision, call, ask, caller)
        if reject is not None:
            return reply.refusal(call.id, reject, caller.era)
        if decision.mode is Mode.PLAIN:
            return self._plain(endpoint, caller, call, decision.settings)
        return await self._recorded(caller, call, decision)

    async def passthrough(self, endpoint: Endpoint, owner: Owner, method: str, params: Members) -> Response | Reject:
        """A request without effect, sent again once if the session had ended."""
        body = work.call_params(work.forwarded(params))
        limit = endpoint.policy.defaults.max_result_bytes
        timeout = endpoint.policy.defaults.sync_timeout_s

        async def send(link: Link) -> Response:
            async with asyncio.timeout(timeout):
                return await endpoint.upstream.perform(link, Call(endpoint.upstream.next_id(), method, body, limit))

        return await self._attempt(endpoint, owner, send, idempotent=True)

    async def _recorded(self, caller: Caller, call: CallTool, decision: Decision) -> Reply | Pending:
        settings = decision.settings
        asks_first = _asks_first(decision) and caller.era is Era.MODERN
        if asks_first and call.request_state is not None:
            resumed = await self._input_first.resume(caller.owner, call, settings)
            if isinstance(resumed, Reject):
                return reply.refusal(call.id, resumed, caller.era)
            return self._awaited(caller, call, resumed, decision)
        hidden = decision.mode is not Mode.TASK or asks_first
        arguments = work.forwarded(call.params)
        asker = _asker(caller, call, decision.mode, assume_elicitation=settings.assume_elicitation)
        task = await self._records.create(asker, call, arguments, settings, hidden=hidden)
        if isinstance(task, Reject):
            return reply.refusal(call.id, task, caller.era)
        if not hidden:
            return created(call.id, task, caller.era)
        ref = Ref(caller.owner, task.id)
        return self._awaited(caller, call, ref, decision)

    def _awaited(self, caller: Caller, call: CallTool, ref: Ref, decision: Decision) -> Pending:
        settings = decision.settings
        serve = self._sync if decision.mode is Mode.SYNC else self._first if _asks_first(decision) else self._inline
        answer = self._start(serve(caller, call, ref, settings), call.id, caller.era, begun=ref.id)

        def close() -> None:
            answer.cancel()
            if caller.era is Era.MODERN:  # TX-CAN-2; in 2025 a dropped connection cancels nothing (T25-HTTP-1)
                self._records.abandon(ref, settings)

        return Pending(answer, close, streamed=decision.mode is Mode.SYNC)

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

    async def _sync(self, caller: Caller, call: CallTool, ref: Ref, settings: Settings) -> Reply:
        """A bounded synchronous call. When the time is over the upstream is told to stop, and the truth is told."""
        pair = await self._records.wait(ref, settings.sync_timeout_s)
        if pair.task is not None and not pair.task.terminal:
            await self._records.change(ref, engine.Cancel(final=False), settings)
            pair = await self._records.wait(ref, self._grace_s)
        if pair.task is not None and pair.task.state is TaskState.DONE:
            return await self.final(call.id, ref, pair, caller.era)
        return reply.refusal(call.id, _timed_out(pair.operation, settings), caller.era)

    async def final(self, request_id: bytes, ref: Ref, pair: Pair, era: Era) -> Reply:
        """What the call would have answered, from a record that has ended."""
        body = await self._records.store.body(ref)
        return answer_of(request_id, pair.task, body, era)

    def _plain(self, endpoint: Endpoint, caller: Caller, call: CallTool, settings: Settings) -> Pending:
        """A call of a tool that is never a task: to the upstream and back, progress included."""
        notes: asyncio.Queue[bytes] = asyncio.Queue()
        upstream_call = self._upstream_call(endpoint, call, settings)
        sent: list[Link] = []

        async def send(link: Link) -> Response:
            sent.append(link)
            async with asyncio.timeout(settings.deadline_s):
                response = await endpoint.upstream.perform(link, upstream_call, _relay(call, notes))
                return await final(endpoint.upstream, link, response, settings, self._background.start)

        async def run() -> Reply:
            read_only = settings.effect == "read_only"
            response = await self._attempt(endpoint, caller.owner, send, idempotent=False, may_act=not read_only)
            if isinstance(response, Reject):
                if response.reason == "deadline":
                    await tell()
                return reply.refusal(call.id, response, caller.era)
            write = reply.call_result if response.ok else reply.call_error
            return write(call.id, response.body, caller.era)

        async def tell() -> None:
            if sent:
                await endpoint.upstream.cancel(sent[-1], upstream_call)

        answer = self._start(run(), call.id, caller.era)

        def close() -> None:
            if caller.era is Era.MODERN:  # TX-HTTP-7; in 2025 the call goes on (T25-HTTP-1)
                self._background.start(tell(), "tell-cancelled")
                answer.cancel()

        return Pending(answer, close, streamed=True, notes=notes)

    async def _attempt(
        self,
        endpoint: Endpoint,
        owner: Owner,
        send: Callable[[Link], Awaitable[Response]],
        *,
        idempotent: bool,
        may_act: bool = False,
    ) -> Response | Reject:
        """Sends once; again only where nothing can have taken effect."""
        for last in (False, True):
            try:
                return await send(await endpoint.upstream.open(owner))
            except NotSent as error:
                self._failed(endpoint, error.reason, str(error))
                if last or not error.again:
                    return Reject(error.reason, str(error))
            except OutcomeUnknown as error:
                self._failed(endpoint, error.reason, str(error))
                if last or not idempotent:
                    return Reject("outcome_unknown" if may_act else error.reason, str(error))
            except TimeoutError:
                self._failed(endpoint, "deadline", engine.DEADLINE)
                return Reject("deadline", "the upstream did not answer in time; it was told to stop")
        raise AssertionError  # the last attempt always answers

    def _upstream_call(self, endpoint: Endpoint, call: CallTool, settings: Settings) -> Call:
        call_id = endpoint.upstream.next_id()
        token = call_id if call.progress_token is not None else None
        params = work.call_params(work.forwarded(call.params, token))
        return Call(call_id, "tools/call", params, settings.max_result_bytes)

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

    def _failed(self, endpoint: Endpoint, reason: str, message: str) -> None:
        self._telemetry.upstream_failed(upstream=endpoint.name, reason=reason, message=message)


def ask_of(caller: Caller, call: CallTool) -> Ask:
    """What the call means: only 2025-11-25 has `params.task`, only the modern era has declarations."""
    if caller.era is Era.MODERN:
        return Ask.EXTENSION if caller.speech.declares_tasks else Ask.WITHOUT_TASKS
    if caller.version != TASKS_2025:
        return Ask.WITHOUT_TASKS
    return Ask.PLAIN_2025 if call.task is None else Ask.TASK_2025


def created(request_id: bytes, task: Task, era: Era) -> Reply:
    """CreateTaskResult in the dialect of the era."""
    body = tasks_ext.create_result(task) if era is Era.MODERN else tasks_2025.create_result(task)
    return reply.result(request_id, body)


def answer_of(request_id: bytes, task: Task | None, body: bytes | None, era: Era) -> Reply:
    """What the call would have answered, from a record that has ended (T25-RES-2 without the related task)."""
    if task is None or (task.state is TaskState.DONE and body is None):
        return reply.refusal(request_id, not_found(expired=True), era)
    if body is None or task.state is TaskState.CANCELLED:
        return reply.refusal(request_id, Reject("cancelled", "The task was cancelled"), era)
    write = reply.call_error if task.outcome_kind is OutcomeKind.ERROR else reply.call_result
    return write(request_id, body, era)


def lacks_scope(principal: Principal, wanted: Sequence[str]) -> Reject | None:
    """T25-SEC-2: every operation asks anew for what the policy wants of its caller."""
    missing = [scope for scope in wanted if scope not in principal.scopes]
    if not missing:
        return None
    return Reject("forbidden", "The token lacks a scope that this needs", {"requiredScopes": list(wanted)})


def store_away() -> Reject:
    """Nothing was promised."""
    return Reject("store_away", "The gateway cannot reach its store: try again")


def _out_of_sight(operation_id: str) -> Reject:
    told = {"operation": {"id": operation_id, "outcome": "unknown"}}
    return Reject("outcome_unknown", "the gateway lost its store while the work went on", told)


def _asker(caller: Caller, call: CallTool, mode: Mode, *, assume_elicitation: bool) -> Asker:
    """A client without Tasks cannot be asked anything during its call."""
    capabilities = "{}" if mode is Mode.SYNC else caller.capabilities
    if assume_elicitation and caller.speech.declares_tasks and capabilities == "{}":
        capabilities = _FORMS
    if caller.era is Era.MODERN:
        return Asker(caller.owner, TASKS_EXTENSION, capabilities)
    token = None if call.progress_token is None else call.progress_token.decode()
    return Asker(caller.owner, TASKS_2025, capabilities, caller.speech.session or "", token)


def _asks_first(decision: Decision) -> bool:
    return decision.settings.input_phase == "before" and decision.mode in (Mode.TASK, Mode.INLINE)


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


def _timed_out(operation: Operation | None, settings: Settings) -> Reject:
    unknown = operation is not None and operation.state in (OperationState.UNKNOWN, OperationState.ACCEPTED)
    outcome = "unknown" if unknown else "none"
    told = {"operation": {"id": None if operation is None else operation.id, "outcome": outcome}}
    if unknown:
        return Reject("outcome_unknown", "no answer in time, and the work may have been done", told)
    return Reject("deadline", f"no answer within {settings.sync_timeout_s} s; the upstream was told to stop", told)


def _relay(call: CallTool, notes: "asyncio.Queue[bytes]") -> OnNote | None:
    token = call.progress_token
    if token is None:
        return None

    def relay(note: Notification) -> None:
        if note.method == "notifications/progress":
            params = {**note.params, "progressToken": Raw(token)}
            notes.put_nowait(sse.message(jsonrpc.notification(note.method, params)))

    return relay
