"""MCP over standard input and output: one client, both eras on one stream, many requests at a time."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from msgspec import Raw

from gateway.core.model import Principal
from gateway.edge.standard import LineReader, LineWriter
from gateway.edge.streams import next_note
from gateway.pending import Patience, Pending
from gateway.requests.callers import Endpoint
from gateway.requests.service import Service
from gateway.telemetry import Telemetry
from gateway.wire import intent as want
from gateway.wire import jsonrpc, reply
from gateway.wire.classify import SESSION_HEADER, Rejected, classify_bare
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import Inbound
from gateway.wire.jsonrpc import Message, Notification, Request
from gateway.wire.reply import Reply

_CANCELLED: Final = "notifications/cancelled"
_MOST_RUNNING: Final = 1000
"""Requests at a time. A client may have to answer one of ours before one of its own ends, so reading never waits."""
_LAST_WORDS_S: Final = 2.0
_AGAIN_S: Final = 1.0

_Key: TypeAlias = str | int | None


@dataclass(slots=True)
class _Running:
    """A request that was not answered yet.

    `unwanted`: the client has said so, perhaps before it was known what to stop. `stopped`: that was in time.
    """

    pending: Pending | None = None
    unwanted: bool = False
    stopped: bool = False

    def cancel(self) -> None:
        """Stops it, unless its answer is there already."""
        self.unwanted = True
        if self.pending is not None and not self.pending.answer.done():
            self.stopped = True
            (self.pending.cancel or self.pending.close)()

    def leave(self) -> None:
        """Nobody is there any more who could be answered."""
        if self.pending is not None:
            self.pending.close()


@dataclass(slots=True)
class _Session:
    """The legacy session that was begun for the client, and how to begin it anew."""

    begun: Inbound
    id: str
    stream: "asyncio.Task[None] | None" = None


class StdioDoor:
    """Serves one endpoint to one principal. `ended` is set when the client has closed either stream."""

    def __init__(
        self,
        service: Service,
        endpoint: Endpoint,
        principal: Principal,
        telemetry: Telemetry,
        reader: LineReader,
        writer: LineWriter,
        ended: asyncio.Event,
    ) -> None:
        self._service = service
        self._endpoint = endpoint
        self._principal = principal
        self._telemetry = telemetry
        self._reader = reader
        self._writer = writer
        self._ended = ended
        self._session: _Session | None = None
        self._reopening = asyncio.Lock()
        self._requests: dict[asyncio.Task[None], _Running] = {}
        self._named: dict[_Key, _Running] = {}
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to read."""
        loop = asyncio.get_running_loop()
        self._writer.start()
        self._loops = [loop.create_task(self._read(), name="read"), loop.create_task(self._watch(), name="watch")]

    async def settle(self, patience: Patience) -> None:
        """Reads nothing more; answers what was asked until the patience is over; ends the session."""
        session, self._session = self._session, None
        streams = [] if session is None or session.stream is None else [session.stream]
        await _end([*self._loops[:1], *streams])
        await patience.wait(self._requests)
        for running in self._requests.values():
            running.cancel()
            if running.pending is not None:
                running.pending.answer.cancel()
        await _end([*self._requests, *self._loops])
        if session is not None:
            await self._end_session(session)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._writer.flush()

    async def _read(self) -> None:
        try:
            async for line in self._reader.lines():
                if line is None:
                    limit = self._reader.limit
                    await self._refuse(Reject("too_large", f"the line is larger than {limit} bytes", {"limit": limit}))
                elif line.strip():
                    await self._take(line)
        except Exception as error:  # noqa: BLE001  # whatever it is, the process must not stay without ears
            self._telemetry.fault("stdin", error)
        self._ended.set()

    async def _watch(self) -> None:
        await self._writer.gone.wait()
        self._ended.set()
        for running in self._requests.values():
            running.leave()

    async def _take(self, line: bytes) -> None:
        message = jsonrpc.parse(line)
        if isinstance(message, Reject):
            await self._refuse(message)
        elif isinstance(message, Notification) and message.method == _CANCELLED:
            running = self._named.get(_key(message.params.get("requestId")))
            if running is not None:
                running.cancel()
        else:
            inbound = classify_bare(message, None if self._session is None else self._session.id)
            if isinstance(inbound, Rejected):
                await self._rejected(message, inbound)
            else:
                await self._accepted(message, inbound)

    async def _accepted(self, message: Message, inbound: Inbound) -> None:
        if isinstance(inbound.intent, want.Initialize):
            await self._initialize(inbound)
            return
        self._listen(inbound)
        if not isinstance(message, Request):
            await self._serve(_Running(), inbound)
        elif len(self._requests) < _MOST_RUNNING:
            key, running = _key(Raw(message.id)), _Running()
            request = asyncio.get_running_loop().create_task(self._serve(running, inbound), name="request")
            self._requests[request] = self._named[key] = running
            request.add_done_callback(lambda task: self._forget(task, key, running))
        else:
            reject = Reject("quota", f"{_MOST_RUNNING} requests are under way: wait until one ends")
            await self._rejected(message, Rejected(reject, inbound.speech.era, message.id))

    def _forget(self, task: "asyncio.Task[None]", key: _Key, running: _Running) -> None:
        del self._requests[task]
        if self._named.get(key) is running:
            del self._named[key]

    async def _serve(self, running: _Running, inbound: Inbound) -> None:
        started = time.perf_counter()
        era, request_id = inbound.speech.era, want.id_of(inbound.intent)
        try:
            answer = await self._answer(running, inbound)
        except Exception as error:  # noqa: BLE001  # a client is told that it was our fault
            self._telemetry.fault("request", error)
            answer = reply.refusal(request_id, Reject("internal", "Internal error"), era)
        if answer is None:
            return
        if answer.body and request_id is not None:
            await self._writer.write(answer.body)
        self._told(answer, era, type(inbound.intent).__name__, started)

    async def _answer(self, running: _Running, inbound: Inbound) -> Reply | None:
        """The answer, after what comes before it was written; None where the client does not want it any more."""
        found = await self._handle(inbound)
        if isinstance(found, Reply):
            # A task that was made is told in any case: nobody else knows of it, and it is not cancelled like this.
            return None if running.unwanted and not isinstance(inbound.intent, want.CallTool) else found
        running.pending = found
        if running.unwanted:
            await asyncio.sleep(0)  # what has not begun cannot be stopped
            running.cancel()
        return await self._pump(found, running)

    async def _pump(self, pending: Pending, running: _Running) -> Reply | None:
        while not pending.answer.done():
            note = await next_note(pending, None)
            if note is not None and not running.stopped:
                await self._writer.write(note.body)
        if running.stopped or pending.answer.cancelled():
            return None
        while not pending.notes.empty():
            await self._writer.write(pending.notes.get_nowait().body)
        return pending.answer.result()

    async def _handle(self, inbound: Inbound) -> Reply | Pending:
        """As the service answers. A session that ended, while the machine slept for example, is begun anew."""
        found = await self._service.handle(self._endpoint, self._principal, inbound)
        session = inbound.speech.session
        if session is None or not _lacks_session(found) or not await self._begin_anew(session):
            return found
        assert self._session is not None  # noqa: S101  # it was just begun
        speech = replace(inbound.speech, session=self._session.id)
        return await self._service.handle(self._endpoint, self._principal, replace(inbound, speech=speech))

    async def _initialize(self, inbound: Inbound) -> None:
        """Before anything else is read: what follows belongs to the new session."""
        started = time.perf_counter()
        before, self._session = self._session, None
        if before is not None:
            await _end([] if before.stream is None else [before.stream])
            await self._end_session(before)
        answer = await self._service.handle(self._endpoint, self._principal, inbound)
        if isinstance(answer, Reply):
            session_id = _session_id(answer)
            self._session = None if session_id is None else _Session(inbound, session_id)
            await self._writer.write(answer.body)
            self._told(answer, inbound.speech.era, type(inbound.intent).__name__, started)

    async def _end_session(self, session: _Session) -> None:
        await self._service.end_session(self._endpoint, self._principal.owner_at(self._endpoint.name), session.id)

    async def _begin_anew(self, ended: str) -> bool:
        """Whether there is a session other than the one that has ended."""
        async with self._reopening:
            session = self._session
            if session is not None and session.id == ended:
                answer = await self._service.handle(self._endpoint, self._principal, session.begun)
                session.id = (_session_id(answer) if isinstance(answer, Reply) else None) or ended
            return session is not None and session.id != ended

    def _listen(self, inbound: Inbound) -> None:
        """T25-HTTP-2: the session's stream is open from the first message after the handshake on."""
        session = self._session
        if session is not None and session.stream is None and inbound.speech.era is Era.LEGACY:
            session.stream = asyncio.get_running_loop().create_task(self._bring(session), name="stream")

    async def _bring(self, session: _Session) -> None:
        """Writes what the session's stream says. It ends with the session, and goes on with the next one."""
        while True:
            known = session.id
            found = await self._service.open_stream(self._endpoint, self._principal, known, None)
            if isinstance(found, Pending):
                try:
                    await self._pump(found, _Running())
                finally:
                    found.close()
            elif not _lacks_session(found) or not await self._begin_anew(known):
                await asyncio.sleep(_AGAIN_S)

    async def _rejected(self, message: Message, rejected: Rejected) -> None:
        """A refusal of what could be read. Only requests are answered."""
        if not isinstance(message, Request):
            self._told(reply.refusal(None, rejected.reject, rejected.era), rejected.era, "rejected", None)
            return
        reject = rejected.reject
        if reject.reason == "session_missing":
            reject = Reject(reject.reason, "There is no session yet: send initialize first")
        answer = reply.refusal(message.id, reject, rejected.era)
        await self._writer.write(answer.body)
        self._told(answer, rejected.era, "rejected", None)

    async def _refuse(self, reject: Reject) -> None:
        """A refusal of what could not be read. MCP leaves the id out where JSON-RPC has null."""
        await self._writer.write(jsonrpc.write({"jsonrpc": "2.0", "error": Raw(reject.body(Era.LEGACY))}))
        self._told(reply.refusal(None, reject, Era.LEGACY), Era.LEGACY, "rejected", None)

    def _told(self, answer: Reply, era: Era, method: str, started: float | None) -> None:
        self._telemetry.request(
            upstream=self._endpoint.name,
            era=era.value,
            method=method,
            outcome=answer.reason or "ok",
            status=answer.status,
            seconds=0 if started is None else time.perf_counter() - started,
        )


def _key(raw: Raw | None) -> _Key:
    """What two spellings of one id have in common."""
    found = jsonrpc.text(raw)
    return jsonrpc.integer(raw) if found is None else found


def _lacks_session(found: Reply | Pending) -> bool:
    return isinstance(found, Reply) and found.reason == "session"


def _session_id(answer: Reply) -> str | None:
    return next((value for name, value in answer.headers.items() if name.lower() == SESSION_HEADER), None)


async def _end(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
