"""Questions of an upstream and answers of a requestor, as bytes: what may be asked, and what is an answer. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from jsonschema import Draft202012Validator
from msgspec import Raw
from referencing import Registry

from gateway.core.model import Question, Task
from gateway.wire.errors import Era, Reject
from gateway.wire.jsonrpc import Members, members, text, write
from gateway.wire.render import RELATED_TASK

_CAPABILITY: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
UNDECLARED: Final = Reject("method", "the client declared no such capability").body(Era.LEGACY)
"""T25-INP-2: what an upstream hears when it asks for something that the client cannot do."""
GONE: Final = Reject("cancelled", "nobody is there to answer any more").body(Era.LEGACY)


def declarable(capabilities: bytes | Raw | None) -> str:
    """What an upstream may be told of a modern client: exactly what it declared, of the things that can be asked."""
    declared = members(capabilities) if capabilities is not None else None
    wanted = {name: (declared or {}).get(name) for name in sorted(_CAPABILITY.values())}
    kept = {name: value for name, value in wanted.items() if value is not None and members(value) is not None}
    return write(kept).decode()


def session_capabilities(capabilities: bytes | Raw | None) -> str:
    """What the upstream session of a legacy client is told: all that the client declared, but for tasks of its own."""
    declared: Members = (members(capabilities) if capabilities is not None else None) or {}
    return write({name: value for name, value in declared.items() if name != "tasks"}).decode()


def askable(capabilities: str) -> bool:
    """Whether a client with these capabilities can be asked anything."""
    known: Members = members(capabilities.encode()) or {}
    return any(name in known for name in _CAPABILITY.values())


def declared(capabilities: str, method: str, params: Members) -> bool:
    """Whether a client with these capabilities may be asked this."""
    name = _CAPABILITY.get(method)
    known: Members = members(capabilities.encode()) or {}
    if name is None or name not in known:
        return False
    if method != "elicitation/create":
        return True
    mode = text(params.get("mode")) or "form"
    modes: Members = members(known[name]) or {}
    return mode in modes or (mode == "form" and not modes)  # an empty object has always meant forms


def stored(params: Members) -> str:
    """A question's parameters as the record keeps them: without the upstream's own related task."""
    meta: Members = members(params["_meta"]) or {} if "_meta" in params else {}
    meta.pop(RELATED_TASK, None)
    meta.pop("progressToken", None)
    rest = {name: value for name, value in params.items() if name != "_meta"}
    return write({**rest, "_meta": meta} if meta else rest).decode()


def request_params(question: Question, task_id: str | None) -> dict[str, object]:
    """T25-INP-1: a question's parameters as a client of 2025-11-25 gets them, with the task they belong to, if any."""
    params: dict[str, object] = dict(members(question.params.encode()) or {})
    if task_id is None:
        return params
    meta: Members = members(question.params.encode()) or {}
    kept: Members = members(meta["_meta"]) or {} if "_meta" in meta else {}
    return {**params, "_meta": {**kept, RELATED_TASK: {"taskId": task_id}}}


def result(body: bytes | Raw) -> str:
    """A client's result as the record keeps it."""
    return write({"result": Raw(without_related(bytes(body)))}).decode()


def whole_result(body: bytes) -> str:
    """A client's result as it is kept for an upstream that asked the client itself: nothing in it is ours."""
    return write({"result": Raw(body)}).decode()


def refusal(body: bytes) -> str:
    """A client's error as the record keeps it."""
    return write({"error": Raw(body)}).decode()


def answered(answer: str) -> tuple[bool, bytes]:
    """A kept answer: whether it is a result, and its body."""
    kept: Members = members(answer.encode()) or {}
    return ("result" in kept), bytes(kept.get("result") or kept["error"])


def without_related(body: bytes) -> bytes:
    """A client's result without the related task, which the upstream knows nothing of."""
    parts = members(body)
    meta = members(parts["_meta"]) if parts is not None and "_meta" in parts else None
    if parts is None or meta is None or meta.pop(RELATED_TASK, None) is None:
        return body
    rest: dict[str, object] = {name: value for name, value in parts.items() if name != "_meta"}
    return write({**rest, "_meta": meta} if meta else rest)


def respond(task: Task, results: Mapping[str, Raw], max_bytes: int) -> dict[str, str] | Reject:
    """The answers to what is outstanding, as the record keeps them; keys that are not are ignored (TX-UPD-2)."""
    outstanding = {question.key: question for question in task.questions if question.answer is None}
    given = {key: body for key, body in results.items() if key in outstanding}
    for key, body in given.items():
        why = unfit(outstanding[key], body, max_bytes)
        if why is not None:
            return Reject("arguments", f"inputResponses.{key}: {why}", {"key": key})
    return {key: result(body) for key, body in given.items()}


def unfit(question: Question, body: bytes | Raw, max_bytes: int, *, by_schema: bool = True) -> str | None:
    """TX-UPD-4: why a result is no answer to the question, or None.

    Without `by_schema`, whether a form is filled in as it should be is left to whoever asked.
    """
    raw = bytes(body)
    parts = members(raw)
    if len(raw) > max_bytes:
        return f"the answer is larger than {max_bytes} bytes"
    if parts is None:
        return "an answer is an object"
    why = _CHECKS[question.method](question, parts)
    if why is not None or not by_schema or "content" not in parts:
        return why
    asked: Members = members(question.params.encode()) or {}
    is_form = question.method == _FORM and text(parts.get("action")) == "accept" and text(asked.get("mode")) != "url"
    return _against(asked.get("requestedSchema"), parts["content"]) if is_form else None


def unfit_refusal(body: bytes, max_bytes: int) -> str | None:
    """Why an error is no answer to a question, or None: it is kept in the record, as an answer is."""
    return f"the answer is larger than {max_bytes} bytes" if len(body) > max_bytes else None


def _elicited(question: Question, parts: Members) -> str | None:
    action = text(parts.get("action"))
    if action not in ("accept", "decline", "cancel"):
        return "action must be accept, decline or cancel"
    asked: Members = members(question.params.encode()) or {}
    if action != "accept" or text(asked.get("mode")) == "url":
        return None  # consent to visit a URL says nothing of what happened there
    content = parts.get("content")
    if content is None or members(content) is None:
        return "an accepted form has content"
    return None


_ALONE: Final[Registry[Any]] = Registry()
"""A schema is read alone: what it refers to outside of itself is never fetched."""


def _against(schema: Raw | None, content: Raw) -> str | None:
    """Whether the content fits the schema that was asked for. A schema that is none asks for nothing."""
    if schema is None:
        return None
    try:
        given = _plain(content)
    except msgspec.MsgspecError:
        return "content holds a number that is out of range"
    try:
        error = next(Draft202012Validator(_plain(schema), registry=_ALONE).iter_errors(given), None)
    except Exception:  # noqa: BLE001  # an upstream writes the schema, and each keyword of it can fail in its own way
        return None
    if error is None:
        return None
    path = "/".join(map(str, error.absolute_path))
    return f"content does not fit the requested schema at /{path}: {error.validator}"


def _plain(raw: Raw) -> Any:
    return msgspec.json.decode(raw)


def _sampled(_: Question, parts: Members) -> str | None:
    fits = text(parts.get("role")) is not None and text(parts.get("model")) is not None and "content" in parts
    return None if fits else "a sampled message has role, model and content"


def _rooted(_: Question, parts: Members) -> str | None:
    return None if "roots" in parts else "a list of roots has roots"


_FORM: Final = "elicitation/create"
_CHECKS: Final[Mapping[str, Callable[[Question, Members], str | None]]] = {
    "elicitation/create": _elicited,
    "sampling/createMessage": _sampled,
    "roots/list": _rooted,
}
