"""The transition tables against the tables of the specification and the design, written out again by hand."""

import itertools

import pytest

from gateway.core.model import IN_FLIGHT, SETTLED, TERMINAL, OperationState, TaskState
from gateway.core.operation import OPERATION_TABLE, OperationEvent, next_operation_state
from gateway.core.task import TASK_TABLE, TaskEvent, next_task_state
from tests.requirements import requirement

TASK_MOVES = {
    ("working", "ask"): "input_required",
    ("working", "finish"): "done",
    ("working", "cancel"): "cancelled",
    ("input_required", "ask"): "input_required",
    ("input_required", "all answered"): "working",
    ("input_required", "finish"): "done",
    ("input_required", "cancel"): "cancelled",
}
OPERATION_MOVES = {
    ("planned", "send"): "sent",
    ("planned", "drop"): "dropped",
    ("planned", "in doubt"): "unknown",
    ("sent", "not sent"): "planned",
    ("sent", "accept"): "accepted",
    ("sent", "answer"): "answered",
    ("sent", "lost, repeatable"): "planned",
    ("sent", "lost"): "unknown",
    ("sent", "drop"): "dropped",
    ("accepted", "answer"): "answered",
    ("accepted", "lost, repeatable"): "accepted",
    ("accepted", "lost"): "accepted",
    ("accepted", "observed"): "accepted",
    ("accepted", "forgotten"): "unknown",
    ("unknown", "answer"): "answered",
    ("unknown", "reconcile"): "reconciled",
}


@requirement("T25-ST-1")
@pytest.mark.parametrize(("state", "event"), list(itertools.product(TaskState, TaskEvent)))
def test_a_task_moves_as_the_specification_says(state, event):
    assert next_task_state(state, event) == TASK_MOVES.get((state.value, event.value))


@pytest.mark.parametrize(("state", "event"), list(itertools.product(OperationState, OperationEvent)))
def test_an_operation_moves_as_the_design_says(state, event):
    assert next_operation_state(state, event) == OPERATION_MOVES.get((state.value, event.value))


def test_every_pair_is_decided():
    assert set(TASK_TABLE) == set(itertools.product(TaskState, TaskEvent))
    assert set(OPERATION_TABLE) == set(itertools.product(OperationState, OperationEvent))


def test_the_groups_of_states():
    assert {"done", "cancelled"} == TERMINAL
    assert {"answered", "reconciled", "dropped"} == SETTLED
    assert {"sent", "accepted"} == IN_FLIGHT
