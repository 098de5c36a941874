"""`x-mcp-header`: arguments of a tool that a client of revision 2026-07-28 repeats in headers, over HTTP. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from gateway.wire.classify import PARAMETER_HEADER, decode_header
from gateway.wire.jsonrpc import Members, integer, members, text

_ANNOTATION: Final = "x-mcp-header"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PRIMITIVE: Final = ("string", "integer", "boolean")
_DATA: Final = frozenset({"const", "enum", "default", "examples", "example", _ANNOTATION})
"""Keywords whose values are no schemas."""
_BY_NAME: Final = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose values hold schemas under names of their own."""
_SENDABLE: Final = re.compile(r"[\x20-\x7e\t]*")
_NUMBER: Final = re.compile(r"-?\d{1,400}(?:\.\d{1,400})?(?:[eE][+-]?\d{1,3})?")


@dataclass(frozen=True, slots=True)
class Mirror:
    """The value at `path` in the arguments goes into the header `Mcp-Param-{name}`."""

    path: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """A definition that a client must not use; `reason` holds nothing of it."""

    reason: str


Mirrors: TypeAlias = tuple[Mirror, ...]


def mirrors(schema: Raw | None) -> Mirrors | Unusable:
    """What an `inputSchema` asks for."""
    if schema is None or _ANNOTATION.encode() not in bytes(schema):
        return ()
    try:
        root = msgspec.json.decode(schema)
    except msgspec.MsgspecError:
        return Unusable("the input schema holds a number that is out of range")
    found: dict[str, Mirror] = {}
    for path, node in _schemas((), root):
        if _ANNOTATION not in node:
            continue
        reason = _wrong(path, node, found)
        if reason is not None:
            return Unusable(reason)
        name = node[_ANNOTATION]
        found[name.lower()] = Mirror(path or (), name)
    return tuple(found.values())


def mirrored(wanted: Sequence[Mirror], arguments: Raw | None) -> dict[str, str]:
    """The values by the name of their parameter, as text that is not encoded yet; what is absent or null is left out.

    A string is itself, a boolean `true` or `false`, a number as it is written.
    """
    values = {mirror.name: _value(arguments, mirror.path) for mirror in wanted}
    return {name: value for name, value in values.items() if value is not None}


def mismatch(wanted: Sequence[Mirror], arguments: Raw | None, given: Mapping[str, Sequence[str]]) -> str | None:
    """TX-HTTP-2: which header of a call does not say what its arguments say, and how; None if all do.

    `given` are headers by their lower-case names.
    """
    for mirror in wanted:
        name = f"{PARAMETER_HEADER}{mirror.name.lower()}"
        wrong = _differs(_found(arguments, mirror.path), given.get(name, ()))
        if wrong is not None:
            return f"{name} {wrong}"
    return None


def _differs(found: Raw | None, sent: Sequence[str]) -> str | None:
    value = _text(found)
    if len(sent) > 1:
        return "was sent more than once"
    if not sent:
        return None if value is None else "is missing"
    decoded = decode_header(sent[0]) if _SENDABLE.fullmatch(sent[0]) else None
    if decoded is None:
        return "holds invalid characters"
    if value is None:
        return "repeats an argument that there is not"
    return None if value == decoded or _is_same_number(found, decoded) else "does not equal the argument"


def _is_same_number(found: Raw | None, sent: str) -> bool:
    written = "" if found is None else bytes(found).decode()
    if not _NUMBER.fullmatch(sent) or not _NUMBER.fullmatch(written):
        return False
    return Decimal(written) == Decimal(sent)


def _schemas(path: tuple[str, ...] | None, node: Any) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Every schema in a schema; `path` is None for those that are not reached by `properties` alone."""
    if isinstance(node, list):
        for item in node:
            yield from _schemas(None, item)
    if not isinstance(node, dict):
        return
    yield path, node
    for keyword, value in node.items():
        if keyword == "properties" and isinstance(value, dict):
            for name, schema in value.items():
                yield from _schemas(None if path is None else (*path, name), schema)
        elif keyword in _BY_NAME and isinstance(value, dict):
            for schema in value.values():
                yield from _schemas(None, schema)
        elif keyword not in _DATA:
            yield from _schemas(None, value)


def _wrong(path: tuple[str, ...] | None, node: Mapping[str, Any], found: Mapping[str, Mirror]) -> str | None:
    name = node[_ANNOTATION]
    if not path:
        return "x-mcp-header stands where properties alone do not lead"
    if not isinstance(name, str) or _TOKEN.fullmatch(name) is None:
        return "x-mcp-header is no name of a header"
    if node.get("type") not in _PRIMITIVE:
        return "x-mcp-header stands at a parameter that is no string, integer or boolean"
    return "x-mcp-header names one header twice" if name.lower() in found else None


def _value(arguments: Raw | None, path: Sequence[str]) -> str | None:
    return _text(_found(arguments, path))


def _found(arguments: Raw | None, path: Sequence[str]) -> Raw | None:
    found = arguments
    for name in path:
        inside: Members = (None if found is None else members(found)) or {}
        found = inside.get(name)
    return found


def _text(found: Raw | None) -> str | None:
    """A value as a header says it; None for what no header can."""
    if found is None:
        return None
    written = bytes(found).decode()
    if written.startswith('"'):
        return text(found)
    if written in ("true", "false") or integer(found) is not None:
        return written
    return written if written[:1] in "-0123456789" else None
