"""The request loop: what is wanted -> may it -> apply + commit -> reply. A task request never touches the upstream."""

import asyncio
from collections.abc import Callable
from typing import Final

from mcp_types import SERVER_INFO_META_KEY

from gateway.calls import Caller, Calls, Endpoint, answer_of, lacks_scope, store_away
from gateway.core import engine
from gateway.core.engine import Refused
from gateway.core.model import OutcomeKind, Owner, Principal, Task, TaskState
from gateway.pending import Background, Pending
from gateway.policy.model import Settings
from gateway.records import Records
from gateway.store.keys import Ref
from gateway.store.port import Polled, Session, StoreAway, UnknownSchema
from gateway.telemetry import Telemetry
from gateway.wire import intent as want
from gateway.wire import reply, tasks_2025, tasks_ext, tools
from gateway.wire.asking import declarable, respond
from gateway.wire.errors import TASKS_EXTENSION, Era, Reject, not_found
from gateway.wire.intent import LEGACY_VERSIONS, MODERN_VERSIONS, TASKS_2025, Inbound, Intent
from gateway.wire.jsonrpc import write
from gateway.wire.render import SERVER_INFO
from gateway.wire.reply import Reply

_SESSION_HEADER: Final = "Mcp-Session-Id"


class Service:
    """Answers every request that passed the ladder."""

    def __init__(
        self,
        records: Records,
        calls: Calls,
        background: Background,
        telemetry: Telemetry,
        new_id: Callable[[], str],
        *,
        lists_tasks: bool,
    ) -> None:
        """`lists_tasks`: callers are told apart, so that each may be shown what is theirs (T25-CAP-2)."""
        self._records = records
        self._calls = calls
        self._background = background
        self._telemetry = telemetry
        self._new_id = new_id
        self._lists_tasks = lists_tasks

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

    async def end_session(self, owner: Owner, session: str) -> Reply:
        """DELETE of a session. Its tasks stay."""
        try:
            known = await self._records.store.end_session(owner, session)
        except StoreAway:
            return reply.refusal(None, store_away(), Era.LEGACY)
        return Reply(200, b"") if known else reply.refusal(None, _no_session(), Era.LEGACY)

    async def _handle(self, endpoint: Endpoint, principal: Principal, inbound: Inbound) -> Reply | Pending:
        speech, intent = inbound.speech, inbound.intent
        owner = principal.owner_at(endpoint.name)
        if isinstance(intent, want.Initialize):
            return await self._initialize(owner, intent)
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
        return await self._plain(endpoint, Caller(principal, owner, speech, version, capabilities), intent)

    async def _plain(self, endpoint: Endpoint, caller: Caller, intent: Intent) -> Reply | Pending:
        match intent:
            case want.Refuse(id=request_id, reject=reject):
                return reply.refusal(request_id, reject, caller.era)
            case want.Ping(id=request_id):
                return reply.result(request_id, b"{}")
            case want.Discover(id=request_id):
                return reply.result(request_id, _DISCOVERED)
            case want.ListTools():
                return await self._list_tools(endpoint, caller, intent)
            case want.CallTool():
                return await self._calls.serve(endpoint, caller, intent)
            case _:
                return reply.ACCEPTED

    async def _initialize(self, owner: Owner, intent: want.Initialize) -> Reply:
        """T25-CAP-1, T25-CAP-3: a version that is served, and Tasks only in the revision that has them."""
        version = intent.version if intent.version in LEGACY_VERSIONS else LEGACY_VERSIONS[0]
        capabilities: dict[str, object] = {"tools": {}}
        if version == TASKS_2025:
            capabilities["tasks"] = tasks_2025.capability(listing=self._lists_tasks)
        session_id = self._new_id()
        declared = intent.params.get("capabilities")
        session = Session(version, declarable(declared))
        await self._records.store.open_session(owner, session_id, session)
        body = write({"protocolVersion": version, "capabilities": capabilities, "serverInfo": SERVER_INFO})
        return reply.result(intent.id, body, {_SESSION_HEADER: session_id})

    async def _list_tools(self, endpoint: Endpoint, caller: Caller, intent: want.ListTools) -> Reply:
        answer = await self._calls.passthrough(endpoint, caller.owner, "tools/list", intent.params)
        if isinstance(answer, Reject):
            return reply.refusal(intent.id, answer, caller.era)
        if not answer.ok:
            return reply.call_error(intent.id, answer.body, caller.era)
        if caller.era is Era.MODERN:
            return reply.result(intent.id, tools.modern_list(answer.body))

        def support(tool: str) -> str:
            return endpoint.policy.settings(tool)[0].task_support

        return reply.result(intent.id, tools.legacy_list(answer.body, caller.version, support))

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
                return reply.result(intent.id, tasks_2025.task_result(task))
            case want.GetTask():
                return reply.result(intent.id, tasks_ext.detailed(task, polled.body))
            case want.GetResult():
                return final_2025(intent.id, task, polled.body) if task.terminal else self._wait(intent.id, ref)
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
        if isinstance(changed, Refused) or changed.task is None:
            return reply.refusal(intent.id, Reject("terminal", "The task has already ended"), Era.LEGACY)
        return reply.result(intent.id, tasks_2025.task_result(changed.task))

    async def _update(self, caller: Caller, intent: want.UpdateTask, ref: Ref, task: Task, settings: Settings) -> Reply:
        """TX-UPD-1, TX-UPD-2, TX-UPD-4: all the answers are good, or none is taken."""
        answers = respond(task, intent.answers, settings.max_arguments_bytes)
        if isinstance(answers, Reject):
            return reply.refusal(intent.id, answers, caller.era)
        if answers:
            await self._records.change(ref, engine.Respond(answers), settings)
        return reply.result(intent.id, tasks_ext.ACKNOWLEDGED)

    def _wait(self, request_id: bytes, ref: Ref) -> Pending:
        """T25-RES-1: answers exactly once, when the task ends or expires."""

        async def run() -> Reply:
            pair = await self._records.wait(ref, None)
            try:
                body = await self._records.store.body(ref)
            except StoreAway:
                return reply.refusal(request_id, store_away(), Era.LEGACY)
            return final_2025(request_id, pair.task, body)

        answer = self._background.start(run(), "tasks-result")
        return Pending(answer, lambda: cancel(answer))


def cancel(answer: "asyncio.Task[Reply]") -> None:
    """Nobody waits for this answer any more; what it waited for is untouched (T25-RES-4)."""
    answer.cancel()


def final_2025(request_id: bytes, task: Task | None, body: bytes | None) -> Reply:
    """T25-RES-2, T25-RES-3: the tool's own answer, marked with the task it belongs to."""
    has_result = task is not None and task.state is TaskState.DONE and task.outcome_kind is not OutcomeKind.ERROR
    if task is not None and body is not None and has_result:
        return reply.result(request_id, tasks_2025.final_result(task, body))
    return answer_of(request_id, task, body, Era.LEGACY)


def _no_session() -> Reject:
    return Reject("session", "Unknown or ended session: send initialize again")


_DISCOVERED: Final = write(
    {
        "resultType": "complete",
        "supportedVersions": MODERN_VERSIONS,
        "capabilities": {"tools": {}, "extensions": {TASKS_EXTENSION: {}}},
        "_meta": {SERVER_INFO_META_KEY: SERVER_INFO},
        **tools.CACHE,
    }
)
