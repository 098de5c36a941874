"""Questions of an upstream during a plain call of a legacy client: put on its stream, answered on any replica.

The question's id names a token that only this owner was given; an answer that arrives anywhere is laid down under it,
and whoever waits looks.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.core.model import Owner
from gateway.store.keys import owner_digest
from gateway.store.port import StoreAway
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.upstream.port import OnRequest
from gateway.wire import asking, jsonrpc
from gateway.wire.intent import ClientAnswer
from gateway.wire.jsonrpc import Members

_LOOK_S: Final = 5.0
_MARK: Final = "~"
"""Begins the id of such a question; the questions of tasks begin with the id of their task."""


class PlainQuestions:
    """Asks, and takes the answers of clients."""

    def __init__(self, streams: StreamStore, wake: Wake, new_id: Callable[[], str]) -> None:
        self._streams = streams
        self._wake = wake
        self._new_id = new_id

    def asker(self, owner: Owner, capabilities: str, timeout_s: float, emit: Callable[[bytes], None]) -> OnRequest:
        """What a call does with the questions of its upstream. `emit` puts a message on the client's stream."""

        async def ask(method: str, params: Members) -> tuple[bool, bytes]:
            if not asking.declared(capabilities, method, params):
                return False, asking.UNDECLARED
            token = self._new_id()
            try:
                await self._streams.expect_answer(owner, token, int(timeout_s * 1000))
            except StoreAway:
                return False, asking.GONE
            request_id = jsonrpc.write(_MARK + token)
            emit(jsonrpc.request(request_id, method, params))
            answer = None
            try:
                answer = await self._answer(owner, token, timeout_s)
            finally:
                if answer is None:
                    told = {"requestId": _MARK + token, "reason": "nobody waits for this answer any more"}
                    emit(jsonrpc.notification("notifications/cancelled", told))
                with suppress(StoreAway):
                    await self._streams.forget_question(owner, token)
            return (False, asking.GONE) if answer is None else asking.answered(answer)

        return ask

    async def take(self, owner: Owner, answer: ClientAnswer) -> bool:
        """An answer to such a question; whether it is one. Raises StoreAway."""
        if not answer.id.startswith(_MARK):
            return False
        kept = asking.whole_result(answer.body) if answer.ok else asking.refusal(answer.body)
        await self._streams.give_answer(owner, answer.id.removeprefix(_MARK), kept.encode())
        return True

    async def _answer(self, owner: Owner, token: str, timeout_s: float) -> str | None:
        with suppress(TimeoutError), self._wake.waiting(f"{owner_digest(owner)}:{token}") as event:
            async with asyncio.timeout(timeout_s):
                while True:
                    event.clear()
                    with suppress(StoreAway):
                        found = await self._streams.take_answer(owner, token)
                        if found is not None:
                            return found.decode()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await event.wait()
        return None
