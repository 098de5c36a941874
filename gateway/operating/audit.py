"""The audit sink: a file of JSON lines, one for each thing that somebody may have to account for."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec

_MODE = 0o600


class AuditFailed(Exception):  # noqa: N818  # what is told to whoever starts a gateway
    """The sink cannot be written to."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What is known of an operation: it has settled, nobody knows, or somebody said what became of it.

    `id` names operation and version: a line that comes twice has the same one. `entry` is the operation in full.
    """

    event: ClassVar[str] = "ledger"
    id: str
    at_ms: int
    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaskCancelled:
    """The operator cancelled a task."""

    event: ClassVar[str] = "task_cancelled"
    id: str
    at_ms: int
    task: str
    by: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The operator said what became of an unknown operation; its entry follows as a line of its own."""

    event: ClassVar[str] = "resolved"
    id: str
    at_ms: int
    operation: str
    outcome: str
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class SwitchChanged:
    """The operator blocked new starts in a scope, or allowed them again. `issuer` and `tenant` name a tenant."""

    event: ClassVar[str] = "switch_changed"
    id: str
    at_ms: int
    scope: str
    on: bool
    reason: str
    by: str
    issuer: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Erased:
    """Records of a person lost what names them. `subjects` stand in their place, one for each issuer and tenant."""

    event: ClassVar[str] = "erased"
    id: str
    at_ms: int
    subjects: tuple[str, ...]
    entries: int
    tasks: int
    by: str


Event: TypeAlias = LedgerEntry | TaskCancelled | Resolved | SwitchChanged | Erased


class Sink:
    """Lines at the end of a file, which is made for its user only. It is opened for each batch: it may be rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def write(self, events: Sequence[Event]) -> None:
        """Returns once all of them are on the disk. Raises OSError; then any number of them may be."""
        await asyncio.to_thread(self._write, [line(event) for event in events])

    def _write(self, lines: Sequence[bytes]) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            if _is_torn(descriptor):
                _all(descriptor, b"\n")
            for one in lines:
                _all(descriptor, one)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def line(event: Event) -> bytes:
    """One event as it is written."""
    return msgspec.json.encode({"event": event.event, **asdict(event)}) + b"\n"


def _is_torn(descriptor: int) -> bool:
    """Whether the last line has no end: whoever wrote it died, or the disk was full."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _all(descriptor: int, content: bytes) -> None:
    """One write where the system takes it whole, so that processes with one file do not mix their lines."""
    while content:
        content = content[os.write(descriptor, content) :]
