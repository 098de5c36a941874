"""The one table of refusals. A refusal is a value; how it is written depends on the era of the request.

Codes of the specification come first; ours lie outside -32768..-32000 and never change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
)

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
_LEGACY_NOT_FOUND: Final = -32002
_RESERVED: Final = range(-32099, -32019)
"""Codes that only the modern revisions themselves may give a meaning; -32042 of 2025-11-25 is among them."""


MEANT: Final[Mapping[int, int]] = {
    HEADER_MISMATCH: 400,
    MISSING_REQUIRED_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""Codes to which the modern revisions give an HTTP status of their own."""


class Era(Enum):
    """Which family of revisions a request speaks: with a handshake and sessions, or with everything in each request."""

    LEGACY = "legacy"
    MODERN = "modern"


@dataclass(frozen=True, slots=True)
class _Row:
    legacy: int
    modern: int
    legacy_http: int = 200
    modern_http: int = 200
    retryable: bool = False


_TABLE: Final[Mapping[str, _Row]] = {
    "parse": _Row(PARSE_ERROR, PARSE_ERROR, 400, 400),
    "invalid_request": _Row(INVALID_REQUEST, INVALID_REQUEST, 400, 400),
    "too_large": _Row(INVALID_REQUEST, INVALID_REQUEST, 413, 413),
    "headers": _Row(HEADER_MISMATCH, HEADER_MISMATCH, 400, 400),
    "meta": _Row(INVALID_PARAMS, INVALID_PARAMS, 400, 400),
    "version": _Row(INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION, 400, 400),
    "capability": _Row(MISSING_REQUIRED_CLIENT_CAPABILITY, MISSING_REQUIRED_CLIENT_CAPABILITY, 200, 400),
    "method": _Row(METHOD_NOT_FOUND, METHOD_NOT_FOUND, 200, 404),
    "task_forbidden": _Row(METHOD_NOT_FOUND, METHOD_NOT_FOUND, 200, 404),
    "task_required": _Row(METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, 200, 400),
    "not_found": _Row(INVALID_PARAMS, INVALID_PARAMS),
    "terminal": _Row(INVALID_PARAMS, INVALID_PARAMS),
    "arguments": _Row(INVALID_PARAMS, INVALID_PARAMS),
    "session": _Row(INVALID_REQUEST, INVALID_REQUEST, 404, 404),
    "session_missing": _Row(INVALID_REQUEST, INVALID_REQUEST, 400, 400),
    "unauthenticated": _Row(INVALID_REQUEST, INVALID_REQUEST, 401, 401),
    "forbidden": _Row(INVALID_REQUEST, INVALID_REQUEST, 403, 403),
    "origin": _Row(INVALID_REQUEST, INVALID_REQUEST, 403, 403),
    "quota": _Row(42902, 42902, retryable=True),
    "switch": _Row(50302, 50302, retryable=True),
    "store_away": _Row(50303, 50303, retryable=True),
    "key_conflict": _Row(40901, 40901),
    "key_settled": _Row(40902, 40902),
    "draining": _Row(50306, 50306, retryable=True),
    "outcome_unknown": _Row(50305, 50305),
    "deadline": _Row(50401, 50401),
    "expired_input": _Row(50402, 50402),
    "cancelled": _Row(49901, 49901),
    "input_refused": _Row(49902, 49902),
    "upstream_down": _Row(50201, 50201, retryable=True),
    "upstream_bad": _Row(50202, 50202),
    "internal": _Row(INTERNAL_ERROR, INTERNAL_ERROR),
}

REASONS: Final = frozenset(_TABLE)
"""Every reason there is; metrics use them as label values."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A refusal. `message` names no secret and no other caller; `data` is what the client program can use."""

    reason: str
    message: str
    data: Mapping[str, object] = field(default_factory=dict)

    def http(self, era: Era) -> int:
        """The HTTP status of this refusal in that era."""
        row = _TABLE[self.reason]
        return row.modern_http if era is Era.MODERN else row.legacy_http

    def code(self, era: Era) -> int:
        """The JSON-RPC code of this refusal in that era."""
        row = _TABLE[self.reason]
        return row.modern if era is Era.MODERN else row.legacy

    def body(self, era: Era) -> bytes:
        """The JSON-RPC error object."""
        data: dict[str, object] = {"reason": self.reason, "retryable": _TABLE[self.reason].retryable, **self.data}
        return msgspec.json.encode({"code": self.code(era), "message": self.message, "data": data})


def unsupported_version(requested: str, supported: tuple[str, ...]) -> Reject:
    """TX-HTTP-4: names the versions that are served."""
    data = {"supported": list(supported), "requested": requested}
    return Reject("version", "Unsupported protocol version", data)


def needs_tasks(reason: str, message: str) -> Reject:
    """TX-CAP-4, TX-CAP-5: names the extension that the request must declare."""
    return Reject(reason, message, {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})


def needs_elicitation() -> Reject:
    """A client that cannot be asked cannot agree: names what the session or the request must declare."""
    message = "This tool asks for approval: the client must declare elicitation by form"
    return Reject("capability", message, {"requiredCapabilities": {"elicitation": {"form": {}}}})


def not_found(*, expired: bool = False) -> Reject:
    """T25-GET-2: a foreign id is answered exactly like an unknown one; only the owner can learn that a task expired."""
    return Reject("not_found", "Task has expired" if expired else "Task not found")


def switched_off(scope: str) -> Reject:
    """An operator blocks new starts. `scope` is a field of the switches; of a tenant it is not told which."""
    kind, _, _ = scope.partition(":")
    return Reject("switch", f"New starts are switched off ({kind}): try again later", {"scope": kind})


def modern_error(code: int) -> int:
    """TX-HTTP-6: the code of an upstream's error as a modern client may see it."""
    if code == _LEGACY_NOT_FOUND:
        return INVALID_PARAMS
    return INTERNAL_ERROR if code in _RESERVED else code
