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
from gateway.wire import jsonrpc
from gateway.wire.jsonrpc import Notification
from gateway.wire.render import RELATED_TASK

_EVERY_S: Final = 0.25


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


def _number(raw: Raw | None) -> float | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=float)
    except msgspec.MsgspecError:
        return None
