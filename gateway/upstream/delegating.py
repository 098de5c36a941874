"""An upstream that is several: what concerns a session is for the one that opened it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from gateway.upstream.port import Call, Link, OnNote, OnRequest, Upstream
from gateway.wire.jsonrpc import Members, Response


class Delegating(ABC):
    """Hands on all that names a session; see `Upstream` for what each method does."""

    @abstractmethod
    def _of(self, link: Link) -> Upstream:
        """Whose session it is. Raises NotSent where that is not known any more."""

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        return await self._of(link).perform(link, call, on_note, on_request)

    async def resume(
        self, link: Link, call: Call, event: str, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Waits for the answer to a request of another process. Raises OutcomeUnknown."""
        return await self._of(link).resume(link, call, event, on_note, on_request)

    async def cancel(self, link: Link, call: Call) -> None:
        """T25-CAN-3: see the transports."""
        await self._of(link).cancel(link, call)

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Sends a notification of the client. Failing to is no error."""
        await self._of(link).tell(link, method, params)

    async def listen(self, link: Link, on_note: OnNote, on_request: OnRequest, resources: Sequence[str] = ()) -> None:
        """Hears what belongs to no call. Raises NotSent when the session has ended."""
        await self._of(link).listen(link, on_note, on_request, resources)

    async def follow(self, link: Link, task: str, on_note: OnNote, on_request: OnRequest) -> None:
        """Hears what concerns a task of the server's own."""
        await self._of(link).follow(link, task, on_note, on_request)

    async def reply(self, link: Link, request_id: str, *, ok: bool, body: bytes) -> None:
        """Answers a request of the server that was heard elsewhere."""
        await self._of(link).reply(link, request_id, ok=ok, body=body)

    def holding(self, link: Link) -> AbstractContextManager[None]:
        """Keeps a session from being ended for want of use."""
        return self._of(link).holding(link)

    def spare(self, link: Link) -> bool:
        """Leaves a session to other processes; whether they can use it."""
        return self._of(link).spare(link)

    async def leave(self, link: Link) -> None:
        """Ends a session that belongs to one client session alone."""
        await self._of(link).leave(link)
