"""Every metric and every log event, named in one place.

No event carries arguments, results, tokens or identities; ids of tasks appear as digests, because an id is enough to
find a task for whoever has the same identity.
"""

import hashlib
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_WORD: Final = re.compile(r"[\w-]{8,}")
_REMEMBERED: Final = 10_000
_SECONDS: Final = (0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)


class Telemetry:
    """Metrics of one process, and its log."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.registry = CollectorRegistry()
        self.log = _logger(stream or sys.stderr)
        self._theirs: dict[str, None] = {}
        self._audit_works = True
        self._requests = Counter(
            "mtg_requests", "Requests of clients", ["upstream", "era", "method", "outcome"], registry=self.registry
        )
        self._request_seconds = Histogram(
            "mtg_request_seconds",
            "Time until a request was answered",
            ["method"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._created = Counter(
            "mtg_tasks_created", "Tasks handed out", ["upstream", "dialect"], registry=self.registry
        )
        self._transitions = Counter(
            "mtg_operation_transitions",
            "Operations that reached a state",
            ["upstream", "state"],
            registry=self.registry,
        )
        self._lookups = Counter(
            "mtg_task_lookups_failed", "Tasks asked for that are not there", ["reason"], registry=self.registry
        )
        self._attempts = Counter(
            "mtg_upstream_failures", "Calls that failed", ["upstream", "reason"], registry=self.registry
        )
        self._reattached = Counter(
            "mtg_calls_reattached", "Calls of other processes taken up", ["upstream", "outcome"], registry=self.registry
        )
        self._reconciled = Counter(
            "mtg_reconciled", "Unknown outcomes that an authority told", ["upstream", "outcome"], registry=self.registry
        )
        self._reconcile_failures = Counter(
            "mtg_reconcile_failures",
            "Questions after unknown outcomes that told nothing",
            ["upstream", "reason"],
            registry=self.registry,
        )
        self._tokens_refused = Counter(
            "mtg_tokens_refused", "Requests without a token that is taken", ["cause"], registry=self.registry
        )
        self._key_looks = Counter(
            "mtg_key_looks", "Looks for the keys of an issuer", ["issuer", "outcome"], registry=self.registry
        )
        self._keys = Gauge("mtg_keys", "Usable keys of an issuer", ["issuer"], registry=self.registry)
        self.running = Gauge("mtg_running_calls", "Calls under way at upstreams", registry=self.registry)
        self._processes = Gauge(
            "mtg_upstream_processes", "Processes of stdio upstreams that run", ["upstream"], registry=self.registry
        )
        self._process_starts = Counter(
            "mtg_upstream_process_starts", "Processes of stdio upstreams started", ["upstream"], registry=self.registry
        )
        self._unknown = Gauge(
            "mtg_ledger_unknown", "Operations whose outcome is unknown", ["upstream", "age"], registry=self.registry
        )
        self._admin = Counter(
            "mtg_admin_requests", "Requests to the operator's API", ["outcome"], registry=self.registry
        )
        self._switch = Gauge("mtg_switch", "Whether new starts are blocked", ["scope"], registry=self.registry)
        self._unexported = Gauge(
            "mtg_ledger_unexported", "Ledger entries that wait for the audit sink", registry=self.registry
        )
        self._export_lost = Counter(
            "mtg_ledger_exports_lost", "Ledger entries that ended before they were exported", registry=self.registry
        )
        self._audit_up = Gauge("mtg_audit_up", "Whether the audit sink took what was written", registry=self.registry)
        self._audit_up.set(1)
        self._doubts = Counter(
            "mtg_store_doubts",
            "How often the store became another one that may have lost something",
            registry=self.registry,
        )
        self._not_durable = Counter(
            "mtg_sent_not_durable",
            "Calls held back because the store did not confirm their mark in time",
            ["upstream"],
            registry=self.registry,
        )
        self._gone = Counter(
            "mtg_records_gone",
            "Outcomes for which there was no record any more",
            ["upstream", "outcome"],
            registry=self.registry,
        )
        self._store_up = Gauge("mtg_store_up", "Whether the store answered last", registry=self.registry)

    def request(self, *, upstream: str, era: str, method: str, outcome: str, status: int, seconds: float) -> None:
        """One request was answered. `outcome` is `ok` or the word of a refusal; durations are seconds."""
        self._requests.labels(upstream, era, method, outcome).inc()
        self._request_seconds.labels(method).observe(seconds)
        self.log.info(
            "request",
            upstream=upstream,
            era=era,
            method=method,
            outcome=outcome,
            status=status,
            ms=round(seconds * 1000, 1),
        )

    def created(self, *, upstream: str, tool: str, dialect: str, task_id: str) -> None:
        """A task was handed out."""
        self._created.labels(upstream, dialect).inc()
        self.log.info("task_created", upstream=upstream, tool=tool, dialect=dialect, task=short(task_id))

    def transition(self, *, upstream: str, task_id: str, task: str, operation: str, cause: str) -> None:
        """A pair of records changed."""
        self._transitions.labels(upstream, operation).inc()
        self.log.info("transition", upstream=upstream, id=short(task_id), task=task, operation=operation, cause=cause)

    def accepted(self, *, upstream: str, task_id: str, theirs: str, dialect: str) -> None:
        """An upstream made a task of its own, `theirs`. Its id is a digest in the log like ours, whoever prints it."""
        self._theirs[theirs] = None
        if len(self._theirs) > _REMEMBERED:
            del self._theirs[next(iter(self._theirs))]
        self.log.info("upstream_task", upstream=upstream, id=short(task_id), upstream_id=short(theirs), dialect=dialect)

    def reattached(self, *, upstream: str, task_id: str, answered: bool) -> None:
        """The stream of a call was taken up that another process had sent: whether its answer was had."""
        outcome = "answered" if answered else "lost"
        self._reattached.labels(upstream, outcome).inc()
        self.log.info("reattached", upstream=upstream, id=short(task_id), outcome=outcome)

    def lookup_failed(self, reason: str) -> None:
        """A task was asked for and not found: `unknown` or `expired`."""
        self._lookups.labels(reason).inc()

    def upstream_failed(self, *, upstream: str, reason: str, message: str) -> None:
        """A call to an upstream failed."""
        self._attempts.labels(upstream, reason).inc()
        self.log.warning("upstream_failed", upstream=upstream, reason=reason, message=message)

    def reconciled(self, *, upstream: str, task_id: str, outcome: str, questions: int) -> None:
        """An authority told what became of an unknown operation, when it was asked for the so manieth time."""
        self._reconciled.labels(upstream, outcome).inc()
        self.log.info("reconciled", upstream=upstream, id=short(task_id), outcome=outcome, questions=questions)

    def reconcile_failed(self, *, upstream: str, task_id: str, reason: str, questions: int) -> None:
        """It was asked and told nothing. `reason` is one of a fixed list; `budget` is the end of the asking."""
        self._reconcile_failures.labels(upstream, reason).inc()
        hint = {"hint": "look it up and resolve it by hand"} if reason == "budget" else {}
        self.log.warning(
            "reconcile_failed", upstream=upstream, id=short(task_id), reason=reason, questions=questions, **hint
        )

    def token_refused(self, cause: str) -> None:
        """Who sent a request is not known. `cause` is one of a fixed list and holds nothing of a token."""
        self._tokens_refused.labels(cause).inc()

    def keys_loaded(self, *, issuer: str, keys: int, news: bool) -> None:
        """The keys of an issuer were read. `news`: they are other ones, or reading them had failed."""
        self._key_looks.labels(issuer, "ok").inc()
        self._keys.labels(issuer).set(keys)
        if news:
            self.log.info("keys_loaded", issuer=issuer, keys=keys)

    def keys_failed(self, *, issuer: str, reason: str, news: bool) -> None:
        """The keys of an issuer could not be read. `news`: the look before had succeeded, or there was none."""
        self._key_looks.labels(issuer, "failed").inc()
        if news:
            hint = "tokens are verified with the keys read last, for an hour; without any they are refused"
            self.log.error("keys_failed", issuer=issuer, reason=reason, hint=hint)

    def keys_dropped(self, *, issuer: str) -> None:
        """The keys of an issuer are too old to be believed."""
        self._keys.labels(issuer).set(0)
        self.log.error("keys_dropped", issuer=issuer, hint="tokens of this issuer are refused until it answers again")

    def unreadable(self, error: BaseException) -> None:
        """What came was no HTTP that can be read. The text of the error holds what was sent, the type does not."""
        self.log.info("request_unreadable", error=type(error).__name__)

    def upstream_started(self, *, upstream: str, pid: int) -> None:
        """A process of a stdio upstream was started."""
        self._processes.labels(upstream).inc()
        self._process_starts.labels(upstream).inc()
        self.log.info("upstream_started", upstream=upstream, pid=pid)

    def upstream_exited(self, *, upstream: str, pid: int, status: int, seconds: float, wanted: bool) -> None:
        """A process ended after so many seconds: exit status, negative for a signal."""
        self._processes.labels(upstream).dec()
        log = self.log.info if wanted else self.log.warning
        log("upstream_exited", upstream=upstream, pid=pid, status=status, seconds=round(seconds, 1), wanted=wanted)

    def upstream_stderr(self, *, upstream: str, pid: int, line: str) -> None:
        """A line that a process printed to its standard error."""
        self.log.info("upstream_stderr", upstream=upstream, pid=pid, line=_WORD.sub(self._digested, line))

    def upstream_stderr_left_out(self, *, upstream: str, pid: int, lines: int) -> None:
        """So many lines of a process were too many to be logged."""
        self.log.warning("upstream_stderr_left_out", upstream=upstream, pid=pid, lines=lines)

    def upstream_speaks(self, *, upstream: str, transport: str) -> None:
        """What a server speaks was found out."""
        self.log.info("upstream_speaks", upstream=upstream, transport=transport)

    def upstream_no_mcp(self, *, upstream: str, pid: int | None, size: int) -> None:
        """A server said something that is not MCP. It could be a result: only its size. `pid` of one over stdio."""
        process = {} if pid is None else {"pid": pid}
        self.log.warning("upstream_no_mcp", upstream=upstream, **process, bytes=size)

    def upstream_tool_unusable(self, *, upstream: str, tool: str, reason: str) -> None:
        """A tool of a modern upstream is left out of its list: the specification forbids to use it."""
        self.log.warning("upstream_tool_unusable", upstream=upstream, tool=tool, reason=reason)

    def refused(self, *, task_id: str, cause: str, verdict: str) -> None:
        """What a holder wanted to write was refused: somebody else holds the operation, or it is gone."""
        self.log.warning("write_refused", id=short(task_id), cause=cause, verdict=verdict)

    def operated(self, action: str, *, by: str, task_id: str = "", upstream: str = "") -> None:
        """The operator did something by the admin listener. `by` is who, in the operator's own words."""
        about = {"upstream": upstream, "id": short(task_id)} if task_id else {}
        self.log.warning("operator", action=action, by=by, **about)

    def admin(self, outcome: str) -> None:
        """A request to the operator's API was answered: `ok`, or the word of a refusal."""
        self._admin.labels(outcome).inc()

    def ledger(self, unknown: Mapping[tuple[str, str], int], unexported: int) -> None:
        """How many outcomes are unknown, by upstream and age, and how many entries wait for the audit sink."""
        for labels, count in unknown.items():
            self._unknown.labels(*labels).set(count)
        self._unexported.set(unexported)

    def switches(self, blocked: Mapping[str, bool]) -> None:
        """Which scopes have a switch, and whether it blocks new starts."""
        self._switch.clear()
        for scope, on in blocked.items():
            self._switch.labels(scope).set(int(on))

    def switch_changed(self, *, scope: str, on: bool, reason: str, by: str) -> None:
        """The operator blocked new starts in a scope, or allowed them again, by this process."""
        self.log.warning("switch_changed", scope=scope, on=on, reason=reason, by=by)

    def audit(self, *, works: bool, error: str = "") -> None:
        """The audit sink took what was written to it, or did not. Told when that changes."""
        if works is self._audit_works:
            return
        self._audit_works = works
        self._audit_up.set(int(works))
        if works:
            self.log.info("audit_back")
        else:
            self.log.error("audit_failed", error=error, hint="ledger entries wait in the store until it works again")

    def audit_lost(self, entries: int) -> None:
        """So many ledger entries ended before the audit sink took them."""
        if entries:
            self._export_lost.inc(entries)
            self.log.error("audit_lost", entries=entries)

    def sent_not_durable(self, *, upstream: str, task_id: str) -> None:
        """A call was not sent: the store did not confirm in time that its mark would outlive a failure."""
        self._not_durable.labels(upstream).inc()
        hint = "the call is tried again until its deadline: see store.sent_durability"
        self.log.warning("sent_not_durable", upstream=upstream, id=short(task_id), hint=hint)

    def store_blind(self) -> None:
        """The server does not tell which one it is."""
        hint = "allow INFO to the user of store.url: failovers and an evicting maxmemory-policy are not noticed"
        self.log.warning("store_blind", hint=hint)

    def record_gone(self, *, upstream: str, task_id: str, outcome: str) -> None:
        """The store lost the record of work whose outcome is known: this line is all that is left of it."""
        self._gone.labels(upstream, outcome).inc()
        self.log.error("record_gone", upstream=upstream, id=short(task_id), outcome=outcome)

    def store_doubted(self, *, epoch: int, held: int) -> None:
        """The store is another one than before: a failover, a restart, a backup. `held` calls are under way."""
        self._doubts.inc()
        hint = "what looks planned and may have been sent becomes unknown after takeover_grace_s"
        self.log.warning("store_doubted", epoch=epoch, held=held, hint=hint)

    def reminded(self, *, upstream: str, task_id: str) -> None:
        """The store had forgotten that work was sent, and was told so by its holder."""
        self.log.warning("store_reminded", upstream=upstream, id=short(task_id))

    def store_answers(self) -> None:
        """The store answered when the process started."""
        self._store_up.set(1)

    def store_changed(self, *, up: bool, error: str = "") -> None:
        """The store was lost or is back."""
        self._store_up.set(int(up))
        if up:
            self.log.info("store_back")
        else:
            self.log.error("store_away", error=error, hint="starts are refused until the store answers again")

    def _digested(self, word: re.Match[str]) -> str:
        return short(word[0]) if word[0] in self._theirs else word[0]

    def fault(self, where: str, error: BaseException) -> None:
        """Something that must not happen happened. The message could hold what a client sent, the type cannot."""
        self.log.error("fault", where=where, error=type(error).__name__)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def short(task_id: str) -> str:
    """A digest by which two log lines about one task can be matched."""
    return hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _logger(stream: TextIO) -> Any:
    return structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=lambda event, **_: orjson.dumps(event, default=str).decode()),
        ],
    )
