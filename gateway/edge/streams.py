"""Answers that take a while: as one JSON body, or as an event stream that stays alive until the answer is there."""

import asyncio
from contextlib import suppress
from typing import Final

from aiohttp import web

from gateway.pending import Outgoing, Pending
from gateway.wire import sse
from gateway.wire.reply import Reply

KEEP_ALIVE_S: Final = 15.0
"""T25-RES-5, TX-NOT-3: proxies close what is silent for longer."""
_FIRST_S: Final = 0.05
"""An answer that is there at once goes as JSON, with its own status."""


async def respond(request: web.Request, pending: Pending, keep_alive_s: float) -> tuple[web.StreamResponse, Reply]:
    """Writes the answer. A client that leaves ends the waiting; what that means is the pending answer's business."""
    try:
        wants_stream = pending.at_once or (pending.streamed and _prefers_stream(request))
        if not wants_stream:
            await asyncio.wait({pending.answer}, timeout=_FIRST_S if pending.streamed else None)
        if pending.answer.done() and pending.notes.empty() and not wants_stream:
            return written(pending.answer.result()), pending.answer.result()
        if pending.streamed and _accepts_stream(request):
            return await _stream(request, pending, keep_alive_s)
        await asyncio.wait({pending.answer})
        return written(pending.answer.result()), pending.answer.result()
    except (asyncio.CancelledError, ConnectionError):
        pending.close()
        raise


def written(reply: Reply) -> web.Response:
    """One message as a JSON body."""
    response = web.Response(status=reply.status, body=reply.body or None, headers=reply.headers)
    if reply.body:
        response.content_type = "application/json"
    return response


async def _stream(request: web.Request, pending: Pending, keep_alive_s: float) -> tuple[web.StreamResponse, Reply]:
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    event = None if pending.preamble is None else await pending.preamble()
    await response.write(sse.KEEP_ALIVE if event is None else sse.primer(event))
    loop = asyncio.get_running_loop()
    end = None if pending.good_for_s is None else loop.time() + pending.good_for_s
    while not pending.answer.done():
        if end is not None and end <= loop.time():
            return await _cut(response, pending)
        note = await next_note(pending, keep_alive_s if end is None else min(keep_alive_s, end - loop.time()))
        if note is not None or not pending.answer.done():
            await response.write(sse.KEEP_ALIVE if note is None else sse.message(note.body, note.event_id))
    while not pending.notes.empty():
        note = pending.notes.get_nowait()
        await response.write(sse.message(note.body, note.event_id))
    reply = pending.answer.result()
    await response.write(sse.message(reply.body, reply.event_id) if reply.body else sse.RETRY)
    with suppress(ConnectionError):
        await response.write_eof()
    return response, reply


async def _cut(response: web.StreamResponse, pending: Pending) -> tuple[web.StreamResponse, Reply]:
    """Ends a stream whose client's token has expired. What it waited for goes on."""
    pending.close()
    await response.write(sse.RETRY)
    with suppress(ConnectionError):
        await response.write_eof()
    return response, Reply(200, b"", reason="unauthenticated")


async def next_note(pending: Pending, timeout_s: float | None) -> Outgoing | None:
    """The next message that comes before the answer; None when the answer came first, or nothing in time."""
    note = asyncio.ensure_future(pending.notes.get())
    try:
        await asyncio.wait({note, pending.answer}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return note.result() if note.done() else None
    finally:
        note.cancel()


def _prefers_stream(request: web.Request) -> bool:
    """Whether a client would rather have a stream than one JSON body: it names that first."""
    return request.headers.get("Accept", "").lstrip().startswith("text/event-stream")


def _accepts_stream(request: web.Request) -> bool:
    return "text/event-stream" in request.headers.get("Accept", "")
