"""The two records: a task is the promise made to the requestor, an operation is what happened to the work.

All times are milliseconds since the epoch on the store's clock; all durations are milliseconds.
"""

from dataclasses import dataclass
from enum import StrEnum

SCHEMA = 3
"""Version of both records. Readers accept this one and the one before."""


class TaskState(StrEnum):
    """States of the promise; `completed` and `failed` are words of the dialects, both are `done` here."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    DONE = "done"
    CANCELLED = "cancelled"


TERMINAL = frozenset({TaskState.DONE, TaskState.CANCELLED})


class OperationState(StrEnum):
    """States of the fact, which may outlive the promise."""

    PLANNED = "planned"
    SENT = "sent"
    ACCEPTED = "accepted"
    ANSWERED = "answered"
    UNKNOWN = "unknown"
    RECONCILED = "reconciled"
    DROPPED = "dropped"


SETTLED = frozenset({OperationState.ANSWERED, OperationState.RECONCILED, OperationState.DROPPED})
"""States in which nothing about the operation is open any more."""

IN_FLIGHT = frozenset({OperationState.SENT, OperationState.ACCEPTED})
"""States in which the upstream may be working."""


class OutcomeKind(StrEnum):
    """What a finished task carries: a result, a result with `isError`, or a JSON-RPC error."""

    RESULT = "result"
    TOOL_ERROR = "tool_error"
    ERROR = "error"


class Effect(StrEnum):
    """What a tool may do to the world, as the policy declares it."""

    READ_ONLY = "read_only"
    IDEMPOTENT = "idempotent"
    CONSEQUENTIAL = "consequential"


class Learnt(StrEnum):
    """How the outcome of an operation became known."""

    ANSWER = "answer"
    LATE_ANSWER = "late_answer"
    RECONCILED = "reconciled"
    """An authority was asked: a tool that the policy names."""
    RESOLVED = "resolved"
    """A person said so."""


class Verified(StrEnum):
    """What is known about the effect of an operation, whatever its task says."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NONE = "none"
    """Nothing was sent, or nothing that could have had an effect."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owner:
    """The authorization context that a record is bound to. It is part of the record's key."""

    issuer: str
    subject: str
    tenant: str
    upstream: str


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever calls, as the edge has verified. `expires_ms` is when the token ends; None where there is no token."""

    issuer: str
    subject: str
    tenant: str
    scopes: frozenset[str] = frozenset()
    expires_ms: int | None = None

    def owner_at(self, upstream: str) -> Owner:
        """What records made at this upstream are bound to: never the token, the session or the connection."""
        return Owner(self.issuer, self.subject, self.tenant, upstream)


@dataclass(frozen=True, slots=True)
class Question:
    """Something the upstream asks the requestor. `key` is never used twice within a task.

    `params` is JSON text, `answer` JSON text of an object with either a `result` or an `error`. `theirs` is how an
    upstream that works in a task of its own names the question, so that any process can answer it; nobody else sees it.
    """

    key: str
    method: str
    params: str
    asked_ms: int
    deadline_ms: int
    answer: str | None = None
    theirs: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an upstream keeps the task that it made of the work, and how it is asked about it.

    `dialect` names how it speaks of tasks; `version`, `session`, `capabilities` (JSON text), `client` and `spoken`
    are those of the upstream session that knows the task (see `Link`). `cancels` tells whether it takes a
    cancellation, `created` when it says that the task was made, `token` is our progress token (JSON text). Nobody
    but that upstream ever sees an id of it.
    """

    dialect: str
    version: str = ""
    session: str | None = None
    capabilities: str = "{}"
    cancels: bool = True
    created: str = ""
    token: str = ""
    client: str = ""
    spoken: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last seen of an upstream's task: its own word for the state, when, and when it may be asked again.

    `told` is set once the upstream was told to stop.
    """

    state: str
    at_ms: int
    next_ms: int
    told: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A state that an operation reached, and what brought it there. `by` is a person, where one did."""

    at_ms: int
    state: OperationState
    cause: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """How an authority is asked what became of an operation: a read-only tool, with arguments (JSON text).

    `first`: the requestor's task waits for its answer. It may be asked next at `next_ms`, and not after `until_ms`;
    None for both as long as there is nothing to ask. `tries` counts the questions that told nothing.
    """

    tool: str
    arguments: str
    budget_ms: int
    first: bool = False
    tries: int = 0
    next_ms: int | None = None
    until_ms: int | None = None

    def due(self, now: int) -> int | None:
        """When it is to be asked next; None where that is over, or has not begun."""
        over = self.until_ms is not None and now >= self.until_ms
        return None if over else self.next_ms


@dataclass(frozen=True, slots=True)
class Approval:
    """What the requestor has to agree to before anything is sent. `timeout_ms` is how long it has for that."""

    message: str
    timeout_ms: int
    granted_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """The promise. `hidden` records are known to nobody but the request that waits for them.

    `capabilities` is what the requestor can be asked (JSON text), `session` the legacy session that it spoke in.
    `ledger`: what is known of the effect is told beside the state.
    """

    id: str
    owner: Owner
    tool: str
    dialect: str
    state: TaskState
    created_ms: int
    updated_ms: int
    ttl_ms: int
    poll_interval_ms: int
    keep_result_ms: int
    status_message: str = ""
    cancel_asked_ms: int | None = None
    questions: tuple[Question, ...] = ()
    outcome_kind: OutcomeKind | None = None
    progress_token: str | None = None
    capabilities: str = "{}"
    session: str = ""
    hidden: bool = False
    ledger: bool = False
    version: int = 1
    schema: int = SCHEMA

    @property
    def expires_ms(self) -> int:
        """When the record may be forgotten."""
        return self.created_ms + self.ttl_ms

    @property
    def terminal(self) -> bool:
        """Whether the state is final."""
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class Operation:
    """The fact: one intended effect at one upstream, whatever the requestor is told about it.

    `handle` is the id by which an upstream that took the work can be asked about it, `place` where, `seen` what it said
    last, and `correlation` a digest of the handle, for log lines. `idempotency_key` is the requestor's own name for the
    effect, or one that was `derived` from what it asks for; `object_version` and `receipt` are JSON texts, the version
    of the object that the requestor saw and what the upstream gave as a proof; `intended_effect` is for people.
    """

    id: str
    owner: Owner
    tool: str
    state: OperationState
    effect: Effect
    created_ms: int
    updated_ms: int
    deadline_ms: int
    repeatable: bool = False
    arguments_digest: str = ""
    attempt: int = 0
    handle: str | None = None
    place: Place | None = None
    seen: Seen | None = None
    correlation: str = ""
    outcome_kind: OutcomeKind | None = None
    learnt: Learnt | None = None
    reason: str = ""
    idempotency_key: str = ""
    derived: bool = False
    object_version: str = ""
    intended_effect: str = ""
    receipt: str = ""
    inquiry: Inquiry | None = None
    approval: Approval | None = None
    history: tuple[Step, ...] = ()
    version: int = 1
    schema: int = SCHEMA

    @property
    def settled(self) -> bool:
        """Whether nothing about the operation is open any more."""
        return self.state in SETTLED

    @property
    def approved(self) -> bool:
        """Whether it may be sent as far as its requestor is concerned, who had to agree or did not have to."""
        return self.approval is None or self.approval.granted_ms is not None

    @property
    def outcome(self) -> Verified:
        """What is known about its effect; `learnt` tells from whom."""
        if self.state in (OperationState.ANSWERED, OperationState.RECONCILED):
            return Verified.SUCCEEDED if self.outcome_kind is OutcomeKind.RESULT else Verified.FAILED
        return _OUTCOMES.get(self.state, Verified.PENDING)

    @property
    def may_have_acted(self) -> bool:
        """Whether an upstream that was told to work may have changed something."""
        return self.effect is not Effect.READ_ONLY

    @property
    def once(self) -> bool:
        """Whether it must never be sent a second time while it is not known that the first time was none."""
        return self.may_have_acted and not self.repeatable


_OUTCOMES = {OperationState.DROPPED: Verified.NONE, OperationState.UNKNOWN: Verified.UNKNOWN}
