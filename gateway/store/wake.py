"""Wake-ups: a message says that a record may have changed, and is only a hint.

Whoever waits subscribes first and then reads. After a reconnect everyone reads again, and everyone reads again now
and then anyway, so that a lost message costs time and nothing else.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_POLL_S: Final = 1.0
_AGAIN_S: Final = 0.1
_LONGEST: Final = 1000


class Wake:
    """One subscription for the whole process."""

    def __init__(self, client: "Redis", channel: str) -> None:
        self._client = client
        self._channel = channel
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._watching: dict[str, set[asyncio.Queue[str]]] = {}
        self.on_stop: Callable[[str], None] = _nobody
        """Called with the member whose upstream must be told to stop, wherever its holder is."""
        self.on_cancel: Callable[[str, str], None] = _nothing
        """Called with a session's member and the id of a plain request in it that nobody waits for any more."""
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()

    def start(self) -> None:
        """Begins to listen."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="wake")

    async def close(self) -> None:
        """Stops listening and lets everyone look once more."""
        task = self._task
        while task is not None and not task.done():
            # redis-py may take a cancellation for a failed attempt to connect, and then we would try again for ever
            task.cancel()
            await asyncio.wait([task], timeout=_AGAIN_S)
        self.wake_all()

    @contextmanager
    def waiting(self, member: str) -> Iterator[asyncio.Event]:
        """An event that is set when the record of `member` may have changed."""
        event = asyncio.Event()
        waiters = self._waiting.setdefault(member, set())
        waiters.add(event)
        try:
            yield event
        finally:
            waiters.discard(event)
            if not waiters and self._waiting.get(member) is waiters:
                del self._waiting[member]

    @contextmanager
    def watching(self, owner: str) -> Iterator["asyncio.Queue[str]"]:
        """The members of an owner (by digest) whose records may have changed; an empty one means: any of them."""
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=_LONGEST)
        watchers = self._watching.setdefault(owner, set())
        watchers.add(queue)
        try:
            yield queue
        finally:
            watchers.discard(queue)
            if not watchers and self._watching.get(owner) is watchers:
                del self._watching[owner]

    def wake_all(self) -> None:
        """Lets everyone look."""
        for watchers in self._watching.values():
            for queue in watchers:
                _offer(queue, "")
        for waiters in self._waiting.values():
            for event in waiters:
                event.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with self._client.pubsub() as subscription:
                    await subscription.subscribe(self._channel)
                    failures = 0
                    await self._listen(subscription)
            except (RedisError, OSError):
                self.connected.clear()
                await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                failures += 1

    async def _listen(self, subscription: Any) -> None:
        while True:
            message = await subscription.get_message(timeout=_POLL_S)
            if message is None:
                continue
            if message["type"] == "subscribe":
                self.connected.set()
                self.wake_all()
            elif message["type"] == "message":
                self._received(message["data"].decode())

    def _received(self, data: str) -> None:
        member, _, what = data.partition(" ")
        if what.startswith("cancel "):
            self.on_cancel(member, what.removeprefix("cancel "))
            return
        for event in self._waiting.get(member, ()):
            event.set()
        for queue in self._watching.get(member.partition(":")[0], ()):
            _offer(queue, member)
        if what == "stop":
            self.on_stop(member)


def _offer(queue: "asyncio.Queue[str]", member: str) -> None:
    """A queue that is full holds enough to look at everything anyway."""
    if queue.full():
        queue.get_nowait()
        member = ""
    queue.put_nowait(member)


def _nothing(_: str, __: str) -> None:
    """No request has to be ended."""


def _nobody(_: str) -> None:
    """Nobody has to be told."""
