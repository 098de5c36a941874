"""The dialect of the extension `io.modelcontextprotocol/tasks` with revision 2026-07-28."""

from collections.abc import Mapping
from typing import Final

from mcp_types import SERVER_INFO_META_KEY
from msgspec import Raw

from gateway.core.model import OutcomeKind, Task, TaskState
from gateway.wire.errors import modern_error
from gateway.wire.jsonrpc import Members, integer, members, write
from gateway.wire.render import SERVER_INFO, SUBSCRIPTION_ID, ledger, timestamp

_STATUS: Final[Mapping[TaskState, str]] = {
    TaskState.WORKING: "working",
    TaskState.INPUT_REQUIRED: "input_required",
    TaskState.CANCELLED: "cancelled",
}
_META: Final = {"_meta": {SERVER_INFO_META_KEY: SERVER_INFO}}
_COMPLETE: Final = {"resultType": "complete"}
ACKNOWLEDGED: Final = write({**_COMPLETE, **_META})
"""TX-UPD-1, TX-CAN-1: an empty acknowledgement."""


def status(task: Task) -> str:
    """TX-GET-2: `failed` is for JSON-RPC errors only."""
    if task.state is TaskState.DONE:
        return "failed" if task.outcome_kind is OutcomeKind.ERROR else "completed"
    return _STATUS[task.state]


def flat(task: Task) -> dict[str, object]:
    """The Task: flat, with the units in the names."""
    message = {"statusMessage": task.status_message} if task.status_message else {}
    return {
        "taskId": task.id,
        "status": status(task),
        **message,
        "createdAt": timestamp(task.created_ms),
        "lastUpdatedAt": timestamp(task.updated_ms),
        "ttlMs": task.ttl_ms,
        "pollIntervalMs": task.poll_interval_ms,
    }


def create_result(task: Task, outcome: str) -> bytes:
    """TX-NEW-1: CreateTaskResult. `outcome` is what is known of the effect."""
    return write({"resultType": "task", **flat(task), **_meta(task, outcome)})


def detailed(task: Task, body: bytes | None, outcome: str) -> bytes:
    """TX-GET-1: the Task with its result, error or questions. A stored result is spliced, never parsed."""
    return write({**_COMPLETE, **notification(task, body), **_meta(task, outcome)})


def _meta(task: Task, outcome: str) -> dict[str, object]:
    return {"_meta": {**_META["_meta"], **ledger(task, outcome)}}


def notification(task: Task, body: bytes | None) -> dict[str, object]:
    """TX-NOT-1: what a notification says, which is what tasks/get would answer."""
    details: dict[str, object] = {}
    if task.state is TaskState.INPUT_REQUIRED:
        details["inputRequests"] = _questions(task)
    elif task.state is TaskState.DONE and body is not None:
        failed = task.outcome_kind is OutcomeKind.ERROR
        details["error" if failed else "result"] = Raw(error(body) if failed else complete(body))
    return {**flat(task), **details}


def listen_result(request_id: bytes) -> bytes:
    """TX-NOT-3: how a stream of subscriptions/listen ends that the gateway ends."""
    meta = {SERVER_INFO_META_KEY: SERVER_INFO, SUBSCRIPTION_ID: Raw(request_id)}
    return write({**_COMPLETE, "_meta": meta})


def input_required(task: Task, request_state: str) -> bytes:
    """TX-NEW-3: what has to be answered before the task is made; the state comes back with the answers."""
    asked = {"resultType": "input_required", "inputRequests": _questions(task), "requestState": request_state}
    return write({**asked, **_META})


def complete(body: bytes) -> bytes:
    """A stored result (which never has a `resultType`) as this revision writes it (TX-HTTP-5)."""
    rest = body[1:].lstrip()
    return b'{"resultType":"complete"' + (b"" if rest.startswith(b"}") else b",") + rest


def plain_result(body: bytes) -> bytes:
    """TX-HTTP-5: the result of a plain call; the upstream's own `_meta` wins over ours, its `resultType` does not."""
    result: Members = members(body) or {}
    result.pop("resultType", None)
    meta = members(result["_meta"]) if "_meta" in result else {}
    merged = {SERVER_INFO_META_KEY: SERVER_INFO, **(meta or {})}
    return write({"resultType": "complete", **result, "_meta": merged})


def error(body: bytes) -> bytes:
    """TX-HTTP-6: an upstream's error object, with the code that a modern client may see."""
    parts: Members = members(body) or {}
    code = integer(parts.get("code"))
    allowed = None if code is None else modern_error(code)
    return body if allowed == code else write({**parts, "code": allowed})


def _questions(task: Task) -> dict[str, object]:
    return {
        question.key: {"method": question.method, "params": Raw(question.params.encode())}
        for question in task.questions
        if question.answer is None
    }
