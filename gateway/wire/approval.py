"""The question by which the requestor agrees to a call, the preview in it, and what an answer to it means. Pure."""

from collections.abc import Collection
from typing import Final

from msgspec import Raw

from gateway.wire import asking
from gateway.wire.jsonrpc import Members, items, members, text, write
from gateway.wire.shown import one_line

KEY: Final = "approval"
"""The key of the question within its task. No upstream can ask under it."""
METHOD: Final = "elicitation/create"
_FIELD: Final = "approve"
_LONGEST: Final = 2000
_PREVIEW: Final = " Preview: "
_FORM: Final = {
    "type": "object",
    "properties": {_FIELD: {"type": "boolean", "title": "Approve", "default": False}},
    "required": [_FIELD],
}
"""One thing is asked, and nothing that could be a secret. Nobody agrees by leaving a form as it is."""


def can_be_asked(capabilities: str) -> bool:
    """Whether a client with these capabilities (JSON text) can be shown the form."""
    return asking.declared(capabilities, METHOD, {})


def question(message: str, preview: str) -> str:
    """The parameters of the question, JSON text. `preview` is empty where none is shown."""
    told = message + (_PREVIEW + preview if preview else "")
    return write({"message": told, "requestedSchema": _FORM}).decode()


def agreed(answer: str) -> bool:
    """Whether a kept answer is a yes. Everything else is a no: a refusal, a form left as it was, an error."""
    ok, body = asking.answered(answer)
    parts: Members = (members(body) if ok else None) or {}
    if text(parts.get("action")) != "accept":
        return False
    given: Members = members(parts["content"]) or {} if "content" in parts else {}
    return bytes(given.get(_FIELD, b"")).strip() == b"true"


def concerns(keys: Collection[str]) -> bool:
    """Whether answers to these questions decide about a call that waits."""
    return KEY in keys


def preview_params(stored: bytes, tool: str) -> Members:
    """The parameters of the call that shows what a stored call would do: the same arguments, and nothing else of it."""
    params: Members = members(stored) or {}
    kept = {"arguments": params["arguments"]} if "arguments" in params else {}
    return {"name": Raw(write(tool)), **kept}


def preview(body: bytes) -> str:
    """What a result shows, as text for people: its text, else its structured content; empty if it has neither."""
    result: Members = members(body) or {}
    blocks = [members(block) or {} for block in items(result.get("content"))]
    texts = [text(block.get("text")) or "" for block in blocks if text(block.get("type")) == "text"]
    shown = _flat(" ".join(texts))
    if not shown and "structuredContent" in result:
        shown = _flat(bytes(result["structuredContent"]).decode())
    return one_line(shown, _LONGEST)


def _flat(text: str) -> str:
    return one_line(text, len(text)).strip()
