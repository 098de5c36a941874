"""What goes back to a requestor, as values: one message with its HTTP status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.wire import jsonrpc, tasks_2025, tasks_ext
from gateway.wire.errors import Era, Reject
from gateway.wire.jsonrpc import Members


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
_UNASKED: Final = Reject("input_refused", "the upstream asked something, and nobody can be asked during this call")


def result(request_id: bytes, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
    """A result as it stands."""
    return Reply(200, jsonrpc.result(request_id, body), headers or {})


def call_result(request_id: bytes, body: bytes, era: Era) -> Reply:
    """The result of a plain call, as the era writes it. Questions of an upstream are no result."""
    if _asks(body):
        return refusal(request_id, _UNASKED, era)
    write = tasks_ext.plain_result if era is Era.MODERN else tasks_2025.plain_result
    return result(request_id, write(body))


def call_error(request_id: bytes, body: bytes, era: Era) -> Reply:
    """An upstream's JSON-RPC error: code, message and data as they are, but for codes a modern client must not see."""
    return Reply(200, jsonrpc.error(request_id, tasks_ext.error(body) if era is Era.MODERN else body), reason="error")


def refusal(request_id: bytes | None, reject: Reject, era: Era, *, status: int | None = None) -> Reply:
    """A refusal. `status` is for what is no request and so has no other way to be refused."""
    body = jsonrpc.refusal(request_id, reject, era)
    return Reply(status or reject.http(era), body, reason=reject.reason, data=reject.data)


def _asks(body: bytes) -> bool:
    if b"input_required" not in body:
        return False
    parts: Members = jsonrpc.members(body) or {}
    return jsonrpc.text(parts.get("resultType")) == "input_required"
