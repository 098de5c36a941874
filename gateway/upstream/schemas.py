"""What a caller must know of an upstream's tools: which arguments go into headers, and which tools are unusable.

Remembered are only tools that ask for headers, so many at most. What is forgotten costs one refusal of the server.
"""

from typing import Final

from msgspec import Raw

from gateway.telemetry import Telemetry
from gateway.wire.jsonrpc import Members, items, members, text, write
from gateway.wire.mirrored import Mirrors, Unusable, mirrors

_MOST: Final = 1000


class Schemas:
    """Of one upstream."""

    def __init__(self, upstream: str, telemetry: Telemetry) -> None:
        self._upstream = upstream
        self._telemetry = telemetry
        self._mirrors: dict[str, Mirrors] = {}
        self._unusable: set[str] = set()
        self.complete = False
        """Whether the whole list was seen, at some time."""

    def of(self, tool: str) -> Mirrors:
        """Which arguments of a tool go into headers."""
        return self._mirrors.get(tool, ())

    def learn(self, body: bytes) -> bytes:
        """Reads a page of `tools/list`; gives it without the tools that a client over HTTP must not use.

        A page without such tools stays as it is.
        """
        result: Members = members(body) or {}
        tools = items(result.get("tools"))
        kept = [tool for tool in tools if self._usable(members(tool) or {})]
        if "nextCursor" not in result and tools:
            self.complete = True
        return body if len(kept) == len(tools) else write({**result, "tools": kept})

    def _usable(self, tool: Members) -> bool:
        name = text(tool.get("name")) or ""
        found = mirrors(tool.get("inputSchema"))
        self._mirrors.pop(name, None)
        if isinstance(found, Unusable):
            self._warn(name, found)
            return False
        self._unusable.discard(name)
        if found and len(self._mirrors) < _MOST:
            self._mirrors[name] = found
        return True

    def _warn(self, name: str, found: Unusable) -> None:
        """Once for each tool."""
        if name not in self._unusable and len(self._unusable) < _MOST:
            self._unusable.add(name)
            self._telemetry.upstream_tool_unusable(upstream=self._upstream, tool=name, reason=found.reason)


def next_cursor(body: bytes) -> Raw | None:
    """Where a list goes on."""
    cursor = (members(body) or {}).get("nextCursor")
    return None if text(cursor) is None else cursor
