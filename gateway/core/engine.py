"""The one function that joins the two machines: `apply(task, operation, command, now)`.

A command is refused as a value and then changes nothing. The task may be None: its record expired, but the operation
still learns what became of it. Bodies of results and errors never pass through here; `Applied.finished` tells the
caller that the body which came with the command is what the requestor will read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from gateway.core.commands import (
    Accept,
    Answer,
    Ask,
    Cancel,
    Command,
    Forget,
    GiveUp,
    GraceOver,
    InputExpired,
    Lose,
    Observe,
    Overdue,
    Promote,
    Reconcile,
    Respond,
    Send,
    Unsend,
)
from gateway.core.model import (
    IN_FLIGHT,
    Learnt,
    Operation,
    OperationState,
    OutcomeKind,
    Task,
    TaskState,
)
from gateway.core.operation import OperationEvent, next_operation_state
from gateway.core.task import TaskEvent, next_task_state

__all__ = [
    "CANCELLED",
    "DEADLINE",
    "LOST",
    "UNANSWERED",
    "Accept",
    "Answer",
    "Applied",
    "Ask",
    "Cancel",
    "Command",
    "Forget",
    "GiveUp",
    "GraceOver",
    "InputExpired",
    "Lose",
    "Observe",
    "Outcome",
    "Overdue",
    "Promote",
    "Reconcile",
    "Refusal",
    "Refused",
    "Respond",
    "Send",
    "Unsend",
    "apply",
]


class Refusal(StrEnum):
    """Why a command was refused."""

    TERMINAL = "the task has ended"
    ILLEGAL = "not in this state"
    NOT_DUE = "not due yet"
    NOTHING_NEW = "nothing would change"


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


def apply(task: Task | None, operation: Operation, command: Command, now: int) -> Outcome:
    """What the command makes of the two records. `now` is the store's time in milliseconds."""
    handler = _HANDLERS[type(command)]
    return handler(task, operation, command, now)


def _live(task: Task | None) -> Task | None:
    return None if task is None or task.terminal else task


def _stamp_task(task: Task, now: int, **changes: object) -> Task:
    return replace(task, version=task.version + 1, updated_ms=now, **changes)  # type: ignore[arg-type]  # fields by name


def _move(operation: Operation, event: OperationEvent, now: int, **changes: object) -> Operation | None:
    state = next_operation_state(operation.state, event)
    if state is None:
        return None
    version = operation.version + 1
    return replace(operation, state=state, version=version, updated_ms=now, **changes)  # type: ignore[arg-type]  # ditto


def _step(live: Task, event: TaskEvent, now: int, **changes: object) -> Task:
    """A live task after an event. An event that the table refuses leaves the state as it is."""
    return _stamp_task(live, now, state=next_task_state(live.state, event) or live.state, **changes)


def _finish(task: Task, kind: OutcomeKind, now: int, message: str) -> Task:
    """The task with its outcome, kept for at least `keep_result_ms` from now."""
    ttl = max(task.ttl_ms, now + task.keep_result_ms - task.created_ms)
    return _step(task, TaskEvent.FINISH, now, outcome_kind=kind, ttl_ms=ttl, status_message=message)


def _end(task: Task | None, now: int, message: str) -> Task | None:
    """The task after its work came to nothing: cancelled if that was asked for, else failed."""
    live = _live(task)
    if live is None:
        return task
    if live.cancel_asked_ms is not None:
        return _step(live, TaskEvent.CANCEL, now, status_message=CANCELLED)
    return _finish(live, OutcomeKind.ERROR, now, message)


def _ended(task: Task | None, operation: Operation, now: int, message: str, *, tell: bool = False) -> Applied:
    after = _end(task, now, message)
    finished = after is not task and after is not None and after.state is TaskState.DONE
    return Applied(after, operation, finished=finished, tell_upstream=tell)


CANCELLED: Final = "cancelled on request"
LOST: Final = "the outcome is unknown: the work was sent and its answer was lost"
DEADLINE: Final = "the deadline passed"
UNANSWERED: Final = "nobody answered what the tool asked in time"
_ILLEGAL: Final = Refused(Refusal.ILLEGAL)
_TERMINAL: Final = Refused(Refusal.TERMINAL)


def _send(task: Task | None, operation: Operation, _: Send, now: int) -> Outcome:
    if _live(task) is None:
        return _TERMINAL
    if now >= operation.deadline_ms:
        return _ILLEGAL
    sent = _move(operation, OperationEvent.SEND, now, attempt=operation.attempt + 1)
    return _ILLEGAL if sent is None else Applied(task, sent)


def _unsend(task: Task | None, operation: Operation, _: Unsend, now: int) -> Outcome:
    live = _live(task)
    if live is None or live.cancel_asked_ms is not None:
        dropped = _move(operation, OperationEvent.DROP, now, reason=CANCELLED)
        return _ILLEGAL if dropped is None else _ended(task, dropped, now, CANCELLED)
    planned = _move(operation, OperationEvent.NOT_SENT, now)
    return _ILLEGAL if planned is None else Applied(task, planned)


def _accept(task: Task | None, operation: Operation, command: Accept, now: int) -> Outcome:
    known = {"handle": command.handle, "place": command.place, "seen": command.seen}
    accepted = _move(operation, OperationEvent.ACCEPT, now, correlation=command.correlation, **known)
    return _ILLEGAL if accepted is None else Applied(task, accepted)


def _observe(task: Task | None, operation: Operation, command: Observe, now: int) -> Outcome:
    place = command.place or operation.place
    observed = _move(operation, OperationEvent.OBSERVE, now, seen=command.seen, place=place)
    if observed is None:
        return _ILLEGAL
    live = _live(task)
    if live is None or command.message in ("", live.status_message):
        return Applied(task, observed)
    return Applied(_stamp_task(live, now, status_message=command.message), observed)


def _forget(task: Task | None, operation: Operation, command: Forget, now: int) -> Outcome:
    forgotten = _move(operation, OperationEvent.FORGET, now, reason=command.reason)
    return _ILLEGAL if forgotten is None else _ended(task, forgotten, now, command.reason)


def _answer(task: Task | None, operation: Operation, command: Answer, now: int) -> Outcome:
    live = _live(task)
    late = live is None or operation.state is OperationState.UNKNOWN
    learnt = Learnt.LATE_ANSWER if late else Learnt.ANSWER
    answered = _move(operation, OperationEvent.ANSWER, now, outcome_kind=command.kind, learnt=learnt)
    if answered is None:
        return _ILLEGAL
    if live is None:
        return Applied(task, answered)
    if command.kind is OutcomeKind.ERROR and live.cancel_asked_ms is not None:
        # Servers that answer a cancelled request do so with an error: the cancellation took.
        return _ended(task, answered, now, CANCELLED)
    return Applied(_finish(live, command.kind, now, ""), answered, finished=True)


def _lose(task: Task | None, operation: Operation, _: Lose, now: int) -> Outcome:
    live = _live(task)
    again = operation.repeatable and live is not None and live.cancel_asked_ms is None and now < operation.deadline_ms
    event = OperationEvent.LOSE_REPEATABLE if again else OperationEvent.LOSE
    after = _move(operation, event, now)
    if after is None:
        return _ILLEGAL
    if after.state is OperationState.UNKNOWN:
        return _ended(task, replace(after, reason=LOST), now, LOST)
    return Applied(task, after)


def _give_up(task: Task | None, operation: Operation, command: GiveUp, now: int) -> Outcome:
    dropped = _move(operation, OperationEvent.DROP, now, reason=command.reason)
    return _ILLEGAL if dropped is None else _ended(task, dropped, now, command.reason)


def _stop(operation: Operation, now: int, reason: str) -> Operation | None:
    """The operation when nobody waits for it any longer: unknown if it may have acted, dropped if it cannot have."""
    if operation.state is OperationState.ACCEPTED:
        return operation
    acted = operation.state is OperationState.SENT and operation.may_have_acted
    return _move(operation, OperationEvent.LOSE if acted else OperationEvent.DROP, now, reason=reason)


def _overdue(task: Task | None, operation: Operation, _: Overdue, now: int) -> Outcome:
    if now < operation.deadline_ms:
        return Refused(Refusal.NOT_DUE)
    stopped = _stop(operation, now, DEADLINE)
    if stopped is None:
        return _ILLEGAL
    return _ended(task, stopped, now, DEADLINE, tell=operation.state in IN_FLIGHT)


def _input_expired(task: Task | None, operation: Operation, _: InputExpired, now: int) -> Outcome:
    if _live(task) is None or operation.state not in IN_FLIGHT:
        return _ILLEGAL
    stopped = _stop(operation, now, UNANSWERED)
    return _ILLEGAL if stopped is None else _ended(task, stopped, now, UNANSWERED, tell=True)


def _cancel(task: Task | None, operation: Operation, command: Cancel, now: int) -> Outcome:
    live = _live(task)
    if live is None:
        return _TERMINAL
    if operation.state not in IN_FLIGHT:
        dropped = _move(operation, OperationEvent.DROP, now, reason=CANCELLED)
        asked = _step(live, TaskEvent.CANCEL, now, cancel_asked_ms=now, status_message=CANCELLED)
        return _ILLEGAL if dropped is None else Applied(asked, dropped)
    if command.final:
        tell = live.cancel_asked_ms is None
        asked = _step(live, TaskEvent.CANCEL, now, cancel_asked_ms=now, status_message=CANCELLED)
        return Applied(asked, operation, tell_upstream=tell)
    if live.cancel_asked_ms is not None:
        return Refused(Refusal.NOTHING_NEW)
    return Applied(_stamp_task(live, now, cancel_asked_ms=now), operation, tell_upstream=True)


def _grace_over(task: Task | None, operation: Operation, _: GraceOver, now: int) -> Outcome:
    if task is not None and task.cancel_asked_ms is None:
        return _ILLEGAL
    stopped = _stop(operation, now, CANCELLED)
    return _ILLEGAL if stopped is None else _ended(task, stopped, now, CANCELLED)


def _ask(task: Task | None, operation: Operation, command: Ask, now: int) -> Outcome:
    live = _live(task)
    if live is None:
        return _TERMINAL
    used = {question.key for question in live.questions}
    if operation.state not in IN_FLIGHT or command.question.key in used:
        return _ILLEGAL
    questions = (*live.questions, command.question)
    return Applied(_step(live, TaskEvent.ASK, now, questions=questions), operation)


def _respond(task: Task | None, operation: Operation, command: Respond, now: int) -> Outcome:
    live = _live(task)
    if live is None:
        return _TERMINAL
    questions = tuple(
        replace(question, answer=command.answers[question.key])
        if question.answer is None and question.key in command.answers
        else question
        for question in live.questions
    )
    if questions == live.questions:
        return Refused(Refusal.NOTHING_NEW)
    open_ones = any(question.answer is None for question in questions)
    event = TaskEvent.ASK if open_ones else TaskEvent.RESUME
    return Applied(_step(live, event, now, questions=questions), operation)


def _reconcile(task: Task | None, operation: Operation, command: Reconcile, now: int) -> Outcome:
    known = _move(operation, OperationEvent.RECONCILE, now, outcome_kind=command.kind, learnt=Learnt.RECONCILED)
    return _ILLEGAL if known is None else Applied(task, known)


def _promote(task: Task | None, operation: Operation, command: Promote, _: int) -> Outcome:
    if task is None:
        return _TERMINAL
    if not task.hidden:
        return Refused(Refusal.NOTHING_NEW)
    ttl, keep = max(task.ttl_ms, command.ttl_ms), command.keep_result_ms
    shown = replace(task, hidden=False, ttl_ms=ttl, keep_result_ms=keep, version=task.version + 1)
    return Applied(shown, operation)


_HANDLERS: Final[Mapping[type, Callable[..., Outcome]]] = {
    Send: _send,
    Unsend: _unsend,
    Accept: _accept,
    Observe: _observe,
    Forget: _forget,
    Answer: _answer,
    Lose: _lose,
    GiveUp: _give_up,
    Overdue: _overdue,
    InputExpired: _input_expired,
    Cancel: _cancel,
    GraceOver: _grace_over,
    Ask: _ask,
    Respond: _respond,
    Reconcile: _reconcile,
    Promote: _promote,
}
