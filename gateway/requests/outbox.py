"""What a stream of a legacy client brings, kept for a while, so that it can be taken up again on any replica.

T25-HTTP-1: a dropped connection is no cancellation. The call goes on, and whoever asks with `Last-Event-ID` gets what
came after that event, the answer included.
"""

import asyncio
from contextlib import suppress
from typing import Final

from gateway.core.model import Owner
from gateway.pending import Background, Outgoing
from gateway.store.keys import owner_digest
from gateway.store.port import StoreAway
from gateway.store.streams import StreamStore
from gateway.wire.jsonrpc import write

REPLAY_S: Final = 120.0
"""How long after its end a stream can be asked for again."""
_MOST_BYTES: Final = 4_194_304
"""A stream that brought more than this cannot be taken up again."""
_MOST_WAITING: Final = 10_000
"""Messages of one stream that its client has not read yet."""
NOTE: Final = b"n"
ANSWER: Final = b"a"


class Outbox:
    """One stream. `name` cannot be guessed; its events are `name.1`, `name.2` and so on, `name.0` is its beginning."""

    def __init__(
        self, streams: StreamStore, background: Background, owner: Owner, session: str, name: str, lasts_s: float
    ) -> None:
        """`lasts_s` is how long the call may take. Without a `session` nothing is kept: that is for legacy clients."""
        self._streams = streams
        self._background = background
        self._owner = owner
        self._session = session
        self._name = name
        self._lasts_ms = int((lasts_s + REPLAY_S) * 1000)
        self._kept: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()
        self._over = False
        self._count = 0
        self._size = 0
        self.notes: asyncio.Queue[Outgoing] = asyncio.Queue()

    @property
    def member(self) -> str:
        """How wake-ups name the stream."""
        return f"{owner_digest(self._owner)}:{self._name}"

    async def begin(self) -> str:
        """The stream is opened; the id of its first event."""
        self.begun.set()
        if self._over:  # the answer is there already, and was not streamed
            return f"{self._name}.0"
        self._open()
        return f"{self._name}.0"

    def put(self, message: bytes) -> None:
        """One message on its way to the client. One that reads too slowly misses what it is behind with."""
        if self.notes.qsize() >= _MOST_WAITING:
            return
        if not self._session:
            self.notes.put_nowait(Outgoing(message))
            return
        self._open()
        self._count += 1
        self._keep(NOTE + message)
        self.notes.put_nowait(Outgoing(message, f"{self._name}.{self._count}"))

    async def answer(self, message: bytes) -> str | None:
        """The last message, kept before it is written; the id of its event. None if nothing was streamed."""
        self._over = True
        if self._writer is None:
            return None
        self._count += 1
        self._keep(ANSWER + message)
        self._kept.put_nowait(b"")
        with suppress(asyncio.CancelledError):
            await asyncio.wait({self._writer})
        return f"{self._name}.{self._count}"

    def _open(self) -> None:
        if self._writer is None:
            self._keep(write(self._session))
            self._writer = self._background.start(self._write(), "outbox")

    def _keep(self, item: bytes) -> None:
        self._size += len(item)
        self._kept.put_nowait(item)

    async def _write(self) -> None:
        """Writes in order, until the answer. What cannot be kept whole is not kept."""
        while item := await self._kept.get():
            last = item.startswith(ANSWER)
            ttl_ms = int(REPLAY_S * 1000) if last else self._lasts_ms
            try:
                if self._size > _MOST_BYTES:
                    await self._streams.drop_replay(self._owner, self._name)
                    return
                await self._streams.append_replay(self._owner, self._name, item, ttl_ms)
            except StoreAway:
                return
