"""Writes the ledger to the audit sink: every entry at least once, whatever becomes of the process that began it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.core.model import Operation
from gateway.operating.audit import Event, LedgerEntry, Sink
from gateway.operating.showing import ledger_entry
from gateway.store.exports import Export, Exports
from gateway.store.port import StoreAway
from gateway.telemetry import Telemetry

_MOST: Final = 100
_LAST_ROUNDS: Final = 20
"""A process that stops has no time for a backlog of hours."""
_PAUSE_S: Final = 1.0
_TROUBLE_S: Final = 5.0


class Audit:
    """The sink as others use it: trouble with it is told, and stops nobody. Without a sink nothing is written."""

    def __init__(self, sink: Sink | None, telemetry: Telemetry) -> None:
        self._sink = sink
        self._telemetry = telemetry

    async def record(self, *events: Event) -> bool:
        """Whether it was written, or need not be."""
        if self._sink is None or not events:
            return True
        try:
            await self._sink.write(events)
        except OSError as error:
            self._telemetry.audit(works=False, error=error.strerror or type(error).__name__)
            return False
        self._telemetry.audit(works=True)
        return True


class Exporting:
    """One process's part in it: takes what is due, writes it, and says so in the store."""

    def __init__(self, exports: Exports, audit: Audit, telemetry: Telemetry, jitter: Callable[[], float]) -> None:
        self._exports = exports
        self._audit = audit
        self._telemetry = telemetry
        self._jitter = jitter
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins."""
        self._loop = asyncio.get_running_loop().create_task(self._run(), name="export")

    async def close(self) -> None:
        """Writes what is due, if that can be done now, and ends. What is more than a while's work is left to others."""
        self._stopping.set()
        if self._loop is not None:
            await self._loop
        with suppress(StoreAway):
            for _ in range(_LAST_ROUNDS):
                if await self.run_once() < _MOST:
                    break

    async def run_once(self) -> int:
        """Writes what is due, up to a bound; how many there were, or none if they could not be written. StoreAway."""
        taken = await self._exports.take(_MOST)
        there = [(one, one.operation) for one in taken if one.operation is not None]
        self._telemetry.audit_lost(len(taken) - len(there))
        if not await self._audit.record(*(_event(one, operation) for one, operation in there)):
            return 0
        if there:
            await self._exports.written([one for one, _ in there])
        return len(taken)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            pause = _TROUBLE_S
            try:
                pause = 0 if await self.run_once() == _MOST else _PAUSE_S
            except StoreAway:
                pass
            except Exception as error:  # noqa: BLE001  # one entry that cannot be written must not keep the others
                self._telemetry.fault("export", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause * (0.5 + self._jitter())):
                    await self._stopping.wait()


def _event(export: Export, operation: Operation) -> Event:
    return LedgerEntry(f"{export.member}@{operation.version}", operation.updated_ms, ledger_entry(operation))
