"""What both dialects share in writing a record."""

from datetime import UTC, datetime
from typing import Final

from gateway import __version__
from gateway.core.model import Task

SERVER_INFO: Final = {"name": "mcp-task-gateway", "version": __version__}
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
OPERATION: Final = "io.github.mcp-task-gateway/operation"
"""Our own `_meta` key: the entry of the ledger that a result or a task belongs to, and what is known of its effect."""
IDEMPOTENCY: Final = "io.github.mcp-task-gateway/idempotency"
"""Our own experimental capability: where a call may carry an idempotency key."""
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"


def timestamp(at_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def ledger(task: Task, outcome: str) -> dict[str, object]:
    """The `_meta` of a task whose effect is kept in the ledger; nothing for others."""
    return {OPERATION: {"id": task.id, "outcome": outcome}} if task.ledger else {}
