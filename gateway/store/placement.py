"""Where a pair of records stands in the indexes after a change, and how long each key lives. Pure."""

from dataclasses import dataclass
from typing import Final

from gateway.core.model import IN_FLIGHT, Effect, Operation, OperationState, Task, TaskState

TOMBSTONE_MS: Final = 24 * 3600 * 1000
"""How long a tombstone outlives its task (T25-SEC-5)."""
_FOR_EVER: Final = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Times are ms since the epoch; None means: not in that index. `operation_expiry` 0 means never."""

    operation_expiry: int
    active: bool
    due: int | None
    watch: int | None
    released: bool


def place(
    task: Task | None,
    operation: Operation,
    now: int,
    retention_ms: int,
    lease_ms: int,
    restart_ms: int,
    *,
    give_back: bool = False,
) -> Placement:
    """The placement of a pair that was changed at `now`. What is in flight and given back is looked at at once."""
    in_flight = operation.state in IN_FLIGHT
    planned = operation.state is OperationState.PLANNED
    asked_until = None if operation.approved else _asked_until(task)
    look = now if give_back else now + lease_ms
    return Placement(
        operation_expiry=operation_expiry(task, operation, now, retention_ms),
        active=in_flight or planned or _waits_for_an_authority(task, operation),
        due=now + restart_ms if planned and asked_until is None else None,
        watch=look if in_flight else _watch(operation, asked_until, now),
        released=give_back or not in_flight,
    )


def _asked_until(task: Task | None) -> int | None:
    """Until when the requestor may agree to what is planned; None if it is not asked that."""
    if task is None or task.state is not TaskState.INPUT_REQUIRED:
        return None
    return min(question.deadline_ms for question in task.questions if question.answer is None)


def _waits_for_an_authority(task: Task | None, operation: Operation) -> bool:
    return operation.state is OperationState.UNKNOWN and task is not None and not task.terminal


def _watch(operation: Operation, asked_until: int | None, now: int) -> int | None:
    if operation.state is OperationState.PLANNED:
        return operation.deadline_ms if asked_until is None else min(asked_until, operation.deadline_ms)
    if operation.state is OperationState.UNKNOWN and operation.inquiry is not None:
        return operation.inquiry.due(now)
    return None


def is_news(before: Operation | None, after: Operation) -> bool:
    """Whether an audit sink is to be told: something became known of an effect, or is known to be unknown."""
    told = after.settled or after.state is OperationState.UNKNOWN
    same = before is not None and before.state is after.state
    return told and not same and after.effect is not Effect.READ_ONLY


def operation_expiry(task: Task | None, operation: Operation, now: int, retention_ms: int) -> int:
    """Read-only entries end with the task, unknown outcomes never, all others `retention_ms` after the last change."""
    if operation.effect is Effect.READ_ONLY:
        ends = task.expires_ms if task is not None else now
        return max(ends, operation.deadline_ms, now) + _SLACK_MS
    if operation.state is OperationState.UNKNOWN:
        return _FOR_EVER
    return max(now, operation.deadline_ms) + retention_ms


_SLACK_MS: Final = 60_000
"""An operation must never be gone while a process may still write its outcome."""
