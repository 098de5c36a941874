"""What the two loops ask of a store, in values. All times are the store's, in milliseconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.core.engine import Applied
from gateway.core.model import Operation, Owner, Task
from gateway.store.keys import Ref


class StoreAway(Exception):  # noqa: N818  # a state of the store, not an error of the caller
    """The store did not agree or refuse: whether anything was written is not known. `waited` tells a full timeout.

    `refused`: it is known after all that nothing was, because no connection was there or the store said no.
    """

    def __init__(self, what: str, *, waited: bool = False, refused: bool = False) -> None:
        super().__init__(what)
        self.waited = waited
        self.refused = refused


class StoreUnfit(StoreAway):
    """The store answers, and must not be used as it is set up; the message tells the operator what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(what, refused=True)


class UnknownSchema(Exception):  # noqa: N818  # names what was met
    """The record was written by a release that this one cannot read."""


@dataclass(frozen=True, slots=True)
class NewWork:
    """A task, its operation and the parameters of the call, to be created together.

    An operation with an idempotency key is begun once. `key_for_ms` is how long a key is good that the requestor did
    not choose, and then only while the work is under way; None for one that lives as long as the ledger entry.
    `exempt` work is no task: the switches do not concern it.
    """

    task: Task
    operation: Operation
    arguments: bytes
    max_per_principal: int
    max_per_tenant: int
    retention_ms: int
    key_for_ms: int | None = None
    exempt: bool = False


class Created(StrEnum):
    """What became of a creation."""

    CREATED = "created"
    EXISTS = "exists"
    """The idempotency key stands for the operation `which`, with the same arguments."""
    CONFLICT = "conflict"
    """It does, with other arguments."""
    SWITCH = "switch"
    """The switch of the scope `which` blocks new starts."""
    QUOTA_PRINCIPAL = "principal"
    QUOTA_TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Creation:
    """What became of a creation, and what it was refused for."""

    verdict: Created
    which: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A legacy session of a client.

    `log_level` and `resources` are what the client has set, where its upstream knows no sessions.
    """

    version: str
    capabilities: str = "{}"
    log_level: str | None = None
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Polled:
    """One look at a task: the session (None if unknown), the task (None if unknown or expired), its body if wanted.

    `outcome` is what is known of the effect, in the words of `Verified`; empty for records of an earlier release.
    """

    session: Session | None
    task: Task | None
    body: bytes | None
    expired: bool
    now: int
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both records as they are; a task may have expired before its operation."""

    task: Task | None
    operation: Operation | None
    fence: int
    now: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a command made of a pair, to be written if nobody was faster.

    `body` is the result or error that a finished task gets. `fence` is checked where a holder writes, which is the
    process `holder`: a store that has forgotten that it holds the operation learns it so. `durable`
    waits until the store would know it after a failure, as it is configured. `restart_in_ms`
    delays an operation that is planned again. `give_back` lets go of an operation that is as it was: planned, or taken
    by its upstream, and then whoever claims it next asks on. `keep`: the holder goes on with it as it has it, planned.
    """

    ref: Ref
    before: Pair
    after: Applied
    retention_ms: int
    body: bytes | None = None
    fence: int | None = None
    holder: str = ""
    durable: bool = False
    restart_in_ms: int = 0
    give_back: bool = False
    keep: bool = False


class Verdict(StrEnum):
    """What became of a change."""

    OK = "ok"
    STALE = "stale"
    FENCED = "fenced"
    EXPIRED = "expired"
    """The task's record had expired; the operation was written."""
    GONE = "gone"
    UNSURE = "unsure"
    """Written, and nobody knows whether the store would still know it after a failure."""
    DOUBTFUL = "doubtful"
    """It looks planned, and may have been sent: only whoever holds it can say that it was not."""


class ClaimKind(StrEnum):
    """Why a pair was handed to a runner."""

    START = "start"
    LOST = "lost"
    DEADLINE = "deadline"
    INQUIRE = "inquire"
    """Its outcome is unknown, and somebody can be asked."""
    DOUBTFUL = "doubtful"
    """It looks planned, in a store that may have lost that it was sent; whoever sent it had its time to say so."""
    RESUME = "resume"
    """Its upstream took it, and nobody asks any more what becomes of it."""
    HELD = "held"
    """Held by this very process: only a runner that does not know of it has anything to do."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Work for a runner, with the fence under which it may write."""

    kind: ClaimKind
    ref: Ref
    pair: Pair
    arguments: bytes


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """What a runner can take on. Times in milliseconds; `connected_since` is when it last reached the store anew."""

    upstream: str
    process: str
    lease_ms: int
    grace_ms: int
    connected_since: int
    slots: int
    max_running: int


class Store(Protocol):
    """The store. Every method raises StoreAway when the store cannot be asked."""

    def now(self) -> int:
        """The store's time, as of the last answer plus what has passed since."""

    def connected_since(self) -> int:
        """The store's time of the first answer after the last failure."""

    def epoch(self) -> int:
        """How often the store has become another one that may have lost something, as of the last claim; 0: unknown."""

    def unfit(self) -> str:
        """Why nothing may be started, as of the last claim; empty if it may."""

    def makes_sure(self) -> bool:
        """Whether it is waited for that what has to be durable is so."""

    async def create(self, work: NewWork) -> Creation:
        """Creates all or nothing. Creating the same id again is no second creation."""

    async def poll(self, ref: Ref, session: str | None, *, want_body: bool) -> Polled:
        """Looks at a task and keeps the session alive, in one round trip. Hidden records are unknown."""

    async def load(self, ref: Ref) -> Pair:
        """Reads both records, hidden or not."""

    async def body(self, ref: Ref) -> bytes | None:
        """The body of a finished task."""

    async def commit(self, change: Change) -> Verdict:
        """Writes both records if nobody was faster."""

    async def claim(self, ask: ClaimAsk) -> Sequence[Claim]:
        """Takes due and lapsed work, and renews the lease of the process."""

    async def open_session(self, owner: Owner, session_id: str, session: Session) -> None:
        """Remembers a session."""

    async def read_session(self, owner: Owner, session_id: str) -> Session | None:
        """Finds a session and keeps it alive."""

    async def change_session(
        self, owner: Owner, session_id: str, change: Callable[[Session], Session]
    ) -> Session | None:
        """Changes a session, whoever else changes it at the same time; what became of it, None if it has ended."""

    async def end_session(self, owner: Owner, session_id: str) -> bool:
        """Forgets a session; whether there was one."""

    async def secret(self) -> bytes:
        """The secret that all replicas at this store share; made by whoever is first."""

    async def bootstrap(self) -> int:
        """Sets the store up if nobody has; how many shards it has. A switch that was lost is not made anew."""

    async def check(self) -> None:
        """Asks the store whether it is there and can be written to. Raises StoreUnfit too."""
