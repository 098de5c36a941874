"""Where it is remembered which upstream session belongs to which client session."""

from collections.abc import Awaitable
from math import inf
from typing import TypeVar

from gateway.core.model import Owner
from gateway.store.port import StoreAway
from gateway.store.streams import StreamStore
from gateway.upstream.port import NotSent

_Found = TypeVar("_Found")


class StoredPins:
    """Pins in the store. Every method raises NotSent when it is away: then nothing is begun at the upstream."""

    def __init__(self, streams: StreamStore, idle_ms: int) -> None:
        """A pin that nobody asks for is forgotten after `idle_ms`, like the session of the client."""
        self._streams = streams
        self._idle_ms = idle_ms

    async def find(self, owner: Owner, client: str) -> bytes | None:
        """What was kept for this client session."""
        return await _stored(self._streams.pin(owner, client, self._idle_ms))

    async def keep(self, owner: Owner, client: str, pin: bytes) -> bytes:
        """Keeps it, or gives what somebody else kept before."""
        return await _stored(self._streams.keep_pin(owner, client, pin, self._idle_ms))

    async def unused_s(self, owner: Owner, client: str) -> float:
        """For how many seconds nobody has asked for it; infinite where nothing is kept."""
        left_ms = await _stored(self._streams.pin_left_ms(owner, client))
        return inf if left_ms is None else max(0, self._idle_ms - left_ms) / 1000

    async def drop(self, owner: Owner, client: str, pin: bytes) -> None:
        """Forgets it, unless something else took its place."""
        await _stored(self._streams.drop_pin(owner, client, pin))


async def _stored(work: Awaitable[_Found]) -> _Found:
    try:
        return await work
    except StoreAway as error:
        raise NotSent("store_away", "the gateway cannot reach its store", again=True, busy=True) from error
