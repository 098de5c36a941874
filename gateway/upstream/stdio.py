"""MCP over the standard streams of child processes: a process for each principal and set of declared capabilities."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from gateway.core.model import Owner
from gateway.telemetry import Telemetry
from gateway.upstream.child import Child
from gateway.upstream.links import Key, key_of
from gateway.upstream.pool import Bounds, Pool
from gateway.upstream.port import Link, NotSent, OnNote, OnRequest
from gateway.upstream.process import Command
from gateway.upstream.session import Session

_SHORT_LIFE_S: Final = 1.0
_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 10.0
_PATIENCE_S: Final = 1.0
"""How long a start may be waited for by whoever wants to call."""
_FORGET_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Starts in a row that came to nothing, and when the next one may be, on the loop's clock."""

    count: int
    not_before: float
    why: str


class StdioUpstream(Pool):
    """One command, run as often as there are principals who use it."""

    WHAT: ClassVar[str] = Child.WHAT
    MANY: ClassVar[str] = "processes"

    def __init__(self, command: Command, bounds: Bounds, telemetry: Telemetry) -> None:
        super().__init__(bounds)
        self._command = command
        self._telemetry = telemetry
        self._troubles: dict[Key, _Trouble] = {}

    async def listen(
        self,
        link: Link,
        on_note: OnNote,
        on_request: OnRequest,
        resources: Sequence[str] = (),  # noqa: ARG002  # each was subscribed to before
    ) -> None:
        """Hears what belongs to no call, from every process of this principal that was told the same."""
        with self._hearing(key_of(link), on_note, on_request):
            await asyncio.get_running_loop().create_future()

    async def leave(self, link: Link) -> None:
        """Processes belong to their principal, and end when nobody has used them for a while."""

    def _key(self, owner: Owner, capabilities: str, client: str) -> Key:  # noqa: ARG002  # processes are the principal's
        return owner, capabilities, ""

    def hurry(self) -> None:
        """Ends what `close` waits for without a further word."""
        for session in self._sessions.values():
            session.kill()

    def _name(self) -> str:
        return str(self.next_id())

    def _made(self, link: Link) -> Session:
        return Child(link, self._command, self._bounds.idle_s, self._telemetry, self._hooks)

    async def _prepare(self, key: Key) -> None:
        """Waits after trouble."""
        trouble = self._troubles.get(key)
        wait_s = 0.0 if trouble is None else trouble.not_before - asyncio.get_running_loop().time()
        if trouble is not None and wait_s > _PATIENCE_S:
            message = f"{trouble.why}; it is started again in {wait_s:.1f} s"
            raise NotSent("upstream_down", message, again=True)
        await asyncio.sleep(max(0.0, wait_s))

    def _failed(self, key: Key, why: str) -> None:
        now = asyncio.get_running_loop().time()
        known = self._troubles.get(key)
        count = 0 if known is None else known.count + 1
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(count, 16))
        self._troubles = {name: one for name, one in self._troubles.items() if one.not_before + _FORGET_S > now}
        self._troubles[key] = _Trouble(count, now + delay_s, why)

    def _lost(self, session: Session) -> None:
        key = key_of(session.link)
        if not session.ready:
            return  # whoever waits for its start is told
        if asyncio.get_running_loop().time() - session.began < _SHORT_LIFE_S:
            self._failed(key, session.epitaph)
        else:
            self._troubles.pop(key, None)
