"""One held operation, brought to its upstream: open -> apply(sent) + commit -> perform -> apply(answer) + commit.

A record that says `sent` was written before the first byte left; the call is sent once, and what becomes of it is
written by whoever holds the fence.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from mcp_types.jsonrpc import METHOD_NOT_FOUND

from gateway.core import engine
from gateway.core.engine import Command
from gateway.core.model import Operation, OutcomeKind
from gateway.following.abilities import Abilities
from gateway.policy.decide import Policy
from gateway.running.approving import Approving
from gateway.running.holder import Held, Holder
from gateway.running.observing import Observing
from gateway.running.progress import listener
from gateway.running.questions import Questions
from gateway.running.reattaching import Reattaching
from gateway.store.streams import StreamStore
from gateway.store.wake import Wake
from gateway.telemetry import Telemetry
from gateway.upstream.port import (
    NO_CAPABILITIES,
    Call,
    Link,
    NotSent,
    OutcomeUnknown,
    Refused,
    SessionEnded,
    Upstream,
)
from gateway.wire import theirs_2025, theirs_ext, work
from gateway.wire.errors import Reject
from gateway.wire.intent import MODERN_VERSIONS, era_of
from gateway.wire.jsonrpc import Members, integer, members
from gateway.wire.taken import taken, unusable

_OPEN_BACKOFF_S: Final = (0.1, 0.4)
MAX_ATTEMPTS: Final = 5
_SESSION_ENDED: Final = "to be sent once more: the upstream had ended the session"
_NAMED_S: Final = 1.0
_KEEP_MS: Final = 60_000
"""How long after our deadline an upstream is asked to keep its task."""


@dataclass(frozen=True, slots=True)
class Site:
    """An upstream as the runner sees it."""

    upstream: Upstream
    policy: Policy


class Performing:
    """Does the work that a process holds. `cancel_grace_s` is how long an upstream has that was told to stop."""

    def __init__(
        self,
        holder: Holder,
        streams: StreamStore,
        sites: Mapping[str, Site],
        wake: Wake,
        telemetry: Telemetry,
        jitter: Callable[[], float],
        cancel_grace_s: float,
    ) -> None:
        self._holder = holder
        self._streams = streams
        self._sites = sites
        self._questions = Questions(holder, wake)
        self._approving = Approving(holder, telemetry)
        self._observing = Observing(holder, self._questions, telemetry, jitter, cancel_grace_s=cancel_grace_s)
        self._abilities = {name: Abilities(site.upstream) for name, site in sites.items()}
        self._reattaching = Reattaching(streams)
        self._telemetry = telemetry
        self._cancel_grace_s = cancel_grace_s

    def site(self, running: Held) -> Site:
        """Where the operation belongs."""
        return self._sites[running.ref.owner.upstream]

    async def leave(self, running: Held) -> None:
        """This process stops: others ask on about work that the upstream took, where they can."""
        await self._observing.leave(running, self.site(running).upstream)

    async def hand_over(self, running: Held) -> bool:
        """This process stops in the middle of a call: whether others can have its answer, who are left to it then."""
        if running.attached is None or not self.site(running).upstream.spare(running.attached):
            return False
        await self._holder.hand_over(running)
        return True

    async def take_over(self, running: Held) -> None:
        """Work that was sent, by nobody who is there any more: its stream is taken up where there is one."""
        running.performing = True  # whatever happens from here on, it may have acted
        found = await self._reattaching.found(running)
        if found is None or self.time_left(running.operation) <= 0:
            await self._holder.finish(running, engine.Lose(), work.LOST)
            return
        site, task = self.site(running), running.pair.task
        if task is not None and (task.terminal or task.cancel_asked_ms is not None):
            running.stop.set()
        settings, _ = site.policy.settings(running.operation.tool)
        running.attached = found.link
        call = Call(found.call, "tools/call", {}, settings.max_result_bytes)
        with site.upstream.holding(found.link):
            command, body = await self._perform(found.link, call, running, as_task=False, event=found.event)
        answered = not isinstance(command, engine.Lose)
        self._telemetry.reattached(upstream=running.ref.owner.upstream, task_id=running.ref.id, answered=answered)
        await self._settle(running, command, body)

    async def start(self, running: Held) -> None:
        """Begins work that is planned, and sees to its end. What has to be approved first is asked instead."""
        asks = self._approving.to_ask(running)
        if not asks and not await self._approving.settled(running):
            return
        site = self.site(running)
        task = running.pair.task
        capabilities = NO_CAPABILITIES if task is None else task.capabilities
        opening = partial(self._open, site.upstream, running, capabilities)
        try:
            if asks:
                await self._approving.ask(running, site.upstream, _preview_tool(site, running.operation), opening)
                return
            link = await opening()
        except NotSent as error:
            self._failed(running, error.reason, str(error))
            if error.busy:
                await self._holder.finish(running, engine.Unsend(), b"")  # it goes back as it is, until its deadline
                return
            await self._holder.finish(running, engine.GiveUp(str(error)), Reject(error.reason, str(error)))
            return
        with site.upstream.holding(link):
            await self._call(running, link)

    async def _call(self, running: Held, link: Link) -> None:
        """Sends the call, once, and sees to what becomes of it."""
        site, task = self.site(running), running.pair.task
        as_task = await self._abilities[running.ref.owner.upstream].takes_task(link, running.operation.tool)
        running.resent = running.operation.reason == _SESSION_ENDED
        if not await self._holder.send(running):
            return
        settings, _ = site.policy.settings(running.operation.tool)
        call_id = site.upstream.next_id()
        wants_progress = task is not None and task.progress_token is not None
        params = work.call_params(running.arguments, call_id if wants_progress else None, era=era_of(link.version))
        if as_task:
            params = self._asking(running, link, params)
        raw = work.as_written(running.arguments, params)
        call = Call(call_id, "tools/call", params, settings.max_result_bytes, raw=raw)
        command, body = await self._perform(link, call, running, as_task=as_task)
        if _refused_as_such(command, body) and await self._abilities[running.ref.owner.upstream].differs(
            link, running.operation.tool, asked=as_task
        ):
            command = engine.Unsend()  # it was refused for how it was called: nothing was done
        await self._settle(running, command, body)

    async def _settle(self, running: Held, command: Command, body: bytes | Reject) -> None:
        """Writes what became of the call."""
        if isinstance(command, engine.Accept):
            if await self._holder.accept(running, command):
                await self._reattaching.forget(running)
                await self.follow(running, new=True)
            return
        await self._holder.finish(running, command, body)
        await self._reattaching.forget(running)

    def _asking(self, running: Held, link: Link, params: Members) -> Members:
        """The parameters of a call that an upstream may make a task of its own of."""
        if link.version in MODERN_VERSIONS:
            return theirs_ext.declaring(params)
        return theirs_2025.asking(params, int(self.time_left(running.operation) * 1000) + _KEEP_MS)

    async def follow(self, running: Held, *, new: bool) -> None:
        """The upstream has the work. What becomes of it is asked, and never started again."""
        site = self.site(running)
        settings, _ = site.policy.settings(running.operation.tool)
        progress = listener(self._streams, running.ref, running.pair.task)
        try:
            ending = await self._observing.follow(running, site.upstream, settings, progress, new=new)
        finally:
            if progress is not None:
                await progress.close()
        if ending is not None:
            await self._holder.finish(running, *ending)

    async def _open(self, upstream: Upstream, running: Held, capabilities: str) -> Link:
        """The upstream session of the client session that asked, after a few attempts within about a second."""
        session = "" if running.pair.task is None else running.pair.task.session
        for backoff in _OPEN_BACKOFF_S:
            try:
                return upstream.able(await upstream.open(running.ref.owner, capabilities, session))
            except NotSent as error:
                if not error.again:
                    raise
            await asyncio.sleep(backoff)
        return upstream.able(await upstream.open(running.ref.owner, capabilities, session))

    async def _perform(
        self, link: Link, call: Call, running: Held, *, as_task: bool, event: str | None = None
    ) -> tuple[Command, bytes | Reject]:
        """The call itself: until it answers, until the deadline, or until it is cancelled and the grace is over.

        With `event` it was sent by another process, and only its answer is waited for: what comes after this event.
        """
        running.performing = True
        site = self.site(running)
        upstream, (settings, _) = site.upstream, site.policy.settings(running.operation.tool)
        on_request = self._questions.asker(running, link, settings.input_timeout_s, again=event is not None)
        marker = self._reattaching.marker(running, link, call.id, self.time_left(running.operation))
        progress = listener(self._streams, running.ref, running.pair.task)
        marked = replace(call, on_mark=marker)
        performing = asyncio.ensure_future(
            upstream.perform(link, marked, progress, on_request)
            if event is None
            else _taken_up(upstream.resume(link, marked, event, progress, on_request))
        )
        try:
            if await self._ends(performing, running) or (as_task and await _soon(performing, running)):
                return self._outcome(performing, running, link, call)  # a task is cancelled by its own name
            await upstream.cancel(link, call)
            if running.input_expired:
                return engine.InputExpired(), work.UNANSWERED
            if not running.stop.is_set():
                return engine.Overdue(), work.DEADLINE
            await asyncio.wait({performing}, timeout=self._cancel_grace_s)
            if not performing.done() or isinstance(performing.exception(), OutcomeUnknown):
                return engine.GraceOver(), work.LOST  # where closing its stream cancels a call, no answer can come
            return self._outcome(performing, running, link, call)
        finally:
            performing.cancel()
            marker.close()
            with suppress(asyncio.CancelledError, NotSent, OutcomeUnknown):
                await performing
            if progress is not None:
                await progress.close()

    async def _ends(self, performing: "asyncio.Future[work.Response]", running: Held) -> bool:
        """Whether the call ends before its deadline, and before it has to be stopped."""
        stopping = asyncio.ensure_future(running.stop.wait())
        try:
            either: set[asyncio.Future[Any]] = {performing, stopping}
            left_s = self.time_left(running.operation)
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            return performing.done() and not running.input_expired
        finally:
            stopping.cancel()

    def _outcome(
        self, performing: "asyncio.Future[work.Response]", running: Held, link: Link, call: Call
    ) -> tuple[Command, bytes | Reject]:
        try:
            response = performing.result()
        except SessionEnded as error:
            return self._session_ended(running, error)
        except NotSent as error:
            self._failed(running, error.reason, str(error))
            if error.again and _may_be_sent_again(running.operation, error):
                return engine.Unsend(), b""
            return engine.GiveUp(str(error)), Reject(error.reason, str(error))
        except OutcomeUnknown as error:
            self._failed(running, error.reason, str(error))
            return engine.Lose(), work.LOST
        if (their := taken(response)) is not None:
            settings, _ = self.site(running).policy.settings(running.operation.tool)
            return self._observing.acceptance(running, link, *their, settings, call.id), b""
        if unusable(response):
            self._failed(running, "upstream_bad", "the upstream made a task and does not say which")
            return engine.Lose(), work.LOST
        kind, body = work.outcome(response)
        return engine.Answer(kind), body

    def _session_ended(self, running: Held, error: SessionEnded) -> tuple[Command, bytes | Reject]:
        """The call was answered with a 404: it is sent once more, unless policy takes that for no proof of anything."""
        self._failed(running, error.reason, str(error))
        settings, _ = self.site(running).policy.settings(running.operation.tool)
        if not settings.resend_on_session_404:
            return engine.Lose(), work.LOST
        if running.resent and not running.operation.repeatable:
            return engine.GiveUp(str(error)), Reject(error.reason, str(error))
        return engine.Unsend(_SESSION_ENDED), b""

    def time_left(self, operation: Operation) -> float:
        """Seconds until its deadline."""
        return max(0, operation.deadline_ms - self._holder.store.now()) / 1000

    def _failed(self, running: Held, reason: str, message: str) -> None:
        self._telemetry.upstream_failed(upstream=running.ref.owner.upstream, reason=reason, message=message)


def _may_be_sent_again(operation: Operation, error: NotSent) -> bool:
    """A call that a server has seen is sent once, whatever it says, unless policy calls the work repeatable."""
    return operation.attempt < MAX_ATTEMPTS and (operation.repeatable or not isinstance(error, Refused))


def _preview_tool(site: Site, operation: Operation) -> str | None:
    settings, _ = site.policy.settings(operation.tool)
    rule = None if settings.operation is None else settings.operation.approval
    return None if rule is None else rule.preview_tool


async def _taken_up(resuming: Awaitable[work.Response]) -> work.Response:
    """The answer to a call that was sent before: whatever goes wrong now, it may have acted. Raises OutcomeUnknown."""
    try:
        return await resuming
    except NotSent as error:
        raise OutcomeUnknown(error.reason, str(error)) from error


async def _soon(performing: "asyncio.Future[work.Response]", running: Held) -> bool:
    """Whether an upstream that makes tasks answers in a moment: it has been asked to stop before it has named one."""
    if not running.input_expired:
        await asyncio.wait({performing}, timeout=_NAMED_S)
    return performing.done() and not running.input_expired


def _refused_as_such(command: Command, body: bytes | Reject) -> bool:
    """Whether a server refused a call because it was a task, or because it was none."""
    error: Members = {} if isinstance(body, Reject) else members(body) or {}
    is_error = isinstance(command, engine.Answer) and command.kind is OutcomeKind.ERROR
    return is_error and integer(error.get("code")) == METHOD_NOT_FOUND
