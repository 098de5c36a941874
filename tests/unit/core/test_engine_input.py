"""Questions and answers, reconciliation, promotion."""

from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.engine import Applied, Refusal, Refused
from gateway.core.model import Effect, Learnt, OperationState, OutcomeKind, Question, TaskState
from tests.records import apply_forgetting as apply
from tests.records import operation, task
from tests.requirements import requirement
from tests.unit.core.test_engine import (
    ACCEPTED,
    ASKED,
    CANCELLED,
    DONE,
    ILLEGAL,
    NOW,
    QUESTION,
    READ_ONLY,
    REPEATABLE,
    SENT,
    TERMINAL,
    UNKNOWN,
    failed,
    moved,
    stopped,
)

SECOND = Question("q2", "sampling/createMessage", "{}", NOW, NOW + 100)
ASKING = task(state=TaskState.INPUT_REQUIRED, questions=(QUESTION, SECOND))


class TestAsk:
    @pytest.mark.parametrize("before", [SENT, ACCEPTED])
    def test_makes_the_task_wait_for_input(self, before):
        after = apply(task(), before, engine.Ask(QUESTION), NOW)
        assert after == Applied(moved(task(), state=TaskState.INPUT_REQUIRED, questions=(QUESTION,)), before)

    def test_adds_to_what_is_asked(self):
        asking = task(state=TaskState.INPUT_REQUIRED, questions=(QUESTION,))
        after = apply(asking, SENT, engine.Ask(SECOND), NOW)
        assert after.task == moved(asking, questions=(QUESTION, SECOND))

    @requirement("TX-UPD-3")
    @pytest.mark.parametrize("answer", [None, "{}"])
    def test_uses_no_key_twice(self, answer):
        asking = task(questions=(replace(QUESTION, answer=answer),))
        assert apply(asking, SENT, engine.Ask(QUESTION), NOW) == ILLEGAL

    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_asks_nobody_who_has_gone(self, gone):
        assert apply(gone, SENT, engine.Ask(QUESTION), NOW) == TERMINAL

    @pytest.mark.parametrize("before", [operation(), UNKNOWN])
    def test_is_refused_while_nothing_is_under_way(self, before):
        assert apply(task(), before, engine.Ask(QUESTION), NOW) == ILLEGAL


class TestRespond:
    def test_to_all_makes_the_task_work_again(self):
        after = apply(ASKING, SENT, engine.Respond({"q1": "1", "q2": "2"}), NOW)
        answered = (replace(QUESTION, answer="1"), replace(SECOND, answer="2"))
        assert after == Applied(moved(ASKING, state=TaskState.WORKING, questions=answered), SENT)

    @requirement("TX-UPD-2")
    def test_to_some_leaves_the_rest_open(self):
        after = apply(ASKING, SENT, engine.Respond({"q2": "2", "q9": "9"}), NOW)
        assert after == Applied(moved(ASKING, questions=(QUESTION, replace(SECOND, answer="2"))), SENT)

    @requirement("TX-UPD-2")
    def test_twice_keeps_the_first_answer(self):
        once = apply(ASKING, SENT, engine.Respond({"q1": "first"}), NOW).task
        again = apply(once, SENT, engine.Respond({"q1": "second"}), NOW)
        assert again == Refused(Refusal.NOTHING_NEW)
        both = apply(once, SENT, engine.Respond({"q1": "second", "q2": "2"}), NOW).task
        assert [question.answer for question in both.questions] == ["first", "2"]

    def test_to_what_was_not_asked_changes_nothing(self):
        assert apply(ASKING, SENT, engine.Respond({"q9": "9"}), NOW) == Refused(Refusal.NOTHING_NEW)

    @pytest.mark.parametrize("gone", [None, replace(DONE, questions=(QUESTION,))])
    def test_of_a_terminal_task_is_refused(self, gone):
        assert apply(gone, SENT, engine.Respond({"q1": "1"}), NOW) == TERMINAL


class TestInputExpired:
    REASON = "nobody answered what the tool asked in time"

    @requirement("T25-INP-3")
    @pytest.mark.parametrize(
        ("before", "state"),
        [(SENT, "unknown"), (REPEATABLE, "unknown"), (READ_ONLY, "dropped")],
    )
    def test_fails_the_task_and_tells_the_truth_about_the_operation(self, before, state):
        after = apply(ASKING, before, engine.InputExpired(), NOW)
        fact = moved(before, state=OperationState(state), reason=self.REASON)
        assert after == Applied(failed(ASKING, self.REASON), fact, finished=True, tell_upstream=True)

    @requirement("T25-INP-3")
    def test_goes_on_watching_a_job(self):
        after = apply(ASKING, ACCEPTED, engine.InputExpired(), NOW)
        assert after == Applied(failed(ASKING, self.REASON), ACCEPTED, finished=True, tell_upstream=True)
        assert after.operation is ACCEPTED

    def test_keeps_the_failure_long_enough(self):
        late = ASKING.created_ms + 80_000
        after = apply(ASKING, SENT, engine.InputExpired(), late)
        assert (after.task.ttl_ms, after.task.updated_ms) == (80_000 + 20_000, late)
        assert after.operation.updated_ms == late

    def test_never_repeats_the_work(self):
        repeatable = replace(SENT, effect=Effect.READ_ONLY, repeatable=True)
        assert apply(ASKING, repeatable, engine.InputExpired(), NOW).operation.state is OperationState.DROPPED

    @pytest.mark.parametrize("asking", [ASKED, replace(ASKING, cancel_asked_ms=NOW - 1)])
    def test_of_a_task_that_was_to_be_cancelled_cancels_it(self, asking):
        after = apply(asking, SENT, engine.InputExpired(), NOW)
        unknown = moved(SENT, state=OperationState.UNKNOWN, reason=self.REASON)
        assert after == Applied(stopped(asking), unknown, finished=False, tell_upstream=True)

    @pytest.mark.parametrize("before", [SENT, ACCEPTED, operation(), UNKNOWN])
    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_is_refused_when_nobody_waits(self, gone, before):
        assert apply(gone, before, engine.InputExpired(), NOW) == ILLEGAL

    @pytest.mark.parametrize("state", ["planned", "answered", "unknown", "reconciled", "dropped"])
    def test_is_refused_for_what_is_not_under_way(self, state):
        assert apply(ASKING, operation(state=OperationState(state)), engine.InputExpired(), NOW) == ILLEGAL


class TestReconcile:
    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_closes_an_unknown_operation(self, kind):
        known = moved(UNKNOWN, state=OperationState.RECONCILED, outcome_kind=kind, learnt=Learnt.RECONCILED)
        assert apply(DONE, UNKNOWN, engine.Reconcile(kind), NOW) == Applied(DONE, known)

    def test_is_refused_for_what_is_known(self):
        assert apply(task(), SENT, engine.Reconcile(OutcomeKind.RESULT), NOW) == ILLEGAL


class TestPromote:
    HIDDEN = task(hidden=True)

    def test_shows_the_task_with_the_lifetime_of_one(self):
        after = apply(self.HIDDEN, SENT, engine.Promote(500_000, 40_000), NOW)
        shown = replace(self.HIDDEN, hidden=False, ttl_ms=500_000, keep_result_ms=40_000, version=8)
        assert after == Applied(shown, SENT)

    def test_never_shortens_a_lifetime(self):
        assert apply(self.HIDDEN, SENT, engine.Promote(10, 10), NOW).task.ttl_ms == self.HIDDEN.ttl_ms

    def test_of_a_task_that_is_shown_changes_nothing(self):
        assert apply(task(), SENT, engine.Promote(1, 1), NOW) == Refused(Refusal.NOTHING_NEW)

    def test_of_a_task_that_has_gone_is_refused(self):
        assert apply(None, SENT, engine.Promote(1, 1), NOW) == TERMINAL
