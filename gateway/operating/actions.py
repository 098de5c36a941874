"""What the operator may do: look at tasks and at the ledger, cancel, drain."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from gateway.core import engine, moves
from gateway.core.engine import Command, Refused
from gateway.core.model import Learnt, Operation, OperationState, OutcomeKind, Task, Verified
from gateway.operating.audit import Erased, Resolved, SwitchChanged, TaskCancelled
from gateway.operating.erasing import Erasing, Person
from gateway.operating.exporting import Audit
from gateway.operating.showing import in_full, in_short
from gateway.policy.decide import BUILT_IN, Policy
from gateway.policy.model import Settings
from gateway.requests.records import Records
from gateway.store.keys import scope_of, tenant_key
from gateway.store.ledger import Entry, LedgerStore, Sought
from gateway.store.port import Pair
from gateway.store.switches import Switches
from gateway.telemetry import Telemetry
from gateway.wire import work
from gateway.wire.errors import Reject
from gateway.wire.intent import TASKS_2025


@dataclass(frozen=True, slots=True)
class Denied:
    """Why nothing was done: `not_found`, `invalid`, or `refused` because the record is not in a state for it."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries are listed, at most `limit`. `older_than_ms`: the last change is at least so long ago."""

    sought: Sought
    upstream: str | None = None
    older_than_ms: int = 0
    limit: int = 100
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What a switch is about: a tenant of an issuer, a tool of an upstream, an upstream, or everything."""

    upstream: str = ""
    tool: str = ""
    issuer: str = ""
    tenant: str | None = None


class Operating:
    """Every method but `drain` raises StoreAway."""

    def __init__(
        self,
        records: Records,
        ledger: LedgerStore,
        switches: Switches,
        policies: Mapping[str, Policy],
        telemetry: Telemetry,
        audit: Audit,
        new_id: Callable[[], str],
        drain: Callable[[bool], int | None],
    ) -> None:
        """`drain` tells how many calls this process still runs; None if the process stops already."""
        self._records = records
        self._ledger = ledger
        self._switches = switches
        self._policies = policies
        self._telemetry = telemetry
        self._erasing = Erasing(ledger, records.store.secret, self._stop)
        self._audit = audit
        self._new_id = new_id
        self._drain = drain

    async def listed(self, wanted: Wanted) -> Mapping[str, Any] | Denied:
        """Entries as wanted. A page may be empty and still not the last: `cursor` is null after that one."""
        found: list[Mapping[str, Any]] = []
        cursor = wanted.cursor
        for _ in range(_MOST_PAGES):
            try:
                page = await self._ledger.page(cursor, wanted.sought, wanted.limit - len(found))
            except ValueError:
                return _NO_CURSOR
            before_ms = self._records.store.now() - wanted.older_than_ms
            found += [in_short(entry) for entry in page.entries if _is_wanted(entry, wanted, before_ms)]
            cursor = page.cursor
            if cursor is None or len(found) >= wanted.limit:
                break
        return {"entries": found, "cursor": cursor, "now_ms": self._records.store.now()}

    async def shown(self, name: str) -> Mapping[str, Any] | Denied:
        """One entry in full."""
        entry = await self._find(name)
        return entry if isinstance(entry, Denied) else in_full(entry)

    async def cancel(self, name: str, by: str) -> Mapping[str, Any] | Denied:
        """Cancels a task as its own client would."""
        entry = await self._find(name)
        if isinstance(entry, Denied):
            return entry
        if entry.operation is None or entry.task is None:
            return _NO_TASK
        changed = await self._change(entry, entry.operation, _cancellation(entry.task))
        if isinstance(changed, Refused):
            again = changed.why is engine.Refusal.NOTHING_NEW
            return Denied("refused", "it has been asked to stop already" if again else "the task has already ended")
        self._telemetry.operated("cancel", task_id=entry.operation.id, upstream=entry.operation.owner.upstream, by=by)
        await self._audit.record(TaskCancelled(self._new_id(), self._now(), entry.member, by))
        return await self.shown(entry.member)

    async def resolve(self, name: str, *, succeeded: bool, reason: str, by: str) -> Mapping[str, Any] | Denied:
        """Settles an operation of which nobody knew what became of it. Nothing is sent to its upstream."""
        entry = await self._find(name)
        if isinstance(entry, Denied):
            return entry
        operation = entry.operation
        if operation is None or operation.state is not OperationState.UNKNOWN:
            return _NOT_UNKNOWN
        kind = OutcomeKind.RESULT if succeeded else OutcomeKind.TOOL_ERROR
        command = engine.Reconcile(kind, Learnt.RESOLVED, operation.receipt, by, reason)
        outcome = Verified.SUCCEEDED if succeeded else Verified.FAILED
        told = {"operation": {"id": operation.id, "outcome": outcome}}
        reject = Reject("key_settled", moves.WAS_DONE if succeeded else moves.WAS_NOT_DONE, told)
        if isinstance(await self._change(entry, operation, command, work.failure(reject)), Refused):
            return _NOT_UNKNOWN  # its answer came a moment ago
        self._telemetry.operated("resolve", task_id=operation.id, upstream=operation.owner.upstream, by=by)
        await self._audit.record(Resolved(self._new_id(), self._now(), entry.member, outcome, reason, by))
        return await self.shown(entry.member)

    async def erase(self, person: Person, cursor: str | None, by: str) -> Mapping[str, Any] | Denied:
        """Takes a person's name out of a part of the ledger; the next one begins at `cursor`, null after the last."""
        try:
            done = await self._erasing.erase(person, cursor)
        except ValueError:
            return _NO_CURSOR
        if done.entries:
            self._telemetry.operated("erase", by=by)
            told = Erased(self._new_id(), self._now(), tuple(sorted(done.subjects)), done.entries, done.tasks, by)
            await self._audit.record(told)
        return {**asdict(done), "subjects": sorted(done.subjects)}

    async def switches(self) -> Mapping[str, Any]:
        """All switches, the one of everything first."""
        return {"switches": [asdict(one) for one in await self._switches.read()], "now_ms": self._now()}

    async def switch(self, scope: Scope, *, on: bool, reason: str, by: str) -> Mapping[str, Any] | Denied:
        """Blocks new starts in a scope, on every gateway, or allows them again. What runs goes on."""
        if on and scope.upstream and scope.upstream not in self._policies:
            return Denied("invalid", f"upstream: there is none of this name; there are: {', '.join(self._policies)}")
        tenant = None if scope.tenant is None else (scope.issuer, scope.tenant)
        whose = "" if tenant is None else tenant_key(*tenant)
        name = scope_of(upstream=scope.upstream, tool=scope.tool, tenant=whose)
        await self._switches.put(name, on=on, reason=reason, by=by, tenant=tenant)
        self._telemetry.switch_changed(scope=name, on=on, reason=reason, by=by)
        told = SwitchChanged(self._new_id(), self._now(), name, on, reason, by, *(tenant or ()))
        await self._audit.record(told)
        return await self.switches()

    def drain(self, *, on: bool, by: str) -> Mapping[str, Any] | Denied:
        """Whether this process takes no new work from now on. It cannot be undone once the process stops."""
        running = self._drain(on)
        if running is None:
            return Denied("refused", "the gateway is stopping")
        self._telemetry.operated("drain" if on else "undrain", by=by)
        return {"draining": on, "running": running}

    def _now(self) -> int:
        return self._records.store.now()

    async def _stop(self, entry: Entry) -> None:
        if entry.operation is not None and entry.task is not None:
            await self._change(entry, entry.operation, _cancellation(entry.task))

    async def _find(self, name: str) -> Entry | Denied:
        member = await self._ledger.find(name)
        entry = None if member is None else await self._ledger.entry(member)
        return _NOT_THERE if entry is None else entry

    async def _change(
        self, entry: Entry, operation: Operation, command: Command, body: bytes | None = None
    ) -> Pair | Refused:
        return await self._records.change(entry.ref(operation), command, self._settings(operation), body)

    def _settings(self, operation: Operation) -> Settings:
        """What applies to its tool; of an upstream that is not configured here, what applies by default."""
        policy = self._policies.get(operation.owner.upstream)
        return BUILT_IN.defaults if policy is None else policy.settings(operation.tool)[0]


_MOST_PAGES: Final = 20
"""How many pages of the store one answer looks through."""
_NO_CURSOR: Final = Denied("invalid", "cursor: is none that an answer ended with")
_NOT_THERE: Final = Denied("not_found", "there is no such task or ledger entry")
_NOT_UNKNOWN: Final = Denied("refused", "its outcome is not unknown: there is nothing to settle")
_NO_TASK: Final = Denied("refused", "its task has expired: there is nothing to cancel")


def _cancellation(task: Task) -> Command:
    """What a client of this dialect would say (T25-CAN-1, TX-CAN-1)."""
    return engine.Cancel(final=task.dialect == TASKS_2025)


def _is_wanted(entry: Entry, wanted: Wanted, before_ms: int) -> bool:
    operation, task = entry.operation, entry.task
    if operation is None:
        return wanted.upstream is None
    changed_ms = max(operation.updated_ms, 0 if task is None else task.updated_ms)
    return wanted.upstream in (None, operation.owner.upstream) and changed_ms <= before_ms
