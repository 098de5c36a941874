"""One MCP session with a server that runs as a child process: the handshake, calls, what arrives, the end.

The session's own task starts the process, reads its output, and ends and collects it; nothing else does. Callers wait
for futures, so one that is cancelled or fails leaves the others alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from gateway.telemetry import Telemetry
from gateway.upstream.belonging import Waiting, asking_alone, asking_task, concerned, meant_for
from gateway.upstream.handshake import HANDSHAKE_S, greeted
from gateway.upstream.lines import Lines, TooLong
from gateway.upstream.port import (
    NO_CAPABILITIES,
    TOO_LARGE,
    Call,
    Link,
    NotSent,
    OnNote,
    OnRequest,
    OutcomeUnknown,
    put,
)
from gateway.upstream.process import Command, Process, Watch, epitaph
from gateway.upstream.stderr import log_errors
from gateway.wire import asking, jsonrpc
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Members, Notification, Request, Response
from gateway.wire.theirs_2025 import related

_HOLD_S: Final = 5.0
"""How long a session that was opened is kept for the call that it was opened for."""
_STATUS_S: Final = 0.5
"""How long the exit status is waited for, where the end of the output came first."""
_SLACK_BYTES: Final = 65_536
_ABOUT_TASKS: Final = "tasks/"
"""Calls that need no turn of their own, because a question that comes with them names its task."""
_LEAST_LINE_BYTES: Final = 1_048_576
_CHUNK_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the owner of a session is told: that it takes no more calls, that nothing is left of it, what it heard.

    `heard` and `asks` are for what belongs to no call; `asks` gives who answers, or None, and `soon` who answers a
    question of a task of which nobody can have heard yet.
    """

    lost: Callable[["Child"], None]
    ended: Callable[["Child"], None]
    heard: Callable[["Child", Notification], None]
    asks: Callable[["Child"], OnRequest | None]
    soon: Callable[["Child"], OnRequest]


class Child:
    """One process with one session. `used` is when it was last used, on the loop's clock."""

    def __init__(self, link: Link, command: Command, idle_s: float, telemetry: Telemetry, hooks: Hooks) -> None:
        self.link = link
        self._upstream = link.owner.upstream
        self._idle_s = idle_s
        self._telemetry = telemetry
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._process = Process(command, Watch(self._started, self._exited, self._retire))
        self._pid = 0
        self._begun: asyncio.Future[NotSent | None] = self._loop.create_future()
        # Where capabilities were declared a question must belong to a call, so there is one at a time.
        self._exclusive = link.capabilities != NO_CAPABILITIES
        self._turn = asyncio.Lock()
        self._waiting: dict[bytes, Waiting] = {}
        self._open_ids: set[int] = set()
        self._questions: set[asyncio.Task[None]] = set()
        self._holds: deque[float] = deque()
        self._users = 0
        self._limit = _LEAST_LINE_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False
        self._retired = False
        self.epitaph = ""
        self._wanted = False
        self.ready = False
        self.ending = False
        self.used = self.began = self._loop.time()
        self._life = self._loop.create_task(self._live(), name=f"upstream-{self._upstream}")

    @property
    def usable(self) -> bool:
        """Whether it takes calls."""
        return self.ready and not self._retired and not self.ending

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it and nobody is about to call."""
        while self._holds and self._holds[0] <= self._loop.time():
            self._holds.popleft()
        return self.ready and self._users == 0 and not self._holds

    @property
    def load(self) -> int:
        """How many calls run on it or wait for their turn."""
        return self._users + len(self._holds)

    async def begin(self, handshake: Call) -> None:
        """Returns when the session is there. Raises NotSent, and then the process ends."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await asyncio.wait({self._begun})
                if (failure := self._begun.result()) is not None:
                    raise failure
                answer = await self._exchange(handshake, None, None)
        except TimeoutError:
            self.kill()
            message = f"the upstream's process did not complete the handshake within {HANDSHAKE_S:.0f} s"
            raise NotSent("upstream_down", message, again=True) from None
        except OutcomeUnknown as error:
            self.kill()
            message = f"{error} (during the handshake)"
            raise NotSent(error.reason, message, again=error.reason == "upstream_down") from error
        try:
            version, hello = greeted(answer)
        except NotSent:
            self.kill()
            raise
        self.link = replace(self.link, version=version, hello=hello)
        self._write(jsonrpc.notification("notifications/initialized", {}))
        self.ready = True
        self._touch()

    def hold(self) -> None:
        """Keeps the session for somebody who is about to call."""
        self._holds.append(self._loop.time() + _HOLD_S)
        self._touch()

    async def perform(self, call: Call, on_note: OnNote | None, on_request: OnRequest | None) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        if self._holds:
            self._holds.popleft()
        self._users += 1
        try:
            if not self.usable:
                raise self._gone()
            if not self._exclusive or call.method.startswith(_ABOUT_TASKS):
                return await self._exchange(call, on_note, on_request if self._exclusive else None)
            async with self._turn:
                if not self.usable:
                    raise self._gone()
                return await self._exchange(call, on_note, on_request, alone=True)
        finally:
            self._users -= 1
            self._touch()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The process is in use meanwhile, although nothing is asked of it: it works on something."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._touch()

    def reply(self, request_id: bytes, *, ok: bool, body: bytes) -> None:
        """Answers a request that was heard earlier."""
        self._reply((jsonrpc.result if ok else jsonrpc.error)(request_id, body))

    def cancel(self, call: Call) -> None:
        """T25-CAN-3: tells the server once, and only of a request that it got and has not answered."""
        if call.id in self._open_ids:
            self._open_ids.discard(call.id)
            params = {"requestId": call.id, "reason": "cancelled by the requestor"}
            self._write(jsonrpc.notification("notifications/cancelled", params))

    def tell(self, method: str, params: Members) -> None:
        """Sends a notification of the client."""
        if self.usable and self._process.reads():
            self._write(jsonrpc.notification(method, params))

    def end(self) -> None:
        """Ends the process, politely at first. Returns at once; what is under way may still be answered."""
        self._wanted |= not self.ending
        self.ending = True
        self._process.end()

    def kill(self) -> None:
        """Ends the process at once: it is of no use. Returns at once."""
        self.ending = True
        self._process.kill()

    async def collected(self) -> None:
        """Waits until nothing is left of the process."""
        await asyncio.wait({self._life})

    async def _exchange(
        self, call: Call, on_note: OnNote | None, on_request: OnRequest | None, *, alone: bool = False
    ) -> Response:
        if not self._write(jsonrpc.request(str(call.id).encode(), call.method, call.params)):
            self._retire()
            raise self._gone()
        waiting = Waiting(call, on_note, on_request, self._loop.create_future(), alone)
        self._waiting[str(call.id).encode()] = waiting
        self._open_ids.add(call.id)
        self._limit = max(self._limit, call.max_bytes + _SLACK_BYTES)
        try:
            answer = await waiting.answer
        finally:
            self._part(waiting)
        if isinstance(answer, OutcomeUnknown):
            raise OutcomeUnknown(answer.reason, str(answer))
        if len(answer.body) > call.max_bytes:
            raise OutcomeUnknown("upstream_bad", TOO_LARGE)
        return answer

    def _part(self, waiting: Waiting) -> None:
        """The call is over for its caller."""
        del self._waiting[str(waiting.call.id).encode()]
        for question in waiting.questions:
            question.cancel()
        if waiting.alone and self.ready and waiting.answer.cancelled():
            # The server may go on and ask: what it asks must not be taken for a question of the next call.
            self.cancel(waiting.call)
            self._retire()

    async def _live(self) -> None:
        """From the start of the process to its collection."""
        errors: asyncio.Task[None] | None = None
        try:
            await self._process.start()
            listening = log_errors(self._process.errors, self._upstream, self._pid, self._telemetry)
            errors = self._loop.create_task(listening)
            self._begun.set_result(None)
            await self._serve()
        except NotSent as error:
            self._begun.set_result(error)
        finally:
            if not self._begun.done():
                self._begun.set_result(self._gone())
            try:
                await self._bury()
                if errors is not None:
                    await asyncio.wait({errors})
            finally:
                self._hooks.ended(self)

    async def _serve(self) -> None:
        """Reads until the end, which is told to every caller, also when it is a fault of ours."""
        try:
            if not self.ending:
                await self._read()
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave a caller without an answer
            self._telemetry.fault("upstream", error)
        finally:
            self._lose(OutcomeUnknown("upstream_down", "the gateway gave up the upstream's process"))

    async def _read(self) -> None:
        """Reads until the process says no more, and tells every caller what that means."""
        lines = Lines()
        try:
            while chunk := await self._process.output.read(_CHUNK_BYTES):
                for line in lines.feed(chunk, self._limit):
                    self._hear(line)
        except TooLong:
            self._lose(OutcomeUnknown("upstream_bad", TOO_LARGE))
            self.kill()
            return
        self._retired = True
        status = await self._process.status(_STATUS_S)
        self.epitaph = epitaph(status)
        self._lose(OutcomeUnknown("upstream_down", self.epitaph))

    def _lose(self, why: OutcomeUnknown) -> None:
        unexpected = not self.ending
        self.ending = True
        for question in self._questions:
            question.cancel()
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_result(why)
        if unexpected:
            self._hooks.lost(self)

    async def _bury(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.ending = True
        self._process.end()
        await self._process.collect()

    def _started(self, pid: int) -> None:
        self._pid = pid
        self._telemetry.upstream_started(upstream=self._upstream, pid=pid)

    def _exited(self, status: int) -> None:
        seconds = self._loop.time() - self.began
        self._telemetry.upstream_exited(
            upstream=self._upstream, pid=self._pid, status=status, seconds=seconds, wanted=self._wanted
        )

    def _hear(self, line: bytes) -> None:
        """One line of the process."""
        if not line.strip():
            return
        message = jsonrpc.parse(line)
        if isinstance(message, Reject):
            self._not_understood(line)
        elif isinstance(message, Response):
            self._answered(message)
        elif isinstance(message, Request):
            self._asked(message)
        else:
            self._noted(message)

    def _answered(self, response: Response) -> None:
        waiting = self._waiting.get(response.id)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(response)
        if response.id.isdigit():
            self._open_ids.discard(int(response.id))

    def _noted(self, note: Notification) -> None:
        waiting = concerned(self._waiting, note)
        try:
            if waiting is None:
                self._hooks.heard(self, note)
            elif waiting.on_note is not None:
                waiting.on_note(note)
        except Exception as error:  # noqa: BLE001  # a fault of one caller must not end the calls of the others
            self._telemetry.fault("notification", error)

    def _asked(self, request: Request) -> None:
        if request.method == "ping":
            self._reply(jsonrpc.result(request.id, b"{}"))
            return
        of_task = related(request.params) is not None
        asker = asking_task(self._waiting, request) if of_task else asking_alone(self._waiting)
        on_request = self._hooks.asks(self) if asker is None else asker.on_request
        if on_request is None and of_task and self._exclusive:
            on_request = self._hooks.soon(self)
        if on_request is None:
            self._reply(jsonrpc.error(request.id, asking.UNDECLARED))
            return
        question = self._loop.create_task(self._put(request, on_request))
        questions = self._questions if asker is None else asker.questions
        questions.add(question)
        question.add_done_callback(questions.discard)

    async def _put(self, request: Request, on_request: OnRequest) -> None:
        """Answers a question of the server, however long that takes; several may be open at once."""
        ok, body = False, asking.GONE
        try:
            ok, body = await put(on_request, request)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave the server without an answer
            self._telemetry.fault("question", error)
        self._reply((jsonrpc.result if ok else jsonrpc.error)(request.id, body))

    def _not_understood(self, line: bytes) -> None:
        """A banner is skipped. What carries the id of a call but is no answer ends that call, or it would hang."""
        waiting = meant_for(self._waiting, line)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(OutcomeUnknown("upstream_bad", "the upstream's answer is not MCP"))
        elif not self._warned:
            self._warned = True
            self._telemetry.upstream_no_mcp(upstream=self._upstream, pid=self._pid, size=len(line))

    def _reply(self, body: bytes) -> None:
        if self._process.reads():
            self._write(body)

    def _write(self, body: bytes) -> bool:
        """Whether it may have gone out. In JSON a line break is white space, and here it would end the message."""
        return self._process.write(body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    def _gone(self) -> NotSent:
        return NotSent("upstream_down", self.epitaph or "the upstream's process takes no more calls", again=True)

    def _retire(self) -> None:
        """Takes no more calls. Ends when those under way are over, unless it is about to end by itself."""
        self._retired = True
        self._touch()

    def _touch(self) -> None:
        self.used = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        if not self.ending:
            self._timer = self._loop.call_later(_STATUS_S if self._retired else self._idle_s, self._rest)

    def _rest(self) -> None:
        if self.ready and self._users == 0:
            self.end()
