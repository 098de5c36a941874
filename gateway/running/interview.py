"""What an upstream asks about a task of its own: put into our record, answered however the upstream can be reached.

A question outlives the stream it came on and the process that heard it: the record knows the upstream's name for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from gateway.core.model import Question
from gateway.following.watching import Watch
from gateway.running.holder import Held
from gateway.running.questions import Asked, Questions
from gateway.upstream.port import WithId
from gateway.wire import asking, theirs
from gateway.wire.jsonrpc import Members
from gateway.wire.theirs import Ask

_T = TypeVar("_T")
_NO: Final = b'{"action":"cancel"}'


class Interview:
    """The questions of one task. `changed` is called when an answer has been brought."""

    def __init__(
        self, questions: Questions, held: Held, watch: Watch, task: str, timeout_s: float, changed: Callable[[], None]
    ) -> None:
        self._questions = questions
        self._held = held
        self._watch = watch
        self._task = task
        self._timeout_s = timeout_s
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._put: set[str] = set()
        self._closed = False
        self.on_request = WithId(self._heed)

    def put(self, key: str, question: Ask) -> None:
        """A question that came with the state. One whose answer did not arrive comes with the next state again."""
        if key not in self._put:
            self._put.add(key)
            self._keep(self._update(key, question))

    def again(self, questions: tuple[Question, ...]) -> None:
        """What a process was asked that died is answered by this one."""
        for question in questions:
            if question.theirs:
                self._keep(self._bring(self._questions.answer(self._held, question.key), question.theirs))

    async def close(self) -> None:
        """Nobody answers any more: the task has ended, or is somebody else's."""
        self._closed = True
        left = list(self._under_way)
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _heed(self, request_id: str, method: str, params: Members) -> tuple[bool, bytes]:
        """A question that came as a request."""
        if not self._declared(method, params):
            return False, asking.UNDECLARED
        asked = self._keep(self._ask(request_id, method, params))
        try:
            ok, body = await asyncio.shield(asked)
        except asyncio.CancelledError:
            if request_id and not self._closed:  # its stream broke: the answer goes back without it
                self._keep(self._bring(asked, request_id))
            raise
        self._changed()
        return ok, self._watch.answer(body) if ok else body

    async def _bring(self, asked: Awaitable[tuple[bool, bytes]], request_id: str) -> None:
        """The answer to a question whose stream is not there any more; a server passes over what it has heard."""
        ok, body = await asked
        await self._watch.reply(request_id, ok=ok, body=self._watch.answer(body) if ok else body)
        self._changed()

    async def _update(self, key: str, question: Ask) -> None:
        declared = self._declared(question.method, question.params)
        ok, body = await self._ask(key, question.method, question.params) if declared else (False, b"")
        if not ok and question.method != "elicitation/create":
            return  # there is no way to say no to anything else: a deadline ends it
        if not await self._watch.update(key, body if ok else _NO):
            self._put.discard(key)
        self._changed()

    async def _ask(self, name: str, method: str, params: Members) -> tuple[bool, bytes]:
        kept = theirs.hidden(asking.stored(params).encode(), self._task, self._held.ref.id).decode()
        return await self._questions.put(self._held, Asked(method, kept, name), self._timeout_s)

    def _declared(self, method: str, params: Members) -> bool:
        return asking.declared(self._watch.place.capabilities, method, params)

    def _keep(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task
