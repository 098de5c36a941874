"""What is left of an operation that must not name anybody any more."""

from dataclasses import replace

import pytest

from gateway.core.erasure import erased, may_be_erased
from gateway.core.model import Approval, Inquiry, Learnt, OperationState, OutcomeKind, Place, Seen, Step
from tests.records import operation
from tests.requirements import requirement

FULL = operation(
    state=OperationState.ANSWERED,
    arguments_digest="d",
    attempt=1,
    handle="h",
    place=Place("2025-11-25"),
    seen=Seen("working", 1, 2),
    correlation="c",
    outcome_kind=OutcomeKind.RESULT,
    learnt=Learnt.ANSWER,
    reason="ours",
    idempotency_key="k",
    object_version='"v"',
    intended_effect="pay ann",
    receipt='"r"',
    inquiry=Inquiry("t", "{}", 1),
    approval=Approval("ok?", 1),
    history=(Step(1, OperationState.ANSWERED, "answer"),),
)
LEFT = replace(
    FULL,
    owner=replace(FULL.owner, subject="erased:p"),
    version=6,
    handle=None,
    place=None,
    seen=None,
    inquiry=None,
    approval=None,
    **dict.fromkeys(
        ("arguments_digest", "correlation", "idempotency_key", "object_version", "intended_effect", "receipt"), ""
    ),
)


@requirement("OWN-ERASE")
def test_what_happened_stays_and_whom_it_happened_for_does_not():
    assert erased(FULL, "p") == LEFT


@requirement("OWN-ERASE")
def test_an_unknown_one_keeps_its_key_so_that_nothing_is_begun_twice():
    unknown = erased(replace(FULL, state=OperationState.UNKNOWN), "p")
    assert unknown == replace(LEFT, state=OperationState.UNKNOWN, idempotency_key="k")


def test_what_a_person_gave_as_a_reason_goes():
    assert erased(replace(FULL, learnt=Learnt.RESOLVED), "p").reason == ""


@pytest.mark.parametrize("state", OperationState)
def test_only_what_nobody_works_on_is_erased(state):
    over = {"answered", "reconciled", "dropped", "unknown"}
    assert may_be_erased(operation(state=state)) is (state in over)
