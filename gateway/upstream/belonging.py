"""Which of the calls under way on a process a message of it belongs to."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.upstream.port import Call, OnNote, OnRequest, OutcomeUnknown
from gateway.wire import jsonrpc
from gateway.wire.jsonrpc import Notification, Request, Response, text
from gateway.wire.theirs_2025 import related


@dataclass(slots=True)
class Waiting:
    """A call under way. `alone`: no other call that may be asked something runs beside it."""

    call: Call
    on_note: OnNote | None
    on_request: OnRequest | None
    answer: "asyncio.Future[Response | OutcomeUnknown]"
    alone: bool
    questions: "set[asyncio.Task[None]]" = field(default_factory=set)


Calls: TypeAlias = Mapping[bytes, Waiting]
"""Calls under way by the JSON text of their ids."""


def concerned(calls: Calls, note: Notification) -> Waiting | None:
    """The call of a notification, as far as can be told. Our callers use the id of their call as progress token."""
    if note.method == "notifications/progress":
        token = jsonrpc.integer(note.params.get("progressToken"))
        return calls.get(str(token).encode())
    if note.method == "notifications/message" and len(calls) == 1:
        return next(iter(calls.values()))
    return None


def asking_task(calls: Calls, request: Request) -> Waiting | None:
    """The wait for the result of the task that a question names."""
    task = related(request.params)
    for waiting in calls.values():
        about = None if waiting.alone else text(waiting.call.params.get("taskId"))
        if waiting.on_request is not None and about is not None and about == task:
            return waiting
    return None


def asking_alone(calls: Calls) -> Waiting | None:
    """The one call that a question can belong to which names nothing."""
    open_ones = (one for one in calls.values() if one.alone and not one.answer.done())
    return next((one for one in open_ones if one.on_request is not None), None)


def meant_for(calls: Calls, line: bytes) -> Waiting | None:
    """The call that a line would answer if it were MCP."""
    try:
        parts = jsonrpc.members(line) or {}
    except RecursionError:  # it is JSON, and too deep for its id to be found
        return next(iter(calls.values())) if len(calls) == 1 else None
    raw = parts.get("id") if parts.keys() & {"jsonrpc", "result"} else None
    return None if raw is None else calls.get(bytes(raw))
