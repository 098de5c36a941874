"""What the runner writes for an upstream and reads from it, as bytes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from msgspec import Raw

from gateway.core.engine import DEADLINE as DEADLINE_MESSAGE
from gateway.core.engine import IN_DOUBT as IN_DOUBT_MESSAGE
from gateway.core.engine import LOST as LOST_MESSAGE
from gateway.core.engine import UNANSWERED as UNANSWERED_MESSAGE
from gateway.core.model import Operation, OutcomeKind
from gateway.wire import limits
from gateway.wire.errors import Era, Reject
from gateway.wire.jsonrpc import Members, Response, members, write
from gateway.wire.pointers import find, path_of
from gateway.wire.render import OPERATION, RELATED_TASK

__all__ = ["DEADLINE", "IN_DOUBT", "LOST", "UNANSWERED", "Response", "call_params", "failure", "forwarded", "outcome"]

_BETWEEN_PEERS: Final = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        LOG_LEVEL_META_KEY,
        RELATED_TASK,
        "progressToken",
    }
)
"""`_meta` keys that are said between a client and its server, which is this gateway."""


def failure(reject: Reject, operation: Operation | None = None) -> bytes:
    """The error object of a failed task, with what is known of its operation. Our codes are the same in both eras."""
    if operation is None:
        return reject.body(Era.MODERN)
    told = {"id": operation.id, "outcome": str(operation.outcome)}
    return replace(reject, data={**reject.data, "operation": told}).body(Era.MODERN)


def with_operation(body: bytes, operation: Operation) -> bytes:
    """A result that says among its `_meta` which operation of the ledger it belongs to."""
    result: Members = members(body) or {}
    meta: Members = members(result["_meta"]) or {} if "_meta" in result else {}
    meta[OPERATION] = Raw(write({"id": operation.id, "outcome": operation.outcome}))
    return write({**result, "_meta": meta})


_LONGEST_RECEIPT: Final = 4096
_OURS: Final = frozenset({"task", "_meta"})
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
DEADLINE: Final = Reject("deadline", DEADLINE_MESSAGE)
UNANSWERED: Final = Reject("expired_input", UNANSWERED_MESSAGE)
LOST: Final = Reject("outcome_unknown", LOST_MESSAGE)
IN_DOUBT: Final = Reject("outcome_unknown", IN_DOUBT_MESSAGE)


def forwarded(
    params: Mapping[str, Raw],
    progress_token: object = None,
    *,
    answers: bool = False,
    log_level: str | None = None,
    raw: bytes | None = None,
) -> bytes:
    """The parameters of a call as the upstream gets them: without what is between the client and this gateway.

    `params.task`, answers to our own questions, the modern era's declarations and the client's progress token stay
    here; everything else passes, unknown members included. `answers` tells that the upstream itself has asked,
    `log_level` is from which level on it may be told of log messages. Where all of it passes and nothing is added, it
    goes as it was written, which is `raw`.
    """
    ours = _OURS if answers else _OURS | _ANSWERS
    passed = {name: value for name, value in params.items() if name not in ours}
    meta: Members = members(params["_meta"]) or {} if "_meta" in params else {}
    kept: dict[str, object] = {name: value for name, value in meta.items() if name not in _BETWEEN_PEERS}
    all_of_it = len(passed) + ("_meta" in params) == len(params) and len(kept) == len(meta)
    if raw is not None and all_of_it and progress_token is None and log_level is None:
        again = write(params)
        # Of a name that comes twice one counted here; another parser might take the other one.
        return raw if raw != again and limits.count(raw) == len(params) else again
    if progress_token is not None:
        kept["progressToken"] = progress_token
    if log_level is not None:
        kept[LOG_LEVEL_META_KEY] = log_level
    return write({**passed, "_meta": kept} if kept else passed)


def call_params(stored: bytes, progress_token: int | None = None, *, era: Era = Era.MODERN) -> Members:
    """Stored parameters, ready to be sent; with a progress token of our own where progress is wanted.

    `era` is the upstream's: a log level is a part of requests in the modern one only.
    """
    params: Members = members(stored) or {}
    meta: Members = members(params["_meta"]) or {} if "_meta" in params else {}
    level = meta.pop(LOG_LEVEL_META_KEY, None) if era is Era.LEGACY else None
    if progress_token is not None:
        meta["progressToken"] = Raw(write(progress_token))
    if progress_token is None and level is None:
        return params
    params["_meta"] = Raw(write(meta))
    return params


def as_written(stored: bytes, params: Members) -> bytes | None:
    """Stored parameters as they were written, if nothing was added to them since."""
    return stored if members(stored) == params else None


def receipt(body: bytes, source: str | None) -> str:
    """What an upstream gave as a proof, as JSON text: what stands in a result at `result:/POINTER`, empty for nothing.

    What is longer than a receipt can be is none.
    """
    if source is None:
        return ""
    found = find(body, path_of(source.partition(":")[2]))
    return "" if found is None or len(bytes(found)) > _LONGEST_RECEIPT else bytes(found).decode()


def outcome(response: Response) -> tuple[OutcomeKind, bytes]:
    """What an answer is, and the body as it is stored: as it came, but without a `resultType`."""
    if not response.ok:
        return OutcomeKind.ERROR, response.body
    result: Members = members(response.body) or {}
    told = result.get("isError")
    kind = OutcomeKind.TOOL_ERROR if told is not None and bytes(told) == b"true" else OutcomeKind.RESULT
    if result.pop("resultType", None) is None:
        return kind, response.body
    return kind, write(result)
