"""The dialect of revision 2025-11-25: how a record looks to a client that speaks Tasks of the core."""

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from gateway.core.model import OutcomeKind, Task, TaskState
from gateway.wire.jsonrpc import Members, members, write
from gateway.wire.render import RELATED_TASK, ledger, timestamp

_STATUS: Final[Mapping[TaskState, str]] = {
    TaskState.WORKING: "working",
    TaskState.INPUT_REQUIRED: "input_required",
    TaskState.CANCELLED: "cancelled",
}


def capability(*, listing: bool) -> dict[str, object]:
    """T25-CAP-1; `list` only where callers are authenticated (T25-CAP-2)."""
    methods: dict[str, object] = {"list": {}} if listing else {}
    return {**methods, "cancel": {}, "requests": {"tools": {"call": {}}}}


def status(task: Task) -> str:
    """T25-ST-2: a result with `isError` makes the task failed."""
    if task.state is TaskState.DONE:
        return "completed" if task.outcome_kind is OutcomeKind.RESULT else "failed"
    return _STATUS[task.state]


def flat(task: Task) -> dict[str, object]:
    """T25-GET-1: the Task. `ttl` is always there: some clients refuse a task without the key."""
    message = {"statusMessage": task.status_message} if task.status_message else {}
    return {
        "taskId": task.id,
        "status": status(task),
        **message,
        "createdAt": timestamp(task.created_ms),
        "lastUpdatedAt": timestamp(task.updated_ms),
        "ttl": task.ttl_ms,
        "pollInterval": task.poll_interval_ms,
    }


def task_result(task: Task, outcome: str) -> bytes:
    """The result of tasks/get and tasks/cancel. `outcome` is what is known of the effect."""
    return write({**flat(task), **_meta(task, outcome)})


def create_result(task: Task, outcome: str) -> bytes:
    """T25-NEW-1: CreateTaskResult."""
    return write({"task": flat(task), **_meta(task, outcome)})


def _meta(task: Task, outcome: str) -> dict[str, object]:
    told = ledger(task, outcome)
    return {"_meta": told} if told else {}


def final_result(task: Task, body: bytes) -> bytes:
    """T25-RES-2, T25-RES-3: what the call would have answered, with the related task among its `_meta`."""
    result = members(body) or {}
    result.pop("resultType", None)
    meta: Members = members(result["_meta"]) or {} if "_meta" in result else {}
    meta[RELATED_TASK] = Raw(write({"taskId": task.id}))
    result["_meta"] = Raw(write(meta))
    return write(result)
