"""The calls under way with a server that answers on one channel: which of them a message belongs to."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Raw

from gateway.upstream.port import Call, OnNote, OnRequest, OutcomeUnknown
from gateway.wire import jsonrpc
from gateway.wire.jsonrpc import Members, Notification, Response
from gateway.wire.modern_client import LISTEN
from gateway.wire.render import SUBSCRIPTION_ID


@dataclass(slots=True)
class Waiting:
    """A call under way."""

    call: Call
    on_note: OnNote | None
    on_request: OnRequest | None
    answer: "asyncio.Future[Response | OutcomeUnknown]"
    questions: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def token(self) -> bytes | None:
        """What its progress is reported under."""
        meta: Members = jsonrpc.members(self.call.params.get("_meta") or b"{}") or {}
        token = meta.get("progressToken")
        return None if token is None else bytes(token)

    def end(self, outcome: Response | OutcomeUnknown) -> None:
        """Tells whoever waits, unless they know already."""
        if not self.answer.done():
            self.answer.set_result(outcome)


class Calls:
    """Those that were sent, by the id that they were sent with."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Waiting] = {}
        self._tokens: dict[bytes, Waiting] = {}
        self._open_ids: set[int] = set()

    def __iter__(self) -> Iterator[Waiting]:
        """All of them, in the order in which they were sent."""
        return iter(self._waiting.values())

    def add(self, waiting: Waiting) -> None:
        """One that is sent."""
        self._waiting[str(waiting.call.id).encode()] = waiting
        self._open_ids.add(waiting.call.id)
        if (token := waiting.token) is not None:
            self._tokens[token] = waiting

    def drop(self, waiting: Waiting) -> None:
        """One that nobody waits for any more. The server may still answer it."""
        del self._waiting[str(waiting.call.id).encode()]
        token = waiting.token
        if token is not None and self._tokens.get(token) is waiting:
            del self._tokens[token]

    def close(self, call: Call) -> bool:
        """Whether the server had it and has not answered; it is told so once."""
        if call.id not in self._open_ids:
            return False
        self._open_ids.discard(call.id)
        return True

    def answered(self, response: Response) -> None:
        """An answer came."""
        waiting = self._waiting.get(response.id)
        if waiting is not None:
            waiting.end(response)
        if response.id.isdigit():
            self._open_ids.discard(int(response.id))

    def fail(self, why: OutcomeUnknown) -> None:
        """No answers will come."""
        for waiting in self._waiting.values():
            waiting.end(why)

    def concerned(self, note: Notification) -> Waiting | None:
        """The call that a notification belongs to, as far as can be told."""
        if note.method == "notifications/progress":
            return self._tokens.get(bytes(note.params.get("progressToken") or b""))
        if note.method == "notifications/message" and len(self._waiting) == 1:
            return next(iter(self._waiting.values()))
        return None

    def subscribed(self, note: Notification) -> Waiting | None:
        """The subscription that a notification belongs to."""
        meta: Members = jsonrpc.members(note.params.get("_meta") or b"{}") or {}
        return self._subscription(meta.get(SUBSCRIPTION_ID))

    def torn_down(self, note: Notification) -> Waiting | None:
        """The subscription that a server ends in the middle."""
        ends = note.method == "notifications/cancelled"
        return self._subscription(note.params.get("requestId")) if ends else None

    def asker(self) -> Waiting | None:
        """The call that can be asked something."""
        return next((waiting for waiting in self if waiting.on_request is not None), None)

    def meant_for(self, line: bytes) -> Waiting | None:
        """The call whose answer a line seems to be, although it is none."""
        try:
            parts = jsonrpc.members(line) or {}
        except RecursionError:  # it is JSON, and too deep for its id to be found
            return next(iter(self)) if len(self._waiting) == 1 else None
        raw = parts.get("id") if parts.keys() & {"jsonrpc", "result"} else None
        return None if raw is None else self._waiting.get(bytes(raw))

    def _subscription(self, request_id: Raw | None) -> Waiting | None:
        waiting = None if request_id is None else self._waiting.get(bytes(request_id))
        return waiting if waiting is not None and waiting.call.method == LISTEN else None
