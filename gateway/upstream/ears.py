"""One stream per session for what belongs to no request, shared by all in this process who have an ear for it.

Servers on older SDKs send there what belongs to a call: its progress, which names its token, and questions. So the
stream is open while such a call runs, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gateway.upstream.port import NO_CAPABILITIES, Call, Link, OnNote, OnRequest
from gateway.wire import asking
from gateway.wire.jsonrpc import Members, Notification, integer, members

_Listen: TypeAlias = Callable[[Link, OnNote, OnRequest], Awaitable[None]]
_PROGRESS: Final = "notifications/progress"


@dataclass(slots=True)
class _Ears:
    """Who listens in one session."""

    listening: "asyncio.Task[None]"
    streams: list[tuple[OnNote, OnRequest]] = field(default_factory=list)
    calls: dict[int, tuple[OnNote | None, OnRequest | None]] = field(default_factory=dict)


class Ears:
    """`listen` opens the stream of a session; it returns where there is none."""

    def __init__(self, listen: _Listen) -> None:
        self._listen = listen
        self._ears: dict[Link, _Ears] = {}

    async def hear(self, link: Link, on_note: OnNote, on_request: OnRequest) -> None:
        """Hears all that belongs to no request, until it is cancelled or the stream ends. Raises NotSent."""
        ears = self._of(link)
        ear = (on_note, on_request)
        ears.streams.append(ear)
        try:
            await asyncio.wait({ears.listening})
            ears.listening.result()
        finally:
            ears.streams.remove(ear)
            self._leave(link, ears)

    @contextmanager
    def during(self, link: Link, call: Call, on_note: OnNote | None, on_request: OnRequest | None) -> Iterator[None]:
        """Hears what belongs to this call, as far as can be told."""
        may_ask = on_request is not None and link.capabilities != NO_CAPABILITIES
        if link.session_id is None or not (may_ask or (on_note is not None and _wants_progress(call))):
            yield
            return
        ears = self._of(link)
        ears.calls[call.id] = (on_note, on_request if may_ask else None)
        try:
            yield
        finally:
            del ears.calls[call.id]
            self._leave(link, ears)

    async def close(self) -> None:
        """Ends all streams."""
        for ears in list(self._ears.values()):
            ears.listening.cancel()
            await asyncio.wait({ears.listening})

    def _of(self, link: Link) -> _Ears:
        ears = self._ears.get(link)
        if ears is None or ears.listening.done():
            known = _Ears(asyncio.get_running_loop().create_task(self._run(link), name="ears"))
            known.listening.add_done_callback(_retrieve)
            if ears is not None:
                known.streams, known.calls = ears.streams, ears.calls
            ears = self._ears[link] = known
        return ears

    def _leave(self, link: Link, ears: _Ears) -> None:
        if not ears.streams and not ears.calls:
            ears.listening.cancel()
            if self._ears.get(link) is ears:
                del self._ears[link]

    async def _run(self, link: Link) -> None:
        def hear(note: Notification) -> None:
            self._told(link, note)

        async def asked(method: str, params: Members) -> tuple[bool, bytes]:
            on_request = self._asked(link)
            return (False, asking.UNDECLARED) if on_request is None else await on_request(method, params)

        await self._listen(link, hear, asked)

    def _told(self, link: Link, note: Notification) -> None:
        ears = self._ears.get(link)
        if ears is None:
            return
        if note.method == _PROGRESS:
            on_note, _ = ears.calls.get(integer(note.params.get("progressToken")) or 0, (None, None))
            if on_note is not None:
                on_note(note)
            return
        for on_note, _ in ears.streams:
            on_note(note)

    def _asked(self, link: Link) -> OnRequest | None:
        """Who answers: a stream of the client's own, else the only call that could have asked."""
        ears = self._ears.get(link)
        if ears is None:
            return None
        if ears.streams:
            return ears.streams[-1][1]
        askers = [on_request for _, on_request in ears.calls.values() if on_request is not None]
        return askers[0] if len(askers) == 1 else None


def _wants_progress(call: Call) -> bool:
    raw = call.params.get("_meta")
    return raw is not None and "progressToken" in (members(raw) or {})


def _retrieve(listening: "asyncio.Task[None]") -> None:
    """A stream that cannot be had is nothing that a call would miss; whoever listens is told."""
    if not listening.cancelled():
        listening.exception()
