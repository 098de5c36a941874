"""What the ledger keeps: approval before anything is sent, doubt, and asking what became of the work."""

from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.engine import Applied, Refusal, Refused, apply
from gateway.core.model import (
    Approval,
    Inquiry,
    Learnt,
    OperationState,
    OutcomeKind,
    Place,
    Question,
    Seen,
    Step,
    TaskState,
    Verified,
)
from tests.records import CREATED, DEADLINE, operation, task
from tests.requirements import requirement

NOW = CREATED + 5_000
ILLEGAL = Refused(Refusal.ILLEGAL)
TERMINAL = Refused(Refusal.TERMINAL)
TO_APPROVE = operation(approval=Approval("really?", 1_000))
QUESTION = Question("approval", "elicitation/create", "{}", NOW, NOW + 1_000)
FIRST = Inquiry("state", "{}", budget_ms=30_000, first=True)
LATER = replace(FIRST, first=False)
SENT = operation(state=OperationState.SENT)
DONE = task(state=TaskState.DONE, outcome_kind=OutcomeKind.RESULT)


def asked(**changes):
    begun = {"next_ms": NOW, "until_ms": NOW + 30_000}
    return operation(state=OperationState.UNKNOWN, inquiry=replace(FIRST, **{**begun, **changes}), reason=engine.LOST)


@requirement("OWN-APPROVE")
class TestApproval:
    def test_nothing_is_sent_before_it(self):
        assert apply(task(), TO_APPROVE, engine.Send(), NOW) == ILLEGAL

    def test_is_asked_for_while_nothing_has_been_sent(self):
        after = apply(task(), TO_APPROVE, engine.Ask(QUESTION), NOW)
        assert (after.task.state, after.operation) == (TaskState.INPUT_REQUIRED, TO_APPROVE)

    def test_is_what_the_task_says_it_waits_for(self):
        after = apply(task(), TO_APPROVE, engine.Ask(QUESTION), NOW)
        assert after.task.status_message == engine.TO_APPROVE
        after = apply(after.task, TO_APPROVE, engine.Respond({"approval": "{}"}), NOW)
        assert after.task.status_message == ""

    def test_that_comes_too_late_is_none(self):
        waiting = task(state=TaskState.INPUT_REQUIRED, questions=(QUESTION,))
        late = apply(waiting, TO_APPROVE, engine.Respond({"approval": "{}"}), QUESTION.deadline_ms)
        assert late == Refused(Refusal.NOTHING_NEW)
        in_time = apply(waiting, TO_APPROVE, engine.Respond({"approval": "{}"}), QUESTION.deadline_ms - 1)
        assert in_time.task.questions[0].answer == "{}"

    def test_the_answer_makes_the_work_due_again(self):
        waiting = task(state=TaskState.INPUT_REQUIRED, questions=(QUESTION,))
        after = apply(waiting, TO_APPROVE, engine.Respond({"approval": "{}"}), NOW)
        assert (after.task.state, after.operation.version) == (TaskState.WORKING, TO_APPROVE.version + 1)

    @pytest.mark.parametrize("fact", [operation(), replace(TO_APPROVE, approval=Approval("really?", 1_000, NOW))])
    def test_is_no_matter_of_answers_to_an_upstream_whose_work_begins_again(self, fact):
        waiting = task(state=TaskState.INPUT_REQUIRED, questions=(replace(QUESTION, key="input-1"),))
        after = apply(waiting, fact, engine.Respond({"input-1": "{}"}), QUESTION.deadline_ms)
        assert (after.task.status_message, after.operation) == (waiting.status_message, fact)

    def test_is_remembered_and_lets_the_work_be_sent_once(self):
        granted = apply(task(), TO_APPROVE, engine.Approve(), NOW).operation
        assert granted.approval.granted_ms == NOW
        assert apply(task(), granted, engine.Approve(), NOW) == ILLEGAL
        sent = apply(task(), granted, engine.Send(), NOW).operation
        assert sent.state is OperationState.SENT
        assert apply(task(), sent, engine.Send(), NOW) == ILLEGAL

    @pytest.mark.parametrize("gone", [None, DONE])
    def test_is_refused_when_nobody_waits(self, gone):
        assert apply(gone, TO_APPROVE, engine.Approve(), NOW) == TERMINAL

    def test_is_refused_for_what_needs_none_or_is_under_way(self):
        assert apply(task(), operation(), engine.Approve(), NOW) == ILLEGAL
        assert apply(task(), replace(TO_APPROVE, state=OperationState.SENT), engine.Approve(), NOW) == ILLEGAL

    def test_that_nobody_gave_in_time_drops_the_work(self):
        waiting = task(state=TaskState.INPUT_REQUIRED, questions=(QUESTION,))
        after = apply(waiting, TO_APPROVE, engine.InputExpired(), NOW)
        assert (after.task.state, after.operation.state) == (TaskState.DONE, OperationState.DROPPED)
        assert not after.tell_upstream

    def test_work_that_needs_none_asks_nothing_before_it_is_sent(self):
        assert apply(task(), operation(), engine.Ask(QUESTION), NOW) == ILLEGAL


@requirement("OWN-RECONCILE")
class TestInquiry:
    @pytest.mark.parametrize(
        ("state", "command"),
        [
            (OperationState.SENT, engine.Lose()),
            (OperationState.ACCEPTED, engine.Forget("it does not know it")),
            (OperationState.PLANNED, engine.Doubt()),
        ],
    )
    def test_the_task_waits_where_the_authority_is_asked_first(self, state, command):
        after = apply(task(), operation(state=state, inquiry=FIRST), command, NOW)
        assert (after.task.state, after.task.status_message) == (TaskState.WORKING, engine.ASKING)
        assert after.operation.state is OperationState.UNKNOWN
        assert after.operation.inquiry == replace(FIRST, next_ms=NOW, until_ms=NOW + 30_000)

    def test_the_task_does_not_wait_where_it_is_asked_later(self):
        after = apply(task(), replace(SENT, inquiry=LATER), engine.Lose(), NOW)
        assert (after.task.state, after.task.status_message) == (TaskState.DONE, engine.LOST)
        assert after.operation.inquiry.next_ms == NOW

    @pytest.mark.parametrize(
        ("waiting", "now"), [(task(cancel_asked_ms=NOW - 1), NOW), (task(), DEADLINE), (DONE, NOW), (None, NOW)]
    )
    def test_the_task_does_not_wait_for_ever_nor_for_nothing(self, waiting, now):
        after = apply(waiting, replace(SENT, inquiry=FIRST), engine.Lose(), now)
        assert after.task is None or after.task.terminal
        assert after.operation.inquiry.next_ms == now

    def test_questions_of_an_upstream_that_is_gone_are_moot(self):
        waiting = task(state=TaskState.INPUT_REQUIRED, questions=(QUESTION,))
        assert apply(waiting, replace(SENT, inquiry=FIRST), engine.Lose(), NOW).task.state is TaskState.WORKING

    def test_work_that_ran_out_of_time_is_asked_about_as_well(self):
        late = replace(SENT, inquiry=FIRST)
        after = apply(task(), late, engine.Overdue(), DEADLINE)
        assert (after.task.status_message, after.operation.inquiry.next_ms) == (engine.DEADLINE, DEADLINE)

    def test_in_vain_is_counted_and_tried_again(self):
        after = apply(task(), asked(), engine.Inquired(NOW + 2_000), NOW)
        assert after == Applied(after.task, after.operation)
        assert not after.task.terminal
        assert after.operation.inquiry == asked(tries=1, next_ms=NOW + 2_000).inquiry

    @pytest.mark.parametrize(("next_ms", "budget"), [(NOW + 30_000, 30_000), (DEADLINE, 90_000)])
    def test_in_vain_to_the_end_tells_the_task_that_nobody_knows(self, next_ms, budget):
        fact = asked(until_ms=NOW + budget)
        after = apply(task(), fact, engine.Inquired(next_ms), NOW)
        assert (after.task.state, after.task.status_message) == (TaskState.DONE, engine.LOST)
        assert (after.operation.state, after.finished) == (OperationState.UNKNOWN, True)

    def test_is_over_after_its_budget(self):
        assert asked().inquiry.due(NOW + 29_999) == NOW
        assert asked().inquiry.due(NOW + 30_000) is None
        assert FIRST.due(NOW) is None

    @pytest.mark.parametrize("fact", [SENT, operation(state=OperationState.UNKNOWN)])
    def test_is_refused_where_nobody_can_be_asked(self, fact):
        assert apply(task(), fact, engine.Inquired(NOW), NOW) == ILLEGAL

    @pytest.mark.parametrize(
        ("kind", "message", "outcome"),
        [
            (OutcomeKind.RESULT, engine.WAS_DONE, Verified.SUCCEEDED),
            (OutcomeKind.TOOL_ERROR, engine.WAS_NOT_DONE, Verified.FAILED),
        ],
    )
    def test_what_the_authority_says_ends_the_task_with_the_truth(self, kind, message, outcome):
        after = apply(task(), asked(), engine.Reconcile(kind, receipt='"r"'), NOW)
        assert (after.task.outcome_kind, after.task.status_message) == (OutcomeKind.ERROR, message)
        assert (after.operation.outcome, after.operation.learnt) == (outcome, Learnt.RECONCILED)
        assert (after.operation.receipt, after.operation.reason) == ('"r"', engine.LOST)

    def test_what_a_person_says_is_told_with_their_name(self):
        command = engine.Reconcile(OutcomeKind.RESULT, Learnt.RESOLVED, by="ops", reason="seen in the books")
        after = apply(DONE, asked(), command, NOW)
        assert after.task is DONE
        assert (after.operation.learnt, after.operation.reason) == (Learnt.RESOLVED, "seen in the books")
        assert after.operation.history[-1] == Step(NOW, OperationState.RECONCILED, "reconcile", "ops")


@requirement("OWN-ONCE")
class TestDoubt:
    def test_makes_planned_work_unknown(self):
        after = apply(task(), operation(), engine.Doubt(), NOW)
        assert (after.task.state, after.task.status_message) == (TaskState.DONE, engine.IN_DOUBT)
        assert (after.operation.state, after.operation.reason) == (OperationState.UNKNOWN, engine.IN_DOUBT)

    @pytest.mark.parametrize("state", [state for state in OperationState if state != "planned"])
    def test_is_for_planned_work_only(self, state):
        assert apply(task(), operation(state=state), engine.Doubt(), NOW) == ILLEGAL


@requirement("OWN-LEDGER")
class TestHistory:
    def test_tells_each_state_and_its_cause(self):
        fact = apply(task(), operation(), engine.Send(), NOW).operation
        fact = apply(task(), fact, engine.Answer(OutcomeKind.RESULT, '"r"'), NOW + 1).operation
        assert fact.history == (
            Step(NOW, OperationState.SENT, "send"),
            Step(NOW + 1, OperationState.ANSWERED, "answer"),
        )
        assert fact.receipt == '"r"'

    def test_keeps_the_latest(self):
        fact, waiting = operation(repeatable=True), task()
        for turn in range(40):
            fact = apply(waiting, fact, engine.Send(), NOW + turn).operation
            fact = apply(waiting, fact, engine.Lose(), NOW + turn).operation
        assert len(fact.history) == 32
        assert fact.history[-1].at_ms == NOW + 39


@requirement("OWN-DOUBT")
class TestRecall:
    KNOWN = operation(
        state=OperationState.ACCEPTED,
        attempt=2,
        handle="job",
        place=Place("2025-11-25"),
        seen=Seen("working", CREATED, CREATED),
        correlation="digest",
        approval=Approval("really?", 1_000, granted_ms=CREATED + 1),
    )

    @pytest.mark.parametrize("state", [OperationState.PLANNED, OperationState.SENT])
    @pytest.mark.parametrize("promise", [task(), DONE, None], ids=["task", "ended", "gone"])
    def test_of_what_an_upstream_took_brings_back_all_that_is_needed_to_ask_on(self, promise, state):
        after = apply(promise, operation(state=state), engine.Recall(self.KNOWN), NOW)
        (step,) = after.operation.history
        assert (step.state, step.at_ms) == (OperationState.ACCEPTED, NOW)
        changed = replace(self.KNOWN, version=operation().version + 1, updated_ms=NOW, history=(step,))
        assert after == Applied(promise, changed)

    def test_of_what_was_sent_brings_back_how_often_and_that_it_was_approved(self):
        known = replace(self.KNOWN, state=OperationState.SENT, handle=None, place=None, seen=None, correlation="")
        after = apply(
            task(), TO_APPROVE, engine.Recall(known), NOW + DEADLINE
        )  # its deadline is no reason to forget it
        assert (after.operation.state, after.operation.attempt) == (OperationState.SENT, 2)
        assert after.operation.approval == known.approval

    @pytest.mark.parametrize("state", [OperationState.ACCEPTED, OperationState.UNKNOWN, OperationState.ANSWERED])
    def test_is_refused_where_the_record_has_come_as_far(self, state):
        assert apply(task(), operation(state=state), engine.Recall(self.KNOWN), NOW) == ILLEGAL


@requirement("OWN-LEDGER")
@pytest.mark.parametrize(
    ("state", "kind", "outcome"),
    [
        (OperationState.PLANNED, None, Verified.PENDING),
        (OperationState.SENT, None, Verified.PENDING),
        (OperationState.ACCEPTED, None, Verified.PENDING),
        (OperationState.DROPPED, None, Verified.NONE),
        (OperationState.UNKNOWN, None, Verified.UNKNOWN),
        (OperationState.ANSWERED, OutcomeKind.RESULT, Verified.SUCCEEDED),
        (OperationState.ANSWERED, OutcomeKind.TOOL_ERROR, Verified.FAILED),
        (OperationState.ANSWERED, OutcomeKind.ERROR, Verified.FAILED),
        (OperationState.RECONCILED, OutcomeKind.RESULT, Verified.SUCCEEDED),
        (OperationState.RECONCILED, OutcomeKind.ERROR, Verified.FAILED),
    ],
)
def test_the_outcome_is_what_is_known_of_the_effect(state, kind, outcome):
    assert operation(state=state, outcome_kind=kind).outcome is outcome
