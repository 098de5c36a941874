"""What of the ledger is still to be written to the audit sink: kept until somebody says that it was written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.model import Operation
from gateway.store import codec
from gateway.store.port import UnknownSchema
from gateway.store.redis import RedisStore

HANDED_OUT_MS: Final = 30_000
"""How long a process has to write what it took, before another one takes it."""


@dataclass(frozen=True, slots=True)
class Export:
    """An entry to be written; `operation` is None if it has ended before that, which must not happen."""

    member: str
    operation: Operation | None


class Exports:
    """Every method raises StoreAway."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def take(self, most: int) -> Sequence[Export]:
        """The longest due entries. What was written by a newer release is left to it."""
        keys = self._store.keys
        _, *rows = await self._store.run("export", [keys.exports], [keys.base, most, HANDED_OUT_MS])
        return [one for member, _, head in rows if (one := _export(member.decode(), head)) is not None]

    async def written(self, exports: Sequence[Export]) -> None:
        """These were written, and need not be written again unless they change."""
        versions = [word for one in exports if one.operation for word in (one.member, one.operation.version)]
        await self._store.run("exported", [self._store.keys.exports], [self._store.keys.base, *versions])

    async def waiting(self) -> int:
        """How many are still to be written."""
        return int(await self._store.call("ZCARD", self._store.keys.exports))


def _export(member: str, head: bytes) -> Export | None:
    try:
        return Export(member, codec.decode_operation(head) if head else None)
    except UnknownSchema:
        return None
