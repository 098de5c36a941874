"""Who follows tasks of the upstream's own in one session. What names such a task goes there, and to nobody else."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from gateway.upstream.port import SOON_S, OnNote, OnRequest, WithId, put
from gateway.wire import asking
from gateway.wire.jsonrpc import Members, Notification, Request
from gateway.wire.taken import about
from gateway.wire.theirs_2025 import related

PROGRESS: Final = "notifications/progress"


@dataclass(frozen=True, slots=True, eq=False)
class _Follower:
    task: str
    on_note: OnNote
    on_request: OnRequest


class Followers:
    """Of one session. No client ever learns what is said here."""

    def __init__(self) -> None:
        self._followers: list[_Follower] = []
        self._came = asyncio.Event()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._followers)

    @contextmanager
    def following(self, task: str, on_note: OnNote, on_request: OnRequest) -> Iterator[None]:
        """Somebody follows a task meanwhile."""
        follower = _Follower(task, on_note, on_request)
        self._followers.append(follower)
        self._came.set()
        try:
            yield
        finally:
            self._followers.remove(follower)

    def told(self, note: Notification) -> bool:
        """Brings a notification that belongs to no call; whether it is for nobody else.

        Progress names the token of a call that is over, so each follower looks whether it is its own.
        """
        task, progress = about(note), note.method == PROGRESS
        heeding = [one for one in self._followers if progress or one.task == task]
        for one in heeding:
            one.on_note(note)
        return task is not None or bool(heeding)

    def asks(self, params: Members) -> OnRequest | None:
        """Who answers a question that names its task; None for one that names none."""
        task = related(params)
        if task is None:
            return None

        async def ask(request_id: str, method: str, params: Members) -> tuple[bool, bytes]:
            follower = await self._soon(task)
            if follower is None:
                return False, asking.UNDECLARED
            return await put(follower.on_request, Request(request_id.encode(), method, params))

        return WithId(ask)

    async def _soon(self, task: str) -> _Follower | None:
        """Who follows a task, at once or soon: it may ask before whoever made it has heard its name."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON_S):
                while True:
                    for one in reversed(self._followers):
                        if one.task == task:
                            return one
                    self._came.clear()
                    await self._came.wait()
        return None
