"""The line to a server: scripts by their digest, its time, when it was last reached anew, what its errors mean."""

import hashlib
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, Literal, TypeAlias

from redis.asyncio import Redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from gateway.store.batch import Batch
from gateway.store.keys import Keys
from gateway.store.port import StoreAway, StoreUnfit
from gateway.store.standing import EVICTS, Told, why

_STANDING: Final = frozenset({"create", "commit", "claim", "meet"})
"""Scripts that have to know whether the store is still the one that it was: see `standing.lua`."""
Durability: TypeAlias = Literal["local", "fsync", "replica"]
_NOTHING_DONE: Final = (
    *(ConnectionRefusedError, FileNotFoundError, socket.gaierror),
    *(AuthenticationError, BusyLoadingError, ResponseError),
)
_LOOK_S: Final = 0.4
"""How often it is looked at how the server is set up: it takes time in the server, and changes seldom."""
_WAITS: Final[Mapping[Durability, tuple[Any, ...]]] = {"fsync": ("WAITAOF", 1, 0), "replica": ("WAIT", 1)}


@dataclass(frozen=True, slots=True)
class Met:
    """A server that was met. `new_epoch`: it is another one than before, and may have lost something."""

    told: Told
    new_epoch: bool


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
        self._looked_s = -_LOOK_S
        self._sure: Batch | None = None

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

    async def meet(self, word: str) -> Met:
        """What there is to know of the server. `word` is what the last clean stop left behind."""
        now, epoch, since, info = await self.run("meet", [self.keys.marker], [word])
        told = Told.of(info.decode())
        self.learn(epoch, evicts=told.evicts)
        return Met(told, new_epoch=since == now)

    def learn(self, epoch: int, *, evicts: bool | None) -> None:
        """What a script has found out about the store; whether it may evict is not looked at each time."""
        self._epoch = epoch
        if evicts is not None:
            self._unfit = EVICTS if evicts else ""
            self._looked_s = self._clock()

    def _looks(self) -> bool:
        """Whether it is time to look at how the server is set up."""
        return bool(self._unfit) or self._clock() - self._looked_s >= _LOOK_S

    def demand_fit(self) -> None:
        """Raises StoreUnfit where nothing may be started."""
        if self._unfit:
            raise StoreUnfit(self._unfit)

    def unfit(self) -> str:
        """Why nothing may be started, as of the last claim; empty if it may."""
        return self._unfit

    def make_sure(self, client: "Redis", durability: Durability, sure_s: float) -> None:
        """What has to be durable waits for it from now on, on connections of its own: nothing else waits behind it.

        `sure_s` is for how long.
        """
        then = (*_WAITS[durability], int(sure_s * 1000))
        self._sure = Batch(client, sure_s + self._timeout_ms / 1000, then)

    def makes_sure(self) -> bool:
        """Whether it is waited for that a write is safe."""
        return self._sure is not None

    async def run(self, name: str, keys: list[str], arguments: list[Any]) -> Any:
        """What a script answers; its first item is the store's time. Raises StoreAway."""
        return await self._run(self._batch, name, keys, arguments)

    async def run_surely(self, name: str, keys: list[str], arguments: list[Any]) -> tuple[Any, bool]:
        """What a script answers, and whether what it wrote is known to be safe. Raises StoreAway."""
        if self._sure is None:
            return await self.run(name, keys, arguments), True
        reply, said = await self._run(self._sure, name, keys, arguments)
        return reply, _safe(said)

    async def _run(self, batch: Batch, name: str, keys: list[str], arguments: list[Any]) -> Any:
        source, digest = self._scripts[name]
        try:
            reply = await self._call(batch, "EVALSHA", digest, len(keys), *keys, *arguments)
        except NoScriptError:
            reply = await self._call(batch, "EVAL", source, len(keys), *keys, *arguments)
        self._heard(reply[0] if batch is self._batch else reply[0][0])
        return reply

    async def call(self, *command: Any) -> Any:
        """What a command answers. Raises StoreAway."""
        return await self._call(self._batch, *command)

    async def _call(self, batch: Batch, *command: Any) -> Any:
        try:
            reply = await batch.call(*command)
        except NoScriptError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            self._connected_since = None
            waited = isinstance(error, (TimeoutError, RedisTimeoutError))
            if waited or isinstance(error, ReadOnlyError):  # the address may lead to another server by now
                batch.renew()
            raise StoreAway(why(error), waited=waited, refused=_refused(error)) from error
        return reply

    async def close(self) -> None:
        """Waits for what is under way, then closes all connections."""
        for batch in (self._batch, self._sure):
            if batch is not None:
                await batch.close()

    def _not_after(self) -> int:
        """The store's time until which this process waits for an answer. A script that runs later does nothing."""
        return self.now() + self._timeout_ms

    def _heard(self, now_ms: int) -> None:
        self._store_ms, self._clock_s = now_ms, self._clock()
        if self._connected_since is None:
            self._connected_since = now_ms


def _safe(said: Any) -> bool:
    """Whether at least one has it: WAITAOF tells of disk and replicas, WAIT of replicas."""
    count = said[0] if isinstance(said, list) else said
    return isinstance(count, int) and count > 0


def connect(url: str, timeout_s: float, blocking_s: float = 0) -> "Redis":
    """A client that sends nothing twice and waits for nothing longer than `timeout_s`.

    `blocking_s` is how much longer commands take that wait in the server.
    """
    return Redis.from_url(
        url,
        socket_timeout=timeout_s + blocking_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        protocol=3,
    )


def _refused(error: BaseException) -> bool:
    """Whether a command that failed has changed nothing: it never left, or the server said no to it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _NOTHING_DONE):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _load_scripts() -> Mapping[str, tuple[str, str]]:
    folder = resources.files("gateway.store") / "lua"
    found = {one.name.removesuffix(".lua"): one.read_text() for one in folder.iterdir()}
    before = dict.fromkeys(_STANDING, found.pop("standing"))
    sources = {name: before.get(name, "") + text for name, text in found.items()}
    return {name: (text, hashlib.sha1(text.encode()).hexdigest()) for name, text in sources.items()}  # noqa: S324  # Redis's own naming
