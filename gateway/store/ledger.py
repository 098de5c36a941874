"""The records as the operator finds them: whoever they belong to, by page or by name."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.model import Operation, Task
from gateway.store import codec
from gateway.store.port import UnknownSchema
from gateway.store.redis import RedisStore

_NAME: Final = re.compile(r"(?:([A-Za-z0-9_-]{22}):)?([A-Za-z0-9_-]{16,64})")
_LOOK: Final = 1000
"""How many keys one command looks at: bounds how long it blocks the store."""
_MOST_LOOKS: Final = 1000
_START: Final = "0"


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation and its task, under the name that indexes have for them.

    `task` is None once it has expired, `operation` is None where a newer release wrote it.
    """

    member: str
    task: Task | None
    operation: Operation | None


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """Some of the entries; `cursor` is where the next ones begin, None after the last."""

    entries: Sequence[Entry]
    cursor: str | None


class LedgerStore:
    """Every method raises StoreAway."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._operations = f"{store.keys.base}o:"
        self._tasks = f"{store.keys.base}t:"

    async def page(self, cursor: str | None) -> LedgerPage:
        """The next entries, in no order. What stays while the pages are read is on one of them, perhaps on two."""
        after, members = await self._scan(cursor or _START, "*")
        entries = await asyncio.gather(*(self.entry(member) for member in members))
        return LedgerPage([one for one in entries if one is not None], None if after == _START else after)

    async def find(self, name: str) -> str | None:
        """The member that a name stands for: itself, or the only one with this id. None if there is none."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        if found[1] is not None:
            return name
        cursor = _START
        for _ in range(_MOST_LOOKS):
            cursor, members = await self._scan(cursor, f"*:{name}")
            if members:
                return members[0]
            if cursor == _START:
                break
        return None

    async def entry(self, member: str) -> Entry | None:
        """Both records; None if there is no such operation."""
        head, task = await asyncio.gather(
            self._store.call("HGET", self._operations + member, "head"),
            self._store.call("HGET", self._tasks + member, "head"),
        )
        if head is None:
            return None
        try:
            return Entry(member, codec.decode_task(task) if task else None, codec.decode_operation(head))
        except UnknownSchema:
            return Entry(member, None, None)

    async def _scan(self, cursor: str, pattern: str) -> tuple[str, list[str]]:
        command = ("SCAN", cursor, "MATCH", self._operations + pattern, "COUNT", _LOOK)
        after, keys = await self._store.call(*command)
        return _text(after), [key.decode().removeprefix(self._operations) for key in keys]


def _text(cursor: bytes | str | int) -> str:
    return cursor.decode() if isinstance(cursor, bytes) else str(cursor)
