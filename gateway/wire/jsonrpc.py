"""JSON-RPC envelopes. Only the envelope is parsed; whatever is not ours stays the bytes that arrived."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gateway.wire.errors import Era, Reject
from gateway.wire.limits import violation

_MAX_ID: Final = 256
_MAX_METHOD: Final = 256

Members: TypeAlias = dict[str, Raw]
"""The members of a JSON object, in order, values as written."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `id` is the JSON text of a string or an integer, as the peer wrote it; `raw` is that of `params`."""

    id: bytes
    method: str
    params: Members
    raw: bytes = field(default=b"{}", compare=False)


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification."""

    method: str
    params: Members


@dataclass(frozen=True, slots=True)
class Response:
    """A response: the JSON text of its result or of its error object."""

    id: bytes
    ok: bool
    body: bytes


Message: TypeAlias = Request | Notification | Response


class _Envelope(msgspec.Struct):
    jsonrpc: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_MEMBERS: Final = msgspec.json.Decoder(Members)
_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_STRING: Final = msgspec.json.Decoder(str)
_INTEGER: Final = msgspec.json.Decoder(int)


def parse(body: bytes) -> Message | Reject:
    """One message, or why it is none: `parse` for what is not JSON, `invalid_request` for what is no single message."""
    why = violation(body)
    if why is not None:
        return Reject("parse", why)
    try:
        envelope = _ENVELOPE.decode(body)
    except msgspec.ValidationError:
        return _invalid("not a single JSON-RPC message")
    except (msgspec.DecodeError, RecursionError):
        return Reject("parse", "the body is not JSON")
    if envelope.jsonrpc is UNSET or bytes(envelope.jsonrpc) != b'"2.0"':
        return _invalid('"jsonrpc" must be "2.0"')
    if envelope.method is UNSET:
        return _response(envelope)
    if envelope.result is not UNSET or envelope.error is not UNSET:
        return _invalid("a message has either a method or an answer")
    return _call(envelope, envelope.method)


def members(raw: bytes | Raw) -> Members | None:
    """The members of a JSON object, or None if it is none. Of a repeated name the last one counts."""
    try:
        return _MEMBERS.decode(raw)
    except msgspec.MsgspecError:
        return None


def items(raw: bytes | Raw | None) -> list[Raw]:
    """The items of a JSON array; none if it is no array."""
    try:
        return [] if raw is None else _ITEMS.decode(raw)
    except msgspec.MsgspecError:
        return []


def text(raw: Raw | None) -> str | None:
    """The string that a member holds, or None."""
    try:
        return None if raw is None else _STRING.decode(raw)
    except msgspec.MsgspecError:
        return None


def integer(raw: Raw | None) -> int | None:
    """The integer that a member holds, or None. Fractions and floats are none, `1.0` and `1e3` included."""
    try:
        return None if raw is None or b"." in bytes(raw) else _INTEGER.decode(raw)
    except msgspec.MsgspecError:
        return None


def write(value: object) -> bytes:
    """JSON text. `Raw` values appear as they are."""
    return msgspec.json.encode(value)


def request(request_id: bytes, method: str, params: Mapping[str, object] | Raw) -> bytes:
    """A request; `params` are members, or an object as written."""
    return write({"jsonrpc": "2.0", "id": Raw(request_id), "method": method, "params": params})


def notification(method: str, params: Mapping[str, object]) -> bytes:
    """A notification."""
    return write({"jsonrpc": "2.0", "method": method, "params": params})


def result(request_id: bytes, body: bytes) -> bytes:
    """A response that carries a result."""
    return b'{"jsonrpc":"2.0","id":' + request_id + b',"result":' + body + b"}"


def error(request_id: bytes | None, body: bytes) -> bytes:
    """A response that carries an error; without an id where the request had none that could be read."""
    return b'{"jsonrpc":"2.0","id":' + (request_id or b"null") + b',"error":' + body + b"}"


def refusal(request_id: bytes | None, reject: Reject, era: Era) -> bytes:
    """A response that carries a refusal."""
    return error(request_id, reject.body(era))


def _response(envelope: _Envelope) -> Response | Reject:
    if (envelope.result is UNSET) == (envelope.error is UNSET):
        return _invalid("a message has either a method or an answer")
    ok = envelope.result is not UNSET
    body = bytes(envelope.result if ok else envelope.error)  # type: ignore[arg-type]  # one of them is set
    request_id = None if envelope.id is UNSET else _request_id(envelope.id)
    if request_id is None or members(body) is None:
        return _invalid("an answer needs an id and an object")
    return Response(request_id, ok, body)


def _call(envelope: _Envelope, raw_method: Raw) -> Request | Notification | Reject:
    method = text(raw_method)
    params = Members() if envelope.params is UNSET else members(envelope.params)
    if method is None or not method or len(method) > _MAX_METHOD:
        return _invalid("the method is not a name")
    if params is None:
        return _invalid("params must be an object")
    if envelope.id is UNSET:
        return Notification(method, params)
    request_id = _request_id(envelope.id)
    if request_id is None:
        return _invalid("an id is a string or an integer")
    return Request(request_id, method, params, b"{}" if envelope.params is UNSET else bytes(envelope.params))


def _request_id(raw: Raw) -> bytes | None:
    """The id as written. MCP allows strings and integers: null and 1.5 make a request that cannot be answered."""
    written = bytes(raw)
    is_integer = written.removeprefix(b"-").isdigit()
    return written if len(written) <= _MAX_ID and (is_integer or written.startswith(b'"')) else None


def _invalid(message: str) -> Reject:
    return Reject("invalid_request", message)
