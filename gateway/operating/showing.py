"""Records as the operator sees them: everything but arguments, results, questions and answers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core.model import Operation, Task
from gateway.store.ledger import Entry

_UNREADABLE = "written by a newer release"


def in_short(entry: Entry) -> Mapping[str, Any]:
    """A line of a list: the task and what is known about its operation, side by side."""
    operation, task = entry.operation, entry.task
    if operation is None:
        return {"id": entry.member, "unreadable": _UNREADABLE}
    return {
        "id": entry.member,
        "upstream": operation.owner.upstream,
        "tool": operation.tool,
        "task": None if task is None else task.state,
        "operation": operation.state,
        "outcome": operation.outcome,
        "effect": operation.effect,
        "attempts": operation.attempt,
        "reason": operation.reason,
        "intended_effect": operation.intended_effect,
        "created_ms": operation.created_ms,
        "updated_ms": operation.updated_ms,
        "owner": _plain(operation.owner),
    }


def in_full(entry: Entry) -> Mapping[str, Any]:
    """One entry with all that may be shown of it."""
    operation, task = entry.operation, entry.task
    if operation is None:
        return in_short(entry)
    return {
        "id": entry.member,
        "task": None if task is None else _task(task),
        "operation": ledger_entry(operation),
    }


def ledger_entry(operation: Operation) -> Mapping[str, Any]:
    """An operation in full, but for arguments. Where the upstream keeps a task of its own is nobody's business."""
    shown = {**_plain(operation), "outcome": operation.outcome}
    for name in ("handle", "place", "seen"):
        shown.pop(name)
    for name, part in (("inquiry", "arguments"), ("approval", "message")):
        if shown[name] is not None:
            del shown[name][part]
    return shown


def _task(task: Task) -> Mapping[str, Any]:
    return {
        "state": task.state,
        "outcome": task.outcome_kind,
        "dialect": task.dialect,
        "hidden": task.hidden,
        "created_ms": task.created_ms,
        "updated_ms": task.updated_ms,
        "expires_ms": task.expires_ms,
        "cancel_asked_ms": task.cancel_asked_ms,
        "questions": sum(question.answer is None for question in task.questions),
    }


def _plain(record: object) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(record)
    return shown
