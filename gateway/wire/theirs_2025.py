"""Tasks of an upstream that speaks 2025-11-25: asked for in the call, polled, their result fetched. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from gateway.wire.intent import TASKS_2025
from gateway.wire.jsonrpc import Members, items, members, text, write
from gateway.wire.render import RELATED_TASK
from gateway.wire.theirs import WORKING, Ask, Sight, named, sight

_WITH_TASKS: Final = frozenset({"optional", "required"})


class Dialect2025:
    """The dialect of the core. Questions come as requests, on the stream of `result` or of the session."""

    name = TASKS_2025
    fetches = True

    def created(self, body: bytes) -> Sight | None:
        """CreateTaskResult: a `task` where a tool's result has its `content`."""
        parts = members(body)
        raw = None if parts is None or "content" in parts else parts.get("task")
        task = None if raw is None else members(raw)
        return None if task is None else sight(task, "pollInterval", WORKING)

    def seen(self, task: str, body: bytes) -> Sight | None:
        """The flat task of tasks/get."""
        seen = sight(members(body) or {}, "pollInterval")
        return seen if seen is not None and seen.task == task else None

    def get(self, task: str) -> Ask:
        """How is the task."""
        return Ask("tasks/get", named(task))

    def result(self, task: str) -> Ask:
        """What did the task come to. Waits, and brings the questions of the task."""
        return Ask("tasks/result", named(task))

    def cancel(self, task: str) -> Ask:
        """Stop the task."""
        return Ask("tasks/cancel", named(task))

    def update(self, task: str, key: str, answer: bytes) -> None:
        """There are no questions that come with the state."""

    def answer(self, task: str, answer: bytes) -> bytes:
        """A result with the task that it belongs to among its `_meta`."""
        parts: Members = members(answer) or {}
        meta: Members = members(parts["_meta"]) or {} if "_meta" in parts else {}
        mine: dict[str, object] = {**meta, RELATED_TASK: {"taskId": task}}
        return write({**parts, "_meta": mine})

    def concerns(self, method: str, params: Members) -> str | None:
        """notifications/tasks/status."""
        return text(params.get("taskId")) if method == "notifications/tasks/status" else None


def offers(version: str, capabilities: bytes) -> bool:
    """Whether a server with these capabilities takes tool calls as tasks."""
    return version == TASKS_2025 and _within(capabilities, "tasks", "requests", "tools", "call") is not None


def cancels(capabilities: bytes) -> bool:
    """Whether a server with these capabilities takes tasks/cancel."""
    return _within(capabilities, "tasks", "cancel") is not None


def asking(params: Members, ttl_ms: int) -> Members:
    """The parameters of a call that asks for a task which is kept that long."""
    return {**params, "task": Raw(write({"ttl": ttl_ms}))}


def supports(listed: bytes) -> tuple[Mapping[str, bool], str | None]:
    """Which tools of a list may be called as tasks, and the cursor of what follows."""
    page: Members = members(listed) or {}
    found = {}
    for raw in items(page.get("tools")):
        tool: Members = members(raw) or {}
        execution: Members = members(tool["execution"]) or {} if "execution" in tool else {}
        name = text(tool.get("name"))
        if name is not None:
            found[name] = text(execution.get("taskSupport")) in _WITH_TASKS
    return found, text(page.get("nextCursor"))


def related(params: Members) -> str | None:
    """The task that a request or a notification says that it belongs to."""
    meta: Members = members(params["_meta"]) or {} if "_meta" in params else {}
    task: Members = members(meta[RELATED_TASK]) or {} if RELATED_TASK in meta else {}
    return text(task.get("taskId"))


def _within(body: bytes, *path: str) -> Members | None:
    parts = members(body)
    for name in path:
        raw = None if parts is None else parts.get(name)
        parts = None if raw is None else members(raw)
    return parts
