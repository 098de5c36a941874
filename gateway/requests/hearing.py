"""What an upstream says that belongs to no request: on the stream of a legacy session, or on a modern subscription."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gateway.requests.asked import PlainQuestions
from gateway.requests.callers import Caller, Endpoint
from gateway.requests.forwarding import Forwarding
from gateway.store.keys import owner_digest
from gateway.store.port import Store, StoreAway
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.upstream.port import Call, Link, NotSent, OnNote, OnRequest, OutcomeUnknown
from gateway.wire import jsonrpc, passing
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import era_of
from gateway.wire.jsonrpc import Members, Notification, text

_AGAIN_S: Final = 5.0
"""How long to wait before an upstream is listened to again that could not be reached."""
_LOOK_S: Final = 10.0
_SUBSCRIBE_S: Final = 10.0
_MAX_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Watch:
    """What one subscription of a modern client is about. `name` is that of an upstream session of its own."""

    name: str
    lists: frozenset[str]
    resources: tuple[str, ...]


class Hearing:
    """Listens to upstreams, for one process."""

    def __init__(
        self, store: Store, wake: Wake, forwarding: Forwarding, questions: PlainQuestions, telemetry: Telemetry
    ) -> None:
        self._store = store
        self._wake = wake
        self._forwarding = forwarding
        self._questions = questions
        self._telemetry = telemetry

    async def session(self, endpoint: Endpoint, caller: Caller, emit: Callable[[bytes], None]) -> None:
        """Puts on a session's stream what its upstream session brings outside of any request. Until it is cancelled."""
        timeout_s = endpoint.policy.defaults.input_timeout_s
        ask = self._questions.asker(caller.owner, caller.capabilities, timeout_s, emit)

        def hear(note: Notification) -> None:
            if note.method not in passing.BETWEEN and note.method != "notifications/progress":
                emit(jsonrpc.notification(note.method, note.params))

        with self._wake.watching(owner_digest(caller.owner)) as changed:
            while True:
                resources = await self._resources(caller)
                listening = asyncio.ensure_future(self._listen(endpoint, caller, hear, ask, resources))
                try:
                    await self._changed(caller, changed, resources)
                finally:
                    listening.cancel()
                    with suppress(asyncio.CancelledError):
                        await listening

    async def _listen(
        self, endpoint: Endpoint, caller: Caller, hear: OnNote, ask: OnRequest, resources: tuple[str, ...]
    ) -> None:
        """Until it is cancelled, or as long as the upstream has something to say."""
        while True:
            try:
                link = await endpoint.upstream.open(caller.owner, caller.capabilities, caller.session)
                await endpoint.upstream.listen(link, hear, ask, resources)
                return
            except NotSent as error:
                self._failed(endpoint, error)
            await asyncio.sleep(_AGAIN_S)

    async def _changed(self, caller: Caller, changed: "asyncio.Queue[str]", resources: tuple[str, ...]) -> None:
        """Returns when the session wants to hear of other resources than these (BR-4)."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    while (await changed.get()).partition(":")[2]:
                        pass  # this one is about a task
            if await self._resources(caller, resources) != resources:
                return

    async def _resources(self, caller: Caller, known: tuple[str, ...] = ()) -> tuple[str, ...]:
        with suppress(StoreAway):
            session = await self._store.read_session(caller.owner, caller.session)
            return known if session is None else session.resources
        return known

    async def honoured(self, endpoint: Endpoint, caller: Caller, watch: Watch) -> dict[str, object]:
        """TX-NOT-1, BR-4: what of a subscription the upstream can serve, as the acknowledgement says it."""
        if not watch.lists and not watch.resources:
            return {}
        link = await self._forwarding.meet(endpoint, caller)
        told: bytes = b"{}" if isinstance(link, Reject) else link.hello.capabilities
        lists = {name: True for name in sorted(watch.lists) if passing.announces(told, name)}
        served = watch.resources and passing.subscribes(told)
        return {**lists, **({"resourceSubscriptions": list(watch.resources)} if served else {})}

    async def watch(self, endpoint: Endpoint, caller: Caller, watch: Watch, hear: OnNote) -> None:
        """Hands on what a modern client wants to hear. Until it is cancelled."""

        def heard(note: Notification) -> None:
            uri = text(note.params.get("uri"))
            if passing.CHANGED.get(note.method) in watch.lists or (
                note.method == "notifications/resources/updated" and uri in watch.resources
            ):
                hear(note)

        link: Link | None = None
        try:
            while True:
                try:
                    link = await endpoint.upstream.open(caller.owner, caller.capabilities)
                    if era_of(link.version) is Era.LEGACY:
                        link = await endpoint.upstream.open(caller.owner, caller.capabilities, watch.name)
                        await self._subscribe(endpoint, link, watch)
                    await endpoint.upstream.listen(link, heard, _nobody, watch.resources)
                    return
                except (NotSent, OutcomeUnknown) as error:
                    self._failed(endpoint, error)
                await asyncio.sleep(_AGAIN_S)
        finally:
            if link is not None and link.client:
                await asyncio.shield(endpoint.upstream.leave(link))

    async def _subscribe(self, endpoint: Endpoint, link: Link, watch: Watch) -> None:
        """BR-4: a legacy upstream is asked for each resource; a modern one hears of them when it is listened to."""
        upstream = endpoint.upstream
        for uri in watch.resources:
            params: Members = jsonrpc.members(jsonrpc.write({"uri": uri})) or {}
            call = Call(upstream.next_id(), "resources/subscribe", params, _MAX_BYTES)
            with suppress(TimeoutError):
                async with asyncio.timeout(_SUBSCRIBE_S):
                    await upstream.perform(link, call)

    def _failed(self, endpoint: Endpoint, error: NotSent | OutcomeUnknown) -> None:
        self._telemetry.upstream_failed(upstream=endpoint.name, reason=error.reason, message=str(error))


async def _nobody(method: str, params: Members) -> tuple[bool, bytes]:
    """A subscription can be asked nothing."""
    del method, params
    return False, Reject("method", "nobody can be asked here").body(Era.LEGACY)
