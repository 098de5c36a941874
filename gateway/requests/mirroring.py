"""TX-HTTP-2: arguments that a modern client repeats in headers are what they say they are, before anything is begun.

Which arguments these are is in an upstream's list of tools, which is remembered for each principal, so many at most. A
list that cannot be had stops no call: a modern upstream looks itself at what it gets.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.core.model import Owner
from gateway.requests.callers import Caller, Endpoint
from gateway.requests.forwarding import Forwarding, Passage
from gateway.upstream.schemas import next_cursor
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import CallTool
from gateway.wire.jsonrpc import Members, items, members, text
from gateway.wire.mirrored import Mirrors, Unusable, mirrors, mismatch

_MOST_PRINCIPALS: Final = 500
_MOST_TOOLS: Final = 5_000
_MOST_PAGES: Final = 50
_WITHIN_S: Final = 2.0
"""How long a call may wait for the list."""
_UNKNOWN_S: Final = 5.0
"""How long a tool that is not in the list is believed not to be."""
_FAILED_S: Final = 30.0
"""How long a list is not asked for again that could not be had."""


class _Known:
    """What one principal sees of an upstream's tools. Times on the clock."""

    def __init__(self) -> None:
        self.tools: dict[str, Mirrors] = {}
        self.read_at = float("-inf")
        self.not_before = float("-inf")
        self.reading = asyncio.Lock()


class Mirroring:
    """Looks at the headers of calls, for one process. `clock` is monotonic, in seconds."""

    def __init__(self, forwarding: Forwarding, clock: Callable[[], float]) -> None:
        self._forwarding = forwarding
        self._clock = clock
        self._known: OrderedDict[Owner, _Known] = OrderedDict()

    async def refuses(self, endpoint: Endpoint, caller: Caller, call: CallTool) -> Reject | None:
        """Why a call is refused that came with headers of the modern era. The list is read anew before one is."""
        if caller.era is Era.LEGACY or caller.speech.parameters is None:
            return None
        known, began = self._of(caller.owner), self._clock()
        if call.name not in known.tools and known.read_at + _UNKNOWN_S <= began:
            await self._read(endpoint, caller, known, began)
        wrong = _wrong(known, caller, call)
        if wrong is not None and known.read_at < began:
            await self._read(endpoint, caller, known, began)
            wrong = _wrong(known, caller, call)
        return None if wrong is None else Reject("headers", f"Header mismatch: {wrong}")

    def _of(self, owner: Owner) -> _Known:
        known = self._known.setdefault(owner, _Known())
        self._known.move_to_end(owner)
        if len(self._known) > _MOST_PRINCIPALS:
            self._known.popitem(last=False)
        return known

    async def _read(self, endpoint: Endpoint, caller: Caller, known: _Known, began: float) -> None:
        """Reads the list, once for all who want it at the same time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHIN_S), known.reading:
                if known.read_at >= began or known.not_before > began:
                    return
                known.not_before = self._clock() + _FAILED_S
                tools = await self._listed(endpoint, caller)
                if tools is not None:
                    known.tools, known.read_at, known.not_before = tools, self._clock(), began

    async def _listed(self, endpoint: Endpoint, caller: Caller) -> dict[str, Mirrors] | None:
        defaults = endpoint.policy.defaults
        tools: dict[str, Mirrors] = {}
        params: Members = {}
        for _ in range(_MOST_PAGES):
            passage = Passage(b"0", "tools/list", params, _WITHIN_S, defaults.max_result_bytes, again=True)
            answer = await self._forwarding.fetch(endpoint, caller, passage)
            if isinstance(answer, Reject) or not answer.ok:
                return None
            for tool in items((members(answer.body) or {}).get("tools")):
                _note(members(tool) or {}, tools)
            cursor = next_cursor(answer.body)
            if cursor is None or cursor == params.get("cursor"):
                break
            params = {"cursor": cursor}
        return tools


def _wrong(known: _Known, caller: Caller, call: CallTool) -> str | None:
    return mismatch(known.tools.get(call.name, ()), call.params.get("arguments"), caller.speech.parameters or {})


def _note(tool: Members, tools: dict[str, Mirrors]) -> None:
    """A tool whose definition is against the rules asks for nothing."""
    found = mirrors(tool.get("inputSchema"))
    name = text(tool.get("name"))
    if name is not None and len(tools) < _MOST_TOOLS:
        tools[name] = () if isinstance(found, Unusable) else found
