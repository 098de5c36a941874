"""What a server says in the one stream of a session, brought to the calls that it concerns.

Answers, notifications and questions come as they please; nothing tells which call a question belongs to. A server of
revision 2026-07-28 asks nothing in the middle, and marks what belongs to a subscription.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import Raw

from gateway.telemetry import Telemetry
from gateway.upstream.port import Call, OnNote, OnRequest, OutcomeUnknown
from gateway.wire import asking, jsonrpc
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Members, Notification, Request, Response
from gateway.wire.modern_client import LISTEN
from gateway.wire.render import SUBSCRIPTION_ID

SLACK_BYTES: Final = 65_536
_LEAST_BYTES: Final = 1_048_576


@dataclass(slots=True)
class Waiting:
    """A call under way. `concerned`: the server has said something about it, so it has begun."""

    call: Call
    on_note: OnNote | None
    on_request: OnRequest | None
    answer: "asyncio.Future[Response | OutcomeUnknown]"
    questions: "set[asyncio.Task[None]]" = field(default_factory=set)
    concerned: bool = False

    @property
    def token(self) -> bytes | None:
        """What its progress is reported under."""
        token = _meta(self.call.params).get("progressToken")
        return None if token is None else bytes(token)

    def end(self, outcome: Response | OutcomeUnknown) -> None:
        """Tells whoever waits, unless they know already."""
        if not self.answer.done():
            self.answer.set_result(outcome)


@dataclass(frozen=True, slots=True)
class Ears:
    """Where goes what belongs to no call.

    `say` takes our answers to questions, `asks` gives who answers, or None; `odd` is told the size of what is no MCP.
    """

    say: Callable[[bytes], object]
    heard: Callable[[Notification], None]
    asks: Callable[[], OnRequest | None]
    odd: Callable[[int], None]


class Dialogue:
    """The calls under way in one session. `limit` bounds one message of the server: it grows with what calls allow.

    `modern`: everything is in each request, so the server asks nothing and has subscriptions.
    """

    def __init__(self, ears: Ears, telemetry: Telemetry) -> None:
        self._ears = ears
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, Waiting] = {}
        self._tokens: dict[bytes, Waiting] = {}
        self._open_ids: set[int] = set()
        self._questions: set[asyncio.Task[None]] = set()
        self.limit = _LEAST_BYTES
        self.modern = False

    def begin(self, call: Call, on_note: OnNote | None, on_request: OnRequest | None) -> Waiting:
        """A call that is about to be sent."""
        waiting = Waiting(call, on_note, on_request, self._loop.create_future())
        self._waiting[str(call.id).encode()] = waiting
        self._open_ids.add(call.id)
        if (token := waiting.token) is not None:
            self._tokens[token] = waiting
        self.limit = max(self.limit, call.max_bytes + SLACK_BYTES)
        return waiting

    def part(self, waiting: Waiting) -> None:
        """The call is over for its caller. The server may still be told so, see `withdraw`."""
        del self._waiting[str(waiting.call.id).encode()]
        token = waiting.token
        if token is not None and self._tokens.get(token) is waiting:
            del self._tokens[token]
        for question in waiting.questions:
            question.cancel()

    def withdraw(self, call_id: int) -> bool:
        """Whether the server got this request and has not answered it; from now on it counts as answered."""
        known = call_id in self._open_ids
        self._open_ids.discard(call_id)
        return known

    def lose(self, why: OutcomeUnknown) -> None:
        """Nothing more will be said: every caller is told why."""
        for question in self._questions:
            question.cancel()
        for waiting in self._waiting.values():
            waiting.end(why)

    def hear(self, text: bytes) -> None:
        """One message of the server, or what it took for one."""
        message = jsonrpc.parse(text)
        if isinstance(message, Reject):
            self._not_understood(text)
        elif isinstance(message, Response):
            self._answered(message)
        elif isinstance(message, Request):
            self._asked(message)
        else:
            self._noted(message)

    def _answered(self, response: Response) -> None:
        waiting = self._waiting.get(response.id)
        if waiting is not None:
            waiting.end(response)
        if response.id.isdigit():
            self._open_ids.discard(int(response.id))

    def _noted(self, note: Notification) -> None:
        ended = self._torn_down(note)
        if ended is not None:
            ended.end(OutcomeUnknown("upstream_down", "the upstream ended the subscription"))
            return
        waiting = self._concerned(note)
        try:
            if waiting is None:
                self._ears.heard(note)
                return
            waiting.concerned = True
            if waiting.on_note is not None:
                waiting.on_note(note)
        except Exception as error:  # noqa: BLE001  # a fault of one caller must not end the calls of the others
            self._telemetry.fault("notification", error)

    def _concerned(self, note: Notification) -> Waiting | None:
        """The call that a notification belongs to, as far as can be told."""
        if (subscribed := self._subscription(_meta(note.params).get(SUBSCRIPTION_ID))) is not None:
            return subscribed
        if note.method == "notifications/progress":
            return self._tokens.get(bytes(note.params.get("progressToken") or b""))
        if note.method == "notifications/message":
            calls = [waiting for waiting in self._waiting.values() if waiting.call.method != LISTEN]
            return calls[0] if len(calls) == 1 else None
        return None

    def _torn_down(self, note: Notification) -> Waiting | None:
        """The subscription that a server ends in the middle."""
        ends = note.method == "notifications/cancelled"
        return self._subscription(note.params.get("requestId")) if ends else None

    def _subscription(self, request_id: Raw | None) -> Waiting | None:
        waiting = self._waiting.get(bytes(request_id)) if self.modern and request_id is not None else None
        return waiting if waiting is not None and waiting.call.method == LISTEN else None

    def _asked(self, request: Request) -> None:
        if self.modern:
            return  # there are no such requests any more, and a client must not write answers
        if request.method == "ping":
            self._ears.say(jsonrpc.result(request.id, b"{}"))
            return
        askers = [waiting for waiting in self._waiting.values() if waiting.on_request is not None]
        asker = askers[0] if len(askers) == 1 else None
        on_request = self._ears.asks() if asker is None else asker.on_request
        if on_request is None:
            self._ears.say(jsonrpc.error(request.id, asking.UNDECLARED))
            return
        question = self._loop.create_task(self._put(request, on_request))
        questions = self._questions if asker is None else asker.questions
        questions.add(question)
        question.add_done_callback(questions.discard)

    async def _put(self, request: Request, on_request: OnRequest) -> None:
        """Answers a question of the server, however long that takes; several may be open at once."""
        ok, body = False, asking.GONE
        try:
            ok, body = await on_request(request.method, request.params)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave the server without an answer
            self._telemetry.fault("question", error)
        self._ears.say((jsonrpc.result if ok else jsonrpc.error)(request.id, body))

    def _not_understood(self, text: bytes) -> None:
        """A banner is skipped. What carries the id of a call but is no answer ends that call, or it would hang."""
        waiting = self._meant_for(text)
        if waiting is not None:
            waiting.end(OutcomeUnknown("upstream_bad", "the upstream's answer is not MCP"))
        else:
            self._ears.odd(len(text))

    def _meant_for(self, text: bytes) -> Waiting | None:
        try:
            parts = jsonrpc.members(text) or {}
        except RecursionError:  # it is JSON, and too deep for its id to be found
            return next(iter(self._waiting.values())) if len(self._waiting) == 1 else None
        raw = parts.get("id") if parts.keys() & {"jsonrpc", "result"} else None
        return None if raw is None else self._waiting.get(bytes(raw))


def _meta(params: Members) -> Members:
    return jsonrpc.members(params.get("_meta") or b"{}") or {}
