"""The commands: what can be done to a pair of records. `engine` says what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.model import Learnt, Operation, OutcomeKind, Place, Question, Seen


@dataclass(frozen=True, slots=True)
class Send:
    """The first byte is about to leave for the upstream. Committed before it does."""


@dataclass(frozen=True, slots=True)
class Recall:
    """The store has forgotten how far the work had come; whoever holds it knows it as `known`."""

    known: Operation


@dataclass(frozen=True, slots=True)
class Unsend:
    """Nothing took effect at the upstream: the work may be started again. `untried`: it was not even tried.

    With a `reason`, which is remembered until it is started, that is done at once.
    """

    reason: str = ""
    untried: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """The upstream took the work, and named a handle by which it can be asked what became of it."""

    handle: str
    place: Place | None = None
    seen: Seen | None = None
    correlation: str = ""


@dataclass(frozen=True, slots=True)
class Observe:
    """The upstream was asked about work that it took. `message` is what the requestor reads, empty for nothing new.

    `place` is where it is asked from now on, if that changed.
    """

    seen: Seen
    message: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody can tell any more what becomes of work that an upstream took."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The upstream answered. `receipt` is what it gave as a proof (JSON text), empty for nothing."""

    kind: OutcomeKind
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class Lose:
    """It was sent, and nobody is left who could receive the answer."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It is known that nothing took effect, and the work will not be started again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Overdue:
    """The absolute deadline passed."""


@dataclass(frozen=True, slots=True)
class InputExpired:
    """Nobody answered a question of the upstream in time (T25-INP-3)."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The requestor cancels: final in 2025-11-25 (T25-CAN-1), cooperative in the extension (TX-CAN-1).

    `unseen`: whoever waits for a hidden record leaves; one that was handed out as a task goes on.
    """

    final: bool
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The upstream was told to stop and had its time to answer."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The upstream asks the requestor something."""

    question: Question


@dataclass(frozen=True, slots=True)
class Respond:
    """The requestor answers some of the questions; keys that are not outstanding are ignored (TX-UPD-2)."""

    answers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Approve:
    """The requestor agreed to what is about to be done."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """It looks planned, in a store that may have lost that it was sent."""


@dataclass(frozen=True, slots=True)
class Inquired:
    """The authority was asked, and told nothing. It may be asked again at `next_ms`."""

    next_ms: int


@dataclass(frozen=True, slots=True)
class Reconcile:
    """An authority told what became of an unknown operation. `by` and `reason` are those of a person, if it was one."""

    kind: OutcomeKind
    learnt: Learnt = Learnt.RECONCILED
    receipt: str = ""
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Promote:
    """A hidden record is handed out as a task, with the lifetime of one."""

    ttl_ms: int
    keep_result_ms: int


Command: TypeAlias = (
    Send
    | Recall
    | Unsend
    | Accept
    | Observe
    | Forget
    | Answer
    | Lose
    | GiveUp
    | Overdue
    | InputExpired
    | Cancel
    | GraceOver
    | Ask
    | Respond
    | Approve
    | Doubt
    | Inquired
    | Reconcile
    | Promote
)
