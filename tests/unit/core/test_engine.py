"""What each command makes of the two records."""

from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.engine import Applied, Refusal, Refused
from gateway.core.model import Effect, Learnt, OperationState, OutcomeKind, Place, Question, Seen, TaskState
from tests.records import CREATED, DEADLINE, operation, task
from tests.records import apply_forgetting as apply
from tests.requirements import requirement

NOW = CREATED + 5_000
SENT = operation(state=OperationState.SENT, attempt=1)
ACCEPTED = operation(state=OperationState.ACCEPTED, attempt=1)
UNKNOWN = operation(state=OperationState.UNKNOWN)
READ_ONLY = replace(SENT, effect=Effect.READ_ONLY)
REPEATABLE = replace(SENT, effect=Effect.IDEMPOTENT, repeatable=True)
ASKED = task(cancel_asked_ms=NOW - 1)
DONE = task(state=TaskState.DONE, outcome_kind=OutcomeKind.RESULT)
CANCELLED = task(state=TaskState.CANCELLED, cancel_asked_ms=NOW - 1)
QUESTION = Question("q1", "elicitation/create", "{}", NOW, NOW + 100)

PLACE = Place("2025-11-25", "2025-11-25", "s1", '{"sampling":{}}', cancels=False, created="then", token="7")
OTHER_PLACE = replace(PLACE, session="s2")
SEEN = Seen("working", CREATED, CREATED + 1_000)
ILLEGAL = Refused(Refusal.ILLEGAL)
TERMINAL = Refused(Refusal.TERMINAL)


def moved(before, **changes):
    return replace(before, version=before.version + 1, updated_ms=NOW, **changes)


def failed(before, message):
    return moved(before, state=TaskState.DONE, outcome_kind=OutcomeKind.ERROR, status_message=message)


def stopped(before):
    return moved(before, state=TaskState.CANCELLED, status_message="cancelled on request")


class TestSend:
    @requirement("OWN-SENT")
    def test_counts_the_attempt_and_leaves_the_task_alone(self):
        before = task()
        after = apply(before, operation(attempt=2), engine.Send(), NOW)
        assert after == Applied(before, moved(operation(), state=OperationState.SENT, attempt=3))
        assert after.task is before

    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_is_refused_when_nobody_waits(self, gone):
        assert apply(gone, operation(), engine.Send(), NOW) == TERMINAL

    @requirement("OWN-ONCE")
    @pytest.mark.parametrize("state", [state for state in OperationState if state != "planned"])
    def test_is_refused_for_what_was_sent(self, state):
        assert apply(task(), operation(state=state), engine.Send(), NOW) == ILLEGAL

    def test_is_refused_from_the_deadline_on(self):
        assert apply(task(), operation(), engine.Send(), DEADLINE) == ILLEGAL
        assert isinstance(apply(task(), operation(), engine.Send(), DEADLINE - 1), Applied)


class TestUnsend:
    def test_makes_the_work_planned_again(self):
        assert apply(task(), SENT, engine.Unsend(), NOW) == Applied(task(), moved(SENT, state=OperationState.PLANNED))

    @requirement("OWN-DURABLE")
    def test_of_what_never_left_counts_as_no_attempt(self):
        planned = moved(SENT, state=OperationState.PLANNED, attempt=0)
        assert apply(task(), SENT, engine.Unsend(untried=True), NOW).operation == planned

    @requirement("OWN-404")
    def test_remembers_why_until_the_work_is_sent_again(self):
        planned = apply(task(), SENT, engine.Unsend("why"), NOW).operation
        assert planned == moved(SENT, state=OperationState.PLANNED, reason="why")
        assert apply(task(), planned, engine.Send(), NOW).operation.reason == ""

    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_drops_what_nobody_waits_for(self, gone):
        dropped = moved(SENT, state=OperationState.DROPPED, reason="cancelled on request")
        assert apply(gone, SENT, engine.Unsend(), NOW) == Applied(gone, dropped)

    def test_ends_a_task_that_was_to_be_cancelled(self):
        dropped = moved(SENT, state=OperationState.DROPPED, reason="cancelled on request")
        assert apply(ASKED, SENT, engine.Unsend(), NOW) == Applied(stopped(ASKED), dropped)

    @pytest.mark.parametrize("before", [task(), DONE])
    def test_is_refused_for_what_was_not_sent(self, before):
        assert apply(before, UNKNOWN, engine.Unsend(), NOW) == ILLEGAL


class TestAccept:
    def test_keeps_the_handle(self):
        accepted = moved(SENT, state=OperationState.ACCEPTED, handle="job-1")
        assert apply(task(), SENT, engine.Accept("job-1"), NOW) == Applied(task(), accepted)

    @requirement("BR-3")
    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED, task()])
    def test_keeps_all_that_is_needed_to_ask_again_whoever_waits(self, gone):
        known = {"handle": "t1", "place": PLACE, "seen": SEEN, "correlation": "digest"}
        accepted = moved(SENT, state=OperationState.ACCEPTED, **known)
        assert apply(gone, SENT, engine.Accept("t1", PLACE, SEEN, "digest"), NOW) == Applied(gone, accepted)

    def test_is_refused_for_what_was_not_sent(self):
        assert apply(task(), operation(), engine.Accept("job-1"), NOW) == ILLEGAL


class TestObserve:
    BEFORE = replace(ACCEPTED, handle="t1", place=PLACE, seen=SEEN, correlation="digest")
    LATER = Seen("input_required", NOW, NOW + 2_000, told=True)

    def test_notes_what_was_seen_and_when_it_may_be_asked_again(self):
        before = task()
        after = apply(before, self.BEFORE, engine.Observe(self.LATER), NOW)
        assert after == Applied(before, moved(self.BEFORE, seen=self.LATER))
        assert after.task is before

    def test_may_find_it_elsewhere(self):
        after = apply(task(), self.BEFORE, engine.Observe(self.LATER, place=OTHER_PLACE), NOW)
        assert after.operation == moved(self.BEFORE, seen=self.LATER, place=OTHER_PLACE)

    def test_tells_the_requestor_what_is_new(self):
        after = apply(task(), self.BEFORE, engine.Observe(self.LATER, "half"), NOW)
        assert after.task == moved(task(), status_message="half")
        assert after.operation == moved(self.BEFORE, seen=self.LATER)

    def test_tells_nothing_twice(self):
        before = task(status_message="half")
        assert apply(before, self.BEFORE, engine.Observe(self.LATER, "half"), NOW).task is before

    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_leaves_a_task_alone_that_has_ended(self, gone):
        after = apply(gone, self.BEFORE, engine.Observe(self.LATER, "half"), NOW)
        assert after == Applied(gone, moved(self.BEFORE, seen=self.LATER))

    @pytest.mark.parametrize("state", [state for state in OperationState if state != "accepted"])
    def test_is_refused_for_what_the_upstream_did_not_take(self, state):
        assert apply(task(), operation(state=state), engine.Observe(self.LATER), NOW) == ILLEGAL


class TestForget:
    def test_makes_the_outcome_unknown_and_tells_why(self):
        unknown = moved(ACCEPTED, state=OperationState.UNKNOWN, reason="why")
        after = apply(task(), ACCEPTED, engine.Forget("why"), NOW)
        assert after == Applied(failed(task(), "why"), unknown, finished=True)

    def test_of_work_that_was_to_be_cancelled_cancels_the_task(self):
        unknown = moved(ACCEPTED, state=OperationState.UNKNOWN, reason="why")
        assert apply(ASKED, ACCEPTED, engine.Forget("why"), NOW) == Applied(stopped(ASKED), unknown)

    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_leaves_a_task_alone_that_has_ended(self, gone):
        unknown = moved(ACCEPTED, state=OperationState.UNKNOWN, reason="why")
        assert apply(gone, ACCEPTED, engine.Forget("why"), NOW) == Applied(gone, unknown)

    @pytest.mark.parametrize("state", [state for state in OperationState if state != "accepted"])
    def test_is_refused_for_what_the_upstream_did_not_take(self, state):
        assert apply(task(), operation(state=state), engine.Forget("why"), NOW) == ILLEGAL


class TestAnswer:
    @pytest.mark.parametrize("kind", OutcomeKind)
    @pytest.mark.parametrize("before", [SENT, ACCEPTED])
    def test_ends_both(self, kind, before):
        answered = moved(before, state=OperationState.ANSWERED, outcome_kind=kind, learnt=Learnt.ANSWER)
        done = moved(task(), state=TaskState.DONE, outcome_kind=kind, status_message="")
        assert apply(task(), before, engine.Answer(kind), NOW) == Applied(done, answered, finished=True)

    def test_keeps_the_result_long_enough(self):
        late = CREATED + 80_000
        after = apply(task(), SENT, engine.Answer(OutcomeKind.RESULT), late)
        assert after.task.ttl_ms == 80_000 + 20_000
        assert after.task.expires_ms == late + 20_000

    @requirement("OWN-LATE")
    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_that_comes_late_completes_the_operation_only(self, gone):
        answered = moved(
            SENT, state=OperationState.ANSWERED, outcome_kind=OutcomeKind.RESULT, learnt=Learnt.LATE_ANSWER
        )
        assert apply(gone, SENT, engine.Answer(OutcomeKind.RESULT), NOW) == Applied(gone, answered)

    @requirement("OWN-LATE")
    def test_completes_an_unknown_operation(self):
        after = apply(DONE, UNKNOWN, engine.Answer(OutcomeKind.RESULT), NOW)
        assert after == Applied(
            DONE,
            moved(UNKNOWN, state=OperationState.ANSWERED, outcome_kind=OutcomeKind.RESULT, learnt=Learnt.LATE_ANSWER),
        )

    def test_of_an_unknown_operation_is_late_whatever_the_task(self):
        after = apply(task(), UNKNOWN, engine.Answer(OutcomeKind.RESULT), NOW)
        assert after.operation.learnt is Learnt.LATE_ANSWER

    @requirement("TX-CAN-3")
    @pytest.mark.parametrize("kind", [OutcomeKind.RESULT, OutcomeKind.TOOL_ERROR])
    def test_that_won_the_race_against_a_cancellation_counts(self, kind):
        after = apply(ASKED, SENT, engine.Answer(kind), NOW)
        assert after.task == moved(ASKED, state=TaskState.DONE, outcome_kind=kind, status_message="")
        assert after.finished

    def test_that_is_an_error_after_a_cancellation_means_that_it_took(self):
        answered = moved(SENT, state=OperationState.ANSWERED, outcome_kind=OutcomeKind.ERROR, learnt=Learnt.ANSWER)
        assert apply(ASKED, SENT, engine.Answer(OutcomeKind.ERROR), NOW) == Applied(stopped(ASKED), answered)

    @pytest.mark.parametrize("state", ["planned", "answered", "reconciled", "dropped"])
    def test_is_refused_where_none_is_awaited(self, state):
        before = operation(state=OperationState(state))
        assert apply(task(), before, engine.Answer(OutcomeKind.RESULT), NOW) == ILLEGAL


class TestLose:
    @requirement("OWN-ONCE")
    @pytest.mark.parametrize("before", [SENT, READ_ONLY, replace(SENT, effect=Effect.IDEMPOTENT)])
    def test_makes_the_outcome_unknown_and_tells_so(self, before):
        unknown = moved(before, state=OperationState.UNKNOWN, reason=engine.LOST)
        assert apply(task(), before, engine.Lose(), NOW) == Applied(failed(task(), engine.LOST), unknown, finished=True)

    def test_starts_repeatable_work_again(self):
        planned = moved(REPEATABLE, state=OperationState.PLANNED)
        assert apply(task(), REPEATABLE, engine.Lose(), NOW) == Applied(task(), planned)

    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_repeats_nothing_that_nobody_waits_for(self, gone):
        unknown = moved(REPEATABLE, state=OperationState.UNKNOWN, reason=engine.LOST)
        assert apply(gone, REPEATABLE, engine.Lose(), NOW) == Applied(gone, unknown)

    def test_repeats_nothing_that_was_cancelled(self):
        unknown = moved(REPEATABLE, state=OperationState.UNKNOWN, reason=engine.LOST)
        assert apply(ASKED, REPEATABLE, engine.Lose(), NOW) == Applied(stopped(ASKED), unknown)

    def test_repeats_nothing_from_the_deadline_on(self):
        assert apply(task(), REPEATABLE, engine.Lose(), DEADLINE).operation.state is OperationState.UNKNOWN
        assert apply(task(), REPEATABLE, engine.Lose(), DEADLINE - 1).operation.state is OperationState.PLANNED

    @pytest.mark.parametrize("before", [ACCEPTED, replace(ACCEPTED, repeatable=True)])
    def test_loses_no_job_whose_handle_is_known(self, before):
        assert apply(task(), before, engine.Lose(), NOW) == Applied(task(), moved(before))

    @pytest.mark.parametrize("state", ["planned", "answered", "unknown", "reconciled", "dropped"])
    def test_is_refused_for_what_is_not_under_way(self, state):
        assert apply(task(), operation(state=OperationState(state)), engine.Lose(), NOW) == ILLEGAL


class TestGiveUp:
    @pytest.mark.parametrize("before", [operation(), SENT])
    def test_fails_the_task_and_drops_the_operation(self, before):
        dropped = moved(before, state=OperationState.DROPPED, reason="refused")
        after = apply(task(), before, engine.GiveUp("refused"), NOW)
        assert after == Applied(failed(task(), "refused"), dropped, finished=True)

    def test_of_a_cancelled_task_cancels_it(self):
        after = apply(ASKED, SENT, engine.GiveUp("refused"), NOW)
        assert after == Applied(stopped(ASKED), moved(SENT, state=OperationState.DROPPED, reason="refused"))

    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_leaves_a_terminal_task_alone(self, gone):
        assert apply(gone, SENT, engine.GiveUp("refused"), NOW).task is gone

    def test_is_refused_for_what_may_have_acted(self):
        assert apply(task(), ACCEPTED, engine.GiveUp("refused"), NOW) == ILLEGAL


class TestOverdue:
    def test_is_refused_before_the_deadline(self):
        assert apply(task(), SENT, engine.Overdue(), DEADLINE - 1) == Refused(Refusal.NOT_DUE)

    @pytest.mark.parametrize(
        ("before", "state", "tell"),
        [
            (operation(), "dropped", False),
            (READ_ONLY, "dropped", True),
            (SENT, "unknown", True),
            (REPEATABLE, "unknown", True),
        ],
    )
    def test_fails_the_task_and_tells_the_truth_about_the_operation(self, before, state, tell):
        after = apply(task(), before, engine.Overdue(), DEADLINE)
        assert (after.operation.state, after.operation.reason) == (state, engine.DEADLINE)
        assert (after.task.state, after.task.status_message) == ("done", engine.DEADLINE)
        assert (after.task.outcome_kind, after.finished, after.tell_upstream) == ("error", True, tell)
        assert after.operation.version == before.version + 1
        assert after.operation.updated_ms == DEADLINE

    def test_goes_on_watching_a_job(self):
        after = apply(task(), ACCEPTED, engine.Overdue(), DEADLINE)
        assert after.operation is ACCEPTED
        assert after.tell_upstream
        assert after.task.state is TaskState.DONE

    def test_is_refused_for_a_settled_operation(self):
        assert apply(DONE, operation(state=OperationState.ANSWERED), engine.Overdue(), DEADLINE) == ILLEGAL


class TestCancel:
    @pytest.mark.parametrize("final", [True, False])
    def test_of_planned_work_drops_it_at_once(self, final):
        after = apply(task(), operation(), engine.Cancel(final=final), NOW)
        cancelled = moved(task(), state=TaskState.CANCELLED, cancel_asked_ms=NOW, status_message="cancelled on request")
        dropped = moved(operation(), state=OperationState.DROPPED, reason="cancelled on request")
        assert after == Applied(cancelled, dropped)

    @requirement("T25-CAN-1", "T25-CAN-3")
    @pytest.mark.parametrize("before", [SENT, ACCEPTED])
    def test_that_is_final_ends_the_task_and_tells_the_upstream(self, before):
        after = apply(task(), before, engine.Cancel(final=True), NOW)
        cancelled = moved(task(), state=TaskState.CANCELLED, cancel_asked_ms=NOW, status_message="cancelled on request")
        assert after == Applied(cancelled, before, tell_upstream=True)
        assert after.operation is before

    def test_that_is_final_tells_the_upstream_once(self):
        after = apply(ASKED, SENT, engine.Cancel(final=True), NOW)
        assert after.task.state is TaskState.CANCELLED
        assert not after.tell_upstream

    @requirement("TX-CAN-1")
    @pytest.mark.parametrize("before", [SENT, ACCEPTED])
    def test_that_is_cooperative_sets_a_latch_and_tells_the_upstream(self, before):
        after = apply(task(), before, engine.Cancel(final=False), NOW)
        assert after == Applied(moved(task(), cancel_asked_ms=NOW), before, tell_upstream=True)

    @requirement("TX-CAN-1", "T25-CAN-3")
    def test_that_is_cooperative_changes_nothing_the_second_time(self):
        assert apply(ASKED, SENT, engine.Cancel(final=False), NOW) == Refused(Refusal.NOTHING_NEW)

    @requirement("TX-CAN-2")
    def test_by_whoever_only_waited_leaves_a_task_that_was_handed_out(self):
        leaves = engine.Cancel(final=False, unseen=True)
        assert apply(task(), SENT, leaves, NOW) == Refused(Refusal.HANDED_OUT)
        hidden = replace(task(), hidden=True)
        assert apply(hidden, SENT, leaves, NOW) == Applied(moved(hidden, cancel_asked_ms=NOW), SENT, tell_upstream=True)

    @requirement("T25-CAN-2")
    @pytest.mark.parametrize("final", [True, False])
    @pytest.mark.parametrize("gone", [None, DONE, CANCELLED])
    def test_of_a_terminal_task_is_refused(self, gone, final):
        assert apply(gone, SENT, engine.Cancel(final=final), NOW) == TERMINAL

    @pytest.mark.parametrize("final", [True, False])
    def test_of_a_task_whose_work_is_asked_about_ends_it_and_leaves_the_truth_open(self, final):
        after = apply(task(), UNKNOWN, engine.Cancel(final=final), NOW)
        assert after == Applied(replace(stopped(task()), cancel_asked_ms=NOW), moved(UNKNOWN))

    def test_is_refused_for_a_task_that_lost_its_operation(self):
        assert apply(task(), operation(state=OperationState.RECONCILED), engine.Cancel(final=True), NOW) == ILLEGAL


class TestGraceOver:
    @pytest.mark.parametrize(("before", "state"), [(SENT, "unknown"), (READ_ONLY, "dropped"), (operation(), "dropped")])
    def test_cancels_the_task_and_tells_the_truth_about_the_operation(self, before, state):
        after = apply(ASKED, before, engine.GraceOver(), NOW)
        changed = moved(before, state=OperationState(state), reason="cancelled on request")
        assert after == Applied(stopped(ASKED), changed)

    @pytest.mark.parametrize("gone", [None, CANCELLED])
    def test_of_a_terminal_task_concerns_the_operation_only(self, gone):
        after = apply(gone, SENT, engine.GraceOver(), NOW)
        unknown = moved(SENT, state=OperationState.UNKNOWN, reason="cancelled on request")
        assert after == Applied(gone, unknown)

    def test_goes_on_watching_a_job(self):
        assert apply(ASKED, ACCEPTED, engine.GraceOver(), NOW) == Applied(stopped(ASKED), ACCEPTED)

    def test_is_refused_where_nobody_cancelled(self):
        assert apply(task(), SENT, engine.GraceOver(), NOW) == ILLEGAL

    def test_is_refused_for_a_settled_operation(self):
        assert apply(ASKED, operation(state=OperationState.ANSWERED), engine.GraceOver(), NOW) == ILLEGAL
