"""What changes in a message that is only carried: what is said between a client and this gateway stays here."""

from collections.abc import Mapping, Sequence
from typing import Final

from mcp_types import SERVER_INFO_META_KEY
from msgspec import Raw

from gateway.wire import tasks_ext, work
from gateway.wire.errors import TASKS_EXTENSION, Era
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Members, Notification, members, text, write
from gateway.wire.render import IDEMPOTENCY, RELATED_TASK, SERVER_INFO

CACHE: Final = {"ttlMs": 0, "cacheScope": "private"}
"""TX-HTTP-5: what an upstream says may depend on the caller and on the policy of the moment, so nobody keeps it."""

LISTS_AND_READS: Final = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
)
MODERN_METHODS: Final = LISTS_AND_READS | {"prompts/get", "completion/complete"}
"""What a modern client can ask of an upstream of any era, apart from calls of tools."""
CHANGES_NOTHING: Final = LISTS_AND_READS | {"completion/complete", "ping"}
"""Requests that may be sent again when their answer was lost."""

_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
BETWEEN: Final = frozenset({"notifications/tasks/status", "notifications/tasks", "notifications/cancelled"})
"""Notifications that are about the conversation between this gateway and the upstream."""
LEVELS: Final = frozenset(_LEVELS)

CHANGED: Final[Mapping[str, str]] = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
"""Which filter of a subscription wants which notification."""


def announces(told: bytes, name: str) -> bool:
    """Whether an upstream with these capabilities says when a list changes; `name` is that of the filter."""
    known: Members = members(told) or {}
    return _is_true(known.get(name.removesuffix("ListChanged")), "listChanged")


def subscribes(told: bytes) -> bool:
    """Whether an upstream with these capabilities says when a resource changes."""
    known: Members = members(told) or {}
    return _is_true(known.get("resources"), "subscribe")


def _is_true(raw: Raw | None, name: str) -> bool:
    found = _object(raw).get(name)
    return found is not None and bytes(found) == b"true"


def params(
    given: Members,
    raw: bytes | None,
    progress_token: int | None,
    *,
    answers: bool = False,
    log_level: str | None = None,
) -> tuple[Members, bytes | None]:
    """The parameters of a request as the upstream gets them, with a progress token of our own where one is wanted.

    And their text, where they go as they were written. `answers` and `log_level`: see `work.forwarded`.
    """
    stored = work.forwarded(given, answers=answers, log_level=log_level, raw=raw)
    found = work.call_params(stored, progress_token)
    return found, work.as_written(stored, found) if stored is raw else None


def legacy_result(body: bytes) -> bytes:
    """BR-2: a result of a modern upstream as revisions with a handshake write it; any other as it came."""
    if b'"resultType"' not in body:
        return body
    given: Members = members(body) or {}
    if given.pop("resultType", None) is None:
        return body
    return write({name: value for name, value in given.items() if name not in CACHE})


def modern_result(method: str, body: bytes) -> bytes:
    """A result of a modern upstream for a modern client: as it came, unless it lacks what each one has (TX-HTTP-5)."""
    given: Members = members(body) or {}
    kind = text(given["resultType"]) if "resultType" in given else "complete"
    needed = CACHE if method in LISTS_AND_READS and kind == "complete" else {}
    missing = {name: value for name, value in {"resultType": kind, **needed}.items() if name not in given}
    return write({**given, **missing}) if missing else body


def result(method: str, body: bytes) -> bytes:
    """A result of a legacy upstream as revision 2026-07-28 writes it."""
    if method not in LISTS_AND_READS:
        return tasks_ext.plain_result(body)
    given: Members = members(body) or {}
    return tasks_ext.plain_result(write({**given, **CACHE}))


def may_hear(note: Notification, era: Era, log_level: str | None, *, upstream: Era = Era.LEGACY) -> bool:
    """Whether a client is told: in the modern era a request says from which level on it wants log messages.

    What else there may be on the stream of a modern request, a modern upstream knows.
    """
    if note.method in BETWEEN:
        return False
    if era is Era.LEGACY or note.method != "notifications/message":
        return era is Era.LEGACY or upstream is Era.MODERN
    return log_level is not None and level(text(note.params.get("level"))) >= level(log_level)


def said(note: Notification) -> Members:
    """What a notification says, without the task of the upstream's own that it may belong to."""
    meta: Members = members(note.params["_meta"]) or {} if "_meta" in note.params else {}
    if meta.pop(RELATED_TASK, None) is None:
        return note.params
    rest = {name: value for name, value in note.params.items() if name != "_meta"}
    return {**rest, "_meta": Raw(write(meta))} if meta else rest


def level(name: str | None) -> int:
    """How severe a log level is; one that nobody knows is as severe as can be."""
    return _LEVELS.index(name) if name in _LEVELS else len(_LEVELS)


def capabilities(told: bytes, client: Era, upstream: Era, meta_keys: Sequence[str] = ()) -> dict[str, object]:
    """What an upstream can do, as a client of an era is told it; tasks of the upstream's own are not the client's.

    `meta_keys` are the names of `_meta` under which a call may carry an idempotency key.
    """
    known: Mapping[str, object] = members(told) or {}
    hidden = {"tasks", "logging"} if client is Era.MODERN and upstream is Era.LEGACY else {"tasks"}
    shown = {name: value for name, value in known.items() if name not in hidden}
    extensions = _object(known.get("extensions"))
    if TASKS_EXTENSION in extensions:
        shown["extensions"] = {name: value for name, value in extensions.items() if name != TASKS_EXTENSION}
    if meta_keys:
        shown["experimental"] = {**_object(known.get("experimental")), IDEMPOTENCY: {"metaKeys": meta_keys}}
    return shown


def introduced(said: Mapping[str, bytes | None], own: Mapping[str, object]) -> bytes:
    """The result of a handshake: what the upstream said of itself beside what is ours to say."""
    spoken = {key: Raw(value) for key, value in said.items() if value is not None}
    return write({**own, "serverInfo": SERVER_INFO, **spoken})


def discovered(told: bytes, said: Mapping[str, bytes | None], upstream: Era, meta_keys: Sequence[str] = ()) -> bytes:
    """TX-CAP-1: the result of `server/discover`."""
    known = capabilities(told, Era.MODERN, upstream, meta_keys)
    extensions = {**_object((members(told) or {}).get("extensions")), TASKS_EXTENSION: {}}
    shown = {**known, "extensions": extensions}
    result = {"resultType": "complete", "supportedVersions": MODERN_VERSIONS, "capabilities": shown}
    instructions = said.get("instructions")
    spoken = {} if instructions is None else {"instructions": Raw(instructions)}
    info = said.get("serverInfo")
    meta = {SERVER_INFO_META_KEY: SERVER_INFO if info is None else Raw(info)}
    return write({**result, **spoken, **CACHE, "_meta": meta})


def _object(raw: object) -> Members:
    return (members(raw) if isinstance(raw, Raw) else None) or {}
