"""JSON-RPC batches, which revision 2025-03-26 has and no other (T25-HTTP-3): served side by side, answered together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from gateway.pending import Background, Outgoing, Pending
from gateway.wire import intent as want
from gateway.wire import reply
from gateway.wire.classify import SESSION_HEADER, Rejected, classify
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import Inbound
from gateway.wire.reply import Reply

_Handle: TypeAlias = Callable[[Inbound], Awaitable[Reply | Pending]]
_NO_BATCH: Final = Reject("invalid_request", "not a single JSON-RPC message: this revision has no batches")
_ALONE: Final = Reject("invalid_request", "initialize is no part of a batch")
VERSION: Final = "2025-03-26"


class Batches:
    """Serves the messages of a batch as if each had come alone."""

    def __init__(self, background: Background) -> None:
        self._background = background

    async def serve(self, handle: _Handle, session: str, version: str, items: Sequence[bytes]) -> Reply | Pending:
        """One answer with all answers, in the order of the requests; none where nothing is answered."""
        if version != VERSION:
            return reply.refusal(None, _NO_BATCH, Era.LEGACY)
        found = await asyncio.gather(*(_served(handle, session, item) for item in items))
        if not any(isinstance(one, Pending) or one.body for one in found):
            return reply.ACCEPTED
        notes: asyncio.Queue[Outgoing] = asyncio.Queue()
        answer = self._background.start(_together(found, notes), "batch")

        def close() -> None:
            for one in found:
                if isinstance(one, Pending):
                    one.close()

        return Pending(answer, close, notes=notes)


async def _served(handle: _Handle, session: str, item: bytes) -> Reply | Pending:
    inbound = classify({SESSION_HEADER: [session]}, item)
    if isinstance(inbound, Rejected):
        return reply.refusal(inbound.id, inbound.reject, Era.LEGACY)
    if isinstance(inbound.intent, (want.Initialize, want.Batch)):
        return reply.refusal(want.id_of(inbound.intent), _ALONE, Era.LEGACY)
    return await handle(inbound)


async def _together(found: Sequence[Reply | Pending], notes: "asyncio.Queue[Outgoing]") -> Reply:
    answers = await asyncio.gather(*(_answered(one, notes) for one in found))
    bodies = [answer.body for answer in answers if answer.body]
    return Reply(200, b"[" + b",".join(bodies) + b"]")


async def _answered(one: Reply | Pending, notes: "asyncio.Queue[Outgoing]") -> Reply:
    """An answer, and whatever is said before it."""
    if isinstance(one, Reply):
        return one
    while not one.answer.done():
        note = asyncio.ensure_future(one.notes.get())
        try:
            await asyncio.wait({note, one.answer}, return_when=asyncio.FIRST_COMPLETED)
            if note.done():
                notes.put_nowait(Outgoing(note.result().body))
        finally:
            note.cancel()
    while not one.notes.empty():
        notes.put_nowait(Outgoing(one.notes.get_nowait().body))
    return one.answer.result()
