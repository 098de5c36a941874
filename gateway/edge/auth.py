"""Who calls. Without authentication everybody on a loopback listener is the same principal."""

from collections.abc import Sequence
from typing import Final, Protocol

from gateway.core.model import Principal
from gateway.wire.errors import Reject


class Authenticator(Protocol):
    """Tells who sent a request, from nothing but its Authorization headers."""

    tells_apart: bool
    """Whether callers are told apart: only then may tasks be listed (T25-CAP-2)."""

    async def identify(self, authorization: Sequence[str], resource: str) -> Principal | Reject:
        """The principal, or `unauthenticated`. `resource` is the URL of the endpoint: the audience of its tokens."""


ANONYMOUS: Final = Principal("none", "anonymous", "local")


class NoAuthentication:
    """`auth.mode = "none"`: everybody is the same principal."""

    tells_apart = False

    async def identify(self, authorization: Sequence[str], resource: str) -> Principal | Reject:
        """Always the same."""
        del authorization, resource
        return ANONYMOUS
