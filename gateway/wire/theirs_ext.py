"""Tasks of an upstream that speaks the extension: its own decision, and everything comes with the state. Pure."""

from collections.abc import Mapping
from typing import Final

from mcp_types import CLIENT_CAPABILITIES_META_KEY
from msgspec import Raw

from gateway.wire.errors import TASKS_EXTENSION
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Members, Response, members, text, write
from gateway.wire.theirs import COMPLETED, FAILED, INPUT_REQUIRED, WORKING, Ask, Sight, named, sight

_NO_ID: Final = b"0"
_MOST_QUESTIONS: Final = 100
_DECLARED: Final[Mapping[str, object]] = {"extensions": {TASKS_EXTENSION: {}}}


class DialectExt:
    """The dialect of the extension. The declaration on each request is `declaring`'s business."""

    name = TASKS_EXTENSION
    fetches = False

    def created(self, body: bytes) -> Sight | None:
        """CreateTaskResult: flat, told by its resultType."""
        parts: Members = members(body) or {}
        return sight(parts, "pollIntervalMs", WORKING) if text(parts.get("resultType")) == "task" else None

    def seen(self, task: str, body: bytes) -> Sight | None:
        """The task of tasks/get with its result, error or questions."""
        parts: Members = members(body) or {}
        seen = sight(parts, "pollIntervalMs")
        if seen is None or seen.task != task:
            return None
        outcome, questions = _outcome(seen.state, parts), _questions(seen.state, parts)
        return sight(parts, "pollIntervalMs", outcome=outcome, questions=questions)

    def get(self, task: str) -> Ask:
        """How is the task."""
        return Ask("tasks/get", named(task))

    def result(self, task: str) -> None:
        """There is no such request."""

    def cancel(self, task: str) -> Ask:
        """Stop the task."""
        return Ask("tasks/cancel", named(task))

    def update(self, task: str, key: str, answer: bytes) -> Ask:
        """tasks/update with one answer."""
        return Ask("tasks/update", named(task, inputResponses={key: members(answer) or {}}))

    def answer(self, task: str, answer: bytes) -> bytes:  # noqa: ARG002  # the same for every dialect
        """There are no questions that come as requests; one that does is answered as it is."""
        return answer

    def concerns(self, method: str, params: Members) -> str | None:
        """notifications/tasks."""
        return text(params.get("taskId")) if method == "notifications/tasks" else None


def offers(version: str, capabilities: bytes) -> bool:
    """Whether a server with these capabilities may answer a call with a task, where the extension is declared."""
    known: Members = members(capabilities) or {}
    extensions: Members = members(known["extensions"]) or {} if "extensions" in known else {}
    return version in MODERN_VERSIONS and TASKS_EXTENSION in extensions


def declaring(params: Members) -> Members:
    """The parameters of a request that declares the extension. Only its own callers do: see `modern_client.params`."""
    meta: Members = members(params["_meta"]) or {} if "_meta" in params else {}
    return {**params, "_meta": Raw(write({**meta, CLIENT_CAPABILITIES_META_KEY: _DECLARED}))}


def is_task(body: bytes) -> bool:
    """Whether a result says of itself that it stands for a task, usable or not."""
    return text((members(body) or {}).get("resultType")) == "task"


def _outcome(state: str, parts: Members) -> Response | None:
    name = {COMPLETED: "result", FAILED: "error"}.get(state)
    raw = None if name is None else parts.get(name)
    if raw is None or members(raw) is None:
        return None
    return Response(_NO_ID, state == COMPLETED, bytes(raw))


def _questions(state: str, parts: Members) -> Mapping[str, Ask]:
    if state != INPUT_REQUIRED or "inputRequests" not in parts:
        return {}
    asked: dict[str, Ask] = {}
    for key, raw in list((members(parts["inputRequests"]) or {}).items())[:_MOST_QUESTIONS]:
        request: Members = members(raw) or {}
        method = text(request.get("method"))
        params = members(request["params"]) if "params" in request else Members()
        if method is not None and params is not None:
            asked[key] = Ask(method, params)
    return asked
