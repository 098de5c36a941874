"""The task machine as a table. Every (state, event) pair is decided: a next state, or None for a refusal."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gateway.core.model import TaskState


class TaskEvent(StrEnum):
    """What can happen to a promise."""

    ASK = "ask"
    RESUME = "all answered"
    FINISH = "finish"
    CANCEL = "cancel"


_WORKING, _INPUT = TaskState.WORKING, TaskState.INPUT_REQUIRED
_DONE, _CANCELLED = TaskState.DONE, TaskState.CANCELLED
_EVENTS = (TaskEvent.ASK, TaskEvent.RESUME, TaskEvent.FINISH, TaskEvent.CANCEL)

_ROWS: Final[Mapping[TaskState, tuple[TaskState | None, ...]]] = {
    #            ask     resume    finish  cancel
    _WORKING: (_INPUT, None, _DONE, _CANCELLED),
    _INPUT: (_INPUT, _WORKING, _DONE, _CANCELLED),
    _DONE: (None, None, None, None),
    _CANCELLED: (None, None, None, None),
}

TASK_TABLE: Final[Mapping[tuple[TaskState, TaskEvent], TaskState | None]] = {
    (state, event): target for state, row in _ROWS.items() for event, target in zip(_EVENTS, row, strict=True)
}


def next_task_state(state: TaskState, event: TaskEvent) -> TaskState | None:
    """The state after the event, or None where the event is refused (T25-ST-1: terminal states are absorbing)."""
    return TASK_TABLE[state, event]
