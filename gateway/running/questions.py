"""Questions of an upstream during a task: written into the record, answered by whoever reaches the requestor.

The runner that holds the call asks and waits; which replica delivers the question, and where its answer arrives, is
nothing it needs to know.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gateway.core import engine
from gateway.core.model import Question, Task
from gateway.running.holder import Held, Holder
from gateway.store.port import StoreAway
from gateway.store.wake import Wake
from gateway.upstream.port import Link, OnRequest, WithId
from gateway.wire import asking
from gateway.wire.jsonrpc import Members

_LOOK_S: Final = 5.0
"""How often a waiting question looks at its record without being woken."""
_STORE_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of an upstream: `params` are JSON text as the record keeps it, `theirs` is its name for it."""

    method: str
    params: str
    theirs: str = ""


class Questions:
    """Asks on behalf of the upstreams of one process."""

    def __init__(self, holder: Holder, wake: Wake) -> None:
        self._holder = holder
        self._wake = wake

    def asker(self, held: Held, link: Link, timeout_s: float, *, again: bool = False) -> OnRequest:
        """What a call does with the questions of its upstream. `timeout_s` is how long the requestor may take.

        `again`: the call was taken over, so that questions may come which its holder before has asked already.
        """

        async def ask(request_id: str, method: str, params: Members) -> tuple[bool, bytes]:
            if not asking.declared(link.capabilities, method, params):
                return False, asking.UNDECLARED
            asked = Asked(method, asking.stored(params), request_id)
            return await self.put(held, asked, timeout_s, again=again)

        return WithId(ask)

    async def put(self, held: Held, asked: Asked, timeout_s: float, *, again: bool = True) -> tuple[bool, bytes]:
        """Asks, and waits for the answer. With `again`, a question that was asked before is not asked again."""
        key = await self._ask(held, asked, timeout_s, again=again)
        return await self.answer(held, key) if key is not None else (False, asking.GONE)

    async def _ask(self, held: Held, asked: Asked, timeout_s: float, *, again: bool) -> str | None:
        """The key of the question in the record; None if nobody is there to be asked any more."""
        while True:
            try:
                task = (await self._holder.store.load(held.ref)).task
                if task is None or task.terminal:
                    return None
                if again and (known := _known(task, asked)) is not None:
                    return known
                now = self._holder.store.now()
                key = f"input-{len(task.questions) + 1}"
                deadline_ms = now + int(timeout_s * 1000)
                question = Question(key, asked.method, asked.params, now, deadline_ms, theirs=asked.theirs)
                if await self._holder.change(held, engine.Ask(question)) is not None:
                    return key
                if not await self._still_ours(held, key):
                    return None
            except StoreAway:
                await asyncio.sleep(_STORE_PAUSE_S)

    async def _still_ours(self, held: Held, key: str) -> bool:
        """Whether a refused question may be asked again: another one was faster and took its key."""
        pair = await self._holder.store.load(held.ref)
        taken = pair.task is not None and any(question.key == key for question in pair.task.questions)
        return taken and pair.fence <= held.fence and pair.task is not None and not pair.task.terminal

    async def answer(self, held: Held, key: str) -> tuple[bool, bytes]:
        """Waits for the answer. When nobody gives one in time, the work is given up."""
        with self._wake.waiting(held.member) as event:
            while True:
                event.clear()
                pause = _LOOK_S
                with suppress(StoreAway):
                    pair = await self._holder.store.load(held.ref)
                    question = find(pair.task, key)
                    if pair.task is None or pair.task.terminal or question is None:
                        return False, asking.GONE
                    if question.answer is not None:
                        return asking.answered(question.answer)
                    left = (question.deadline_ms - pair.now) / 1000
                    if left <= 0:
                        held.input_expired = True
                        held.stop.set()
                        return False, asking.GONE
                    pause = min(_LOOK_S, left)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await event.wait()


def _known(task: Task, asked: Asked) -> str | None:
    """The key of this very question, if it is in the record: names are reused in a new session, questions are not."""
    same = (asked.theirs, asked.method, asked.params)
    known = ((one.theirs, one.method, one.params) for one in task.questions)
    keys = [one.key for one, what in zip(task.questions, known, strict=True) if what == same]
    return keys[0] if asked.theirs and keys else None


def find(task: Task | None, key: str) -> Question | None:
    """The question with this key."""
    questions = () if task is None else task.questions
    return next((question for question in questions if question.key == key), None)
