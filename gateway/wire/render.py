"""What both dialects share in writing a record."""

from datetime import UTC, datetime
from typing import Final

from gateway import __version__

SERVER_INFO: Final = {"name": "mcp-task-gateway", "version": __version__}
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"


def timestamp(at_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
