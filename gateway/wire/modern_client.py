"""What a client of revision 2026-07-28 says: `_meta` and headers of its requests, and what `server/discover` tells.

Everything is in each request; there is no handshake and no session. Pure.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from mcp_types.jsonrpc import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION
from msgspec import Raw

from gateway.wire.classify import NAMED
from gateway.wire.errors import Reject
from gateway.wire.intent import LEGACY_VERSIONS, MODERN_VERSIONS
from gateway.wire.jsonrpc import Members, Notification, Response, integer, items, members, text, write
from gateway.wire.render import SERVER_INFO, SUBSCRIPTION_ID

DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_PLAIN: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_SENTINEL: Final = re.compile(r"=\?base64\?.*\?=")
_CLIENT_INFO: Final = Raw(write(SERVER_INFO))
_LIST_CHANGES: Final[Mapping[str, str]] = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}
_NO_VERSION: Final = Reject("upstream_bad", "the upstream speaks no revision that the gateway speaks")
_REFUSES: Final = Reject("upstream_bad", "the upstream refused server/discover")


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a modern server said of itself: JSON texts as written, None for what it did not say."""

    version: str
    capabilities: bytes
    info: bytes | None
    instructions: bytes | None
    meta: bytes | None


def params(given: Members, version: str, capabilities: str) -> Members:
    """The parameters of a request with the `_meta` that every one needs.

    What the caller declared is kept and joined with `capabilities` (JSON text); its client info wins over ours.
    """
    meta = _meta(given)
    declared = meta.get(CLIENT_CAPABILITIES_META_KEY)
    carried: Members = {} if declared is None else members(declared) or {}
    both = _joined(members(capabilities.encode()) or {}, carried)
    ours = {
        PROTOCOL_VERSION_META_KEY: Raw(write(version)),
        CLIENT_CAPABILITIES_META_KEY: Raw(write(both)),
        CLIENT_INFO_META_KEY: meta.get(CLIENT_INFO_META_KEY, _CLIENT_INFO),
    }
    return {**given, "_meta": Raw(write({**meta, **ours}))}


def headers(method: str, given: Members, version: str, mirrored: Mapping[str, str]) -> dict[str, str]:
    """The headers that repeat what a request says; `mirrored` are the values for `Mcp-Param-*`, not encoded yet."""
    named = {"MCP-Protocol-Version": version, "Mcp-Method": method}
    name = text(given.get(NAMED[method])) if method in NAMED else None
    if name is not None:
        named["Mcp-Name"] = encode_header(name)
    return {**named, **{f"Mcp-Param-{one}": encode_header(value) for one, value in mirrored.items()}}


def encode_header(value: str) -> str:
    """A value as a header can carry it: as it is, or in the Base64 form of the specification."""
    if _PLAIN.fullmatch(value) and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def discovered(answer: Response) -> Discovered | Reject | None:
    """What an answer to `server/discover` says of the server.

    None: it is of another era, and to be greeted with `initialize`. A refusal: it is modern, and of no use.
    """
    said: Members = members(answer.body) or {}
    if not answer.ok:
        return _of_error(said)
    if "supportedVersions" not in said or (text(said.get("resultType")) or "complete") != "complete":
        return None
    spoken = [text(item) for item in items(said["supportedVersions"])]
    version = next((one for one in MODERN_VERSIONS if one in spoken), None)
    if version is None:
        return _without_common(spoken)
    declared = said.get("capabilities")
    known = declared is not None and members(declared) is not None
    meta: Members = members(said["_meta"]) or {} if "_meta" in said else {}
    info, told, whole = (
        _bytes(one) for one in (meta.get(SERVER_INFO_META_KEY), said.get("instructions"), said.get("_meta"))
    )
    return Discovered(version, bytes(declared) if known and declared else b"{}", info, told, whole)


def subscription(capabilities: bytes, resources: Sequence[str] = ()) -> dict[str, object]:
    """What to listen for at a server with these capabilities; empty where it has nothing to tell."""
    declared: Members = members(capabilities) or {}
    wanted: dict[str, object] = {
        key: True for name, key in _LIST_CHANGES.items() if _offers(declared.get(name), "listChanged")
    }
    if resources and _offers(declared.get("resources"), "subscribe"):
        wanted["resourceSubscriptions"] = list(resources)
    return wanted


def told(note: Notification) -> Notification | None:
    """A notification of a subscription without its mark; None for the acknowledgement."""
    if note.method == ACKNOWLEDGED:
        return None
    meta = _meta(note.params)
    if meta.pop(SUBSCRIPTION_ID, None) is None:
        return note
    rest = {name: value for name, value in note.params.items() if name != "_meta"}
    return Notification(note.method, {**rest, "_meta": Raw(write(meta))} if meta else rest)


def code_of(answer: Response) -> int | None:
    """The code of an answer that is an error."""
    return None if answer.ok else integer((members(answer.body) or {}).get("code"))


def _of_error(said: Members) -> Reject | None:
    code = integer(said.get("code"))
    if code in (HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY):
        return _REFUSES
    data: Members = members(said["data"]) or {} if "data" in said else {}
    if code != UNSUPPORTED_PROTOCOL_VERSION or "supported" not in data:
        return None
    return _without_common([text(item) for item in items(data["supported"])])


def _without_common(spoken: Sequence[str | None]) -> Reject | None:
    return None if any(version in LEGACY_VERSIONS for version in spoken) else _NO_VERSION


def _offers(capability: Raw | None, name: str) -> bool:
    said: Members = {} if capability is None else members(capability) or {}
    return name in said and bytes(said[name]) == b"true"


def _meta(given: Members) -> Members:
    return members(given["_meta"]) or {} if "_meta" in given else {}


def _joined(ours: Members, theirs: Members) -> Members:
    """Both objects in one; where both have a member that is an object, likewise, else theirs counts."""
    joined = {**ours, **theirs}
    for name in ours.keys() & theirs.keys():
        one, other = members(ours[name]), members(theirs[name])
        if one is not None and other is not None:
            joined[name] = Raw(write(_joined(one, other)))
    return joined


def _bytes(raw: Raw | None) -> bytes | None:
    return None if raw is None else bytes(raw)
