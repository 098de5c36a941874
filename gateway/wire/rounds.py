"""Multi round-trip requests, as a client reads and continues them: what is asked, and the request sent again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from gateway.wire.errors import Era, Reject
from gateway.wire.jsonrpc import Members, Response, members, text, write

MOST_ROUNDS: Final = 50
"""How often one request is sent again."""
_MOST_ASKED: Final = 20
"""Questions in one answer."""
_NOT_MCP: Final = Reject("upstream_bad", "the upstream's questions are not MCP")
_UNKNOWN_TYPE: Final = Reject("upstream_bad", "the upstream's result is of a type that nobody asked for")
_ENDLESS: Final = Reject("upstream_bad", f"the upstream asked more than {MOST_ROUNDS} times")
ENDLESS: Final = _ENDLESS.body(Era.MODERN)


@dataclass(frozen=True, slots=True)
class Asked:
    """What has to be answered before a request is. `state` goes back as it came; None where there was none."""

    requests: Mapping[str, tuple[str, Members]]
    state: Raw | None


def asked(answer: Response) -> Asked | Reject | None:
    """What an answer asks for; None for one that is final; a refusal for one that is neither."""
    result: Members = (members(answer.body) if answer.ok else None) or {}
    kind = result.get("resultType")
    said = "complete" if kind is None else text(kind)
    if said == "complete":
        return None
    if said != "input_required":
        return _UNKNOWN_TYPE
    return _questions(result)


def again(given: Members, question: Asked, answers: Mapping[str, bytes]) -> Members:
    """The parameters of the request that is sent again: the same, with the answers and the state."""
    rest = {name: value for name, value in given.items() if name not in ("inputResponses", "requestState")}
    if question.requests:
        rest["inputResponses"] = Raw(write({key: Raw(body) for key, body in answers.items()}))
    if question.state is not None:
        rest["requestState"] = question.state
    return rest


def refused(question: Asked, errors: Mapping[str, bytes]) -> bytes:
    """The error with which a request is given up, one of whose questions was refused: what was, and why."""
    key, error = next(iter(errors.items()))
    method, _ = question.requests[key]
    why = text((members(error) or {}).get("message")) or "no reason given"
    told = {one: {"method": question.requests[one][0], "error": Raw(body)} for one, body in errors.items()}
    message = f"the upstream needs {method}, which was refused: {why}"
    return Reject("input_refused", message, {"inputRequests": told}).body(Era.MODERN)


def _questions(result: Members) -> Asked | Reject:
    raw, state = _given(result, "inputRequests"), _given(result, "requestState")
    entries: Members | None = {} if raw is None else members(raw)
    if entries is None or len(entries) > _MOST_ASKED or (not entries and state is None):
        return _NOT_MCP
    requests: dict[str, tuple[str, Members]] = {}
    for key, entry in entries.items():
        parts: Members = members(entry) or {}
        method = text(parts.get("method"))
        params: Members | None = members(parts["params"]) if "params" in parts else {}
        if method is None or params is None:
            return _NOT_MCP
        requests[key] = (method, params)
    return Asked(requests, state)


def _given(result: Members, name: str) -> Raw | None:
    raw = result.get(name)
    return None if raw is None or bytes(raw) == b"null" else raw
