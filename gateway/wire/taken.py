"""Whether an upstream's answer to a call is a task of its own, in whichever dialect. Pure."""

from collections.abc import Mapping
from typing import Final

from gateway.wire.errors import TASKS_EXTENSION
from gateway.wire.intent import TASKS_2025
from gateway.wire.jsonrpc import Notification, Response
from gateway.wire.theirs import Dialect, Sight
from gateway.wire.theirs_2025 import Dialect2025, related
from gateway.wire.theirs_ext import DialectExt, is_task

DIALECTS: Final[Mapping[str, Dialect]] = {TASKS_2025: Dialect2025(), TASKS_EXTENSION: DialectExt()}
"""By the names that records keep."""


def taken(response: Response) -> tuple[Dialect, Sight] | None:
    """The task that an answer stands for, asked for or not: it is never handed on as a tool's result."""
    for dialect in DIALECTS.values():
        created = dialect.created(response.body) if response.ok else None
        if created is not None:
            return dialect, created
    return None


def about(note: Notification) -> str | None:
    """The task of an upstream's own that a notification says it belongs to."""
    concerned = (dialect.concerns(note.method, note.params) for dialect in DIALECTS.values())
    return next((task for task in concerned if task is not None), None) or related(note.params)


def unusable(response: Response) -> bool:
    """Whether an answer says that it is a task but not which: neither can it be followed, nor is it a result."""
    return response.ok and is_task(response.body) and taken(response) is None
