"""What upstreams say of their tasks on the streams of their sessions, brought to whoever follows each task."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.upstream.port import SOON_S, Link, NotSent, OnNote, Upstream, WithId
from gateway.wire import asking
from gateway.wire.jsonrpc import Members, Notification
from gateway.wire.theirs import Dialect
from gateway.wire.theirs_2025 import related


@dataclass(frozen=True, slots=True)
class Ear:
    """What one task wants to hear: its progress, its questions, and that it has changed.

    `token` is the progress token of its call (JSON text).
    """

    task: str
    dialect: Dialect
    token: str
    on_note: OnNote
    on_request: WithId
    changed: Callable[[], None]


@dataclass(slots=True)
class _Stream:
    ears: list[Ear] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    listening: "asyncio.Task[None] | None" = None


_Key: TypeAlias = tuple[int, Link]


class Ears:
    """The streams of one process: one for each session in which some task is followed."""

    def __init__(self) -> None:
        self._streams: dict[_Key, _Stream] = {}

    @asynccontextmanager
    async def hearing(self, upstream: Upstream, link: Link, ear: Ear) -> AsyncIterator[None]:
        """Hears for one task. Servers without sessions have nothing to say outside of calls."""
        if link.session_id is None:
            yield
            return
        key = (id(upstream), link)
        stream = self._streams.setdefault(key, _Stream())
        stream.ears.append(ear)
        stream.came.set()
        if stream.listening is None:
            stream.listening = asyncio.get_running_loop().create_task(_listen(upstream, link, stream), name="ears")
        try:
            yield
        finally:
            stream.ears.remove(ear)
            if not stream.ears:
                if self._streams.get(key) is stream:
                    del self._streams[key]
                stream.listening.cancel()
                await asyncio.wait({stream.listening})


async def _listen(upstream: Upstream, link: Link, stream: _Stream) -> None:
    """Nobody depends on it: what is missed here is found by looking."""

    async def ask(request_id: str, method: str, params: Members) -> tuple[bool, bytes]:
        ear = await _ear_of(stream, related(params))
        return (False, asking.UNDECLARED) if ear is None else await ear.on_request.ask(request_id, method, params)

    def note(told: Notification) -> None:
        for ear in list(stream.ears):
            if ear.dialect.concerns(told.method, told.params) == ear.task:
                ear.changed()
            elif told.method == "notifications/progress" and _token(told) == ear.token:
                ear.on_note(told)

    with suppress(NotSent):  # the session has ended: whoever looks finds out
        await upstream.listen(link, note, WithId(ask))


async def _ear_of(stream: _Stream, task: str | None) -> Ear | None:
    """Who follows a task, at once or soon: a task may ask before whoever made it has heard its name."""
    if task is None:
        return None
    with suppress(TimeoutError):
        async with asyncio.timeout(SOON_S):
            while True:
                for ear in stream.ears:
                    if ear.task == task:
                        return ear
                stream.came.clear()
                await stream.came.wait()
    return None


def _token(note: Notification) -> str:
    return bytes(note.params.get("progressToken", b"")).decode("utf-8", "replace")
