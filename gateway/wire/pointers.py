"""What stands where in JSON text, as written: nothing is converted on the way."""

from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from gateway.wire.jsonrpc import items, members

_ESCAPES: Final = (("~1", "/"), ("~0", "~"))


def path_of(pointer: str) -> Sequence[str]:
    """The steps of a JSON pointer (RFC 6901)."""
    steps = pointer.split("/")[1:]
    for escaped, plain in _ESCAPES:
        steps = [step.replace(escaped, plain) for step in steps]
    return steps


def find(body: bytes | Raw, path: Sequence[str]) -> Raw | None:
    """The value at the end of these steps as written, or None where there is none."""
    found = Raw(bytes(body))
    for step in path:
        inner = members(found)
        if inner is None:
            listed = items(found)
            if not (step.isascii() and step.isdigit()) or int(step) >= len(listed):
                return None
            found = listed[int(step)]
        elif step in inner:
            found = inner[step]
        else:
            return None
    return found
