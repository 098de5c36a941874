"""What a client hears whose bounded call took too long: what is known of the effect, and nothing else."""

import pytest

from gateway.core.model import Effect, Operation, OperationState, OutcomeKind, Owner
from gateway.requests.calls import timed_out
from tests.requirements import requirement


def operation(state, **changes):
    owner = Owner("i", "s", "t", "u")
    return Operation("id", owner, "pay", state, changes.pop("effect", Effect.CONSEQUENTIAL), 0, 0, 0, **changes)


@requirement("OWN-LEDGER")
@pytest.mark.parametrize(
    ("found", "attached", "reason", "outcome"),
    [
        (operation(OperationState.SENT), False, "outcome_unknown", "unknown"),
        (operation(OperationState.ACCEPTED), False, "outcome_unknown", "unknown"),
        (operation(OperationState.UNKNOWN), True, "outcome_unknown", "unknown"),
        (operation(OperationState.SENT, effect=Effect.READ_ONLY), False, "deadline", "none"),
        (operation(OperationState.DROPPED), False, "deadline", "none"),
        (operation(OperationState.ANSWERED, outcome_kind=OutcomeKind.RESULT), False, "deadline", "succeeded"),
        (operation(OperationState.SENT), True, "deadline", "pending"),
        (operation(OperationState.ACCEPTED), True, "deadline", "pending"),
        (None, False, "outcome_unknown", "unknown"),
    ],
)
def test_nothing_is_claimed_that_is_not_known(found, attached, reason, outcome):
    told = timed_out(found, 50, attached=attached)
    assert (told.reason, told.data["operation"]["outcome"]) == (reason, outcome)
    assert ("goes on" in told.message) == (outcome == "pending")
