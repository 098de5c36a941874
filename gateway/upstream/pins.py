"""Which session of an upstream belongs to which client session: known to every replica."""

from typing import Protocol

import msgspec

from gateway.core.model import Owner
from gateway.upstream.port import Hello, Link


class Pins(Protocol):
    """Where that is remembered. Every method raises NotSent when the store is away."""

    async def find(self, owner: Owner, client: str) -> bytes | None:
        """What was kept for this client session. Asking counts as use; what nobody uses for long is forgotten."""

    async def keep(self, owner: Owner, client: str, pin: bytes) -> bytes:
        """Keeps it, or gives what somebody else kept before."""

    async def unused_s(self, owner: Owner, client: str) -> float:
        """For how many seconds nobody has asked for it; infinite where nothing is kept."""

    async def drop(self, owner: Owner, client: str, pin: bytes) -> None:
        """Forgets it, unless something else took its place."""


class _Pin(msgspec.Struct):
    version: str
    session: str
    capabilities: str
    said: tuple[str, str | None, str | None, str | None]


def pinned(link: Link) -> bytes:
    """A session as it is kept."""
    hello = link.hello
    said = (hello.capabilities.decode(), _text(hello.info), _text(hello.instructions), _text(hello.meta))
    return msgspec.json.encode(_Pin(link.version, link.session_id or "", link.capabilities, said))


def unpinned(pin: bytes, owner: Owner, client: str) -> Link:
    """The session that was kept."""
    found = msgspec.json.decode(pin, type=_Pin)
    capabilities, *said = found.said
    hello = Hello(capabilities.encode(), *(None if one is None else one.encode() for one in said))
    return Link(owner, found.version, found.session, found.capabilities, client, hello)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()
