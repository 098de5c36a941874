"""Requests that are the upstream's to answer: there and back, with whatever the upstream says meanwhile.

A legacy client has an upstream session of its own, so what it subscribes to, which log level it sets and what a server
remembers of it are its own. A modern client's requests share a session per principal and declared capabilities.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from msgspec import Raw

from gateway.core import engine
from gateway.core.model import Owner
from gateway.pending import Background, Pending
from gateway.requests.asked import PlainQuestions
from gateway.requests.callers import Caller, Endpoint, store_away
from gateway.requests.outbox import Outbox
from gateway.store.keys import owner_digest
from gateway.store.port import StoreAway
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.upstream.port import Call, Link, NotSent, OnNote, OutcomeUnknown, Refused, SessionEnded
from gateway.wire import jsonrpc, passing, reply, rounds
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import ClientAnswer, Speech, era_of
from gateway.wire.jsonrpc import Members, Notification, Response
from gateway.wire.reply import Reply

_REMEMBERED: Final = 1000
_UNASKED: Final = Reject("input_refused", "the upstream asked something, and nobody can be asked here")


@dataclass(frozen=True, slots=True)
class Passage:
    """A request on its way. `params` are as the client wrote them, `raw` is their text.

    `may_act` tells that it may have changed something when its answer was lost; `again` that it may be sent once more
    then, because it changes nothing; `resend` the same where its session had ended. `final` gives what an answer comes
    to that stands for a task of the upstream.
    """

    id: bytes
    method: str
    params: Members
    timeout_s: float
    max_bytes: int
    progress_token: bytes | None = None
    may_act: bool = False
    again: bool = False
    resend: bool = True
    final: Callable[[Link, Response], Awaitable[Response]] | None = None
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """What accompanies a request: the client's stream, that nobody waits any more, and what a paused upstream means."""

    outbox: Outbox | None
    stop: asyncio.Event
    pause: Callable[[], Awaitable[None]] | None


@dataclass(frozen=True, slots=True)
class Answered:
    """What an upstream of this era answered."""

    response: Response
    era: Era


class Forwarding:
    """Forwards, for one process."""

    def __init__(
        self,
        streams: StreamStore,
        wake: Wake,
        background: Background,
        telemetry: Telemetry,
        new_id: Callable[[], str],
    ) -> None:
        self._streams = streams
        self._wake = wake
        self._background = background
        self._telemetry = telemetry
        self._new_id = new_id
        self._running: dict[tuple[str, str], asyncio.Event] = {}
        self._met: dict[tuple[str, str, Era], Link] = {}
        self.questions = PlainQuestions(streams, wake, new_id)
        wake.on_cancel = self._nobody_waits

    def serve(self, endpoint: Endpoint, caller: Caller, passage: Passage) -> Pending:
        """The answer to a request. Its client may leave; what that means depends on the era."""
        outbox = Outbox(
            self._streams, self._background, caller.owner, caller.session, self._new_id(), passage.timeout_s
        )
        stop, paused = asyncio.Event(), asyncio.Event()

        async def pause() -> None:
            paused.set()
            with self._wake.waiting(outbox.member) as event:
                await event.wait()

        async def run() -> Reply:
            if caller.era is Era.MODERN:
                return await self._answer(endpoint, caller, passage, Way(outbox, stop, None))
            with self.cancellable(caller, passage.id, stop):
                answer = await self._answer(endpoint, caller, passage, Way(outbox, stop, pause))
                return replace(answer, event_id=await outbox.answer(answer.body))

        def close() -> None:
            if caller.era is Era.MODERN:  # TX-HTTP-7; in 2025 the call goes on (T25-HTTP-1)
                stop.set()

        running = self._background.start(run(), "forward")
        if caller.era is Era.MODERN:
            return Pending(running, close, notes=outbox.notes, cancel=stop.set)
        answer = self._background.start(_until_paused(running, paused, outbox), "forward-stream")
        return Pending(answer, close, preamble=outbox.begin, notes=outbox.notes, cancel=stop.set)

    async def fetch(self, endpoint: Endpoint, caller: Caller, passage: Passage) -> Response | Reject:
        """What the upstream answers, for requests that are answered with something made of it."""
        answered = await self._exchange(endpoint, caller, passage, Way(None, asyncio.Event(), None))
        if isinstance(answered, Reject):
            return answered
        return answered.response if rounds.asked(answered.response) is None else _UNASKED

    async def era(self, endpoint: Endpoint, caller: Caller) -> Era | Reject:
        """In which era the upstream is spoken to for this caller."""
        try:
            return era_of((await _open(endpoint, caller)).version)
        except NotSent as error:
            self._failed(endpoint, error.reason, str(error))
            return Reject(error.reason, str(error))

    async def meet(self, endpoint: Endpoint, caller: Caller) -> Link | Reject:
        """A session with what the upstream said of itself; with what it said last, if it cannot be reached now."""
        key = (endpoint.name, caller.capabilities, caller.era)
        try:
            link = await _open(endpoint, caller)
        except NotSent as error:
            self._failed(endpoint, error.reason, str(error))
            known = self._met.get(key)
            return Reject(error.reason, str(error)) if known is None else known
        if key in self._met or len(self._met) < _REMEMBERED:
            self._met[key] = link
        return link

    async def tell(self, endpoint: Endpoint, caller: Caller, method: str, params: Members) -> None:
        """A notification of a legacy client, for its own upstream session."""
        with suppress(NotSent):
            await endpoint.upstream.tell(await _open(endpoint, caller), method, params)

    async def leave(self, endpoint: Endpoint, owner: Owner, capabilities: str, session: str) -> None:
        """A client session has ended, and its upstream session with it."""
        with suppress(NotSent):
            await endpoint.upstream.leave(await endpoint.upstream.open(owner, capabilities, session))

    @contextmanager
    def cancellable(self, caller: Caller, request_id: bytes, stop: asyncio.Event) -> Iterator[None]:
        """While a request of a legacy client is served: `stop` is set when its client cancels it, on any replica."""
        key = (f"{owner_digest(caller.owner)}:{caller.session}", request_id.decode())
        self._running[key] = stop
        try:
            yield
        finally:
            if self._running.get(key) is stop:
                del self._running[key]

    async def cancel(self, owner: Owner, session: str, request_id: bytes) -> None:
        """A legacy client cancels a plain request of its session, wherever that is served. Raises StoreAway."""
        stop = self._running.get((f"{owner_digest(owner)}:{session}", request_id.decode()))
        if stop is not None:
            stop.set()
        else:
            await self._streams.cancel_request(owner, session, request_id)

    async def take_answer(self, owner: Owner, answer: ClientAnswer) -> bool:
        """A client's answer to what an upstream asked during a plain call; whether it is one. Raises StoreAway."""
        return await self.questions.take(owner, answer)

    def _nobody_waits(self, session: str, request_id: str) -> None:
        stop = self._running.get((session, request_id))
        if stop is not None:
            stop.set()

    async def _answer(self, endpoint: Endpoint, caller: Caller, passage: Passage, way: Way) -> Reply:
        try:
            answered = await self._exchange(endpoint, caller, passage, way)
        except StoreAway:
            return reply.refusal(passage.id, store_away(), caller.era)
        if isinstance(answered, Reject):
            return reply.refusal(passage.id, answered, caller.era)
        return _told(passage, answered, caller.era)

    async def _exchange(self, endpoint: Endpoint, caller: Caller, passage: Passage, way: Way) -> Answered | Reject:
        """Sends once; again only where nothing can have taken effect."""
        for last in (False, True):
            try:
                return await self._send(endpoint, caller, passage, way)
            except NotSent as error:
                self._failed(endpoint, error.reason, str(error))
                if isinstance(error, SessionEnded) and not passage.resend:
                    return Reject("outcome_unknown" if passage.may_act else error.reason, str(error))
                seen = isinstance(error, Refused) and not passage.again  # a call that a server has seen is sent once
                if last or seen or not error.again:
                    return Reject(error.reason, str(error))
            except OutcomeUnknown as error:
                self._failed(endpoint, error.reason, str(error))
                if last or not passage.again:
                    return Reject("outcome_unknown" if passage.may_act else error.reason, str(error))
        raise AssertionError  # the last attempt always answers

    async def _send(self, endpoint: Endpoint, caller: Caller, passage: Passage, way: Way) -> Answered | Reject:
        upstream = endpoint.upstream
        link = await _open(endpoint, caller)
        era, call_id = era_of(link.version), upstream.next_id()
        token = None if passage.progress_token is None else call_id
        level = caller.speech.log_level if era is Era.MODERN else None
        own = era is caller.era is Era.MODERN  # what this client answers, the upstream itself has asked
        params, raw = passing.params(passage.params, passage.raw, token, answers=own, log_level=level)
        call = Call(call_id, passage.method, params, passage.max_bytes, way.pause, raw)
        outbox, stop = way.outbox, way.stop
        ask = None
        if outbox is not None and caller.era is Era.LEGACY:
            ask = self.questions.asker(caller.owner, caller.capabilities, passage.timeout_s, outbox.put)
        note = None if outbox is None else _relay(caller.speech, passage, outbox, era)

        async def perform() -> Response:
            response = await upstream.perform(link, call, note, ask)
            return response if passage.final is None else await passage.final(link, response)

        performing = asyncio.ensure_future(perform())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({performing, stopping}, timeout=passage.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if performing.done():
                return Answered(performing.result(), era)
            await upstream.cancel(link, call)
            if stop.is_set():
                return Reject("cancelled", "The request was cancelled")
            self._failed(endpoint, "deadline", engine.DEADLINE)
            return Reject("deadline", "the upstream did not answer in time; it was told to stop")
        finally:
            stopping.cancel()
            await _ended(performing)

    def _failed(self, endpoint: Endpoint, reason: str, message: str) -> None:
        self._telemetry.upstream_failed(upstream=endpoint.name, reason=reason, message=message)


async def _open(endpoint: Endpoint, caller: Caller) -> Link:
    """The session of a legacy client, or the one that a modern client's requests share. Raises NotSent."""
    return await endpoint.upstream.open(caller.owner, caller.capabilities, caller.session)


async def _until_paused(running: "asyncio.Task[Reply]", paused: asyncio.Event, outbox: Outbox) -> Reply:
    """The answer, or the end of a stream that is to be asked for again, because the upstream has ended its own so."""
    for event in (paused, outbox.begun):
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
    return await running if running.done() else Reply(200, b"")


async def _ended(performing: "asyncio.Future[Response]") -> None:
    performing.cancel()
    with suppress(asyncio.CancelledError, NotSent, OutcomeUnknown):
        await performing


def _told(passage: Passage, answered: Answered, era: Era) -> Reply:
    """What the client is told: within an era as it came, else as its own era writes it."""
    response, modern = answered.response, answered.era is Era.MODERN
    if not response.ok:
        if modern and era is Era.MODERN:
            return reply.passed_error(passage.id, response.body)
        return reply.call_error(passage.id, response.body, era)
    if era is Era.LEGACY:
        return reply.result(passage.id, passing.legacy_result(response.body) if modern else response.body)
    write = passing.modern_result if modern else passing.result
    return reply.result(passage.id, write(passage.method, response.body))


def _relay(speech: Speech, passage: Passage, outbox: Outbox, upstream: Era) -> OnNote:
    """What a client is told of an upstream's notifications: progress under its own token."""

    def relay(note: Notification) -> None:
        params: dict[str, object] = dict(passing.said(note))
        if note.method == "notifications/progress":
            if passage.progress_token is None:
                return
            params["progressToken"] = Raw(passage.progress_token)
        elif not passing.may_hear(note, speech.era, speech.log_level, upstream=upstream):
            return
        outbox.put(jsonrpc.notification(note.method, params))

    return relay
