"""What each era sees of an upstream's tool list. Everything in a definition passes, except who may run it as a task."""

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Raw

from gateway.wire import passing
from gateway.wire.intent import TASKS_2025
from gateway.wire.jsonrpc import Members, items, members, text, write

Support: TypeAlias = Callable[[str], str | None]
_EXECUTION: Final = "execution"


def legacy_list(body: bytes, version: str, support: Support) -> bytes:
    """T25-CAP-3, T25-CAP-4: `execution.taskSupport` as the policy says, in the one revision that knows it.

    A tool of which `support` gives None is shown without: it may be a task all the same. What a modern upstream says
    of the list itself stays behind.
    """
    result: Members = members(passing.legacy_result(body)) or {}
    shown = support if version == TASKS_2025 else None
    return write({**result, "tools": _each(result, shown)})


def modern_list(body: bytes) -> bytes:
    """The list of revision 2026-07-28, where a tool says nothing about tasks."""
    result: Members = members(body) or {}
    return passing.result("tools/list", write({**result, "tools": _each(result, None)}))


def _each(result: Members, support: Support | None) -> list[object]:
    return [_tool(tool, support) for tool in items(result.get("tools"))]


def _tool(raw: Raw, support: Support | None) -> object:
    tool = members(raw)
    if tool is None:
        return raw
    shown = None if support is None else support(text(tool.get("name")) or "")
    if shown is None:
        tool.pop(_EXECUTION, None)
        return tool
    execution: dict[str, object] = dict(members(tool[_EXECUTION]) or {}) if _EXECUTION in tool else {}
    execution["taskSupport"] = shown
    return {**tool, _EXECUTION: execution}
