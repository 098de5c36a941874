"""MCP over streamable HTTP, revisions with a handshake: the sessions at one URL, and what is said in them."""

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

from gateway.core.model import Owner
from gateway.upstream.exchange import Connections, Exchange, SessionEnded
from gateway.upstream.handshake import HANDSHAKE_S, greeted, initialize
from gateway.upstream.links import Key, Links
from gateway.upstream.pins import Pins, pinned, unpinned
from gateway.upstream.port import (
    NO_CAPABILITIES,
    Call,
    Link,
    NotSent,
    OnNote,
    OnRequest,
    OutcomeUnknown,
)
from gateway.wire import jsonrpc
from gateway.wire.jsonrpc import Members, Response

_POOLED_METHODS_EXCEPT: Final = frozenset({"tools/call", "prompts/get"})
"""What may have an effect goes over a connection that is used once."""


class HttpUpstream:
    """One server at one URL."""

    def __init__(
        self,
        connections: Connections,
        pins: Pins | None = None,
        *,
        max_sessions: int,
        session_idle_s: float,
        first_id: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pins` makes sessions of single clients the same on every replica.

        Ids of requests count from `first_id`: processes that may speak in one session start far apart.
        """
        self._connections = connections
        self._exchange = Exchange(connections)
        self._pins = pins
        self._links = Links(max_sessions, session_idle_s, clock)
        self._opening: dict[Key, asyncio.Task[Link | NotSent]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._ids = itertools.count(first_id)

    def next_id(self) -> int:
        """An id for a request, used once."""
        return next(self._ids)

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """The session; callers that come together share one handshake. Raises NotSent."""
        key = (owner, capabilities, client)
        link = self._links.find(key)
        if link is not None:
            return link
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open(key))
            opening.add_done_callback(lambda _: self._opening.pop(key))
        await asyncio.wait({opening})
        outcome = opening.result()
        if isinstance(outcome, NotSent):
            raise NotSent(outcome.reason, str(outcome), again=outcome.again, busy=outcome.busy)
        return outcome

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        pooled = call.method not in _POOLED_METHODS_EXCEPT
        with self._links.using(link):
            try:
                response, _ = await self._exchange.post(link, call, on_note, on_request, pooled=pooled)
            except SessionEnded:
                await self._lost(link)
                raise
            return response

    async def cancel(self, link: Link, call: Call) -> None:
        """T25-CAN-3: notifications/cancelled with the id of our own request."""
        params = {"requestId": call.id, "reason": "cancelled by the requestor"}
        await self._exchange.tell(link, jsonrpc.notification("notifications/cancelled", params))

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Sends a notification of the client. Failing to is no error."""
        await self._exchange.tell(link, jsonrpc.notification(method, params))

    async def listen(self, link: Link, on_note: OnNote, on_request: OnRequest) -> None:
        """Hears what belongs to no call. Raises NotSent when the session has ended."""
        with self._links.using(link):
            try:
                await self._exchange.listen(link, on_note, on_request)
            except SessionEnded:
                await self._lost(link)
                raise

    async def reply(self, link: Link, request_id: str, *, ok: bool, body: bytes) -> None:
        """Answers a request of the upstream that was heard elsewhere: sessions are the same from any process."""
        await self._exchange.tell(link, (jsonrpc.result if ok else jsonrpc.error)(request_id.encode(), body))

    def holding(self, link: Link) -> AbstractContextManager[None]:
        """Keeps a session from being ended for want of use."""
        return self._links.using(link)

    def spare(self, link: Link) -> bool:
        """Forgets a session without ending it."""
        self._links.drop(link)
        return link.session_id is not None

    async def leave(self, link: Link) -> None:
        """Ends a session that belongs to one client session alone."""
        await self._lost(link)
        if link.session_id is not None:
            await self._exchange.end(link)

    async def close(self) -> None:
        """Ends all sessions, but for those that other replicas may use."""
        for link in self._links:
            if not link.client:
                self._let_go(link)
        await asyncio.gather(*self._ending, *self._opening.values())
        await self._connections.close()

    async def _open(self, key: Key) -> Link | NotSent:
        """One handshake for all who wait for it; none of them ends it by going away."""
        try:
            link = await self._found(key)
            if link is None:
                leaving = self._links.make_room()
                if leaving is None:
                    message = "all sessions at the upstream are busy: max_sessions"
                    return NotSent("upstream_down", message, again=True, busy=True)
                for one in leaving:
                    await self._forget(one)
                    self._let_go(one)
                link = await self._pinned(await self._handshake(*key))
        except NotSent as error:
            return error
        self._links.add(link)
        return link

    async def _found(self, key: Key) -> Link | None:
        """A session of this client that another replica has opened."""
        owner, _, client = key
        if not client or self._pins is None:
            return None
        pin = await self._pins.find(owner, client)
        return None if pin is None else unpinned(pin, owner, client)

    async def _pinned(self, link: Link) -> Link:
        """The session that counts for this client: ours, unless another replica was faster."""
        if not link.client or self._pins is None or link.session_id is None:
            return link
        try:
            kept = unpinned(await self._pins.keep(link.owner, link.client, pinned(link)), link.owner, link.client)
        except NotSent:
            self._let_go(link)
            raise
        if kept != link:
            self._let_go(link)
        return kept

    async def _lost(self, link: Link) -> None:
        self._links.drop(link)
        await self._forget(link)

    async def _forget(self, link: Link) -> None:
        if link.client and self._pins is not None:
            with suppress(NotSent):  # whoever finds it is told by the server that it has ended
                await self._pins.drop(link.owner, link.client, pinned(link))

    def _let_go(self, link: Link) -> None:
        if link.session_id is not None:
            ending = asyncio.ensure_future(self._exchange.end(link))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _handshake(self, owner: Owner, capabilities: str, client: str) -> Link:
        nobody = Link(owner, "", None)
        call = initialize(self.next_id(), capabilities)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                answer, session_id = await self._exchange.post(nobody, call, None, None, pooled=True)
        except TimeoutError as error:
            raise NotSent("upstream_down", "the upstream cannot be reached", again=True) from error
        except OutcomeUnknown as error:
            again = error.reason == "upstream_down"
            message = "the upstream cannot be reached" if again else str(error)
            raise NotSent(error.reason, message, again=again) from error
        version, hello = greeted(answer)
        link = Link(owner, version, session_id, capabilities, client, hello)
        await self._exchange.tell(link, jsonrpc.notification("notifications/initialized", {}))
        return link
