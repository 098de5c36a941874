"""Sessions that live in this process: for each principal and set of declared capabilities, and so many at most.

A session belongs to its principal, because a server may keep in it what its caller did. One that nothing runs on makes
room for another principal's, and ends when it was not used for a while.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

from gateway.core.model import Owner
from gateway.upstream.greeting import Greet, handshake
from gateway.upstream.handshake import initialize
from gateway.upstream.links import Key, key_of
from gateway.upstream.port import NO_CAPABILITIES, Call, Link, NotSent, OnNote, OnRequest
from gateway.upstream.session import Hooks, Session
from gateway.upstream.unresumed import Unresumed
from gateway.wire.jsonrpc import Members, Notification, Response


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many sessions there may be, and after how many seconds an unused one ends."""

    sessions: int
    idle_s: float


class Pool(Unresumed, ABC):
    """What the transports share whose sessions live in this process: all of `Upstream` but how it listens."""

    WHAT: ClassVar[str]
    MANY: ClassVar[str]
    """What messages call a session of an upstream, and several."""

    def __init__(self, bounds: Bounds, ids: Iterator[int] | None = None) -> None:
        """`ids` are those of requests, where other transports at the same server draw from them too."""
        self._bounds = bounds
        self._hooks = Hooks(self._lost, self._ended, self._heard, self._asks)
        self._sessions: dict[str, Session] = {}
        self._current: dict[Key, list[Session]] = {}
        self._starting: dict[Key, asyncio.Task[Session | NotSent]] = {}
        self._ears: dict[Key, list[tuple[OnNote, OnRequest]]] = {}
        self._ids = itertools.count(1) if ids is None else ids
        self._closed = False

    def next_id(self) -> int:
        """An id for a request, used once."""
        return next(self._ids)

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """The session; callers that come together share one start. Raises NotSent.

        A session in which something may be asked takes one call at a time, because nothing in a question tells which
        call it belongs to: further calls get sessions of their own, and wait for a turn when there may be no more.
        """
        session = self._free(self._key(owner, capabilities, client))
        while session is None:
            try:
                session = await self._start(self._key(owner, capabilities, client))
            except NotSent:
                session = self._least_busy(self._key(owner, capabilities, client))
                if session is None:
                    raise
                break
            if session.exclusive and not session.idle:
                session = self._free(key_of(session.link))
        session.hold()
        return replace(session.link, capabilities=capabilities)

    def able(self, link: Link) -> Link:
        """What can be done in a session is the same in all of them."""
        return link

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        session = self._of(link)
        if session is None:
            raise self._over()
        return await session.perform(call, on_note, on_request)

    async def cancel(self, link: Link, call: Call) -> None:
        """T25-CAN-3: notifications/cancelled with the id of our own request."""
        session = self._of(link)
        if session is not None:
            await session.cancel(call)

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Sends a notification of the client. Failing to is no error."""
        session = self._of(link)
        if session is not None:
            await session.tell(method, params)

    async def follow(self, link: Link, task: str, on_note: OnNote, on_request: OnRequest) -> None:
        """Hears what concerns a task of the server's own. Raises NotSent when the session has ended."""
        session = self._of(link)
        if session is not None:
            with session.followers.following(task, on_note, on_request):
                await session.collected()
        raise self._over()

    async def reply(self, link: Link, request_id: str, *, ok: bool, body: bytes) -> None:
        """Answers a request of the server, as long as its session is there."""
        session = self._of(link)
        if session is not None:
            await session.reply(request_id.encode(), ok=ok, body=body)

    def holding(self, link: Link) -> AbstractContextManager[None]:
        """Keeps a session from being ended for want of use."""
        session = self._of(link)
        return nullcontext() if session is None else session.kept()

    def spare(self, link: Link) -> bool:  # noqa: ARG002  # no session outlives its process
        """Sessions end with this process: nobody else can use them."""
        return False

    async def close(self) -> None:
        """Ends all sessions, and waits until nothing is left of them."""
        self._closed = True
        while self._sessions or self._starting:
            for session in self._sessions.values():
                session.end()
            collecting = [asyncio.ensure_future(session.collected()) for session in self._sessions.values()]
            await asyncio.wait([*collecting, *self._starting.values()])

    @abstractmethod
    def _made(self, link: Link) -> Session:
        """A session that is about to begin; `link.session_id` is what it is found by."""

    @abstractmethod
    def _name(self) -> str:
        """What the next session is found by."""

    def _key(self, owner: Owner, capabilities: str, client: str) -> Key:
        """Whose session it is."""
        return owner, capabilities, client

    def _greeting(self, key: Key) -> Greet:
        """How a session of this key is greeted."""
        return handshake(initialize(self.next_id(), key[1]))

    async def _prepare(self, key: Key) -> None:  # most have nothing to wait for
        """Comes before a session is begun. Raises NotSent where none may be now."""

    def _failed(self, key: Key, why: str) -> None:  # most keep no account of it
        """A session could not be begun."""

    def _begun(self, session: Session) -> None:  # likewise
        """A session takes calls now."""

    def _lost(self, session: Session) -> None:  # likewise
        """A session ended by itself, maybe before it was there."""

    def _of(self, link: Link) -> Session | None:
        """The session of a link; a link of another process may bear the same id."""
        session = self._sessions.get(link.session_id or "")
        return session if session is not None and session.serves(link) else None

    def _over(self) -> NotSent:
        return NotSent("upstream_down", f"{self.WHAT} has ended", again=True, ended=True)

    def _free(self, key: Key) -> Session | None:
        """A session that takes a call at once."""
        usable = [session for session in self._current.get(key, ()) if session.usable]
        if key[1] != NO_CAPABILITIES:
            usable = [session for session in usable if session.idle]
        return usable[0] if usable else None

    def _least_busy(self, key: Key) -> Session | None:
        usable = [session for session in self._current.get(key, ()) if session.usable]
        return min(usable, key=lambda session: session.load) if usable else None

    async def _start(self, key: Key) -> Session:
        """One start for all who wait for it; none of them ends it by going away. Raises NotSent."""
        starting = self._starting.get(key)
        if starting is None:
            starting = self._starting[key] = asyncio.get_running_loop().create_task(self._try(key))
            starting.add_done_callback(lambda _: self._starting.pop(key))
        await asyncio.wait({starting})
        outcome = starting.result()
        if isinstance(outcome, NotSent):
            raise outcome.copy()
        return outcome

    async def _try(self, key: Key) -> Session | NotSent:
        try:
            await self._prepare(key)
        except NotSent as error:
            return error
        outcome = await self._begin(key)
        if isinstance(outcome, NotSent) and not outcome.busy:
            self._failed(key, str(outcome))
        return outcome

    async def _begin(self, key: Key) -> Session | NotSent:
        try:
            await self._make_room()
        except NotSent as error:
            return error
        owner, capabilities, client = key
        session = self._made(Link(owner, "", self._name(), capabilities, client))
        self._sessions[session.link.session_id or ""] = session
        try:
            await session.begin(self._greeting(key))
        except NotSent as error:
            return error
        self._current.setdefault(key_of(session.link), []).append(session)
        self._begun(session)
        return session

    async def _make_room(self) -> None:
        """Returns when one more session may be begun, in the same turn of the loop. Raises NotSent."""
        while len(self._sessions) >= self._bounds.sessions:
            removable = [session for session in self._sessions.values() if session.removable]
            if not removable:
                message = f"all {self._bounds.sessions} {self.MANY} of the upstream are busy"
                raise NotSent("upstream_down", message, again=True, busy=True)
            leaving = min(removable, key=lambda session: (not session.ending, session.used))
            leaving.end()
            await leaving.collected()
        if self._closed:
            raise NotSent("upstream_down", "the gateway is stopping", again=False)

    @contextmanager
    def _hearing(self, key: Key, on_note: OnNote, on_request: OnRequest) -> Iterator[None]:
        """Hears what belongs to no call, from every session of this key."""
        ears = self._ears.setdefault(key, [])
        ear = (on_note, on_request)
        ears.append(ear)
        try:
            yield
        finally:
            ears.remove(ear)
            if not ears:
                self._ears.pop(key, None)

    def _heard(self, session: Session, note: Notification) -> None:
        """A notification that belongs to no call."""
        for on_note, _ in self._ears.get(key_of(session.link), ()):
            on_note(note)

    def _asks(self, session: Session) -> OnRequest | None:
        """Who answers a question that belongs to no call; None if nobody is there."""
        ears = self._ears.get(key_of(session.link))
        return None if not ears else ears[-1][1]

    def _ended(self, session: Session) -> None:
        """Nothing is left of a session."""
        del self._sessions[session.link.session_id or ""]
        key = key_of(session.link)
        others = [one for one in self._current.pop(key, []) if one is not session]
        if others:
            self._current[key] = others
