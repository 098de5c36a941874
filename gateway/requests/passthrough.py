"""All that is neither about tasks nor a call of a tool: the handshake, lists, and whatever else an upstream answers."""

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.core.model import Principal
from gateway.pending import Background, Pending
from gateway.requests.callers import Caller, Endpoint
from gateway.requests.forwarding import Forwarding, Passage
from gateway.requests.remembering import SET, Remembering
from gateway.store.port import Session, Store
from gateway.store.streams import StreamStore
from gateway.wire import intent as want
from gateway.wire import passing, reply, tasks_2025, tools
from gateway.wire.asking import session_capabilities
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import LEGACY_VERSIONS, TASKS_2025, Intent, Speech, era_of
from gateway.wire.reply import Reply

_SESSION_HEADER: Final = "Mcp-Session-Id"


class Passthrough:
    """Says what the upstream says, and what is ours beside it."""

    def __init__(
        self,
        store: Store,
        streams: StreamStore,
        forwarding: Forwarding,
        background: Background,
        new_id: Callable[[], str],
        *,
        lists_tasks: bool,
    ) -> None:
        self._store = store
        self._forwarding = forwarding
        self._remembering = Remembering(store, streams)
        self._background = background
        self._new_id = new_id
        self._lists_tasks = lists_tasks

    async def serve(self, endpoint: Endpoint, caller: Caller, intent: Intent) -> Reply | Pending:
        """The answer to a request, or that a notification was accepted. Raises StoreAway."""
        match intent:
            case want.Ping(id=request_id):
                return reply.result(request_id, b"{}")
            case want.Discover():
                return await self._discover(endpoint, caller, intent)
            case want.ListTools():
                answer = self._background.start(self._list_tools(endpoint, caller, intent), "list-tools")
                return Pending(answer, lambda: _leave(answer))
            case want.Forward():
                return await self._forward(endpoint, caller, intent)
            case want.Note() if caller.era is Era.LEGACY:
                return await self._note(endpoint, caller, intent)
            case _:
                return reply.ACCEPTED

    async def _forward(self, endpoint: Endpoint, caller: Caller, intent: want.Forward) -> Reply | Pending:
        """What is neither a call of a tool nor about tasks is the upstream's to answer, where it can be in its era."""
        modern = caller.era is Era.MODERN
        if intent.method not in passing.MODERN_METHODS if modern else intent.method in SET:
            era = await self._forwarding.era(endpoint, caller)
            if isinstance(era, Reject):
                return reply.refusal(intent.id, era, caller.era)
            if modern and era is Era.LEGACY:  # BR-5
                return reply.refusal(intent.id, Reject("method", f"Method not found: {intent.method}"), Era.MODERN)
            if not modern and era is Era.MODERN:  # BR-4
                return await self._remembering.serve(caller, intent)
        return self._forwarding.serve(endpoint, caller, self._passage(endpoint, intent))

    def _passage(self, endpoint: Endpoint, intent: want.Forward | want.ListTools) -> Passage:
        defaults = endpoint.policy.defaults
        method = "tools/list" if isinstance(intent, want.ListTools) else intent.method
        token = intent.progress_token if isinstance(intent, want.Forward) else None
        changes_nothing = method in passing.CHANGES_NOTHING
        timeout = defaults.sync_timeout_s if changes_nothing else defaults.deadline_s
        raw = intent.raw if isinstance(intent, want.Forward) else None
        limit = defaults.max_result_bytes
        return Passage(intent.id, method, intent.params, timeout, limit, token, again=changes_nothing, raw=raw)

    async def _note(self, endpoint: Endpoint, caller: Caller, intent: want.Note) -> Reply:
        """What a legacy client notes; of a request that it cancels the upstream knows another id."""
        if intent.method == "notifications/cancelled":
            request_id = intent.params.get("requestId")
            if request_id is not None:
                await self._forwarding.cancel(caller.owner, caller.session, bytes(request_id))
        elif intent.method != "notifications/initialized":
            await self._forwarding.tell(endpoint, caller, intent.method, intent.params)
        return reply.ACCEPTED

    async def initialize(self, endpoint: Endpoint, principal: Principal, intent: want.Initialize) -> Reply:
        """T25-CAP-1, T25-CAP-3: a version that is served, and Tasks only in the revision that has them."""
        version = intent.version if intent.version in LEGACY_VERSIONS else LEGACY_VERSIONS[0]
        session_id, owner = self._new_id(), principal.owner_at(endpoint.name)
        session = Session(version, session_capabilities(intent.params.get("capabilities")))
        speech = Speech(Era.LEGACY, version, session_id)
        link = await self._forwarding.meet(endpoint, Caller(principal, owner, speech, version, session.capabilities))
        if isinstance(link, Reject):
            return reply.refusal(intent.id, link, Era.LEGACY)
        hello = link.hello
        capabilities = passing.capabilities(
            hello.capabilities, Era.LEGACY, era_of(link.version), endpoint.policy.meta_keys
        )
        if version == TASKS_2025 and "tools" in capabilities:
            capabilities["tasks"] = tasks_2025.capability(listing=self._lists_tasks)
        await self._store.open_session(owner, session_id, session)
        body = passing.introduced(hello.said, {"protocolVersion": version, "capabilities": capabilities})
        return reply.result(intent.id, body, {_SESSION_HEADER: session_id})

    async def _discover(self, endpoint: Endpoint, caller: Caller, intent: want.Discover) -> Reply:
        """TX-CAP-1: the extension, and whatever else the upstream can do."""
        link = await self._forwarding.meet(endpoint, caller)
        if isinstance(link, Reject):
            return reply.refusal(intent.id, link, Era.MODERN)
        hello, era = link.hello, era_of(link.version)
        return reply.result(
            intent.id, passing.discovered(hello.capabilities, hello.said, era, endpoint.policy.meta_keys)
        )

    async def _list_tools(self, endpoint: Endpoint, caller: Caller, intent: want.ListTools) -> Reply:
        answer = await self._forwarding.fetch(endpoint, caller, self._passage(endpoint, intent))
        if isinstance(answer, Reject):
            return reply.refusal(intent.id, answer, caller.era)
        if not answer.ok:
            return reply.call_error(intent.id, answer.body, caller.era)
        if caller.era is Era.MODERN:
            return reply.result(intent.id, tools.modern_list(answer.body))

        def support(tool: str) -> str | None:
            settings, _ = endpoint.policy.settings(tool)
            return settings.task_support if settings.advertise_2025 else None

        return reply.result(intent.id, tools.legacy_list(answer.body, caller.version, support))


def _leave(answer: "asyncio.Task[Reply]") -> None:
    """Whoever asked has left; a list changes nothing."""
    answer.cancel()
