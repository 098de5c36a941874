"""The one function that joins the two machines: `apply(task, operation, command, now)`.

A command is refused as a value and then changes nothing. The task may be None: its record expired, but the operation
still learns what became of it. Bodies of results and errors never pass through here; `Applied.finished` tells the
caller that the body which came with the command is what the requestor will read.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gateway.core.commands import (
    Accept,
    Answer,
    Approve,
    Ask,
    Cancel,
    Command,
    Doubt,
    Forget,
    GiveUp,
    GraceOver,
    InputExpired,
    Inquired,
    Lose,
    Observe,
    Overdue,
    Promote,
    Recall,
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
from gateway.core.moves import (
    ASKING,
    CANCELLED,
    DEADLINE,
    ILLEGAL,
    IN_DOUBT,
    LOST,
    TERMINAL,
    TO_APPROVE,
    UNANSWERED,
    WAS_DONE,
    WAS_NOT_DONE,
    Applied,
    Outcome,
    Refusal,
    Refused,
    alive,
    ended,
    finish,
    move,
    stamp_task,
    step,
    stop,
    touch,
    unknown,
)
from gateway.core.operation import OperationEvent
from gateway.core.task import TaskEvent

__all__ = [
    "ASKING",
    "CANCELLED",
    "DEADLINE",
    "IN_DOUBT",
    "LOST",
    "TO_APPROVE",
    "UNANSWERED",
    "WAS_DONE",
    "WAS_NOT_DONE",
    "Accept",
    "Answer",
    "Applied",
    "Approve",
    "Ask",
    "Cancel",
    "Command",
    "Doubt",
    "Forget",
    "GiveUp",
    "GraceOver",
    "InputExpired",
    "Inquired",
    "Lose",
    "Observe",
    "Outcome",
    "Overdue",
    "Promote",
    "Recall",
    "Reconcile",
    "Refusal",
    "Refused",
    "Respond",
    "Send",
    "Unsend",
    "apply",
]


def apply(task: Task | None, operation: Operation, command: Command, now: int) -> Outcome:
    """What the command makes of the two records. `now` is the store's time in milliseconds."""
    handler = _HANDLERS[type(command)]
    return handler(task, operation, command, now)


def _send(task: Task | None, operation: Operation, _: Send, now: int) -> Outcome:
    if alive(task) is None:
        return TERMINAL
    if now >= operation.deadline_ms or not operation.approved:
        return ILLEGAL
    sent = move(operation, OperationEvent.SEND, now, attempt=operation.attempt + 1, reason="")
    return ILLEGAL if sent is None else Applied(task, sent)


def _recall(task: Task | None, operation: Operation, command: Recall, now: int) -> Outcome:
    known = command.known
    taken = known.state is OperationState.ACCEPTED
    behind = operation.state is OperationState.PLANNED or (operation.state is OperationState.SENT and taken)
    if not behind or known.state not in IN_FLIGHT:
        return ILLEGAL
    # What was forgotten was allowed when it was done, whatever became of the deadline and of the task since.
    step_before = replace(operation, state=OperationState.SENT) if taken else operation
    event = OperationEvent.ACCEPT if taken else OperationEvent.SEND
    recalled = move(
        step_before,
        event,
        now,
        attempt=known.attempt,
        handle=known.handle,
        place=known.place,
        seen=known.seen,
        correlation=known.correlation,
        approval=known.approval,
    )
    return ILLEGAL if recalled is None else Applied(task, recalled)


def _approve(task: Task | None, operation: Operation, _: Approve, now: int) -> Outcome:
    if alive(task) is None:
        return TERMINAL
    approval = operation.approval
    if operation.state is not OperationState.PLANNED or approval is None or operation.approved:
        return ILLEGAL
    return Applied(task, touch(operation, now, approval=replace(approval, granted_ms=now)))


def _doubt(task: Task | None, operation: Operation, _: Doubt, now: int) -> Outcome:
    return unknown(task, operation, OperationEvent.DOUBT, now, IN_DOUBT)


def _unsend(task: Task | None, operation: Operation, command: Unsend, now: int) -> Outcome:
    live = alive(task)
    if live is None or live.cancel_asked_ms is not None:
        dropped = move(operation, OperationEvent.DROP, now, reason=CANCELLED)
        return ILLEGAL if dropped is None else ended(task, dropped, now, CANCELLED)
    attempt = operation.attempt - int(command.untried)
    planned = move(operation, OperationEvent.NOT_SENT, now, reason=command.reason, attempt=attempt)
    return ILLEGAL if planned is None else Applied(task, planned)


def _accept(task: Task | None, operation: Operation, command: Accept, now: int) -> Outcome:
    accepted = move(
        operation,
        OperationEvent.ACCEPT,
        now,
        handle=command.handle,
        place=command.place,
        seen=command.seen,
        correlation=command.correlation,
    )
    return ILLEGAL if accepted is None else Applied(task, accepted)


def _observe(task: Task | None, operation: Operation, command: Observe, now: int) -> Outcome:
    place = command.place or operation.place
    observed = move(operation, OperationEvent.OBSERVE, now, seen=command.seen, place=place)
    if observed is None:
        return ILLEGAL
    live = alive(task)
    if live is None or command.message in ("", live.status_message):
        return Applied(task, observed)
    return Applied(stamp_task(live, now, status_message=command.message), observed)


def _forget(task: Task | None, operation: Operation, command: Forget, now: int) -> Outcome:
    return unknown(task, operation, OperationEvent.FORGET, now, command.reason)


def _answer(task: Task | None, operation: Operation, command: Answer, now: int) -> Outcome:
    live = alive(task)
    late = live is None or operation.state is OperationState.UNKNOWN
    learnt = Learnt.LATE_ANSWER if late else Learnt.ANSWER
    said = {"outcome_kind": command.kind, "receipt": command.receipt}
    answered = move(operation, OperationEvent.ANSWER, now, learnt=learnt, **said)
    if answered is None:
        return ILLEGAL
    if live is None:
        return Applied(task, answered)
    if command.kind is OutcomeKind.ERROR and live.cancel_asked_ms is not None:
        # Servers that answer a cancelled request do so with an error: the cancellation took.
        return ended(task, answered, now, CANCELLED)
    return Applied(finish(live, command.kind, now, ""), answered, finished=True)


def _lose(task: Task | None, operation: Operation, _: Lose, now: int) -> Outcome:
    live = alive(task)
    again = operation.repeatable and live is not None and live.cancel_asked_ms is None and now < operation.deadline_ms
    if operation.state is OperationState.SENT and not again:
        return unknown(task, operation, OperationEvent.LOSE, now, LOST)
    after = move(operation, OperationEvent.LOSE_REPEATABLE if again else OperationEvent.LOSE, now)
    return ILLEGAL if after is None else Applied(task, after)


def _give_up(task: Task | None, operation: Operation, command: GiveUp, now: int) -> Outcome:
    dropped = move(operation, OperationEvent.DROP, now, reason=command.reason)
    return ILLEGAL if dropped is None else ended(task, dropped, now, command.reason)


def _overdue(task: Task | None, operation: Operation, _: Overdue, now: int) -> Outcome:
    if now < operation.deadline_ms:
        return Refused(Refusal.NOT_DUE)
    stopped = stop(operation, now, DEADLINE)
    if stopped is None:
        return ILLEGAL
    return ended(task, stopped, now, DEADLINE, tell=operation.state in IN_FLIGHT)


def _input_expired(task: Task | None, operation: Operation, _: InputExpired, now: int) -> Outcome:
    live = alive(task)
    if live is None or not _may_ask(operation):
        return ILLEGAL
    if operation.state is OperationState.PLANNED and live.state is not TaskState.INPUT_REQUIRED:
        return ILLEGAL  # an approval came after all, and nobody has been told to stop
    stopped, tell = stop(operation, now, UNANSWERED), operation.state in IN_FLIGHT
    return ILLEGAL if stopped is None else ended(task, stopped, now, UNANSWERED, tell=tell)


def _may_ask(operation: Operation) -> bool:
    """The upstream asks while it works; what is to be approved is asked before anything is sent."""
    return operation.state in IN_FLIGHT or (operation.state is OperationState.PLANNED and not operation.approved)


def _cancel(task: Task | None, operation: Operation, command: Cancel, now: int) -> Outcome:
    live = alive(task)
    if live is None:
        return TERMINAL
    if command.unseen and not live.hidden:
        return Refused(Refusal.HANDED_OUT)
    if operation.state not in IN_FLIGHT:
        stopped = stop(operation, now, CANCELLED)
        asked = step(live, TaskEvent.CANCEL, now, cancel_asked_ms=now, status_message=CANCELLED)
        return ILLEGAL if stopped is None else Applied(asked, stopped)
    if command.final:
        tell = live.cancel_asked_ms is None
        asked = step(live, TaskEvent.CANCEL, now, cancel_asked_ms=now, status_message=CANCELLED)
        return Applied(asked, operation, tell_upstream=tell)
    if live.cancel_asked_ms is not None:
        return Refused(Refusal.NOTHING_NEW)
    return Applied(stamp_task(live, now, cancel_asked_ms=now), operation, tell_upstream=True)


def _grace_over(task: Task | None, operation: Operation, _: GraceOver, now: int) -> Outcome:
    if task is not None and task.cancel_asked_ms is None:
        return ILLEGAL
    stopped = stop(operation, now, CANCELLED)
    return ILLEGAL if stopped is None else ended(task, stopped, now, CANCELLED)


def _ask(task: Task | None, operation: Operation, command: Ask, now: int) -> Outcome:
    live = alive(task)
    if live is None:
        return TERMINAL
    used = {question.key for question in live.questions}
    if not _may_ask(operation) or command.question.key in used:
        return ILLEGAL
    questions = (*live.questions, command.question)
    changes = {"status_message": TO_APPROVE} if operation.state is OperationState.PLANNED else {}
    return Applied(step(live, TaskEvent.ASK, now, questions=questions, **changes), operation)


def _respond(task: Task | None, operation: Operation, command: Respond, now: int) -> Outcome:
    live = alive(task)
    if live is None:
        return TERMINAL
    approves = operation.state is OperationState.PLANNED and not operation.approved
    questions = tuple(
        replace(question, answer=command.answers[question.key])
        if question.answer is None
        and question.key in command.answers
        and not (approves and now >= question.deadline_ms)
        else question
        for question in live.questions
    )
    if questions == live.questions:
        return Refused(Refusal.NOTHING_NEW)
    open_ones = any(question.answer is None for question in questions)
    event = TaskEvent.ASK if open_ones else TaskEvent.RESUME
    if approves and not open_ones:
        # Its place changes: it is due again. An approval that comes too late is none.
        return Applied(step(live, event, now, questions=questions, status_message=""), touch(operation, now))
    return Applied(step(live, event, now, questions=questions), operation)


def _inquired(task: Task | None, operation: Operation, command: Inquired, now: int) -> Outcome:
    inquiry = operation.inquiry
    if operation.state is not OperationState.UNKNOWN or inquiry is None:
        return ILLEGAL
    asked = touch(operation, now, inquiry=replace(inquiry, tries=inquiry.tries + 1, next_ms=command.next_ms))
    ends = min(operation.deadline_ms, inquiry.until_ms or 0)
    return Applied(task, asked) if command.next_ms < ends else ended(task, asked, now, LOST)


def _reconcile(task: Task | None, operation: Operation, command: Reconcile, now: int) -> Outcome:
    said = {"outcome_kind": command.kind, "learnt": command.learnt, "receipt": command.receipt}
    reason = command.reason or operation.reason
    known = move(operation, OperationEvent.RECONCILE, now, command.by, reason=reason, **said)
    if known is None:
        return ILLEGAL
    live = alive(task)
    if live is None:
        return Applied(task, known)
    # The answer itself is lost: what became of the work is told as an error, never as a result that nobody gave.
    message = WAS_DONE if command.kind is OutcomeKind.RESULT else WAS_NOT_DONE
    return Applied(finish(live, OutcomeKind.ERROR, now, message), known, finished=True)


def _promote(task: Task | None, operation: Operation, command: Promote, _: int) -> Outcome:
    if task is None:
        return TERMINAL
    if not task.hidden:
        return Refused(Refusal.NOTHING_NEW)
    ttl, keep = max(task.ttl_ms, command.ttl_ms), command.keep_result_ms
    kept = {"ttl_ms": ttl, "keep_result_ms": keep}
    shown = stamp_task(task, task.updated_ms, hidden=False, **kept)  # to its requestor nothing has happened to it
    return Applied(shown, operation)


_HANDLERS: Final[Mapping[type, Callable[..., Outcome]]] = {
    Send: _send,
    Recall: _recall,
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
    Approve: _approve,
    Doubt: _doubt,
    Inquired: _inquired,
    Reconcile: _reconcile,
    Promote: _promote,
}
