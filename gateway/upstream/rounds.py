"""Requests of revision 2026-07-28 whose server may answer with questions: asked, and sent again with the answers.

Sending again is how this protocol goes on, not a second attempt after a fault. The server may have acted before it
asked, so from the second round on a request that cannot be sent has an unknown outcome.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from gateway.upstream.port import Call, NotSent, OnRequest, OutcomeUnknown
from gateway.wire import rounds
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Members, Response
from gateway.wire.rounds import Asked

Send: TypeAlias = Callable[[Call], Awaitable[Response]]

_PAUSES_S: Final = (0.2, 1.0)
"""Before a request is tried again that was not sent."""
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0
"""How long a server is left alone that wants the request again and asks nothing."""


class Rounds:
    """The requests under way at one upstream, by the id that their caller gave them."""

    def __init__(self, next_id: Callable[[], int]) -> None:
        self._next_id = next_id
        self._current: dict[int, Call] = {}
        self._scopes: dict[int, asyncio.Timeout] = {}

    async def perform(self, call: Call, send: Send, on_request: OnRequest | None) -> Response:
        """The final answer; without `on_request` the first one. Raises NotSent or OutcomeUnknown."""
        try:
            async with asyncio.timeout(None) as scope:
                self._current[call.id], self._scopes[call.id] = call, scope
                answer = await self._through(call, send, on_request)
        except TimeoutError as error:
            raise OutcomeUnknown("upstream_down", "the call was cancelled: its stream was closed") from error
        finally:
            self._current.pop(call.id, None)
            self._scopes.pop(call.id, None)
        return replace(answer, id=str(call.id).encode())

    def current(self, call: Call) -> Call | None:
        """The request that is under way for a call."""
        return self._current.get(call.id)

    def stop(self, call: Call) -> None:
        """Ends what is under way for a call: whoever waits for it hears OutcomeUnknown."""
        scope = self._scopes.pop(call.id, None)
        if scope is not None:
            scope.reschedule(asyncio.get_running_loop().time())

    async def _through(self, call: Call, send: Send, on_request: OnRequest | None) -> Response:
        answer = await send(call)
        question = _checked(answer, call.method)
        for number in range(rounds.MOST_ROUNDS):
            if question is None or on_request is None:
                return answer
            answers, errors = await _answers(question, on_request)
            if errors:
                return Response(answer.id, ok=False, body=rounds.refused(question, errors))
            if not question.requests:
                await asyncio.sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**number))
            answer = await self._again(call, rounds.again(call.params, question, answers), send)
            question = _checked(answer, call.method)
        return answer if question is None else Response(answer.id, ok=False, body=rounds.ENDLESS)

    async def _again(self, call: Call, params: Members, send: Send) -> Response:
        for pause_s in (*_PAUSES_S, None):
            one = self._current[call.id] = replace(call, id=self._next_id(), params=params, raw=None)
            try:
                return await send(one)
            except NotSent as error:
                if pause_s is None or not error.again:
                    raise OutcomeUnknown(error.reason, str(error)) from error
            await asyncio.sleep(pause_s)
        raise AssertionError  # the last attempt always tells


def _checked(answer: Response, method: str) -> Asked | None:
    """What is asked. Raises OutcomeUnknown for what is no result of this revision."""
    question = rounds.asked(answer, may_be_task=method == "tools/call")
    if isinstance(question, Reject):
        raise OutcomeUnknown(question.reason, question.message)
    return question


async def _answers(question: Asked, on_request: OnRequest) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """The results and the refusals, by key. All are asked at once; the first refusal ends the rest."""
    asking = {key: asyncio.ensure_future(on_request(*asked)) for key, asked in question.requests.items()}
    try:
        waiting = set(asking.values())
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(not one.result()[0] for one in done):
                break
        told = {key: one.result() for key, one in asking.items() if one.done()}
    finally:
        for one in asking.values():
            one.cancel()
    results = {key: body for key, (ok, body) in told.items() if ok}
    return results, {key: body for key, (ok, body) in told.items() if not ok}
