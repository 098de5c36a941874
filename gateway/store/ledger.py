"""The records as the operator finds them: whoever they belong to, by page or by name."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.model import SCHEMA, Operation, OperationState, Task, TaskState
from gateway.store import codec
from gateway.store.keys import Ref
from gateway.store.port import UnknownSchema
from gateway.store.redis import RedisStore

_NAME: Final = re.compile(r"(?:([A-Za-z0-9_-]{22}):)?([A-Za-z0-9_-]{16,64})")
_CURSOR: Final = re.compile(r"(inf|[0-9]{1,16})~([A-Za-z0-9_-]{22}:[A-Za-z0-9_-]{1,64})")
_LOOK: Final = 500
"""How many entries one command looks at: bounds how long it blocks the store."""
_HOUR_MS: Final = 3_600_000
AGES: Final = {"1h": _HOUR_MS, "1d": 24 * _HOUR_MS, "7d": 7 * 24 * _HOUR_MS, "older": None}
"""How long an outcome has been unknown: less than this, and not less than the one before. None: for longer."""
_MOST_LOOKS: Final = 1000
"""How many commands look for an id."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation and its task, under the name that indexes have for them.

    `task` is None once it has expired, `operation` is None where a newer release wrote it.
    """

    member: str
    task: Task | None
    operation: Operation | None

    def ref(self, operation: Operation) -> Ref:
        """Where it lives, whether or not its owner was erased."""
        return Ref(operation.owner, operation.id, self.member.partition(":")[0])


class Erasure(StrEnum):
    """What became of a wish to erase."""

    OK = "ok"
    STALE = "stale"
    BUSY = "busy"
    """Somebody holds the operation."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Sought:
    """Which entries a page holds. `task`: a state, True for any task that its requestor knows of, None for all."""

    operation: OperationState | None = None
    task: TaskState | bool | None = None


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

    async def page(self, cursor: str | None, sought: Sought, size: int) -> LedgerPage:
        """At most `size` of the next entries. Fewer are no sign of the end, which is a cursor of None.

        Unknown outcomes come first, then what is kept for longest. Raises ValueError if this is no cursor.
        """
        found = _CURSOR.fullmatch(cursor) if cursor is not None else None
        if cursor is not None and found is None:
            raise ValueError(cursor)
        start = ["", ""] if found is None else [found[1], found[2]]
        task = "*" if sought.task is True else sought.task or ""
        arguments = [self._store.keys.base, *start, _LOOK, size, sought.operation or "", task]
        _, score, last, *rows = await self._store.run("ledger", [self._store.keys.ledger], arguments)
        after = f"{score.decode()}~{last.decode()}" if last else None
        return LedgerPage([_entry(member.decode(), task, head) for member, task, head in rows], after)

    async def find(self, name: str) -> str | None:
        """The member that a name stands for: itself, or the only one with this id. None if there is none."""
        found = _NAME.fullmatch(name)
        if found is None or found[1] is not None:
            return None if found is None else name
        cursor: int | bytes = 0
        for _ in range(_MOST_LOOKS):
            cursor, members = await self._store.call(
                *("ZSCAN", self._store.keys.ledger, cursor, "MATCH", f"*:{name}", "COUNT", _LOOK)
            )
            if members:
                return str(members[0][0].decode())
            if int(cursor) == 0:
                break
        return None

    async def erase(self, entry: Entry, after: Operation) -> Erasure:
        """Writes the operation in the place of the entry's, and removes the task, if nobody was faster."""
        ref, keys = entry.ref(after), self._store.keys
        before = after.version - 1
        named = [keys.operation(ref), keys.task(ref), keys.result(ref), keys.arguments(ref), keys.tombstone(ref)]
        base, owner = keys.base, ref.at
        indexes = [f"{base}{index}:{owner}" for index in ("ix", "ls", "in")] + [keys.watch(after.owner.upstream)]
        arguments = [entry.member, before, codec.encode(after), after.version, SCHEMA]
        _, verdict = await self._store.run("erase", named + indexes, arguments)
        return Erasure(verdict.decode())

    async def unknown(self, upstreams: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """How many outcomes are unknown, by upstream and age."""
        now = self._store.now()
        bounds, top = {}, "+inf"
        for age, longest in AGES.items():
            bottom = "-inf" if longest is None else f"({now - longest}"
            bounds[age] = (bottom, top)
            top = bottom.removeprefix("(")
        wanted = [(upstream, age) for upstream in upstreams for age in AGES]
        key = self._store.keys.unknown
        counts = await asyncio.gather(
            *(self._store.call("ZCOUNT", key(upstream), *bounds[age]) for upstream, age in wanted)
        )
        return dict(zip(wanted, counts, strict=True))

    async def entry(self, member: str) -> Entry | None:
        """Both records; None if there is no such operation."""
        head, task = await asyncio.gather(
            self._store.call("HGET", self._operations + member, "head"),
            self._store.call("HGET", self._tasks + member, "head"),
        )
        return None if head is None else _entry(member, task, head)


def _entry(member: str, task: bytes | None, operation: bytes) -> Entry:
    try:
        return Entry(member, codec.decode_task(task) if task else None, codec.decode_operation(operation))
    except UnknownSchema:
        return Entry(member, None, None)
