"""Tasks that an upstream has of its own: what their dialects have in common, and the choice between them. Pure.

Whatever an upstream says of a task becomes a `Sight`, and whatever it is asked is an `Ask`; the loop that follows the
task knows no dialect. Ids of an upstream never travel further: see `hidden`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from gateway.core.model import OutcomeKind
from gateway.wire import asking, work
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Members, Response, members, text, write

WORKING: Final = "working"
INPUT_REQUIRED: Final = "input_required"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
ENDED: Final = frozenset({COMPLETED, FAILED, CANCELLED})
"""The words of both dialects; from these a task never comes back."""
_STATES: Final = ENDED | {WORKING, INPUT_REQUIRED}
_MAX_ID: Final = 1024
_MAX_MESSAGE: Final = 500
_LONGEST_MS: Final = 86_400_000
_LEAST_HIDDEN: Final = 8
_A_NUMBER: Final = re.compile(r"[+-]?[0-9]*(\.[0-9]*)?([eE][+-]?[0-9]*)?")
"""A number of JSON or a part of one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request about a task, ready to be sent."""

    method: str
    params: Members


@dataclass(frozen=True, slots=True)
class Sight:
    """What an upstream says of its task.

    `interval_ms` is how long it wants to be left alone, None if it does not say. `outcome` is what the call came to,
    where the dialect tells it together with the state; `questions` are those outstanding, by the upstream's names.
    """

    task: str
    state: str
    message: str = ""
    interval_ms: int | None = None
    created: str = ""
    outcome: Response | None = None
    questions: Mapping[str, Ask] = field(default_factory=dict)


class Dialect(Protocol):
    """How one dialect asks for tasks, recognises them, and asks what became of them."""

    @property
    def name(self) -> str:
        """How records name it."""

    @property
    def fetches(self) -> bool:
        """Whether result and questions come with a request of their own, `result`, that waits until the task ends."""

    def created(self, body: bytes) -> Sight | None:
        """The task that a result stands for; None if it is no task."""

    def seen(self, task: str, body: bytes) -> Sight | None:
        """What the answer to `get` says; None if it is not about this task or in no state that anybody knows."""

    def get(self, task: str) -> Ask:
        """How is the task."""

    def result(self, task: str) -> Ask | None:
        """What did the task come to."""

    def cancel(self, task: str) -> Ask:
        """Stop the task."""

    def update(self, task: str, key: str, answer: bytes) -> Ask | None:
        """The answer to a question that came with the state; None in a dialect where none does."""

    def answer(self, task: str, answer: bytes) -> bytes:
        """The answer to a question that came as a request, as the upstream wants to read it."""

    def concerns(self, method: str, params: Members) -> str | None:
        """Which task a notification says that it has changed."""


def ending(sight: Sight, answer: Response | None, ours: str) -> tuple[OutcomeKind, bytes]:
    """What a task that has ended came to, as a direct answer would have told it. `answer` is its result or error."""
    if sight.state == CANCELLED:
        return OutcomeKind.ERROR, work.failure(Reject("cancelled", "the upstream cancelled the work"))
    if answer is None:
        return OutcomeKind.ERROR, _without_result(sight, ours)
    if not answer.ok:
        return OutcomeKind.ERROR, hidden(answer.body, sight.task, ours)
    kind, body = work.outcome(Response(answer.id, answer.ok, asking.without_related(answer.body)))
    if sight.state == FAILED and kind is OutcomeKind.RESULT:
        # What it failed with was either a result that says so or an error: this one says nothing, or the opposite.
        parts: Members = members(body) or {}
        if "content" not in parts:
            return OutcomeKind.ERROR, _without_result(sight, ours)
        kind, body = OutcomeKind.TOOL_ERROR, write({**parts, "isError": True})
    return kind, hidden(body, sight.task, ours)


def _without_result(sight: Sight, ours: str) -> bytes:
    said = f": {shown(sight, ours)}" if sight.message else ""
    told = "the upstream's task failed" if sight.state == FAILED else "the upstream's task ended without a result"
    return work.failure(Reject("upstream_bad", told + said))


def shown(sight: Sight, ours: str) -> str:
    """What the upstream says of its task, for whoever waits."""
    return sight.message.replace(sight.task, ours) if _can_be_hidden(sight.task) else sight.message


def hidden(body: bytes, theirs: str, ours: str) -> bytes:
    """JSON text of an upstream with the id of our own task wherever that of its task is mentioned.

    An id that could as well be a number or a word stays: it is not known for what it is.
    """
    if not _can_be_hidden(theirs):
        return body
    return body.replace(write(theirs)[1:-1], write(ours)[1:-1])


def _can_be_hidden(theirs: str) -> bool:
    """Whether a piece of text that equals this id can be nothing else, and never stands outside of a string."""
    digits = any(letter.isdigit() for letter in theirs)
    return len(theirs) >= _LEAST_HIDDEN and digits and _A_NUMBER.fullmatch(theirs) is None


def sight(parts: Members, interval: str, otherwise: str | None = None, **more: object) -> Sight | None:
    """The members that both dialects share. A state that nobody knows is `otherwise`, or makes it no sight."""
    task = text(parts.get("taskId"))
    said = (text(parts.get("status")) or "").strip().lower()
    state = said if said in _STATES else otherwise
    if task is None or not 0 < len(task) <= _MAX_ID or state is None:
        return None
    message = (text(parts.get("statusMessage")) or "")[:_MAX_MESSAGE]
    created = (text(parts.get("createdAt")) or "")[:_MAX_ID]
    return Sight(task, state, message, _ms(parts.get(interval)), created, **more)  # type: ignore[arg-type]  # by name


def named(task: str, **more: object) -> Members:
    """Parameters that name a task."""
    return members(write({"taskId": task, **more})) or {}


def _ms(raw: Raw | None) -> int | None:
    """A duration; servers write fractions as well."""
    try:
        told = None if raw is None else msgspec.json.decode(raw, type=float)
    except msgspec.MsgspecError:
        return None
    return int(told) if told is not None and 0 <= told <= _LONGEST_MS else None
