"""Headers and body to an era and an intent, or to a rejection. Our own ladder; the first rung that fails answers.

1. the body is one JSON-RPC message            parse, invalid_request
2. a modern `_meta` makes it modern (TX-HTTP-1), whatever session id comes along; all else is legacy
3. modern: `_meta` complete (TX-HTTP-3), headers equal the body (TX-HTTP-2), version served (TX-HTTP-4)
4. the method and its parameters
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY
from msgspec import Raw

from gateway.wire import intent as want
from gateway.wire.asking import declarable
from gateway.wire.errors import TASKS_EXTENSION, Era, Reject, needs_tasks, not_found, unsupported_version
from gateway.wire.intent import LEGACY_VERSIONS, MODERN_VERSIONS, Inbound, Intent, Speech, TaskAsk
from gateway.wire.jsonrpc import Members, Message, Notification, Request, Response, integer, items, members, parse, text

Headers: TypeAlias = Mapping[str, Sequence[str]]
"""Lower-case names, each with all the values it came with."""

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
SESSION_HEADER: Final = "mcp-session-id"
PARAMETER_HEADER: Final = "mcp-param-"

NAMED: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_MAY_OMIT_NAME: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
"""Two widely used clients send no `Mcp-Name` here; a wrong one is refused all the same."""
_OURS: Final = ("tasks/", "subscriptions/", "server/discover", "initialize")
"""What is between a client and this gateway: where an era does not have it, no upstream is asked instead."""
_MOST_LISTENED: Final = 100
_MOST_MESSAGES: Final = 100
"""Of one batch."""
_LISTS: Final = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A refusal with what is needed to write it down."""

    reject: Reject
    era: Era
    id: bytes | None = None


def classify(headers: Headers, body: bytes) -> Inbound | Rejected:
    """Runs the ladder. The header grants nothing: the body decides."""
    message = parse(body)
    if isinstance(message, Reject) and message.reason == "invalid_request" and SESSION_HEADER in headers:
        messages = items(body)
        if 0 < len(messages) <= _MOST_MESSAGES:
            speech = Speech(Era.LEGACY, None, session=",".join(headers[SESSION_HEADER]))
            return Inbound(speech, want.Batch(tuple(bytes(one) for one in messages)))
    if isinstance(message, Reject):
        return Rejected(message, _era_of_headers(headers))
    meta = _meta(message)
    if _is_modern(headers, message, meta):
        return _modern(headers, message, meta)
    return _legacy(headers, message)


def classify_bare(message: Message, session: str | None) -> Inbound | Rejected:
    """The same ladder for a message that came without headers, over stdio: there is nothing for its body to equal.

    `session` is the legacy session that the front began on behalf of its client, if it did.
    """
    headers: Headers = {} if session is None else {SESSION_HEADER: (session,)}
    meta = _meta(message)
    return _modern(None, message, meta) if _is_modern(headers, message, meta) else _legacy(headers, message)


def decode_header(value: str) -> str | None:
    """A header value in the Base64 form of the specification, decoded; None if that form is malformed."""
    match = _SENTINEL.fullmatch(value)
    if match is None:
        return value
    try:
        decoded = base64.b64decode(match[1], validate=True)
        canonical = base64.b64encode(decoded).decode() == match[1]
        return decoded.decode() if canonical else None
    except (binascii.Error, ValueError):
        return None


def _meta(message: Message) -> Members:
    if isinstance(message, Response):
        return {}
    raw = message.params.get("_meta")
    return (members(raw) if raw is not None else None) or {}


def _first(headers: Headers, name: str) -> str | None:
    values = headers.get(name, ())
    return values[0] if values else None


def _era_of_headers(headers: Headers) -> Era:
    version = _first(headers, VERSION_HEADER)
    return Era.LEGACY if version is None or version in LEGACY_VERSIONS else Era.MODERN


def _is_modern(headers: Headers, message: Message, meta: Members) -> bool:
    if PROTOCOL_VERSION_META_KEY in meta or CLIENT_CAPABILITIES_META_KEY in meta:
        return True
    if SESSION_HEADER in headers or (isinstance(message, Request) and message.method == "initialize"):
        return False
    return _era_of_headers(headers) is Era.MODERN


def _modern(headers: Headers | None, message: Message, meta: Members) -> Inbound | Rejected:
    if isinstance(message, Response):
        return Rejected(Reject("invalid_request", "a client sends no responses in this revision"), Era.MODERN)
    if isinstance(message, Notification):
        return _modern_note(headers or {}, message)
    reject = _missing_meta(meta) or (None if headers is None else _header_mismatch(headers, message, meta))
    version = text(meta.get(PROTOCOL_VERSION_META_KEY)) or ""
    if reject is None and version not in MODERN_VERSIONS:
        reject = unsupported_version(version, MODERN_VERSIONS)
    if reject is not None:
        return Rejected(reject, Era.MODERN, message.id)
    declares = _declares_tasks(meta)
    capabilities = declarable(meta[CLIENT_CAPABILITIES_META_KEY])
    level = text(meta.get(LOG_LEVEL_META_KEY))
    told = None if headers is None else {name: headers[name] for name in headers if name.startswith(PARAMETER_HEADER)}
    speech = Speech(
        Era.MODERN, version, declares_tasks=declares, capabilities=capabilities, log_level=level, parameters=told
    )
    intent = _intent(_MODERN_METHODS, message)
    needed = message.method in _MAY_OMIT_NAME or (isinstance(intent, want.Listen) and intent.task_ids is not None)
    if needed and not declares:
        return Rejected(needs_tasks("capability", "Missing required client capability"), Era.MODERN, message.id)
    return Inbound(speech, intent)


def _modern_note(headers: Headers, message: Notification) -> Inbound | Rejected:
    version = _first(headers, VERSION_HEADER)
    if version is not None and version not in MODERN_VERSIONS:
        told = version.encode("utf-8", "replace").decode()  # a header need not be text
        return Rejected(unsupported_version(told, MODERN_VERSIONS), Era.MODERN)
    return Inbound(Speech(Era.MODERN, version), want.Note(message.method))


def _missing_meta(meta: Members) -> Reject | None:
    missing = [key for key in (PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY) if key not in meta]
    if missing:
        return Reject("meta", f"params._meta lacks {', '.join(missing)}")
    if members(meta[CLIENT_CAPABILITIES_META_KEY]) is None:
        return Reject("meta", f"{CLIENT_CAPABILITIES_META_KEY} must be an object")
    return None


def _header_mismatch(headers: Headers, message: Request, meta: Members) -> Reject | None:
    for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER):
        if len(headers.get(name, ())) > 1:
            return Reject("headers", f"Header mismatch: {name} was sent more than once")
    expected = {VERSION_HEADER: text(meta[PROTOCOL_VERSION_META_KEY]), METHOD_HEADER: message.method}
    for name, value in expected.items():
        if _first(headers, name) is None or _first(headers, name) != value:
            return Reject("headers", f"Header mismatch: {name} does not equal the body's value")
    parameter = NAMED.get(message.method)
    if parameter is None:
        return None
    named = text(message.params.get(parameter))
    header = _first(headers, NAME_HEADER)
    if named is None or (header is None and message.method in _MAY_OMIT_NAME):
        return None
    if header is None or decode_header(header) != named:
        return Reject("headers", f"Header mismatch: {NAME_HEADER} does not equal params.{parameter}")
    return None


def _declares_tasks(meta: Members) -> bool:
    """TX-CAP-2: the declaration is read from this request alone."""
    capabilities = members(meta[CLIENT_CAPABILITIES_META_KEY]) or {}
    extensions = members(capabilities["extensions"]) if "extensions" in capabilities else None
    declared = (extensions or {}).get(TASKS_EXTENSION)
    return declared is not None and members(declared) is not None


def _legacy(headers: Headers, message: Message) -> Inbound | Rejected:
    version = _first(headers, VERSION_HEADER)
    request_id = message.id if isinstance(message, Request) else None
    if version is not None and version not in LEGACY_VERSIONS:
        reject = Reject("version", "Unsupported protocol version", {"supported": [*LEGACY_VERSIONS, *MODERN_VERSIONS]})
        return Rejected(reject, Era.LEGACY, request_id)
    session = ",".join(headers[SESSION_HEADER]) if SESSION_HEADER in headers else None
    speech = Speech(Era.LEGACY, None, session=session)
    intent = _intent(_LEGACY_METHODS, message) if isinstance(message, Request) else _unanswered(message)
    if session is None and not isinstance(intent, want.Initialize):
        reject = Reject("session_missing", "Mcp-Session-Id is required: send initialize first")
        return Rejected(reject, Era.LEGACY, request_id)
    return Inbound(speech, intent)


_Reader: TypeAlias = Callable[[Request], Intent]


def _intent(methods: Mapping[str, _Reader], message: Request) -> Intent:
    reader = methods.get(message.method)
    if reader is not None:
        return reader(message)
    if message.method.startswith(_OURS):
        return want.Refuse(message.id, Reject("method", f"Method not found: {message.method}"))
    return want.Forward(message.id, message.method, message.params, _progress_token(message), message.raw)


def _initialize(message: Request) -> Intent:
    version = text(message.params.get("protocolVersion"))
    if version is None:
        return want.Refuse(message.id, Reject("arguments", "protocolVersion must be a string"))
    return want.Initialize(message.id, version, message.params)


def _call_tool(message: Request) -> Intent:
    name = text(message.params.get("name"))
    raw = message.params.get("arguments")
    arguments = b"{}" if raw is None else bytes(raw)
    if name is None or members(arguments) is None:
        return want.Refuse(message.id, Reject("arguments", "name must be a string, arguments an object"))
    answers = members(message.params["inputResponses"]) if "inputResponses" in message.params else {}
    if answers is None:
        return want.Refuse(message.id, Reject("arguments", "inputResponses must be an object"))
    state = text(message.params.get("requestState"))
    token = _progress_token(message)
    ask = _task_ask(message)
    return want.CallTool(message.id, name, arguments, message.params, ask, token, answers, state, message.raw)


def _task_ask(message: Request) -> TaskAsk | Reject | None:
    raw = message.params.get("task")
    if raw is None:
        return None
    asked = members(raw)
    if asked is None:
        return Reject("arguments", "task must be an object")
    wish = asked.get("ttl")
    if wish is None or bytes(wish) == b"null":
        return TaskAsk(None)
    ttl = integer(wish)
    if ttl is None or ttl <= 0:
        return Reject("arguments", "task.ttl must be a positive integer of milliseconds")
    return TaskAsk(ttl)


def _progress_token(message: Request) -> bytes | None:
    token = _meta(message).get("progressToken")
    return None if token is None or (text(token) is None and integer(token) is None) else bytes(token)


def _by_task(build: Callable[[bytes, str], Intent]) -> _Reader:
    def read(message: Request) -> Intent:
        task_id = text(message.params.get("taskId"))
        return want.Refuse(message.id, not_found()) if task_id is None else build(message.id, task_id)

    return read


def _update_task(message: Request) -> Intent:
    task_id = text(message.params.get("taskId"))
    raw = message.params.get("inputResponses")
    answers = None if raw is None else members(raw)
    if task_id is None:
        return want.Refuse(message.id, not_found())
    if answers is None:
        return want.Refuse(message.id, Reject("arguments", "inputResponses must be an object"))
    return want.UpdateTask(message.id, task_id, answers)


def _unanswered(message: Notification | Response) -> Intent:
    if isinstance(message, Notification):
        return want.Note(message.method, message.params)
    return want.ClientAnswer(text(Raw(message.id)) or "", message.ok, message.body)


def _list_tasks(message: Request) -> Intent:
    raw = message.params.get("cursor")
    cursor = None if raw is None else text(raw)
    if raw is not None and cursor is None:
        return want.Refuse(message.id, Reject("not_found", "cursor must be a string"))
    return want.ListTasks(message.id, cursor)


def _listen(message: Request) -> Intent:
    raw = message.params.get("notifications")
    wanted = None if raw is None else members(raw)
    if wanted is None:
        return want.Refuse(message.id, Reject("arguments", "notifications must be an object"))
    lists = frozenset(name for name in _LISTS if name in wanted and bytes(wanted[name]) == b"true")
    task_ids, resources = _strings(wanted, "taskIds"), _strings(wanted, "resourceSubscriptions")
    for name, found in (("taskIds", task_ids), ("resourceSubscriptions", resources)):
        if name in wanted and found is None:
            return want.Refuse(message.id, Reject("arguments", f"{name} must be at most {_MOST_LISTENED} strings"))
    return want.Listen(message.id, task_ids, lists, resources or ())


def _strings(wanted: Members, name: str) -> tuple[str, ...] | None:
    """A list of strings that is not too long, or None."""
    if name not in wanted or not bytes(wanted[name]).startswith(b"["):
        return None
    found = [text(item) for item in items(wanted[name])]
    strings = tuple(one for one in found if one is not None)
    return strings if len(strings) == len(found) <= _MOST_LISTENED else None


_LEGACY_METHODS: Final[Mapping[str, _Reader]] = {
    "tasks/list": _list_tasks,
    "initialize": _initialize,
    "ping": lambda message: want.Ping(message.id),
    "tools/list": lambda message: want.ListTools(message.id, message.params),
    "tools/call": _call_tool,
    "tasks/get": _by_task(want.GetTask),
    "tasks/result": _by_task(want.GetResult),
    "tasks/cancel": _by_task(want.CancelTask),
}
_MODERN_METHODS: Final[Mapping[str, _Reader]] = {
    "subscriptions/listen": _listen,
    "server/discover": lambda message: want.Discover(message.id),
    "tools/list": lambda message: want.ListTools(message.id, message.params),
    "tools/call": _call_tool,
    "tasks/get": _by_task(want.GetTask),
    "tasks/update": _update_task,
    "tasks/cancel": _by_task(want.CancelTask),
}
