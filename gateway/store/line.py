"""The line to a server: scripts by their digest, its time, when it was last reached anew, what its errors mean."""

import hashlib
import time
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, Final

from redis.asyncio import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from gateway.store.batch import Batch
from gateway.store.keys import Keys
from gateway.store.port import StoreAway, StoreUnfit
from gateway.store.standing import EVICTS, Told, why

_STANDING: Final = frozenset({"create", "commit", "claim", "meet"})
"""Scripts that have to know whether the store is still the one that it was: see `standing.lua`."""


class Line:
    """Commands and scripts of one process. `clock` is monotonic, in seconds."""

    def __init__(
        self, client: "Redis", prefix: str, *, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.keys = Keys(prefix)
        self._client = client
        self._batch = Batch(client, timeout_s)
        self._timeout_ms = int(timeout_s * 1000)
        self._clock = clock
        self._scripts = _load_scripts()
        self._store_ms, self._clock_s = 0, 0.0
        self._connected_since: int | None = None
        self._epoch = 0
        self._unfit = ""

    def now(self) -> int:
        """The store's time, as of the last answer plus what has passed since."""
        return self._store_ms + int((self._clock() - self._clock_s) * 1000)

    def connected_since(self) -> int:
        """The store's time of the first answer after the last failure; now, if it does not answer."""
        return self._connected_since if self._connected_since is not None else self.now()

    def epoch(self) -> int:
        """How often the store has become another one that may have lost something, as of the last claim; 0: unknown."""
        return self._epoch

    async def check(self) -> None:
        """Writes something, and reads how the server is set up. Raises StoreUnfit."""
        await self.meet("")
        self.demand_fit()

    async def meet(self, token: str) -> Told:
        """What there is to know of the server. `token` is what the last clean stop left behind."""
        _, epoch, _, info = await self.run("meet", [self.keys.marker], [token])
        told = Told.of(info.decode())
        self.learn(epoch, evicts=told.evicts)
        return told

    def learn(self, epoch: int, *, evicts: bool) -> None:
        """What a script has found out about the store."""
        self._epoch = epoch
        self._unfit = EVICTS if evicts else ""

    def demand_fit(self) -> None:
        """Raises StoreUnfit where nothing may be started."""
        if self._unfit:
            raise StoreUnfit(self._unfit)

    async def run(self, name: str, keys: list[str], arguments: list[Any]) -> Any:
        """What a script answers; its first item is the store's time. Raises StoreAway."""
        source, digest = self._scripts[name]
        try:
            reply = await self.call("EVALSHA", digest, len(keys), *keys, *arguments)
        except NoScriptError:
            reply = await self.call("EVAL", source, len(keys), *keys, *arguments)
        self._heard(reply[0])
        return reply

    async def call(self, *command: Any) -> Any:
        """What a command answers. Raises StoreAway."""
        try:
            reply = await self._batch.call(*command)
        except NoScriptError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            self._connected_since = None
            if isinstance(error, ReadOnlyError):  # the address may lead to another server by now
                await self._client.connection_pool.disconnect(inuse_connections=False)
            waited = isinstance(error, (TimeoutError, RedisTimeoutError))
            raise StoreAway(why(error), waited=waited) from error
        return reply

    async def close(self) -> None:
        """Waits for what is under way, then closes all connections."""
        await self._batch.close()
        await self._client.aclose()

    def _not_after(self) -> int:
        """The store's time until which this process waits for an answer. A script that runs later does nothing."""
        return self.now() + self._timeout_ms

    def _heard(self, now_ms: int) -> None:
        self._store_ms, self._clock_s = now_ms, self._clock()
        if self._connected_since is None:
            self._connected_since = now_ms


def connect(url: str, timeout_s: float) -> "Redis":
    """A client that sends nothing twice and waits for nothing longer than `timeout_s`."""
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        protocol=3,
    )


def _load_scripts() -> Mapping[str, tuple[str, str]]:
    folder = resources.files("gateway.store") / "lua"
    found = {one.name.removesuffix(".lua"): one.read_text() for one in folder.iterdir()}
    before = dict.fromkeys(_STANDING, found.pop("standing"))
    sources = {name: before.get(name, "") + text for name, text in found.items()}
    return {name: (text, hashlib.sha1(text.encode()).hexdigest()) for name, text in sources.items()}  # noqa: S324  # Redis's own naming
