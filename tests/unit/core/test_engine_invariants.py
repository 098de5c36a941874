"""What no command may ever do, tried on every combination of records and commands."""

import itertools
from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.engine import Applied, apply
from gateway.core.model import (
    SCHEMA,
    Approval,
    Effect,
    Inquiry,
    OperationState,
    OutcomeKind,
    Place,
    Question,
    Seen,
    TaskState,
)
from tests.records import CREATED, DEADLINE, operation, task
from tests.requirements import requirement

QUESTION = Question("q1", "elicitation/create", "{}", CREATED, DEADLINE)
COMMANDS = [
    engine.Send(),
    engine.Recall(operation(state=OperationState.SENT, attempt=1)),
    engine.Recall(operation(state=OperationState.ACCEPTED, attempt=2, handle="job")),
    engine.Recall(operation()),
    engine.Unsend(),
    engine.Unsend(untried=True),
    engine.Accept("job", Place("2025-11-25"), Seen("working", CREATED, CREATED), "digest"),
    engine.Observe(Seen("working", CREATED, CREATED)),
    engine.Observe(Seen("working", CREATED, CREATED), "half of it is done", Place("2025-11-25")),
    engine.Forget("the upstream does not know it"),
    *(engine.Answer(kind) for kind in OutcomeKind),
    engine.Lose(),
    engine.GiveUp("why"),
    engine.Overdue(),
    engine.InputExpired(),
    engine.Cancel(final=True),
    engine.Cancel(final=False),
    engine.GraceOver(),
    engine.Ask(QUESTION),
    engine.Ask(replace(QUESTION, key="q2")),
    engine.Respond({"q1": "{}"}),
    *(engine.Reconcile(kind) for kind in OutcomeKind),
    engine.Approve(),
    engine.Doubt(),
    engine.Inquired(CREATED + 20),
    engine.Inquired(DEADLINE),
    engine.Promote(10_000, 1_000),
]
TO_APPROVE = Approval("really?", 1_000)
APPROVED = replace(TO_APPROVE, granted_ms=CREATED + 1)
ASKED = Inquiry("state", "{}", 1_000, tries=1, next_ms=CREATED + 5, until_ms=CREATED + 1_000)
INQUIRIES = (ASKED, replace(ASKED, first=True))
TASKS = [None] + [
    task(
        state=state,
        cancel_asked_ms=asked,
        hidden=hidden,
        outcome_kind=OutcomeKind.RESULT if state == "done" else None,
        questions=(QUESTION,) if state == "input_required" else (),
    )
    for state, asked, hidden in itertools.product(TaskState, (None, CREATED + 1), (False, True))
]
OPERATIONS = [
    operation(state=state, effect=effect, repeatable=repeatable)
    for state, effect, repeatable in itertools.product(OperationState, Effect, (False, True))
    if not (repeatable and effect == "consequential")
] + [
    operation(state=state, approval=approval, inquiry=inquiry)
    for state, approval, inquiry in itertools.product(OperationState, (None, TO_APPROVE, APPROVED), INQUIRIES)
]
LEGAL_TASK = {
    "working": {"working", "input_required", "done", "cancelled"},
    "input_required": {"working", "input_required", "done", "cancelled"},
    "done": {"done"},
    "cancelled": {"cancelled"},
}
CASES = list(itertools.product(TASKS, OPERATIONS, COMMANDS, (CREATED + 10, DEADLINE)))


def results():
    for before, fact, command, now in CASES:
        after = apply(before, fact, command, now)
        if isinstance(after, Applied):
            yield before, fact, command, now, after


@requirement("T25-ST-1")
def test_a_task_never_makes_a_move_that_the_specification_forbids():
    for before, _, command, _, after in results():
        if before is not None:
            assert after.task.state in LEGAL_TASK[before.state], command


def test_a_terminal_task_never_changes():
    for before, _, command, _, after in results():
        if before is not None and before.terminal and not isinstance(command, engine.Promote):
            assert after.task is before


@requirement("OWN-ONCE")
def test_only_repeatable_work_or_work_known_not_to_have_acted_is_planned_again():
    for _, fact, command, _, after in results():
        if after.operation.state == "planned" and fact.state != "planned":
            assert fact.repeatable or isinstance(command, engine.Unsend)


def test_what_may_have_acted_is_never_dropped_but_by_who_knows_better():
    for _, fact, command, _, after in results():
        if fact.state == "sent" and after.operation.state == "dropped" and fact.effect != "read_only":
            assert isinstance(command, (engine.GiveUp, engine.Unsend))


@requirement("BR-3", "OWN-ONCE")
def test_what_an_upstream_took_is_never_started_again_and_never_said_not_to_have_happened():
    for _, fact, command, _, after in results():
        if fact.state == "accepted":
            assert after.operation.state in ("accepted", "answered", "unknown"), command
            assert after.operation.attempt == fact.attempt


def test_a_settled_operation_never_changes():
    for _, fact, command, _, after in results():
        if fact.settled:
            assert after.operation is fact, command


def test_a_body_is_wanted_exactly_when_a_task_becomes_done():
    for before, _, command, _, after in results():
        became = before is not None and before.state != "done" and after.task.state == "done"
        assert after.finished is became, command


def test_versions_count_changes_and_nothing_else():
    for before, fact, _, _, after in results():
        for old, new in ((before, after.task), (fact, after.operation)):
            if old is not None:
                assert new is old or new.version == old.version + 1


@requirement("OWN-SCHEMA")
def test_what_is_written_anew_is_written_as_this_release_does():
    for task_before, fact, command, now in CASES:
        old = None if task_before is None else replace(task_before, schema=SCHEMA - 1)
        after = apply(old, replace(fact, schema=SCHEMA - 1), command, now)
        if isinstance(after, Applied):
            assert after.operation.schema == (SCHEMA if after.operation.version > fact.version else SCHEMA - 1)
            if old is not None:
                assert after.task.schema == (SCHEMA if after.task is not old else SCHEMA - 1)


@requirement("T25-INP-3")
def test_a_task_that_nobody_answered_ends_and_its_upstream_is_told():
    for before, fact, command, _, after in results():
        if isinstance(command, engine.InputExpired):
            assert not before.terminal
            to_approve = fact.approval is not None and fact.approval.granted_ms is None
            assert fact.state in ("sent", "accepted") or (fact.state == "planned" and to_approve)
            assert after.task.terminal
            assert after.tell_upstream is (fact.state != "planned")
            assert after.operation.reason == engine.UNANSWERED or after.operation is fact


def test_only_what_is_under_way_has_an_upstream_to_tell():
    for _, fact, command, _, after in results():
        assert not after.tell_upstream or fact.state in ("sent", "accepted"), command


@requirement("OWN-APPROVE")
def test_nothing_is_sent_that_was_to_be_approved_and_was_not():
    for _, fact, command, _, after in results():
        if after.operation.state == "sent" and fact.state == "planned" and not isinstance(command, engine.Recall):
            assert fact.approval is None or fact.approval.granted_ms is not None


@requirement("OWN-DOUBT")
def test_what_is_recalled_had_come_further_and_is_as_its_holder_knows_it():
    order = ["planned", "sent", "accepted"]
    for before, fact, command, _, after in results():
        if isinstance(command, engine.Recall):
            known = command.known
            assert after.task is before
            assert order.index(fact.state) < order.index(known.state)
            assert (after.operation.state, after.operation.attempt) == (known.state, known.attempt)
            assert (after.operation.handle, after.operation.approval) == (known.handle, known.approval)


@requirement("OWN-LEDGER")
def test_the_history_tells_of_each_state_and_of_nothing_else():
    for _, fact, command, now, after in results():
        added = after.operation.history[len(fact.history) :]
        assert [(step.state, step.at_ms) for step in added] == (
            [] if after.operation.state is fact.state else [(after.operation.state, now)]
        ), command


@requirement("OWN-LEDGER")
def test_what_has_changed_says_when():
    for before, fact, command, now, after in results():
        assert after.operation is fact or after.operation.updated_ms == now, command
        if not isinstance(command, engine.Promote):  # what is handed out is as old as it was
            assert after.task is before or after.task.updated_ms == now, command


@requirement("OWN-RECONCILE")
def test_what_is_unknown_stays_so_until_somebody_tells():
    for _, fact, command, _, after in results():
        if fact.state == "unknown" and after.operation.state != "unknown":
            assert isinstance(command, (engine.Answer, engine.Reconcile))


@requirement("OWN-RECONCILE")
def test_a_task_whose_work_is_unknown_never_gets_a_result_that_nobody_gave():
    for before, fact, command, _, after in results():
        if fact.state == "unknown" and after.finished and not isinstance(command, engine.Answer):
            assert after.task.outcome_kind == "error", (before, command)


def test_what_expired_stays_so():
    assert all(after.task is None for before, *_, after in results() if before is None)


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c != engine.Recall(operation())], ids=lambda command: type(command).__name__
)
def test_every_command_can_be_applied_to_something(command):
    assert any(isinstance(apply(t, o, command, now), Applied) for t, o, c, now in CASES if c == command)
