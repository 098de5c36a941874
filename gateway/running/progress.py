"""Progress of a task: the latest only, at most four times a second, only forwards (T25-NEW-6, T25-INP-4)."""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw

from gateway.core.model import Task
from gateway.store.keys import Ref
from gateway.store.port import StoreAway
from gateway.store.streams import StreamStore
from gateway.wire import jsonrpc, passing
from gateway.wire.jsonrpc import Notification
from gateway.wire.render import RELATED_TASK

_EVERY_S: Final = 0.25
_MOST_NOTES: Final = 1000
_LAST_WORDS_S: Final = 1.0


class Progress:
    """What one call's upstream reports, for the record of its task."""

    def __init__(self, streams: StreamStore, ref: Ref, task: Task) -> None:
        self._streams = streams
        self._ref = ref
        self._token = task.progress_token
        self._reached: float | None = None
        self._latest: bytes | None = None
        self._writer: asyncio.Task[None] | None = None

    def __call__(self, note: Notification) -> None:
        """Takes a report. One that does not get further is dropped: strict clients take it for a fault."""
        if note.method != "notifications/progress":
            return
        params = note.params
        reached = _number(params.get("progress"))
        if self._token is None or reached is None or (self._reached is not None and reached <= self._reached):
            return
        self._reached = reached
        kept = {name: value for name, value in params.items() if name not in ("progressToken", "_meta")}
        related = {RELATED_TASK: {"taskId": self._ref.id}}
        token = Raw(self._token.encode())
        self._latest = jsonrpc.notification(
            "notifications/progress", {"progressToken": token, **kept, "_meta": related}
        )
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())

    async def close(self) -> None:
        """Reports nothing any more."""
        if self._writer is not None:
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer

    async def _write(self) -> None:
        while self._latest is not None:
            latest, self._latest = self._latest, None
            with suppress(StoreAway):
                await self._streams.note_progress(self._ref, latest)
            await asyncio.sleep(_EVERY_S)


class Notes:
    """What an upstream says during a call whose client waits for the answer: all of it, in order."""

    def __init__(self, streams: StreamStore, ref: Ref, task: Task) -> None:
        self._streams = streams
        self._ref = ref
        self._token = task.progress_token
        self._ttl_ms = task.ttl_ms
        self._kept: asyncio.Queue[bytes] = asyncio.Queue(maxsize=_MOST_NOTES)
        self._writer = asyncio.ensure_future(self._write())

    def __call__(self, note: Notification) -> None:
        """Takes a note. Progress goes under the client's own token; what there is no room for is dropped."""
        params: dict[str, object] = dict(passing.said(note))
        if note.method == "notifications/progress":
            if self._token is None:
                return
            params["progressToken"] = Raw(self._token.encode())
        with suppress(asyncio.QueueFull):
            self._kept.put_nowait(jsonrpc.notification(note.method, params))

    async def close(self) -> None:
        """Returns when what was noted is kept, or cannot be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._kept.join()
        self._writer.cancel()
        with suppress(asyncio.CancelledError):
            await self._writer

    async def _write(self) -> None:
        while True:
            message = await self._kept.get()
            with suppress(StoreAway):
                await self._streams.note(self._ref, message, self._ttl_ms)
            self._kept.task_done()


def listener(streams: StreamStore, ref: Ref, task: Task | None) -> Progress | Notes | None:
    """Who hears what an upstream says during a call: a client that waits hears all, others progress only."""
    if task is not None and task.hidden:
        return Notes(streams, ref, task)
    return None if task is None or task.progress_token is None else Progress(streams, ref, task)


def _number(raw: Raw | None) -> float | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=float)
    except msgspec.MsgspecError:
        return None
