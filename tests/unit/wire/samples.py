"""What the tests of the wire share: requests of both eras, and properties that no clock decides."""

import json

from hypothesis import HealthCheck, settings

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
SERVER = "io.modelcontextprotocol/serverInfo"
TASKS = "io.modelcontextprotocol/tasks"
MODERN = "2026-07-28"
DECLARED = {"extensions": {TASKS: {}}}

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A property holds however slow the machine is."""
thorough = settings(steady, max_examples=1000)
"""For what has many small parts."""


def compact(value):
    """JSON without white space, as bytes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def body(method, params=None, **members):
    """A request, or a notification where `id` is None."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **members}
    return compact({name: value for name, value in message.items() if value is not None})


def modern_meta(capabilities=None, **others):
    """The `_meta` that each modern request carries."""
    return {VERSION: MODERN, CAPABILITIES: {} if capabilities is None else capabilities, **others}


def modern_headers(method, name=None):
    """The headers that go with a modern request."""
    headers = {"mcp-protocol-version": [MODERN], "mcp-method": [method]}
    return headers if name is None else {**headers, "mcp-name": [name]}
