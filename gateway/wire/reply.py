"""What goes back to a requestor, as values: one message with its HTTP status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.wire import jsonrpc, tasks_ext
from gateway.wire.errors import MEANT, Era, Reject


@dataclass(frozen=True, slots=True)
class Reply:
    """One message, ready to be written. `reason` and `data` are those of a refusal, for whoever adds to it.

    `event_id` is what a stream that it ends can be taken up from.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    event_id: str | None = None


ACCEPTED: Final = Reply(202, b"")


def result(request_id: bytes, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
    """A result as it stands."""
    return Reply(200, jsonrpc.result(request_id, body), headers or {})


def call_result(request_id: bytes, body: bytes, era: Era) -> Reply:
    """The result of a call of a tool, as the era writes it."""
    return result(request_id, tasks_ext.plain_result(body) if era is Era.MODERN else body)


def call_error(request_id: bytes, body: bytes, era: Era) -> Reply:
    """An upstream's JSON-RPC error: code, message and data as they are, but for codes a modern client must not see."""
    return Reply(200, jsonrpc.error(request_id, tasks_ext.error(body) if era is Era.MODERN else body), reason="error")


def passed_error(request_id: bytes, body: bytes) -> Reply:
    """An error of a modern upstream for a modern client: what their revision gives a meaning stays, with its status."""
    status = MEANT.get(jsonrpc.integer((jsonrpc.members(body) or {}).get("code")) or 0)
    if status is None:
        return call_error(request_id, body, Era.MODERN)
    return Reply(status, jsonrpc.error(request_id, body), reason="error")


def refusal(request_id: bytes | None, reject: Reject, era: Era, *, status: int | None = None) -> Reply:
    """A refusal. `status` is for what is no request and so has no other way to be refused."""
    body = jsonrpc.refusal(request_id, reject, era)
    return Reply(status or reject.http(era), body, reason=reject.reason, data=reject.data)
