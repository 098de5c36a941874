"""One stream per session for what belongs to no request, shared by all in this process who have an ear for it.

Servers on older SDKs send there what belongs to a call: its progress, which names its token, and questions. So the
stream is open while such a call runs, too, and while a task of the upstream's own is followed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gateway.upstream.followers import PROGRESS, Followers
from gateway.upstream.port import NO_CAPABILITIES, Call, Link, OnNote, OnRequest, WithId, put
from gateway.wire import asking
from gateway.wire.jsonrpc import Members, Notification, Request, integer, members

_Listen: TypeAlias = Callable[[Link, OnNote, OnRequest], Awaitable[None]]
_ABOUT_TASKS: Final = "tasks/"
"""What is asked during such a request names its task."""
_LINGER_S: Final = 1.0
"""How long the stream outlives a call: what came of it may be a task, which is followed in a moment."""


@dataclass(slots=True)
class _Ears:
    """Who listens in one session."""

    listening: "asyncio.Task[None]"
    streams: list[tuple[OnNote, OnRequest]] = field(default_factory=list)
    calls: dict[int, tuple[OnNote | None, OnRequest | None]] = field(default_factory=dict)
    followers: Followers = field(default_factory=Followers)


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
            await _until_over(ears.listening)
        finally:
            ears.streams.remove(ear)
            self._leave(link, ears)

    async def follow(self, link: Link, task: str, on_note: OnNote, on_request: OnRequest) -> None:
        """Hears what concerns a task of the upstream's own, likewise."""
        ears = self._of(link)
        try:
            with ears.followers.following(task, on_note, on_request):
                await _until_over(ears.listening)
        finally:
            self._leave(link, ears)

    @contextmanager
    def during(self, link: Link, call: Call, on_note: OnNote | None, on_request: OnRequest | None) -> Iterator[None]:
        """Hears what belongs to this call, as far as can be told."""
        may_ask = on_request is not None and link.capabilities != NO_CAPABILITIES
        may_tell = may_ask or (on_note is not None and _wants_progress(call))
        if link.session_id is None or not may_tell or call.method.startswith(_ABOUT_TASKS):
            yield
            return
        ears = self._of(link)
        ears.calls[call.id] = (on_note, on_request if may_ask else None)
        try:
            yield
        finally:
            del ears.calls[call.id]
            asyncio.get_running_loop().call_later(_LINGER_S, self._leave, link, ears)

    async def close(self) -> None:
        """Ends all streams."""
        for ears in list(self._ears.values()):
            ears.listening.cancel()
            await asyncio.wait({ears.listening})

    def _of(self, link: Link) -> _Ears:
        """Those of a session. A stream that has ended is asked for again: by now there may be one."""
        ears = self._ears.get(link)
        if ears is None:
            ears = self._ears[link] = _Ears(self._begin(link))
        elif ears.listening.done():
            ears.listening = self._begin(link)
        return ears

    def _begin(self, link: Link) -> "asyncio.Task[None]":
        listening = asyncio.get_running_loop().create_task(self._run(link), name="ears")
        listening.add_done_callback(_retrieve)
        return listening

    def _leave(self, link: Link, ears: _Ears) -> None:
        if not ears.streams and not ears.calls and not ears.followers:
            ears.listening.cancel()
            if self._ears.get(link) is ears:
                del self._ears[link]

    async def _run(self, link: Link) -> None:
        def hear(note: Notification) -> None:
            self._told(link, note)

        async def asked(request_id: str, method: str, params: Members) -> tuple[bool, bytes]:
            on_request = self._asked(link, params)
            if on_request is None:
                return False, asking.UNDECLARED
            return await put(on_request, Request(request_id.encode(), method, params))

        await self._listen(link, hear, WithId(asked))

    def _told(self, link: Link, note: Notification) -> None:
        ears = self._ears.get(link)
        if ears is None:
            return
        progress = note.method == PROGRESS
        token = integer(note.params.get("progressToken")) or 0 if progress else 0
        if token in ears.calls:
            on_note, _ = ears.calls[token]
            if on_note is not None:
                on_note(note)
        elif not ears.followers.told(note) and not progress:
            for on_note, _ in ears.streams:
                on_note(note)

    def _asked(self, link: Link, params: Members) -> OnRequest | None:
        """Who answers: who follows the task that asks, else a stream of the client's own, else the only call."""
        ears = self._ears.get(link)
        if ears is None:
            return None
        if (of_task := ears.followers.asks(params)) is not None:
            return of_task
        if ears.streams:
            return ears.streams[-1][1]
        askers = [on_request for _, on_request in ears.calls.values() if on_request is not None]
        return askers[0] if len(askers) == 1 else None


async def _until_over(listening: "asyncio.Task[None]") -> None:
    await asyncio.wait({listening})
    listening.result()


def _wants_progress(call: Call) -> bool:
    raw = call.params.get("_meta")
    return raw is not None and "progressToken" in (members(raw) or {})


def _retrieve(listening: "asyncio.Task[None]") -> None:
    """A stream that cannot be had is nothing that a call would miss; whoever listens is told."""
    if not listening.cancelled():
        listening.exception()
