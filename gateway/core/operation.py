"""The operation machine as a table. Every (state, event) pair is decided: a next state, or None for a refusal."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gateway.core.model import OperationState


class OperationEvent(StrEnum):
    """What can happen to a fact."""

    SEND = "send"
    NOT_SENT = "not sent"
    ACCEPT = "accept"
    ANSWER = "answer"
    LOSE_REPEATABLE = "lost, repeatable"
    LOSE = "lost"
    RECONCILE = "reconcile"
    DROP = "drop"
    OBSERVE = "observed"
    FORGET = "forgotten"
    DOUBT = "in doubt"


_PLANNED, _SENT, _ACCEPTED = OperationState.PLANNED, OperationState.SENT, OperationState.ACCEPTED
_ANSWERED, _UNKNOWN = OperationState.ANSWERED, OperationState.UNKNOWN
_RECONCILED, _DROPPED = OperationState.RECONCILED, OperationState.DROPPED
_EVENTS = tuple(OperationEvent)
_ABSORBED = (None,) * len(_EVENTS)

_ROWS: Final[Mapping[OperationState, tuple[OperationState | None, ...]]] = {
    # send, not sent, accept, answer, lost repeatable, lost, reconcile, drop, observed, forgotten, in doubt
    _PLANNED: (_SENT, None, None, None, None, None, None, _DROPPED, None, None, _UNKNOWN),
    _SENT: (None, _PLANNED, _ACCEPTED, _ANSWERED, _PLANNED, _UNKNOWN, None, _DROPPED, None, None, None),
    # Work whose handle is known is not lost with its holder: it is looked at again, until nobody can tell any more.
    _ACCEPTED: (None, None, None, _ANSWERED, _ACCEPTED, _ACCEPTED, None, None, _ACCEPTED, _UNKNOWN, None),
    _UNKNOWN: (None, None, None, _ANSWERED, None, None, _RECONCILED, None, None, None, None),
    _ANSWERED: _ABSORBED,
    _RECONCILED: _ABSORBED,
    _DROPPED: _ABSORBED,
}

OPERATION_TABLE: Final[Mapping[tuple[OperationState, OperationEvent], OperationState | None]] = {
    (state, event): target for state, row in _ROWS.items() for event, target in zip(_EVENTS, row, strict=True)
}


def next_operation_state(state: OperationState, event: OperationEvent) -> OperationState | None:
    """The state after the event, or None where the event is refused."""
    return OPERATION_TABLE[state, event]
