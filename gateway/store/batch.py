"""The commands of one event-loop tick in one round trip.

A caller that goes away leaves the round trip alone: nobody ever reads another caller's reply, and no connection is
given up for it. Nothing is sent twice: after a lost connection it is not known what was carried out.
"""

import asyncio
from typing import Any, TypeAlias

from redis.asyncio import Redis

_Waiting: TypeAlias = tuple[tuple[Any, ...], asyncio.Future[Any]]


class Batch:
    """Gathers commands and sends them together.

    `then` goes last in each round trip, on the same connection: each reply comes as a pair with what was said to it.
    """

    def __init__(self, client: "Redis", timeout_s: float, then: tuple[Any, ...] = ()) -> None:
        self._client = client
        self._then = then
        self._timeout_s = timeout_s
        self._waiting: list[_Waiting] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def call(self, *command: Any) -> Any:
        """The reply to one command. Raises RedisError, OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((command, future))
        return await future

    def renew(self) -> None:
        """Gives up the connections that nobody uses now: what was wrong with one may be wrong with all."""
        pool = self._client.connection_pool
        self._keep(asyncio.get_running_loop().create_task(pool.disconnect(inuse_connections=False)))

    async def close(self) -> None:
        """Waits for what is under way, then closes all connections."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._client.aclose()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._keep(asyncio.get_running_loop().create_task(self._send(waiting)))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _send(self, waiting: list[_Waiting]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                pipeline = self._client.pipeline(transaction=False)
                for command, _ in waiting:
                    pipeline.execute_command(*command)
                if self._then:
                    pipeline.execute_command(*self._then)
                replies = await pipeline.execute(raise_on_error=False)
                if self._then:
                    last = replies.pop()
                    replies = [reply if isinstance(reply, Exception) else (reply, last) for reply in replies]
        except Exception as error:  # noqa: BLE001  # whatever it is: nobody may wait for a reply that will not come
            replies = [error] * len(waiting)
        for (_, future), reply in zip(waiting, replies, strict=True):
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)
