"""Asks an authority what became of work whose answer was lost: a read-only tool, until it tells or the budget is over.

Nothing is sent again here, and no result is made of what an authority says: the ledger learns the outcome, and a task
that waited for it ends with an error that tells it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Raw

from gateway.core import engine
from gateway.core.model import Inquiry, Learnt, OutcomeKind
from gateway.policy.operation import Reconcile as Rule
from gateway.running.aside import answered
from gateway.running.holder import Held, Holder
from gateway.running.performing import Site
from gateway.telemetry import Telemetry
from gateway.upstream.port import Call, NotSent, OutcomeUnknown, Upstream
from gateway.wire import verdicts, work
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Members, Response, write

_LONGEST_S: Final = 20.0
"""How long one question may take."""
_MOST_BYTES: Final = 1_048_576
_MOST_DOUBLINGS: Final = 20
LAST_MS: Final = 1_000
"""So long before an end the last question is put, where the pause would have passed that end."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long is waited between two questions: twice as long each time. Durations are seconds."""

    first_s: float = 2.0
    most_s: float = 300.0

    def after(self, tries: int, jitter: float) -> float:
        """How long to wait after so many questions in vain. `jitter` is from 0 to 1: not all ask at the same time."""
        return float(min(self.first_s * 2.0 ** min(tries, _MOST_DOUBLINGS), self.most_s) * (0.5 + jitter))


PAUSES: Final = Pauses()


@dataclass(frozen=True, slots=True)
class Told:
    """What the authority said: whether the work was done, and a receipt (JSON text), empty for none."""

    kind: OutcomeKind
    receipt: str


@dataclass(frozen=True, slots=True)
class Vain:
    """A question that told nothing, and why. `after_s`: so long the upstream wants to be left alone."""

    reason: str
    after_s: float = 0


Finding: TypeAlias = Told | Vain


def next_at(now: int, pause_ms: int, ends: int) -> int:
    """When to ask again. An end that the pause would pass gets a question shortly before it. Milliseconds."""
    wanted, last = now + pause_ms, ends - LAST_MS
    return last if wanted >= ends and last > now + LAST_MS else wanted


def read(response: Response, rule: Rule) -> Finding:
    """What an answer of the authority says."""
    kind, body = work.outcome(response)
    if kind is not OutcomeKind.RESULT:
        return Vain("error")
    found = verdicts.verdict(verdicts.word(body, rule.outcome), rule.succeeded, rule.failed)
    return Vain("word") if found is None else Told(found, work.receipt(body, rule.receipt))


class Reconciling:
    """Asks about the unknown operations that a process holds. `jitter` spreads what many would do together."""

    def __init__(
        self,
        holder: Holder,
        sites: Mapping[str, Site],
        telemetry: Telemetry,
        jitter: Callable[[], float],
        pauses: Pauses,
    ) -> None:
        self._holder = holder
        self._sites = sites
        self._telemetry = telemetry
        self._jitter = jitter
        self._pauses = pauses

    async def ask(self, held: Held) -> None:
        """One question, and what comes of it."""
        inquiry = held.operation.inquiry
        if inquiry is None:
            return
        if inquiry.due(self._holder.store.now()) is None:
            self._failed(held, "budget", inquiry.tries)
            await self.leave(held)
            return
        found = await self._found(held, inquiry)
        if isinstance(found, Vain):
            await self.in_vain(held, found)
        else:
            await self._reconciled(held, found, inquiry)

    async def in_vain(self, held: Held, vain: Vain) -> None:
        """It is asked again later. A task that cannot wait so long ends as unknown."""
        inquiry, task = held.operation.inquiry, held.pair.task
        if inquiry is None:
            return
        self._failed(held, vain.reason, inquiry.tries + 1)
        pause_s = max(self._pauses.after(inquiry.tries, self._jitter()), min(vain.after_s, self._pauses.most_s))
        ends = inquiry.until_ms or 0
        if task is not None and not task.terminal:
            ends = min(ends, held.operation.deadline_ms)
        at = next_at(self._holder.store.now(), int(pause_s * 1000), ends)
        await self._holder.finish(held, engine.Inquired(at), work.LOST)

    async def leave(self, held: Held) -> None:
        """Whoever comes next asks on, if there is time left for that."""
        await self._holder.finish(held, engine.Inquired(self._holder.store.now()), work.LOST)

    async def _reconciled(self, held: Held, told: Told, inquiry: Inquiry) -> None:
        done = told.kind is OutcomeKind.RESULT
        reject = Reject("key_settled", engine.WAS_DONE if done else engine.WAS_NOT_DONE)
        await self._holder.finish(held, engine.Reconcile(told.kind, receipt=told.receipt), reject)
        operation = held.pair.operation
        if operation is not None and operation.learnt is Learnt.RECONCILED:
            self._telemetry.reconciled(
                upstream=held.ref.owner.upstream,
                task_id=held.ref.id,
                outcome=operation.outcome,
                questions=inquiry.tries + 1,
            )

    async def _found(self, held: Held, inquiry: Inquiry) -> Finding:
        site = self._sites[held.ref.owner.upstream]
        rule = _rule(site, held, inquiry)
        if rule is None:
            return Vain("policy")
        max_bytes = min(site.policy.settings(inquiry.tool)[0].max_result_bytes, _MOST_BYTES)
        try:
            return read(await _asked(site.upstream, held, inquiry, max_bytes), rule)
        except (NotSent, OutcomeUnknown) as error:
            upstream = held.ref.owner.upstream
            self._telemetry.upstream_failed(upstream=upstream, reason=error.reason, message=str(error))
            return Vain(error.reason, error.after_s)

    def _failed(self, held: Held, reason: str, questions: int) -> None:
        upstream = held.ref.owner.upstream
        self._telemetry.reconcile_failed(upstream=upstream, task_id=held.ref.id, reason=reason, questions=questions)


def _rule(site: Site, held: Held, inquiry: Inquiry) -> Rule | None:
    """How the answer is to be read, if the policy still says so. What is not read-only is not called any more."""
    operation = site.policy.settings(held.operation.tool)[0].operation
    rule = None if operation is None else operation.reconcile
    asked, _ = site.policy.settings(inquiry.tool)
    same = rule is not None and rule.tool == inquiry.tool and asked.effect == "read_only"
    return rule if same else None


async def _asked(upstream: Upstream, held: Held, inquiry: Inquiry, max_bytes: int) -> Response:
    """The answer of the authority, asked as the owner of the operation. Raises NotSent or OutcomeUnknown."""
    late = OutcomeUnknown("deadline", f"the tool that is asked for outcomes did not answer within {_LONGEST_S:g} s")
    try:
        async with asyncio.timeout(_LONGEST_S):
            link = await upstream.open(held.ref.owner)
    except TimeoutError:
        raise late from None
    params: Members = {"name": Raw(write(inquiry.tool)), "arguments": Raw(inquiry.arguments.encode())}
    call = Call(upstream.next_id(), "tools/call", params, max_bytes)
    response = await answered(upstream, link, call, _LONGEST_S)
    if response is None:
        raise late
    return response
