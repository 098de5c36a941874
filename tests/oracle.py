"""What may happen to a task and to an operation, written down from the specification and not from the code."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

FINAL = frozenset({"completed", "failed", "cancelled"})
STATUSES: Mapping[str, frozenset[str]] = {
    "working": frozenset({"input_required", *FINAL}),
    "input_required": frozenset({"working", *FINAL}),
    **{status: frozenset() for status in FINAL},
}
"""Both dialects: from each status to those that may follow it."""

OPERATIONS: Mapping[str, frozenset[str]] = {
    "planned": frozenset({"sent", "dropped"}),
    "sent": frozenset({"planned", "accepted", "answered", "unknown", "dropped"}),
    "accepted": frozenset({"accepted", "answered", "unknown"}),
    "unknown": frozenset({"answered", "reconciled"}),
    "answered": frozenset(),
    "reconciled": frozenset(),
    "dropped": frozenset(),
}
TASKS: Mapping[str, frozenset[str]] = {
    "working": frozenset({"input_required", "done", "cancelled"}),
    "input_required": frozenset({"working", "done", "cancelled"}),
    "done": frozenset(),
    "cancelled": frozenset(),
    "expired": frozenset(),
}
_OPEN = frozenset({"planned", "sent"})


def wrong_steps(seen: Sequence[str], allowed: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """Steps that are not allowed. Not every state is seen, so that one may be left out, but none may be undone."""
    reachable = _closure(allowed)
    return [(one, two) for one, two in pairwise(seen) if one != two and two not in reachable[one]]


def wrong_moves(history: Sequence[str], allowed: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """Moves that are not allowed, where each state is there."""
    return [(one, two) for one, two in pairwise(history) if two not in allowed[one]]


def wrong_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A task that is done while its work may still begin or answer would promise what is not known."""
    return [(task, operation) for task, operation in pairs if task == "done" and operation in _OPEN]


def _closure(allowed: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    found = dict(allowed)
    while True:
        wider = {one: frozenset().union(two, *(found[three] for three in two)) for one, two in found.items()}
        if wider == found:
            return found
        found = wider
