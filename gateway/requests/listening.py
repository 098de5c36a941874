"""`subscriptions/listen`: the stream of a modern client that is told how its tasks change (TX-NOT-1 to TX-NOT-4)."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Raw

from gateway.core.model import Principal, Task
from gateway.pending import Background, Outgoing, Pending
from gateway.requests.callers import Caller, Endpoint
from gateway.requests.hearing import Hearing, Watch
from gateway.requests.records import Records
from gateway.store.keys import Ref, owner_digest
from gateway.store.port import StoreAway
from gateway.store.wake import Wake
from gateway.wire import jsonrpc, reply, tasks_ext
from gateway.wire.intent import Listen
from gateway.wire.jsonrpc import Members, Notification
from gateway.wire.render import SUBSCRIPTION_ID
from gateway.wire.reply import Reply

_LOOK_S: Final = 10.0


class Listening:
    """Opens such streams. `may_read` asks anew whether the principal may see a task."""

    def __init__(
        self,
        records: Records,
        hearing: Hearing,
        wake: Wake,
        background: Background,
        draining: asyncio.Event,
        new_id: Callable[[], str],
    ) -> None:
        self._records = records
        self._hearing = hearing
        self._new_id = new_id
        self._wake = wake
        self._background = background
        self._draining = draining

    def open(self, endpoint: Endpoint, caller: Caller, intent: Listen, may_read: Callable[[Task], bool]) -> Pending:
        """The stream. It ends with the successful result when the process stops or the principal's token does."""
        notes: asyncio.Queue[Outgoing] = asyncio.Queue()
        watch = Watch(self._new_id(), intent.lists, intent.resources)

        async def run() -> Reply:
            honoured = await self._hearing.honoured(endpoint, caller, watch)
            stream = _Stream(self._records, caller.principal, endpoint.name, intent, may_read, notes, honoured)
            listening = asyncio.ensure_future(stream.run(self._wake))
            draining = asyncio.ensure_future(self._draining.wait())
            hearing = asyncio.ensure_future(self._hear(endpoint, caller, watch, stream))
            try:
                await asyncio.wait(
                    {listening, draining}, timeout=stream.seconds_left(), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for task in (listening, draining, hearing):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            return reply.result(intent.id, tasks_ext.listen_result(intent.id))

        answer = self._background.start(run(), "listen")
        return Pending(answer, lambda: _stop(answer), at_once=True, notes=notes)

    async def _hear(self, endpoint: Endpoint, caller: Caller, watch: Watch, stream: "_Stream") -> None:
        if watch.lists or watch.resources:
            await stream.acknowledged.wait()
            await self._hearing.watch(endpoint, caller, watch, stream.hear)


class _Stream:
    def __init__(
        self,
        records: Records,
        principal: Principal,
        upstream: str,
        intent: Listen,
        may_read: Callable[[Task], bool],
        notes: "asyncio.Queue[Outgoing]",
        honoured: dict[str, object],
    ) -> None:
        self._records = records
        self._principal = principal
        self._owner = principal.owner_at(upstream)
        self._intent = intent
        self._may_read = may_read
        self._notes = notes
        self._honoured = honoured
        self._versions: dict[str, int] = {}
        self.acknowledged = asyncio.Event()

    def hear(self, note: Notification) -> None:
        """What the upstream says that this client wanted to hear."""
        self._emit(note.method, note.params)

    def seconds_left(self) -> float | None:
        """TX-NOT-4: how long the token is good for."""
        if self._principal.expires_ms is None:
            return None
        return max(0, self._principal.expires_ms - self._records.store.now()) / 1000

    async def run(self, wake: Wake) -> None:
        """Acknowledges, tells the present state, then every change. Goes on until it is cancelled."""
        with wake.watching(owner_digest(self._owner)) as changed:
            found = await self._accepted()
            self._emit("notifications/subscriptions/acknowledged", {"notifications": self._acknowledged(found)})
            self.acknowledged.set()
            for task_id in found:
                await self._tell(task_id)
            while True:
                member = ""
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        member = await changed.get()
                task_id = member.partition(":")[2]
                for one in [task_id] if task_id else list(self._versions):
                    if one in self._versions:
                        await self._tell(one)

    async def _accepted(self) -> list[str]:
        """Own tasks only: a foreign id is left out exactly like an unknown one."""
        found = []
        for task_id in dict.fromkeys(self._intent.task_ids or ()):
            task = await self._visible(task_id)
            if task is not None:
                found.append(task_id)
                self._versions[task_id] = 0
        return found

    def _acknowledged(self, found: list[str]) -> dict[str, object]:
        return {**self._honoured, **({} if self._intent.task_ids is None else {"taskIds": found})}

    async def _visible(self, task_id: str) -> Task | None:
        while True:
            try:
                task = (await self._records.store.load(Ref(self._owner, task_id))).task
            except StoreAway:
                await asyncio.sleep(1)
                continue
            return task if task is not None and not task.hidden and self._may_read(task) else None

    async def _tell(self, task_id: str) -> None:
        """TX-NOT-1: the complete task, as tasks/get would answer it now."""
        task = await self._visible(task_id)
        if task is None:
            del self._versions[task_id]
            return
        if task.version == self._versions[task_id]:
            return
        self._versions[task_id] = task.version
        body = None
        if task.terminal:
            with suppress(StoreAway):
                body = await self._records.store.body(Ref(self._owner, task_id))
        self._emit("notifications/tasks", tasks_ext.notification(task, body))
        if task.terminal:
            del self._versions[task_id]

    def _emit(self, method: str, params: Mapping[str, object]) -> None:
        given = params.get("_meta")
        meta: Members = (jsonrpc.members(given) if isinstance(given, Raw) else None) or {}
        marked = {**meta, SUBSCRIPTION_ID: Raw(self._intent.id)}
        self._notes.put_nowait(Outgoing(jsonrpc.notification(method, {**params, "_meta": marked})))


def _stop(answer: "asyncio.Task[Reply]") -> None:
    answer.cancel()
