"""MCP over streamable HTTP, revisions with a handshake: the sessions at one URL, and what is said in them."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

from gateway.core.model import Owner
from gateway.upstream.answers import session_unknown
from gateway.upstream.doubts import Doubts
from gateway.upstream.ears import Ears
from gateway.upstream.exchange import HAS_EFFECT, Connections, Exchange
from gateway.upstream.handshake import HANDSHAKE_S, greeted, initialize
from gateway.upstream.links import Key, Links
from gateway.upstream.once import over
from gateway.upstream.pins import Pins, pinned, unpinned
from gateway.upstream.port import (
    NO_CAPABILITIES,
    Call,
    Link,
    NotSent,
    NotSpoken,
    OnNote,
    OnRequest,
    OutcomeUnknown,
    Refused,
    SessionEnded,
)
from gateway.wire import jsonrpc
from gateway.wire.jsonrpc import Members, Response

_NOT_SPOKEN: Final = frozenset({400, 404, 405})
"""What `initialize` is answered with by a server that speaks another transport, says the specification."""

_MAX_PING_BYTES: Final = 65_536


class HttpUpstream:
    """One server at one URL."""

    def __init__(
        self,
        connections: Connections,
        pins: Pins | None = None,
        *,
        max_sessions: int,
        session_idle_s: float,
        ids: Iterator[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pins` makes sessions of single clients the same on every replica.

        `ids` are those of requests, where others use the same sessions too.
        """
        self._connections = connections
        self._exchange = Exchange(connections)
        self._ears = Ears(self._exchange.listen)
        self._doubts = Doubts(self._pings)
        self._pins = pins
        self._links = Links(max_sessions, session_idle_s, clock)
        self._opening: dict[Key, asyncio.Task[Link | NotSent]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._touch_s = session_idle_s / 4
        self._touched: dict[Link, float] = {}
        self._toucher: asyncio.Task[None] | None = None
        self._clock = clock
        self._ids = itertools.count(1) if ids is None else ids

    def next_id(self) -> int:
        """An id for a request, used once."""
        return next(self._ids)

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """The session; callers that come together share one handshake. Raises NotSent."""
        key = (owner, capabilities, client)
        link = self._links.find(key)
        if link is not None and await self._there(link) and await self._still(link):
            return link
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open(key))
            opening.add_done_callback(lambda _: self._opening.pop(key))
        await asyncio.wait({opening})
        if opening.cancelled():
            raise NotSent("upstream_down", "the gateway is stopping", again=True)
        outcome = opening.result()
        if isinstance(outcome, NotSent):
            raise outcome.copy()
        return outcome

    def able(self, link: Link) -> Link:
        """What can be done in a session is the same in all of them."""
        return link

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        pooled = call.method not in HAS_EFFECT
        with self._using(link), self._ears.during(link, call, on_note, on_request):
            try:
                response, _ = await self._exchange.post(link, call, on_note, on_request, pooled=pooled)
            except SessionEnded:
                await self._lost(link)
                raise
            except NotSent as error:
                if error.reason == "upstream_down" or not error.again:
                    self._suspect(link)
                raise
            except OutcomeUnknown:
                self._suspect(link)
                raise
            if session_unknown(response):
                self._suspect(link)
            return response

    async def resume(
        self, link: Link, call: Call, event: str, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Waits for the answer to a request of another process. Raises OutcomeUnknown."""
        with self._using(link), self._ears.during(link, call, on_note, on_request):
            return await self._exchange.resume(link, call, event, on_note, on_request)

    async def cancel(self, link: Link, call: Call) -> None:
        """T25-CAN-3: notifications/cancelled with the id of our own request."""
        params = {"requestId": call.id, "reason": "cancelled by the requestor"}
        await self._exchange.tell(link, jsonrpc.notification("notifications/cancelled", params))
        if link.session_id is not None:
            self._doubts.about(link)

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Sends a notification of the client. Failing to is no error."""
        await self._exchange.tell(link, jsonrpc.notification(method, params))

    async def listen(
        self,
        link: Link,
        on_note: OnNote,
        on_request: OnRequest,
        resources: Sequence[str] = (),  # noqa: ARG002  # each was subscribed to before
    ) -> None:
        """Hears what belongs to no call. Raises NotSent when the session has ended."""
        with self._using(link):
            try:
                await self._ears.hear(link, on_note, on_request)
            except SessionEnded:
                await self._lost(link)
                raise

    async def follow(self, link: Link, task: str, on_note: OnNote, on_request: OnRequest) -> None:
        """Hears what concerns a task of the server's own; without a session it has nothing to say outside of calls."""
        if link.session_id is None:
            return
        with self._using(link):
            try:
                await self._ears.follow(link, task, on_note, on_request)
            except SessionEnded:
                await self._lost(link)
                raise

    async def reply(self, link: Link, request_id: str, *, ok: bool, body: bytes) -> None:
        """Answers a request of the server that was heard elsewhere: sessions are the same from any process."""
        await self._exchange.tell(link, (jsonrpc.result if ok else jsonrpc.error)(request_id.encode(), body))

    def holding(self, link: Link) -> AbstractContextManager[None]:
        """Keeps a session from being ended for want of use."""
        return self._using(link)

    def spare(self, link: Link) -> bool:
        """Forgets a session without ending it."""
        self._drop(link)
        return link.session_id is not None

    async def leave(self, link: Link) -> None:
        """Ends a session that belongs to one client session alone."""
        await self._lost(link)
        if link.session_id is not None:
            await self._exchange.end(link)

    async def close(self) -> None:
        """Ends all sessions, but for those that other replicas may use."""
        self._doubts.close()
        await self._ears.close()
        if self._toucher is not None:
            self._toucher.cancel()
            await asyncio.wait({self._toucher})
        await over(list(self._opening.values()))
        for link in self._links:
            if not link.client:
                self._let_go(link)
        await asyncio.gather(*self._ending)
        await self._connections.close()

    async def _open(self, key: Key) -> Link | NotSent:
        """One handshake for all who wait for it; none of them ends it by going away."""
        try:
            link = await self._found(key)
            if link is None:
                idle = {link: self._links.idle_s(link) for link in self._links}
                leaving = self._links.make_room()
                if leaving is None:
                    message = "all sessions at the upstream are busy: max_sessions"
                    return NotSent("upstream_down", message, again=True, busy=True)
                for one in leaving:
                    if not await self._used_elsewhere(one, idle[one]):
                        await self._forget(one)
                        self._let_go(one)
                link = await self._pinned(await self._handshake(*key))
        except NotSent as error:
            return error
        self._links.add(link)
        self._touched[link] = self._clock()
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

    async def _there(self, link: Link) -> bool:
        """Whether a session is still there in which something was cancelled."""
        if await self._doubts.cleared(link):
            return True
        await self._lost(link)
        return False

    def _suspect(self, link: Link) -> None:
        """After a restart, servers refuse forgotten sessions in many ways, of which one is unmistakable."""
        if link.session_id is not None and self._links.holds(link):
            self._doubts.suspect(link)

    async def _pings(self, link: Link) -> bool | None:
        call = Call(self.next_id(), "ping", {}, _MAX_PING_BYTES)
        try:
            answer, _ = await self._exchange.post(link, call, None, None, pooled=True)
        except OutcomeUnknown:
            return False
        except NotSent as error:
            return None if error.reason == "upstream_down" and not error.ended else False
        return not session_unknown(answer)

    @contextmanager
    def _using(self, link: Link) -> Iterator[None]:
        """Something is under way, which other replicas must see as well."""
        if link.client and self._pins is not None and (self._toucher is None or self._toucher.done()):
            self._toucher = asyncio.ensure_future(self._touch_busy())
        with self._links.using(link):
            yield

    async def _touch_busy(self) -> None:
        """While something is under way in a client's session, no replica takes it for unused."""
        while True:
            await asyncio.sleep(self._touch_s)
            for link in self._links.busy:
                with suppress(NotSent):
                    await self._still(link)

    async def _still(self, link: Link) -> bool:
        """Whether the session of a client is still the one that counts. Asked now and then. Raises NotSent."""
        if not link.client or self._pins is None or link.session_id is None:
            return True
        now = self._clock()
        if now < self._touched.get(link, -self._touch_s) + self._touch_s:
            return True
        self._touched[link] = now
        pin = await self._pins.find(link.owner, link.client)
        if pin is not None and unpinned(pin, link.owner, link.client) == link:
            return True
        self._drop(link)
        return False

    async def _used_elsewhere(self, link: Link, idle_s: float) -> bool:
        """Whether another replica has used the session of a client after this one did; if in doubt, it has."""
        if not link.client or self._pins is None:
            return False
        try:
            return await self._pins.unused_s(link.owner, link.client) + self._touch_s < idle_s
        except NotSent:
            return True

    def _drop(self, link: Link) -> None:
        self._links.drop(link)
        self._doubts.forget(link)
        self._touched.pop(link, None)

    async def _lost(self, link: Link) -> None:
        self._drop(link)
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
        except Refused as error:
            if error.status in _NOT_SPOKEN:
                raise NotSpoken(error.reason, str(error), again=error.again) from error
            raise
        except OutcomeUnknown as error:
            again = error.reason == "upstream_down"
            message = "the upstream cannot be reached" if again else str(error)
            raise NotSent(error.reason, message, again=again) from error
        version, hello = greeted(answer)
        link = Link(owner, version, session_id, capabilities, client, hello)
        await self._exchange.tell(link, jsonrpc.notification("notifications/initialized", {}))
        return link
