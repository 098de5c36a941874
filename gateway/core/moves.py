"""What the commands have in common: the values that the engine gives, and single steps of either record. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from gateway.core.model import SCHEMA, Inquiry, Operation, OperationState, OutcomeKind, Step, Task, TaskState
from gateway.core.operation import OperationEvent, next_operation_state
from gateway.core.task import TaskEvent, next_task_state

_REMEMBERED: Final = 32
"""How many of its latest steps an operation remembers."""


class Refusal(StrEnum):
    """Why a command was refused."""

    TERMINAL = "the task has ended"
    ILLEGAL = "not in this state"
    NOT_DUE = "not due yet"
    NOTHING_NEW = "nothing would change"
    HANDED_OUT = "it was handed out as a task"


@dataclass(frozen=True, slots=True)
class Refused:
    """The command changes nothing."""

    why: Refusal


@dataclass(frozen=True, slots=True)
class Applied:
    """The records after the command. Unchanged ones keep their version."""

    task: Task | None
    operation: Operation
    finished: bool = False
    tell_upstream: bool = False


Outcome: TypeAlias = Applied | Refused


def alive(task: Task | None) -> Task | None:
    """The task, if it has not ended."""
    return None if task is None or task.terminal else task


def stamp_task(task: Task, now: int, **changes: object) -> Task:
    """The task with changes, and a version of its own."""
    return replace(task, schema=SCHEMA, version=task.version + 1, updated_ms=now, **changes)  # type: ignore[arg-type]  # fields by name


def touch(operation: Operation, now: int, **changes: object) -> Operation:
    """The operation in the state that it is in, with changes, and a version of its own."""
    return replace(operation, schema=SCHEMA, version=operation.version + 1, updated_ms=now, **changes)  # type: ignore[arg-type]  # ditto


def move(operation: Operation, event: OperationEvent, now: int, by: str = "", **changes: object) -> Operation | None:
    """The operation after an event, which its history tells of; None where the table refuses it.

    `by` is who made it happen, where that was a person.
    """
    state = next_operation_state(operation.state, event)
    if state is None:
        return None
    history = operation.history
    if state is not operation.state:
        history = (*history, Step(now, state, event.value, by))[-_REMEMBERED:]
    return touch(operation, now, state=state, history=history, **changes)


def step(live: Task, event: TaskEvent, now: int, **changes: object) -> Task:
    """A live task after an event. An event that the table refuses leaves the state as it is."""
    return stamp_task(live, now, state=next_task_state(live.state, event) or live.state, **changes)


def finish(task: Task, kind: OutcomeKind, now: int, message: str) -> Task:
    """The task with its outcome, kept for at least `keep_result_ms` from now."""
    ttl = max(task.ttl_ms, now + task.keep_result_ms - task.created_ms)
    return step(task, TaskEvent.FINISH, now, outcome_kind=kind, ttl_ms=ttl, status_message=message)


def end(task: Task | None, now: int, message: str) -> Task | None:
    """The task after its work came to nothing: cancelled if that was asked for, else failed."""
    live = alive(task)
    if live is None:
        return task
    if live.cancel_asked_ms is not None:
        return step(live, TaskEvent.CANCEL, now, status_message=CANCELLED)
    return finish(live, OutcomeKind.ERROR, now, message)


def ended(task: Task | None, operation: Operation, now: int, message: str, *, tell: bool = False) -> Applied:
    """Both records once the work came to nothing. `tell`: the upstream must be told to stop."""
    after = end(task, now, message)
    finished = after is not task and after is not None and after.state is TaskState.DONE
    return Applied(after, operation, finished=finished, tell_upstream=tell)


CANCELLED: Final = "cancelled on request"
LOST: Final = "the outcome is unknown: the work was sent and its answer was lost"
DEADLINE: Final = "the deadline passed"
UNANSWERED: Final = "nobody answered what the tool asked in time"
IN_DOUBT: Final = "the outcome is unknown: the store may have lost that the work was sent"
TO_APPROVE: Final = "waits for approval"
ASKING: Final = "the answer was lost; what became of the work is being asked"
WAS_DONE: Final = "the answer was lost; the work was done"
WAS_NOT_DONE: Final = "the answer was lost; the work was not done"
ILLEGAL: Final = Refused(Refusal.ILLEGAL)
TERMINAL: Final = Refused(Refusal.TERMINAL)


def stop(operation: Operation, now: int, reason: str) -> Operation | None:
    """The operation when nobody waits for it any longer: unknown if it may have acted, dropped if it cannot have."""
    if operation.state is OperationState.ACCEPTED:
        return operation
    if operation.state is OperationState.UNKNOWN:
        return touch(operation, now)  # nobody waits any more for what an authority says
    if operation.state is OperationState.SENT and operation.may_have_acted:
        return move(operation, OperationEvent.LOSE, now, reason=reason, inquiry=_begun(operation, now))
    return move(operation, OperationEvent.DROP, now, reason=reason)


def unknown(task: Task | None, operation: Operation, event: OperationEvent, now: int, reason: str) -> Outcome:
    """Both records once nobody can tell what became of the work.

    Where an authority is to be asked first, the task waits for what it says, until the deadline.
    """
    after = move(operation, event, now, reason=reason, inquiry=_begun(operation, now))
    if after is None:
        return ILLEGAL
    live = alive(task)
    asks = after.inquiry is not None and after.inquiry.first and now < after.deadline_ms
    if live is None or not asks or live.cancel_asked_ms is not None:
        return ended(task, after, now, reason)
    return Applied(step(live, TaskEvent.RESUME, now, status_message=ASKING), after)


def _begun(operation: Operation, now: int) -> Inquiry | None:
    """Who can be asked what became of the work is asked from now on."""
    inquiry = operation.inquiry
    return None if inquiry is None else replace(inquiry, next_ms=now, until_ms=now + inquiry.budget_ms)
