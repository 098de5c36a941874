"""Calls whose client waits for the answer itself: a hidden record, worked on by any replica, told of here.

What the upstream asks meanwhile reaches a legacy client on the stream of its call, and a modern one as a result that
asks for input (BR-1): the work goes on in its record, and the retry of the client finds it there, on any replica.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from gateway.core.model import Task, TaskState
from gateway.policy.model import Settings
from gateway.requests.callers import Caller
from gateway.requests.delivery import Delivery
from gateway.requests.first import InputFirst
from gateway.requests.outbox import Outbox
from gateway.requests.records import Records
from gateway.store.keys import Ref
from gateway.store.port import Pair, Session, StoreAway
from gateway.store.streams import StreamStore
from gateway.wire import jsonrpc, passing
from gateway.wire.errors import Era
from gateway.wire.intent import CallTool
from gateway.wire.jsonrpc import Notification
from gateway.wire.reply import Reply

_LOOK_S: Final = 5.0
_GATHER_S: Final = 0.05
"""How long to wait for further questions that an upstream asks at once."""


@dataclass(slots=True)
class Waiting:
    """A client that waits for a record. `outbox` is its stream; `attached`: somebody else began the work."""

    caller: Caller
    call: CallTool
    ref: Ref
    settings: Settings
    timeout_s: float
    outbox: Outbox
    attached: bool = False
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Parked:
    """Waits together with clients. `new_id` names streams."""

    def __init__(self, records: Records, streams: StreamStore, new_id: Callable[[], str]) -> None:
        self._records = records
        self._streams = streams
        self._new_id = new_id
        self._asking = InputFirst(records)

    async def wait(self, waiting: Waiting) -> Pair | Reply:
        """The record once it has ended or the time is over, or what a modern client has to answer first."""
        telling = asyncio.ensure_future(self._tell(waiting))
        try:
            if waiting.caller.era is Era.LEGACY:
                return await self._records.wait(waiting.ref, waiting.timeout_s)
            return await self._until_asked(waiting)
        finally:
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling
            await self._pass_on(waiting)

    async def _until_asked(self, waiting: Waiting) -> Pair | Reply:
        pair = await self._records.wait(waiting.ref, waiting.timeout_s, or_asked=True)
        if pair.task is None or pair.task.state is not TaskState.INPUT_REQUIRED:
            return pair
        await asyncio.sleep(_GATHER_S)
        pair = await self._records.store.load(waiting.ref)
        return await self._asking.question(waiting.call, waiting.ref, pair) or pair

    async def _tell(self, waiting: Waiting) -> None:
        """Brings notes, and a legacy client the questions, until it is cancelled."""
        caller, ref = waiting.caller, waiting.ref
        session = Session(caller.version, caller.capabilities)
        delivery = Delivery(self._streams, ref, self._new_id(), session, waiting.outbox.put, related=False)
        with self._records.waking(ref) as event:
            try:
                while True:
                    event.clear()
                    with suppress(StoreAway):
                        await self._pass_on(waiting)
                        task = await self._asking_task(waiting)
                        if task is not None:
                            await delivery.bring(task, keep=True)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await event.wait()
            finally:
                await asyncio.shield(delivery.release())

    async def _asking_task(self, waiting: Waiting) -> Task | None:
        """The task of a legacy client, if it asks something."""
        if waiting.caller.era is not Era.LEGACY:
            return None
        task = (await self._records.store.load(waiting.ref)).task
        return task if task is not None and task.state is TaskState.INPUT_REQUIRED else None

    async def _pass_on(self, waiting: Waiting) -> None:
        """The notes of the upstream that this client has not been told yet, as far as the store tells.

        What was taken out of the store is told, even if whoever took it is stopped meanwhile: nobody else has it.
        """
        await asyncio.shield(self._taken(waiting))

    async def _taken(self, waiting: Waiting) -> None:
        speech = waiting.caller.speech
        async with waiting.taking:
            with suppress(StoreAway):
                for message in await self._streams.take_notes(waiting.ref):
                    note = jsonrpc.parse(message)
                    if isinstance(note, Notification) and (
                        note.method == "notifications/progress" or passing.may_hear(note, speech.era, speech.log_level)
                    ):
                        waiting.outbox.put(message)
