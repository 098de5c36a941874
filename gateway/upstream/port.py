"""What the loops ask of an upstream. Whatever goes wrong is one of two things: it was not sent, or nobody knows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateway.core.model import Owner
from gateway.wire.jsonrpc import Members, Response


class NotSent(Exception):  # noqa: N818  # a fact about the call
    """Nothing took effect at the upstream. `again` tells whether a later attempt may succeed."""

    def __init__(self, reason: str, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.again = again


class OutcomeUnknown(Exception):  # noqa: N818  # a fact about the call
    """It was sent, and no answer will come. `reason` is `upstream_down` or `upstream_bad`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Link:
    """A session at an upstream, as one principal."""

    owner: Owner
    version: str
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an upstream. `id` is ours; `max_bytes` bounds the answer."""

    id: int
    method: str
    params: Members
    max_bytes: int


OnProgress: TypeAlias = Callable[[Members], None]
"""Called with the parameters of each progress notification of a call."""


class Upstream(Protocol):
    """One server. Methods raise NotSent or OutcomeUnknown and nothing else."""

    async def open(self, owner: Owner) -> Link:
        """A session for this principal: the one there is, or a new one. Raises NotSent."""

    def next_id(self) -> int:
        """An id for a request, used once."""

    async def perform(self, link: Link, call: Call, on_progress: OnProgress | None = None) -> Response:
        """Sends a request and waits for its answer, for as long as it takes."""

    async def cancel(self, link: Link, call: Call) -> None:
        """Tells the upstream that nobody waits for this request any more. Failing to tell is no error."""

    async def close(self) -> None:
        """Ends all sessions."""
