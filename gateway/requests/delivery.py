"""Brings what a task has to say to streams of legacy clients: questions, progress, status; each to one stream."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.core.model import Owner, Question, Task, TaskState
from gateway.store.keys import Ref, owner_digest
from gateway.store.port import Session, Store, StoreAway
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.wire import asking, jsonrpc, tasks_2025
from gateway.wire.intent import TASKS_2025

_RENEW_S: Final = 10.0


class Delivery:
    """What one stream has been told of one task. `emit` writes a message to the stream."""

    def __init__(
        self,
        streams: StreamStore,
        ref: Ref,
        stream: str,
        session: Session,
        emit: Callable[[bytes], None],
        *,
        related: bool = True,
    ) -> None:
        """`related` marks questions with their task, which a client that waits for its own call knows nothing of."""
        self._streams = streams
        self._ref = ref
        self._stream = stream
        self._session = session
        self._emit = emit
        self._related = related
        self._asked: set[str] = set()
        self._progress: bytes | None = None
        self._holds = False

    async def bring(self, task: Task, *, keep: bool) -> None:
        """Whatever is new, if this stream is the one to bring it.

        `keep` holds on to that right while there is nothing to bring: a stream that waits for the result of the task
        itself comes before others.
        """
        open_ones = self._suitable(task)
        progress = await self._news(task)
        if not (keep or open_ones or progress):
            await self.release()
            return
        self._holds = await self._streams.hold(self._ref, self._stream)
        if not self._holds:
            self._asked.clear()
            return
        for question in open_ones:
            if question.key not in self._asked:
                self._asked.add(question.key)
                self._emit(self._request(question))
        if progress is not None:
            self._progress = progress
            self._emit(progress)
        if not (keep or open_ones):
            await self.release()

    async def release(self) -> None:
        """Lets another stream bring what is left."""
        if self._holds:
            self._holds = False
            with suppress(StoreAway):
                await self._streams.release(self._ref, self._stream)

    async def _news(self, task: Task) -> bytes | None:
        """The latest progress, if this stream has not brought it yet."""
        if task.progress_token is None or task.terminal:
            return None
        latest = await self._streams.progress(self._ref)
        return None if latest == self._progress else latest

    def _suitable(self, task: Task) -> list[Question]:
        """T25-INP-1: only what this session declared, and only what nobody has answered."""
        if task.state is not TaskState.INPUT_REQUIRED:
            return []
        return [
            question
            for question in task.questions
            if question.answer is None
            and asking.declared(
                self._session.capabilities, question.method, jsonrpc.members(question.params.encode()) or {}
            )
        ]

    def _request(self, question: Question) -> bytes:
        """Our request: its id names task and question, so that the answer may arrive anywhere."""
        request_id = jsonrpc.write(f"{self._ref.id}:{question.key}:{self._stream[:8]}")
        params = asking.request_params(question, self._ref.id if self._related else None)
        return jsonrpc.request(request_id, question.method, params)


class SessionStream:
    """The GET stream of a legacy session: status of the owner's tasks, and questions that no other stream brings."""

    def __init__(
        self,
        store: Store,
        streams: StreamStore,
        wake: Wake,
        owner: Owner,
        session_id: str,
        session: Session,
        stream: str,
        emit: Callable[[bytes], None],
        may_read: Callable[[Task], bool],
    ) -> None:
        self._store = store
        self._streams = streams
        self._wake = wake
        self._owner = owner
        self._session_id = session_id
        self._session = session
        self._stream = stream
        self._emit = emit
        self._may_read = may_read
        self._ended = False
        self._versions: dict[str, int] = {}
        self._deliveries: dict[str, Delivery] = {}

    async def run(self) -> None:
        """Goes on until it is cancelled, or until the session has ended."""
        loop = asyncio.get_running_loop()
        renew_at = 0.0
        with self._wake.watching(owner_digest(self._owner)) as changed:
            try:
                while not self._ended:
                    with suppress(StoreAway):
                        if loop.time() >= renew_at:
                            await self._renew()
                            renew_at = loop.time() + _RENEW_S
                    member = await _next(changed, renew_at - loop.time())
                    if member is not None:
                        task_id = member.partition(":")[2]
                        with suppress(StoreAway):
                            await (self._look(task_id) if task_id else self._renew())
            finally:
                await asyncio.shield(self._end())

    async def _renew(self) -> None:
        self._ended = await self._store.read_session(self._owner, self._session_id) is None
        await self._streams.be_present(self._owner, self._session_id, self._stream)
        for task_id in {*await self._streams.awaiting_input(self._owner), *self._deliveries}:
            await self._look(task_id)

    async def _look(self, task_id: str) -> None:
        ref = Ref(self._owner, task_id)
        task = (await self._store.load(ref)).task
        if task is None or task.hidden or task.dialect != TASKS_2025 or not self._may_read(task):
            return
        if not await self._is_ours(task):
            return
        if self._versions.get(task_id) != task.version:
            self._versions[task_id] = task.version
            if await self._streams.first_to_tell(ref, task.version, self._stream):
                params = tasks_2025.flat(task)
                self._emit(jsonrpc.notification("notifications/tasks/status", params))
        delivery = self._deliveries.get(task_id) or Delivery(
            self._streams, ref, self._stream, self._session, self._emit
        )
        self._deliveries[task_id] = delivery
        await delivery.bring(task, keep=False)
        if task.terminal:
            del self._deliveries[task_id]
            del self._versions[task_id]

    async def _is_ours(self, task: Task) -> bool:
        """The session that made the task comes first, while it has a stream open."""
        return task.session == self._session_id or not await self._streams.is_present(self._owner, task.session)

    async def _end(self) -> None:
        with suppress(StoreAway):
            await self._streams.leave(self._owner, self._session_id, self._stream)
        for delivery in self._deliveries.values():
            await delivery.release()


async def _next(changed: "asyncio.Queue[str]", timeout_s: float) -> str | None:
    try:
        async with asyncio.timeout(max(0, timeout_s)):
            return await changed.get()
    except TimeoutError:
        return None
