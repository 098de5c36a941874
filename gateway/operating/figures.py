"""Gauges about the store that no event of this process sets: read when somebody asks for the metrics."""

from collections.abc import Sequence
from contextlib import suppress

from gateway.store.exports import Exports
from gateway.store.ledger import LedgerStore
from gateway.store.port import StoreAway
from gateway.store.switches import Switches
from gateway.telemetry import Telemetry


class Figures:
    """What all gateways at this store share, for these upstreams."""

    def __init__(
        self, ledger: LedgerStore, exports: Exports, switches: Switches, upstreams: Sequence[str], telemetry: Telemetry
    ) -> None:
        self._ledger = ledger
        self._exports = exports
        self._switches = switches
        self._upstreams = upstreams
        self._telemetry = telemetry

    async def refresh(self) -> None:
        """Sets the gauges; while the store is away they stay as they were last."""
        with suppress(StoreAway):
            self._telemetry.switches({one.scope: one.on for one in await self._switches.read()})
            self._telemetry.ledger(await self._ledger.unknown(self._upstreams), await self._exports.waiting())
