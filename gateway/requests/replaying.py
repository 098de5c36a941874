"""Streams of plain calls, taken up again from their last event on any replica (T25-HTTP-1)."""

import asyncio
from contextlib import suppress
from typing import Final

from gateway.core.model import Owner
from gateway.pending import Background, Outgoing, Pending
from gateway.requests.outbox import ANSWER
from gateway.store.keys import owner_digest
from gateway.store.port import StoreAway
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.wire.jsonrpc import write
from gateway.wire.reply import Reply

_LOOK_S: Final = 10.0
_DIGITS: Final = 9


class Replays:
    """Follows what an outbox keeps. `draining` is set when the process is told to stop."""

    def __init__(self, streams: StreamStore, wake: Wake, background: Background, draining: asyncio.Event) -> None:
        self._streams = streams
        self._wake = wake
        self._background = background
        self._draining = draining

    async def resume(self, owner: Owner, session: str, event: str) -> Pending | None:
        """The rest of a stream. None for an event that is not known in this session. Raises StoreAway."""
        name, _, number = event.rpartition(".")
        if not name or not number.isdecimal() or len(number) > _DIGITS:
            return None
        begun = await self._streams.replay(owner, name, 0)
        if not begun or begun[0] != write(session) or int(number) >= len(begun):
            return None
        await self._streams.wake(f"{owner_digest(owner)}:{name}")
        notes: asyncio.Queue[Outgoing] = asyncio.Queue()
        answer = self._background.start(self._follow(owner, name, int(number) + 1, notes), "replay")

        async def prime() -> str | None:
            return event

        return Pending(answer, lambda: _leave(answer), at_once=True, preamble=prime, notes=notes)

    async def _follow(self, owner: Owner, name: str, start: int, notes: "asyncio.Queue[Outgoing]") -> Reply:
        with self._wake.waiting(f"{owner_digest(owner)}:{name}") as event:
            while not self._draining.is_set():
                event.clear()
                with suppress(StoreAway):
                    items = await self._streams.replay(owner, name, start)
                    for item in items:
                        kind, message, event_id = item[:1], item[1:], f"{name}.{start}"
                        if kind == ANSWER:
                            return Reply(200, message, event_id=event_id)
                        notes.put_nowait(Outgoing(message, event_id))
                        start += 1
                    if not items and not await self._streams.replay(owner, name, start - 1):
                        return Reply(200, b"")  # kept no longer: asking again is answered with a refusal
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await event.wait()
        return Reply(200, b"")


def _leave(answer: "asyncio.Task[Reply]") -> None:
    answer.cancel()
