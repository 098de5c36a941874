"""`input_phase = "before"`: what a tool has to know before it works is asked by multi round-trip requests (TX-NEW-3).

The upstream call is under way all the while, in a hidden record; the client carries a sealed name of that record. When
nothing more is asked, the record is handed out as a task. One upstream call in any case.
"""

import hashlib
from typing import Final

from gateway.core import engine
from gateway.core.model import Owner, TaskState
from gateway.policy.model import Settings
from gateway.requests.records import Records
from gateway.store.keys import Ref, owner_digest
from gateway.store.port import Pair
from gateway.wire import asking, reply, tasks_ext
from gateway.wire.errors import Reject
from gateway.wire.intent import CallTool
from gateway.wire.reply import Reply
from gateway.wire.sealed import seal, unseal

FIRST_S: Final = 2.0
"""How long a tool may take to ask, at least; `inline_ms` may give it more."""
MORE_S: Final = 0.2
"""How long to wait for a further question after an answer."""
_STALE: Final = Reject("arguments", "requestState is not valid any more: send the call anew")


class InputFirst:
    """The exchange before a task."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def question(self, call: CallTool, ref: Ref, pair: Pair) -> Reply | None:
        """What is asked, if anything is."""
        task = pair.task
        if task is None or task.state is not TaskState.INPUT_REQUIRED:
            return None
        secret = await self._records.store.secret()
        state = seal(secret, _bindings(ref.owner, call), [ref.id, task.expires_ms])
        return reply.result(call.id, tasks_ext.input_required(task, state))

    async def resume(self, owner: Owner, call: CallTool, settings: Settings) -> Ref | Reject:
        """Takes the answers of a retry; the record that they belong to. A replay finds the same record."""
        secret = await self._records.store.secret()
        payload = unseal(secret, _bindings(owner, call), call.request_state or "")
        if payload is None:
            return _STALE
        ref = Ref(owner, str(payload[0]))
        task = (await self._records.store.load(ref)).task
        if task is None:
            return _STALE
        answers = asking.respond(task, call.answers, settings.max_arguments_bytes)
        if isinstance(answers, Reject):
            return answers
        if answers:
            await self._records.change(ref, engine.Respond(answers), settings)
        return ref


def _bindings(owner: Owner, call: CallTool) -> list[str]:
    """A state is good for its owner and for the very same call."""
    return ["requestState", owner_digest(owner), call.name, hashlib.sha256(call.arguments).hexdigest()]
