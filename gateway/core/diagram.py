"""Draws the transition tables as Mermaid state diagrams; a test holds ARCHITECTURE.md against them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gateway.core.model import SETTLED, TERMINAL, OperationState, TaskState
from gateway.core.operation import OPERATION_TABLE
from gateway.core.task import TASK_TABLE

_S = TypeVar("_S", bound=StrEnum)
_E = TypeVar("_E", bound=StrEnum)


def task_diagram() -> str:
    """The task machine."""
    return _draw(TaskState.WORKING, TASK_TABLE, TERMINAL)


def operation_diagram() -> str:
    """The operation machine."""
    return _draw(OperationState.PLANNED, OPERATION_TABLE, SETTLED)


def _draw(start: _S, table: Mapping[tuple[_S, _E], _S | None], final: frozenset[_S]) -> str:
    edges: dict[tuple[_S, _S], list[str]] = {}
    for (state, event), target in table.items():
        if target is not None:
            edges.setdefault((state, target), []).append(event.value)
    lines = ["stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {source} --> {target}: {' / '.join(events)}" for (source, target), events in edges.items()]
    lines += [f"    {state} --> [*]" for state in type(start) if state in final]
    return "\n".join(lines)
