"""Streams of legacy clients: the wait for a result, its resumption on any replica, and the stream of a session."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from gateway.core import engine
from gateway.core.model import OutcomeKind, Owner, Task, TaskState
from gateway.pending import Background, Outgoing, Pending, emitter
from gateway.policy.model import Settings
from gateway.requests.callers import store_away
from gateway.requests.calls import answer_of
from gateway.requests.delivery import Delivery, SessionStream
from gateway.requests.records import Records
from gateway.requests.replaying import Replays
from gateway.store.keys import Ref
from gateway.store.port import Session, StoreAway
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.wire import asking, reply, tasks_2025
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import ClientAnswer
from gateway.wire.reply import Reply

_LOOK_S: Final = 10.0
_ENDED: Final = Reply(200, b"")


class _Waited(msgspec.Struct):
    """What a primed stream waits for."""

    session: str
    task: str
    request: str


class LegacyStreams:
    """Opens them. `draining` is set when the process is told to stop."""

    def __init__(
        self,
        records: Records,
        streams: StreamStore,
        wake: Wake,
        background: Background,
        new_id: Callable[[], str],
        draining: asyncio.Event,
    ) -> None:
        self._records = records
        self._streams = streams
        self._wake = wake
        self._background = background
        self._new_id = new_id
        self._draining = draining
        self._replays = Replays(streams, wake, background, draining)

    def result(self, request_id: bytes, ref: Ref, task: Task, session_id: str, session: Session) -> Pending:
        """T25-RES-1: answers exactly once, when the task ends or expires. Whatever is asked meanwhile is delivered."""
        event = self._new_id()
        notes: asyncio.Queue[Outgoing] = asyncio.Queue()

        async def prime() -> str | None:
            waited = msgspec.json.encode(_Waited(session_id, ref.id, request_id.decode()))
            left = task.expires_ms - self._records.store.now()
            with suppress(StoreAway):
                await self._streams.remember_event(ref.owner, event, waited, left)
                return event
            return None

        delivery = Delivery(self._streams, ref, self._new_id(), session, emitter(notes))
        answer = self._background.start(self._until_done(request_id, ref, delivery), "tasks-result")
        return Pending(answer, lambda: cancel(answer), preamble=prime, notes=notes)

    async def resume(
        self, owner: Owner, session_id: str, session: Session, event: str, may_read: Callable[[Task], bool]
    ) -> Pending | None:
        """T25-RES-1: waits again, under the id of the original request.

        None for an event id that is not known, or whose task this token does not open. Raises StoreAway.
        """
        if "." in event:
            return await self._replays.resume(owner, session_id, event)
        found = await self._streams.recall_event(owner, event)
        if found is None:
            return None
        waited = msgspec.json.decode(found, type=_Waited)
        if waited.session != session_id:
            return None
        ref = Ref(owner, waited.task)
        task = (await self._records.store.load(ref)).task
        if task is not None and not may_read(task):
            return None
        request_id = waited.request.encode()
        notes: asyncio.Queue[Outgoing] = asyncio.Queue()

        async def prime() -> str | None:
            return event

        delivery = Delivery(self._streams, ref, self._new_id(), session, emitter(notes))
        answer = self._background.start(self._until_done(request_id, ref, delivery), "tasks-result")
        return Pending(answer, lambda: cancel(answer), at_once=True, preamble=prime, notes=notes)

    def session(
        self,
        owner: Owner,
        session_id: str,
        session: Session,
        may_read: Callable[[Task], bool],
        listen: Callable[[Callable[[bytes], None]], Awaitable[None]],
    ) -> Pending:
        """T25-HTTP-2: the stream of a session, until its client leaves or the process stops.

        `listen` brings what the upstream has to say that belongs to no request.
        """
        notes: asyncio.Queue[Outgoing] = asyncio.Queue()
        stream = SessionStream(
            self._records.store,
            self._streams,
            self._wake,
            owner,
            session_id,
            session,
            self._new_id(),
            emitter(notes),
            may_read,
        )

        async def run() -> Reply:
            running = asyncio.ensure_future(stream.run())
            draining = asyncio.ensure_future(self._draining.wait())
            listening = asyncio.ensure_future(listen(emitter(notes)))
            try:
                await asyncio.wait({running, draining}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in (running, draining, listening):
                    one.cancel()
                    with suppress(asyncio.CancelledError):
                        await one
            return _ENDED

        answer = self._background.start(run(), "session-stream")
        return Pending(answer, lambda: cancel(answer), at_once=True, notes=notes)

    async def take_answer(
        self,
        owner: Owner,
        answer: ClientAnswer,
        settings: Callable[[str], Settings],
        denied: Callable[[Task, str], Reject | None],
    ) -> Reply:
        """T25-INP-1: an answer to a question that any stream of this owner brought; the first good one counts."""
        task_id, _, rest = answer.id.partition(":")
        key = rest.partition(":")[0]
        ref = Ref(owner, task_id)
        task = (await self._records.store.load(ref)).task
        question = None if task is None else next((one for one in task.questions if one.key == key), None)
        if task is None or question is None or question.answer is not None:
            return reply.ACCEPTED
        if (reject := denied(task, key)) is not None:
            return reply.refusal(None, reject, Era.LEGACY)
        limits = settings(task.tool)
        most = limits.max_arguments_bytes
        # Of a call that is plain to its client the answers are the upstream's to judge, as if nobody stood between.
        if answer.ok:
            why = asking.unfit(question, answer.body, most, by_schema=not task.hidden)
        else:
            why = asking.unfit_refusal(answer.body, most)
        if why is not None:
            return reply.refusal(None, Reject("arguments", why), Era.LEGACY, status=400)
        kept = asking.result(answer.body) if answer.ok else asking.refusal(answer.body)
        await self._records.change(ref, engine.Respond({key: kept}), limits)
        return reply.ACCEPTED

    async def _until_done(self, request_id: bytes, ref: Ref, delivery: Delivery) -> Reply:
        try:
            with self._wake.waiting(ref.member) as event:
                while not self._draining.is_set():
                    event.clear()
                    pause = _LOOK_S
                    with suppress(StoreAway):
                        pair = await self._records.store.load(ref)
                        if pair.task is None or pair.task.terminal:
                            return await self._final(request_id, ref, pair.task)
                        await delivery.bring(pair.task, keep=True)
                        pause = min(_LOOK_S, (pair.task.expires_ms - pair.now) / 1000 + 0.01)
                    await self._pause(event, pause)
            return _ENDED
        finally:
            await asyncio.shield(delivery.release())

    async def _pause(self, event: asyncio.Event, timeout_s: float) -> None:
        waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._draining.wait())}
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _final(self, request_id: bytes, ref: Ref, task: Task | None) -> Reply:
        try:
            body = await self._records.store.body(ref)
        except StoreAway:
            return reply.refusal(request_id, store_away(), Era.LEGACY)
        return final_2025(request_id, task, body)


def cancel(answer: "asyncio.Task[Reply]") -> None:
    """Nobody waits for this answer any more; what it waited for is untouched (T25-RES-4)."""
    answer.cancel()


def final_2025(request_id: bytes, task: Task | None, body: bytes | None) -> Reply:
    """T25-RES-2, T25-RES-3: the tool's own answer, marked with the task it belongs to."""
    has_result = task is not None and task.state is TaskState.DONE and task.outcome_kind is not OutcomeKind.ERROR
    if task is not None and body is not None and has_result:
        return reply.result(request_id, tasks_2025.final_result(task, body))
    return answer_of(request_id, task, body, Era.LEGACY)
