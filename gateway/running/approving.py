"""What the requestor has to agree to before anything is sent: preview -> question -> answer -> Approve, then the call.

The question waits in the record, held by nobody; its answer makes the work due again, for any process. Nothing is asked
twice and nothing is sent twice: each step is a commit under a fence, and the next one reads what it says.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core import engine
from gateway.core.model import OutcomeKind, Question
from gateway.running.aside import answered
from gateway.running.holder import Held, Holder
from gateway.running.questions import find
from gateway.telemetry import Telemetry
from gateway.upstream.port import Call, Link, NotSent, OutcomeUnknown, Upstream
from gateway.wire import approval, work
from gateway.wire.errors import Reject

_PREVIEW_S: Final = 30.0
_PREVIEW_BYTES: Final = 262_144
_REFUSED: Final = Reject("input_refused", "the requestor did not agree: nothing was sent")
_UNSEEN: Final = "what would be done could not be shown: nothing was sent"


class Approving:
    """Asks for the approval of what this process holds, and acts on the answer."""

    def __init__(self, holder: Holder, telemetry: Telemetry) -> None:
        self._holder = holder
        self._telemetry = telemetry

    def to_ask(self, held: Held) -> bool:
        """Whether the requestor has to be asked, and was not asked yet."""
        return not held.operation.approved and find(held.pair.task, approval.KEY) is None

    async def settled(self, held: Held) -> bool:
        """Whether the work may be sent now. A no, or none in time, ends it here; a question that is open waits on."""
        if held.operation.approved:
            return True
        question = find(held.pair.task, approval.KEY)
        if question is None or question.answer is None:
            await self._wait_on(held, question)
            return False
        if approval.agreed(question.answer):
            return await self._holder.approve(held)
        await self._holder.finish(held, engine.GiveUp(_REFUSED.message), _REFUSED)
        return False

    async def _wait_on(self, held: Held, question: Question | None) -> None:
        now = max(self._holder.store.now(), held.pair.now)
        if question is not None and now >= question.deadline_ms:
            await self._holder.finish(held, engine.InputExpired(), work.UNANSWERED)
        else:
            await self._holder.finish(held, engine.Unsend(), b"")  # it goes back as it is

    async def ask(
        self, held: Held, upstream: Upstream, tool: str | None, opening: Callable[[], Awaitable[Link]]
    ) -> None:
        """Puts the question into the record, with what `tool` shows, and lets go of the work.

        What cannot be shown is not asked for, and the task fails. Raises NotSent where the upstream cannot be reached.
        """
        shown = "" if tool is None else await self._preview(held, upstream, tool, opening)
        if isinstance(shown, Reject):
            await self._holder.finish(held, engine.GiveUp(_UNSEEN), shown)
            return
        wanted = held.operation.approval
        assert wanted is not None  # noqa: S101  # only then is it asked for
        now = max(self._holder.store.now(), held.pair.now)
        deadline_ms = min(now + wanted.timeout_ms, held.operation.deadline_ms)
        params = approval.question(wanted.message, shown)
        question = Question(approval.KEY, approval.METHOD, params, now, deadline_ms)
        await self._holder.finish(held, engine.Ask(question), b"")

    async def _preview(
        self, held: Held, upstream: Upstream, tool: str, opening: Callable[[], Awaitable[Link]]
    ) -> str | Reject:
        """What the call would do, in the words of a read-only tool; of a session that had ended, in a new one."""
        link = await opening()
        try:
            return await self._shown(held, upstream, link, tool)
        except NotSent as error:
            if not error.again:
                raise
        return await self._shown(held, upstream, await opening(), tool)

    async def _shown(self, held: Held, upstream: Upstream, link: Link, tool: str) -> str | Reject:
        params = approval.preview_params(held.arguments, tool)
        call = Call(upstream.next_id(), "tools/call", params, _PREVIEW_BYTES)
        left_s = (held.operation.deadline_ms - self._holder.store.now()) / 1000
        try:
            response = await answered(upstream, link, call, max(0, min(_PREVIEW_S, left_s)))
        except OutcomeUnknown as error:
            return self._unseen(held, error.reason, str(error))
        if response is None:
            return self._unseen(held, "upstream_down", "the preview took too long")
        kind, body = work.outcome(response)
        shown = approval.preview(body)
        if kind is OutcomeKind.RESULT and shown:
            return shown
        why = "the preview shows no text" if kind is OutcomeKind.RESULT else "the preview was refused"
        return self._unseen(held, "upstream_bad", why, shown)

    def _unseen(self, held: Held, reason: str, why: str, shown: str = "") -> Reject:
        """The refusal that the task gets; what the tool itself said is for the requestor only."""
        self._telemetry.upstream_failed(upstream=held.ref.owner.upstream, reason=reason, message=why)
        return Reject(reason, f"{_UNSEEN}: {why}", {"preview": shown} if shown else {})
