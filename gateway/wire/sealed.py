"""Opaque values that a client carries for us: nobody else can make one, change one, or use somebody else's."""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

import msgspec

_LONGEST: Final = 4096
_TAG_BYTES: Final = 16


def seal(secret: bytes, bindings: Sequence[str], payload: Sequence[str | int]) -> str:
    """A value that holds `payload` (readable, not secret) and is good only together with the same `bindings`."""
    body = msgspec.json.encode(list(payload))
    return urlsafe_b64encode(_tag(secret, bindings, body) + body).decode().rstrip("=")


def unseal(secret: bytes, bindings: Sequence[str], value: str) -> list[str | int] | None:
    """The payload, or None for anything that was not sealed with this secret and these bindings."""
    if len(value) > _LONGEST:
        return None
    try:
        raw = urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return None
    tag, body = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
    canonical = urlsafe_b64encode(raw).decode().rstrip("=") == value
    if not canonical or not hmac.compare_digest(tag, _tag(secret, bindings, body)):
        return None
    return msgspec.json.decode(body, type=list[str | int])


def _tag(secret: bytes, bindings: Sequence[str], body: bytes) -> bytes:
    bound = msgspec.json.encode([list(bindings), hashlib.sha256(body).hexdigest()])
    return hmac.digest(secret, bound, "sha256")[:_TAG_BYTES]
