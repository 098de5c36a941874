"""Opens the store that the configuration names, and finds out whether its server can do what it has to."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.config.models import Config
from gateway.store.embedded import Embedded
from gateway.store.keys import Keys
from gateway.store.line import connect
from gateway.store.port import StoreAway, StoreUnfit
from gateway.store.redis import RedisStore
from gateway.store.standing import Told
from gateway.telemetry import Telemetry

SURE_S: Final = 3.0
"""How long it is waited for that a write is safe. A server that writes its file every second needs the most of it."""
_EMBEDDED: Final = "embedded:"
_NO_FILE: Final = 'store.sent_durability = "fsync" needs a server that writes a file: set appendonly yes'
_TOO_OLD: Final = (
    'store.sent_durability = "fsync" needs Redis 7.2, Valkey, or a server with appendfsync always: '
    "this one is {version}"
)
_ALONE: Final = 'store.sent_durability = "replica" needs a Redis with a replica: the embedded store has none'


@dataclass(frozen=True, slots=True)
class Opened:
    """The store, and where it is."""

    store: RedisStore
    url: str


async def open_store(config: Config, url: str, base: Path, telemetry: Telemetry, stack: AsyncExitStack) -> Opened:
    """`url` is `store.url`, resolved; `base` is what its path is relative to.

    Raises EmbeddedFailed, StoreAway, and StoreUnfit where it cannot do what the configuration asks of it.
    """
    word, embedded = "", None
    settings = config.store
    if url.startswith(_EMBEDDED):
        marker, fsync = Keys(settings.prefix).marker, settings.sent_durability == "fsync"
        embedded = Embedded(base / url.removeprefix(_EMBEDDED), marker, fsync=fsync)
        if settings.sent_durability == "replica":
            raise StoreUnfit(_ALONE)
        await embedded.start()
        stack.push_async_callback(embedded.close)
        telemetry.log.info("embedded_store", adopted=embedded.adopted, socket=str(embedded.socket))
        url, word = embedded.url, embedded.word
    store = RedisStore(
        connect(url, settings.timeout_s),
        settings.prefix,
        timeout_s=settings.timeout_s,
        lease_ms=int(config.runner.lease_s * 1000),
        session_idle_ms=int(config.sessions.idle_ttl_s * 1000),
        exports=bool(config.audit.file),
    )
    stack.push_async_callback(store.close)
    met = await store.meet(word)
    if not met.told.known:
        telemetry.store_blind()
    if met.new_epoch:
        telemetry.store_doubted(epoch=store.epoch(), held=0)
    await store.bootstrap()
    if settings.sent_durability != "local" and embedded is None:
        await _make_sure(store, url, config, met.told)
    return Opened(store, url)


async def _make_sure(store: RedisStore, url: str, config: Config, told: Told) -> None:
    """From now on what has to be durable waits for it, or is so by itself. Raises StoreUnfit."""
    if config.store.sent_durability == "fsync":
        if told.known and not told.writes_file:
            raise StoreUnfit(_NO_FILE)
        if await _always(store):
            return
        if told.known and not told.can_wait_for_file:
            raise StoreUnfit(_TOO_OLD.format(version=told.version))
    client = connect(url, config.store.timeout_s, SURE_S)
    store.make_sure(client, config.store.sent_durability, SURE_S)


async def _always(store: RedisStore) -> bool:
    """Whether the server answers nothing before it is on its disk. It may not be asked everywhere."""
    try:
        told = await store.call("CONFIG", "GET", "appendfsync")
    except StoreAway:
        return False
    return b"always" in (told.values() if isinstance(told, dict) else told)
