"""The request loop: what is wanted -> may it -> apply + commit -> reply. A task request never touches the upstream."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from gateway.core import engine
from gateway.core.engine import Refused
from gateway.core.model import Owner, Principal, Task
from gateway.pending import Background, Pending
from gateway.policy.model import Settings
from gateway.requests.batches import Batches
from gateway.requests.callers import Caller, Endpoint, draining, lacks_answer_scope, lacks_scope, store_away
from gateway.requests.calls import Calls
from gateway.requests.forwarding import Forwarding
from gateway.requests.hearing import Hearing
from gateway.requests.legacy_streams import LegacyStreams, final_2025
from gateway.requests.listening import Listening
from gateway.requests.passthrough import Passthrough
from gateway.requests.records import Records
from gateway.store.keys import Ref, owner_digest
from gateway.store.port import Polled, StoreAway, UnknownSchema
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.wire import intent as want
from gateway.wire import reply, tasks_2025, tasks_ext
from gateway.wire.asking import respond
from gateway.wire.errors import Era, Reject, not_found
from gateway.wire.intent import TASKS_2025, Inbound, Intent, Speech
from gateway.wire.jsonrpc import write
from gateway.wire.reply import Reply
from gateway.wire.sealed import seal, unseal

_SESSION_HEADER: Final = "Mcp-Session-Id"
_PAGE: Final = 50


class Service:
    """Answers every request that passed the ladder."""

    def __init__(
        self,
        records: Records,
        calls: Calls,
        forwarding: Forwarding,
        streams: StreamStore,
        wake: Wake,
        background: Background,
        telemetry: Telemetry,
        new_id: Callable[[], str],
        *,
        lists_tasks: bool,
    ) -> None:
        """`lists_tasks`: callers are told apart, so that each may be shown what is theirs (T25-CAP-2)."""
        self._records = records
        self._calls = calls
        self._forwarding = forwarding
        self._passthrough = Passthrough(records.store, streams, forwarding, background, new_id, lists_tasks=lists_tasks)
        self._streams = streams
        self._draining = asyncio.Event()
        self._legacy = LegacyStreams(records, streams, wake, background, new_id, self._draining)
        self._hearing = Hearing(records.store, wake, forwarding, forwarding.questions, telemetry)
        self._listening = Listening(records, self._hearing, wake, background, self._draining, new_id)
        self._batches = Batches(background)
        self._telemetry = telemetry
        self._new_id = new_id
        self._lists_tasks = lists_tasks
        self.takes_work = True
        """Whether calls may be begun. Those that were begun go on in any case."""

    async def handle(self, endpoint: Endpoint, principal: Principal, inbound: Inbound) -> Reply | Pending:
        """The answer, or what will become one. When the store is away the answer is a refusal, never a guess."""
        try:
            return await self._handle(endpoint, principal, inbound)
        except StoreAway:
            return reply.refusal(want.id_of(inbound.intent), store_away(), inbound.speech.era)
        except UnknownSchema as error:
            self._telemetry.fault("record", error)
            reject = Reject("internal", "this record was written by a newer release of the gateway")
            return reply.refusal(want.id_of(inbound.intent), reject, inbound.speech.era)

    async def open_stream(
        self, endpoint: Endpoint, principal: Principal, session_id: str, event_id: str | None
    ) -> Reply | Pending:
        """GET: the stream of a session, or the wait that `event_id` stands for (T25-HTTP-2, T25-RES-1)."""
        owner = principal.owner_at(endpoint.name)
        may_read = _reader(endpoint, principal)
        try:
            session = await self._records.store.read_session(owner, session_id)
            if session is None:
                return reply.refusal(None, _no_session(), Era.LEGACY)
            if event_id is None:
                speech = Speech(Era.LEGACY, session.version, session_id)
                caller = Caller(principal, owner, speech, session.version, session.capabilities)
                listen = partial(self._hearing.session, endpoint, caller)
                opened = self._legacy.session(owner, session_id, session, may_read, listen)
                opened.good_for_s = self._seconds_left(principal)
                return opened
            found = await self._legacy.resume(owner, session_id, session, event_id, may_read)
        except StoreAway:
            return reply.refusal(None, store_away(), Era.LEGACY)
        if found is not None:
            found.good_for_s = self._seconds_left(principal)
        if found is None:
            return reply.refusal(
                None, Reject("invalid_request", "Last-Event-ID is not known: send the request anew"), Era.LEGACY
            )
        return found

    def _seconds_left(self, principal: Principal) -> float | None:
        """How long the principal's token is good for."""
        if principal.expires_ms is None:
            return None
        return max(0, principal.expires_ms - self._records.store.now()) / 1000

    def drain(self) -> None:
        """Ends every stream: those that wait for a result can be resumed on another replica."""
        self._draining.set()

    async def end_session(self, endpoint: Endpoint, owner: Owner, session_id: str) -> Reply:
        """DELETE of a session. Its tasks stay."""
        try:
            session = await self._records.store.read_session(owner, session_id)
            known = await self._records.store.end_session(owner, session_id)
            await self._streams.announce(owner)
            # Its tasks stay, and work in the upstream session: that one then ends when nobody has used it for long.
            if session is not None and known and not await self._streams.unfinished(owner):
                await self._forwarding.leave(endpoint, owner, session.capabilities, session_id)
        except StoreAway:
            return reply.refusal(None, store_away(), Era.LEGACY)
        return Reply(200, b"") if known else reply.refusal(None, _no_session(), Era.LEGACY)

    async def _handle(self, endpoint: Endpoint, principal: Principal, inbound: Inbound) -> Reply | Pending:
        speech, intent = inbound.speech, inbound.intent
        owner = principal.owner_at(endpoint.name)
        if isinstance(intent, want.Initialize):
            return await self._passthrough.initialize(endpoint, principal, intent)
        if isinstance(intent, (want.GetTask, want.GetResult, want.CancelTask, want.UpdateTask)):
            return await self._task(
                endpoint, Caller(principal, owner, speech, speech.version or "", speech.capabilities), intent
            )
        version, capabilities = speech.version or "", speech.capabilities
        if speech.era is Era.LEGACY:
            session = await self._records.store.read_session(owner, speech.session or "")
            if session is None:
                return reply.refusal(want.id_of(intent), _no_session(), Era.LEGACY)
            version, capabilities = session.version, session.capabilities
            speech = replace(speech, log_level=session.log_level)
        return await self._plain(endpoint, Caller(principal, owner, speech, version, capabilities), intent)

    async def _plain(self, endpoint: Endpoint, caller: Caller, intent: Intent) -> Reply | Pending:
        match intent:
            case want.Refuse(id=request_id, reject=reject):
                return reply.refusal(request_id, reject, caller.era)
            case want.ListTasks():
                return await self._list_tasks(endpoint, caller, intent)
            case want.Listen():
                may_read = _reader(endpoint, caller.principal)
                return self._listening.open(endpoint, caller, intent, may_read)
            case want.ClientAnswer():
                if await self._forwarding.take_answer(caller.owner, intent):
                    return reply.ACCEPTED
                settings = endpoint.policy.settings
                denied = _answer_denier(endpoint, caller.principal)
                return await self._legacy.take_answer(caller.owner, intent, lambda tool: settings(tool)[0], denied)
            case want.Batch():
                each = partial(self.handle, endpoint, caller.principal)
                return await self._batches.serve(each, caller.session, caller.version, intent.messages)
            case want.CallTool() if not (self.takes_work or _goes_on(caller, intent)):
                return reply.refusal(intent.id, draining(), caller.era)
            case want.CallTool():
                return await self._calls.serve(endpoint, caller, intent, begins=self.takes_work)
            case _:
                return await self._passthrough.serve(endpoint, caller, intent)

    async def _task(
        self,
        endpoint: Endpoint,
        caller: Caller,
        intent: want.GetTask | want.GetResult | want.CancelTask | want.UpdateTask,
    ) -> Reply | Pending:
        """Session, ownership and record in one look at the store."""
        ref = Ref(caller.owner, intent.task_id)
        legacy = caller.era is Era.LEGACY
        wants_body = isinstance(intent, want.GetResult) or (isinstance(intent, want.GetTask) and not legacy)
        session = (caller.speech.session or "") if legacy else None
        polled = await self._records.store.poll(ref, session, want_body=wants_body)
        if legacy and polled.session is None:
            return reply.refusal(intent.id, _no_session(), Era.LEGACY)
        if legacy and polled.session is not None and polled.session.version != TASKS_2025:
            return reply.refusal(intent.id, Reject("method", "Method not found"), Era.LEGACY)
        if polled.task is None:
            self._telemetry.lookup_failed("expired" if polled.expired else "unknown")
            return reply.refusal(intent.id, not_found(expired=polled.expired), caller.era)
        return await self._on_task(endpoint, caller, intent, ref, polled, polled.task)

    async def _on_task(
        self,
        endpoint: Endpoint,
        caller: Caller,
        intent: want.GetTask | want.GetResult | want.CancelTask | want.UpdateTask,
        ref: Ref,
        polled: Polled,
        task: Task,
    ) -> Reply | Pending:
        settings, _ = endpoint.policy.settings(task.tool)
        wanted = settings.cancel_scopes if isinstance(intent, want.CancelTask) else settings.read_scopes
        if (reject := lacks_scope(caller.principal, wanted)) is not None:
            return reply.refusal(intent.id, reject, caller.era)
        match intent:
            case want.GetTask() if caller.era is Era.LEGACY:
                return reply.result(intent.id, tasks_2025.task_result(task, polled.outcome))
            case want.GetTask():
                return reply.result(intent.id, tasks_ext.detailed(task, polled.body, polled.outcome))
            case want.GetResult():
                if task.terminal or polled.session is None:
                    return final_2025(intent.id, task, polled.body)
                waited = self._legacy.result(intent.id, ref, task, caller.session, polled.session)
                waited.good_for_s = self._seconds_left(caller.principal)
                return waited
            case want.CancelTask():
                return await self._cancel(endpoint, caller, intent, ref, task)
            case want.UpdateTask():
                return await self._update(caller, intent, ref, task, settings)

    async def _cancel(self, endpoint: Endpoint, caller: Caller, intent: want.CancelTask, ref: Ref, task: Task) -> Reply:
        settings, _ = endpoint.policy.settings(task.tool)
        final = caller.era is Era.LEGACY
        changed = await self._records.change(ref, engine.Cancel(final=final), settings)
        if not final:
            return reply.result(intent.id, tasks_ext.ACKNOWLEDGED)
        if isinstance(changed, Refused) or changed.task is None or changed.operation is None:
            return reply.refusal(intent.id, Reject("terminal", "The task has already ended"), Era.LEGACY)
        return reply.result(intent.id, tasks_2025.task_result(changed.task, changed.operation.outcome))

    async def _update(self, caller: Caller, intent: want.UpdateTask, ref: Ref, task: Task, settings: Settings) -> Reply:
        """TX-UPD-1, TX-UPD-2, TX-UPD-4: all the answers are good, or none is taken."""
        answers = respond(task, intent.answers, settings.max_arguments_bytes)
        if isinstance(answers, Reject):
            return reply.refusal(intent.id, answers, caller.era)
        if (reject := lacks_answer_scope(caller.principal, settings, answers)) is not None:
            return reply.refusal(intent.id, reject, caller.era)
        if answers:
            await self._records.change(ref, engine.Respond(answers), settings)
        return reply.result(intent.id, tasks_ext.ACKNOWLEDGED)

    async def _list_tasks(self, endpoint: Endpoint, caller: Caller, intent: want.ListTasks) -> Reply:
        """T25-LST-1: own tasks only, newest first; a cursor is good for the owner it was made for."""
        if caller.version != TASKS_2025 or not self._lists_tasks:
            return reply.refusal(intent.id, Reject("method", "Method not found"), Era.LEGACY)
        if (reject := lacks_scope(caller.principal, endpoint.policy.defaults.read_scopes)) is not None:
            return reply.refusal(intent.id, reject, caller.era)
        bindings = ["cursor", owner_digest(caller.owner)]
        secret = await self._records.store.secret()
        after = None
        if intent.cursor is not None:
            payload = unseal(secret, bindings, intent.cursor)
            if payload is None:
                return reply.refusal(intent.id, Reject("not_found", "Invalid cursor"), Era.LEGACY)
            after = (int(payload[0]), str(payload[1]))
        page = await self._streams.page(caller.owner, after, _PAGE)
        listed: dict[str, object] = {"tasks": [tasks_2025.flat(task) for task in page.tasks]}
        if page.more:
            last = page.tasks[-1]
            listed["nextCursor"] = seal(secret, bindings, [last.created_ms, last.id])
        return reply.result(intent.id, write(listed))


def _goes_on(caller: Caller, call: want.CallTool) -> bool:
    """Whether a call may be the retry of one that was begun (TX-NEW-3)."""
    return caller.era is Era.MODERN and call.request_state is not None


def _no_session() -> Reject:
    return Reject("session", "Unknown or ended session: send initialize again")


def _denier(endpoint: Endpoint, principal: Principal) -> Callable[[Task], Reject | None]:
    """Why `principal` may not see a task: streams ask for each task, as `tasks/get` does for the one it names."""
    return lambda task: lacks_scope(principal, endpoint.policy.settings(task.tool)[0].read_scopes)


def _answer_denier(endpoint: Endpoint, principal: Principal) -> Callable[[Task, str], Reject | None]:
    """Why `principal` may not answer a question of a task."""
    denied = _denier(endpoint, principal)

    def answering(task: Task, key: str) -> Reject | None:
        return denied(task) or lacks_answer_scope(principal, endpoint.policy.settings(task.tool)[0], {key})

    return answering


def _reader(endpoint: Endpoint, principal: Principal) -> Callable[[Task], bool]:
    denied = _denier(endpoint, principal)
    return lambda task: denied(task) is None
