"""The kill switches: which new starts are blocked, by whom and why. The scripts read the same record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from gateway.store.codec import switch_record
from gateway.store.keys import EVERYTHING
from gateway.store.redis import RedisStore


class _About(msgspec.Struct):
    at: int
    reason: str = ""
    by: str = ""
    issuer: str = ""
    tenant: str = ""


_ABOUT: Final = msgspec.json.Decoder(_About)


@dataclass(frozen=True, slots=True)
class Switch:
    """One scope. What is not `readable` (or, for everything, absent) blocks like one that is on."""

    scope: str
    on: bool
    readable: bool = True
    reason: str = ""
    by: str = ""
    at_ms: int | None = None
    issuer: str = ""
    tenant: str = ""


class Switches:
    """Every method raises StoreAway."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def read(self) -> Sequence[Switch]:
        """All that were set, and in any case the one of everything, which comes first."""
        found: Mapping[bytes, bytes] = await self._store.call("HGETALL", self._store.keys.switches)
        kept = {scope.decode("utf-8", "replace"): record for scope, record in found.items()}
        scopes = [EVERYTHING, *sorted(kept.keys() - {EVERYTHING})]
        return [_switch(scope, kept.get(scope)) for scope in scopes]

    async def put(self, scope: str, *, on: bool, reason: str, by: str, tenant: tuple[str, str] | None = None) -> None:
        """Counts at every gateway from its next start on. `tenant` are issuer and tenant, for people who read it."""
        if not on and scope != EVERYTHING:
            await self._store.call("HDEL", self._store.keys.switches, scope)
            return
        record = switch_record(on=on, reason=reason, by=by, at_ms=self._store.now(), tenant=tenant)
        await self._store.call("HSET", self._store.keys.switches, scope, record)


def _switch(scope: str, record: bytes | None) -> Switch:
    on = record is None or not record.startswith(b"0")
    try:
        about = _ABOUT.decode((record or b"")[1:])
    except msgspec.MsgspecError:
        return Switch(scope, on, readable=False)
    known = Switch(scope, on, reason=about.reason, by=about.by, at_ms=about.at)
    return replace(known, issuer=about.issuer, tenant=about.tenant)
