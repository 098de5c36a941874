"""The handshake of the legacy revisions, as bytes: what a client says, and what a server said of itself."""

from typing import Final

from mcp_types.jsonrpc import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION
from msgspec import Raw

from gateway.upstream.port import Call, Hello, NotSent, NotSpoken
from gateway.wire import jsonrpc
from gateway.wire.intent import LEGACY_VERSIONS
from gateway.wire.jsonrpc import Response
from gateway.wire.render import SERVER_INFO

HANDSHAKE_S: Final = 30.0
_MAX_BYTES: Final = 1_048_576
_OTHER_ERA: Final = frozenset({METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION})
"""What a server of the other era says to `initialize`."""


def initialize(call_id: int, capabilities: str) -> Call:
    """The request that begins a session in which the client declares these capabilities."""
    declared = Raw(capabilities.encode())
    params = {"protocolVersion": LEGACY_VERSIONS[0], "capabilities": declared, "clientInfo": SERVER_INFO}
    return Call(call_id, "initialize", jsonrpc.members(jsonrpc.write(params)) or {}, _MAX_BYTES)


def greeted(answer: Response) -> tuple[str, Hello]:
    """The version that was agreed on, and what the server said of itself. Raises NotSent."""
    said: jsonrpc.Members = (jsonrpc.members(answer.body) if answer.ok else None) or {}
    version = jsonrpc.text(said.get("protocolVersion"))
    if version is None or version not in LEGACY_VERSIONS:
        code = None if answer.ok else jsonrpc.integer((jsonrpc.members(answer.body) or {}).get("code"))
        failure = NotSpoken if code in _OTHER_ERA else NotSent
        raise failure("upstream_bad", "the upstream did not complete the handshake", again=False)
    capabilities = said.get("capabilities")
    known = capabilities is not None and jsonrpc.members(capabilities) is not None
    info, instructions, meta = (_bytes(said.get(name)) for name in ("serverInfo", "instructions", "_meta"))
    return version, Hello(bytes(capabilities) if known and capabilities else b"{}", info, instructions, meta)


def _bytes(raw: Raw | None) -> bytes | None:
    return None if raw is None else bytes(raw)
