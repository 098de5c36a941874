"""Calls that were sent and whose holder may die: where their answers can be had by somebody else.

An upstream whose stream names its events can be asked for the rest of it, in the same session, from any process. What
that takes is kept beside the record: from the first event on, and as the stream goes on now and then, because an event
that is told twice does no harm.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.core.model import Owner
from gateway.running.holder import Held
from gateway.store.port import StoreAway
from gateway.store.streams import StreamStore
from gateway.upstream.port import Hello, Link

_SCHEMA: Final = 1
_EVERY_S: Final = 2.0
_SLACK_MS: Final = 60_000
_STORE_PAUSE_S: Final = 0.2


class _Kept(msgspec.Struct):
    """What is kept of a call. `offers` are the capabilities of the server; capabilities are JSON texts."""

    schema: int
    call: int
    event: str
    version: str
    session: str
    capabilities: str
    client: str
    spoken: str
    offers: str


_DECODER: Final = msgspec.json.Decoder(_Kept)


@dataclass(frozen=True, slots=True)
class Found:
    """A call whose stream may be taken up: in which session, under which id, after which event."""

    link: Link
    call: int
    event: str


class Marker:
    """Keeps how far the stream of one call has come. Nobody waits for it, and a store that is away costs nothing."""

    def __init__(self, streams: StreamStore, held: Held, link: Link, call: int, ttl_ms: int) -> None:
        self._streams = streams
        self._held = held
        self._link = link
        self._call = call
        self._ttl_ms = ttl_ms
        self._latest: str | None = None
        self._writer: asyncio.Task[None] | None = None

    def __call__(self, event: str) -> None:
        """The stream can be taken up after this event."""
        self._latest = event
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())

    def close(self) -> None:
        """Keeps nothing any more; what is kept stays."""
        if self._writer is not None:
            self._writer.cancel()

    async def _write(self) -> None:
        while self._latest is not None:
            latest, self._latest = self._latest, None
            with suppress(StoreAway):
                value = _encoded(self._link, self._call, latest)
                if await self._streams.attach(self._held.ref, self._held.fence, value, self._ttl_ms):
                    self._held.attached = self._link
            await asyncio.sleep(_EVERY_S)


class Reattaching:
    """Keeps and finds, for one process."""

    def __init__(self, streams: StreamStore) -> None:
        self._streams = streams

    def marker(self, held: Held, link: Link, call: int, left_s: float) -> Marker:
        """Keeps how far a call has come that may take `left_s` seconds."""
        return Marker(self._streams, held, link, call, int(left_s * 1000) + _SLACK_MS)

    async def found(self, held: Held) -> Found | None:
        """Where the answer can be had to a call that somebody else has sent, as long as the store takes to tell."""
        while True:
            try:
                kept = await self._streams.attachment(held.ref)
            except StoreAway:
                await asyncio.sleep(_STORE_PAUSE_S)
                continue
            return None if kept is None else _decoded(kept, held.ref.owner)

    async def forget(self, held: Held) -> None:
        """The call has ended. What cannot be forgotten now ends by itself."""
        if held.attached is not None:
            with suppress(StoreAway):
                await self._streams.detach(held.ref)


def _encoded(link: Link, call: int, event: str) -> bytes:
    where = (link.version, link.session_id or "", link.capabilities, link.client, link.spoken)
    return msgspec.json.encode(_Kept(_SCHEMA, call, event, *where, link.hello.capabilities.decode()))


def _decoded(kept: bytes, owner: Owner) -> Found | None:
    """None where it was kept by a release that knows more."""
    try:
        found = _DECODER.decode(kept)
    except msgspec.MsgspecError:
        return None
    if found.schema != _SCHEMA:
        return None
    hello = Hello(found.offers.encode())
    link = Link(owner, found.version, found.session, found.capabilities, found.client, hello, found.spoken)
    return Found(link, found.call, found.event)
