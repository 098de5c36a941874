"""Every key there is. Ownership is part of a record's key: a foreign id is an unknown id.

`{s<n>}` is the slot tag of a shard; everything that one script touches carries it.
"""

import hashlib
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gateway.core.model import Operation, Owner

_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_NOWHERE: Final = "-"


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a pair of records lives. `at` is the digest of the owner that it was made for, where that was erased."""

    owner: Owner
    id: str
    at: str = ""

    @property
    def member(self) -> str:
        """How indexes and wake-ups name the pair. An id that no gateway could have made names nothing."""
        return f"{self.at or owner_digest(self.owner)}:{self.id if _ID.fullmatch(self.id) else _NOWHERE}"


@lru_cache(maxsize=65_536)
def owner_digest(owner: Owner) -> str:
    """Digest of issuer, subject, tenant and upstream. Parts are length-prefixed, so no two owners share one."""
    return digest(owner.issuer, owner.subject, owner.tenant, owner.upstream)


@lru_cache(maxsize=65_536)
def tenant_digest(owner: Owner) -> str:
    """Digest of issuer and tenant."""
    return tenant_key(owner.issuer, owner.tenant)


def tenant_key(issuer: str, tenant: str) -> str:
    """How keys and switches name a tenant."""
    return digest(issuer, tenant)


def digest(*parts: str) -> str:
    """128 bits of SHA-256 over length-prefixed parts."""
    whole = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        whole.update(len(encoded).to_bytes(8, "big") + encoded)
    return urlsafe_b64encode(whole.digest()[:16]).decode().rstrip("=")


class Keys:
    """The keys of one shard."""

    def __init__(self, prefix: str) -> None:
        self.base = f"{prefix}:{{s0}}:"
        self.channel = f"{self.base}wake"
        self.secret = f"{self.base}secret"
        self.switches = f"{self.base}sw"
        self.marker = f"{self.base}store"
        self.ledger = f"{self.base}lg"
        self.exports = f"{self.base}xp"

    def task(self, ref: Ref) -> str:
        """The promise (hash)."""
        return f"{self.base}t:{ref.member}"

    def operation(self, ref: Ref) -> str:
        """The fact (hash)."""
        return f"{self.base}o:{ref.member}"

    def result(self, ref: Ref) -> str:
        """The body of the result or error (string)."""
        return f"{self.base}r:{ref.member}"

    def arguments(self, ref: Ref) -> str:
        """The call's parameters as written (string)."""
        return f"{self.base}a:{ref.member}"

    def attachment(self, ref: Ref) -> str:
        """Where the answer to a call that was sent can be had by another process (string)."""
        return f"{self.base}at:{ref.member}"

    def tombstone(self, ref: Ref) -> str:
        """What tells expired from unknown for a day (string)."""
        return f"{self.base}z:{ref.member}"

    def active_of_owner(self, owner: Owner) -> str:
        """Unfinished work of a principal (sorted set by expiry)."""
        return f"{self.base}qa:{owner_digest(owner)}"

    def active_of_tenant(self, owner: Owner) -> str:
        """Unfinished work of a tenant (sorted set by expiry)."""
        return f"{self.base}qt:{tenant_digest(owner)}"

    def running(self, upstream: str) -> str:
        """Calls under way at an upstream (sorted set by expiry)."""
        return f"{self.base}qu:{upstream}"

    def index(self, owner: Owner) -> str:
        """The tasks of a principal (sorted set by expiry)."""
        return f"{self.base}ix:{owner_digest(owner)}"

    def listed(self, owner: Owner) -> str:
        """The tasks of a principal (sorted set by creation)."""
        return f"{self.base}ls:{owner_digest(owner)}"

    def awaiting(self, owner: Owner) -> str:
        """The tasks of a principal that wait for input (sorted set by expiry)."""
        return f"{self.base}in:{owner_digest(owner)}"

    def delivery(self, ref: Ref) -> str:
        """Which stream brings a task's questions and progress to its requestor (string)."""
        return f"{self.base}d:{ref.member}"

    def told(self, ref: Ref, version: int) -> str:
        """That a stream has told this version of a task (string)."""
        return f"{self.base}n:{ref.member}:{version}"

    def presence(self, owner: Owner, session: str) -> str:
        """Which stream of its own a legacy session has open (string)."""
        return f"{self.base}g:{owner_digest(owner)}:{session if _ID.fullmatch(session) else _NOWHERE}"

    def event(self, owner: Owner, event: str) -> str:
        """What a stream that was primed with this event id was waiting for (string)."""
        return f"{self.base}e:{owner_digest(owner)}:{event if _ID.fullmatch(event) else _NOWHERE}"

    def replay(self, owner: Owner, stream: str) -> str:
        """What a stream of a client has brought (list)."""
        return f"{self.base}pl:{owner_digest(owner)}:{stream if _ID.fullmatch(stream) else _NOWHERE}"

    def notes(self, ref: Ref) -> str:
        """What an upstream said during a call, for the client that waits for it (list)."""
        return f"{self.base}nt:{ref.member}"

    def asked(self, owner: Owner, token: str) -> str:
        """The answer to a question of a plain call; empty while there is none (string)."""
        return f"{self.base}q:{owner_digest(owner)}:{token if _ID.fullmatch(token) else _NOWHERE}"

    def pin(self, owner: Owner, client: str) -> str:
        """Which session of the upstream belongs to a client session (string)."""
        return f"{self.base}us:{owner_digest(owner)}:{client if _ID.fullmatch(client) else _NOWHERE}"

    def named(self, operation: Operation, at: str = "") -> str:
        """Which operation a requestor's own name for an effect stands for (hash). Without a name, the operation."""
        if not operation.idempotency_key:
            return self.operation(Ref(operation.owner, operation.id, at))
        name = digest(operation.tool, operation.idempotency_key)
        return f"{self.base}i:{at or owner_digest(operation.owner)}:{name}"

    def due(self, upstream: str) -> str:
        """Work to start (sorted set by time; lives for ever)."""
        return f"{self.base}due:{upstream}"

    def watch(self, upstream: str) -> str:
        """Work to look at again: leases and deadlines (sorted set by time; lives for ever)."""
        return f"{self.base}watch:{upstream}"

    def unknown(self, upstream: str) -> str:
        """Unknown outcomes that are not forgotten (sorted set by the time since when; lives for ever)."""
        return f"{self.base}un:{upstream}"

    def heartbeat(self, process: str) -> str:
        """When the lease of a process ends (string)."""
        return f"{self.base}hb:{process}"

    def session(self, owner: Owner, session: str) -> str:
        """A legacy session of a client (string)."""
        return f"{self.base}s:{owner_digest(owner)}:{session if _ID.fullmatch(session) else _NOWHERE}"


def scope_of(*, upstream: str = "", tool: str = "", tenant: str = "") -> str:
    """A scope of the kill switch, as a field of its record. `tenant` is a digest; without anything it is everything."""
    if tenant:
        return f"tenant:{tenant}"
    return f"tool:{upstream}/{tool}" if tool else f"upstream:{upstream}" if upstream else EVERYTHING


EVERYTHING: Final = "all"
_PERMANENT: Final = frozenset({"secret", "sw", "store", "lg", "xp"})
"""What replicas share, the switches, the marker of a store that was set up, the ledger, what is to be exported."""


def may_live_for_ever(key: str, prefix: str) -> bool:
    """Whether a key may be without an expiry. Unknown operations may too, and the idempotency keys that name them."""
    rest = key.removeprefix(f"{prefix}:{{s0}}:")
    return rest.startswith(("due:", "watch:", "un:")) or rest in _PERMANENT
