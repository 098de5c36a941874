"""A model and a real store driven together. The model is written from the specification and the design, not from the
engine: it knows what a requestor may see and how often work may be sent, and nothing of how the store does it.
"""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gateway.core import engine
from gateway.core.engine import Applied, apply
from gateway.core.model import Effect, Operation, OutcomeKind, Owner, Place, Seen, Task
from gateway.store.keys import Ref
from gateway.store.port import Change, ClaimAsk, ClaimKind, Created, NewWork, Pair, Verdict
from gateway.store.redis import RedisStore, connect
from tests.records import OTHER, OWNER, operation, task
from tests.requirements import requirement
from tests.stores import PREFIX, Server, leaks

LIMIT = 4
RETENTION = 90 * 86_400_000
PROCESSES = st.sampled_from([0, 1, 2])


@dataclass
class Expected:
    """What must be true of one piece of work."""

    owner: Owner
    effect: Effect
    repeatable: bool
    hidden: bool
    visible: str = "working"
    fact: str = "planned"
    cancel_asked: bool = False
    holder: str | None = None
    fence: int = 0
    old_fences: set[int] = field(default_factory=set)
    sends: int = 0
    body: bytes | None = None
    handle: str | None = None
    seen: Seen | None = None

    @property
    def open(self) -> bool:
        return self.visible == "working"

    @property
    def unfinished(self) -> bool:
        return self.fact in ("planned", "sent", "accepted")

    def end(self, visible: str, body: bytes | None = None) -> None:
        if self.open:
            self.visible = "cancelled" if self.cancel_asked and visible == "failed" else visible
            self.body = body if self.visible in ("completed", "failed") else None


class StoreMachine(RuleBasedStateMachine):
    """Random histories of creations, claims, answers, losses, cancellations and deaths."""

    server: Server
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.model: dict[str, Expected] = {}
        self.count = 0
        self.generations = [0, 0, 0]
        self.store = RedisStore(
            connect(self.server.url, 5), PREFIX, timeout_s=5, lease_ms=3_600_000, session_idle_ms=60_000
        )

    def process(self, place: int) -> str:
        return f"p{place}-{self.generations[place]}"

    def run(self, work):
        return self.loop.run(work)

    @initialize()
    def empty(self) -> None:
        async def clean():
            await self.store._client.flushall()
            await self.store.check()
            await self.store.bootstrap()

        self.run(clean())

    def teardown(self) -> None:
        async def finish():
            assert await leaks(self.store._client) == []
            await self.store.close()

        self.run(finish())
        self.loop.close()

    def ref(self, ident: str) -> Ref:
        return Ref(self.model[ident].owner, ident)

    @rule(
        target=ids,
        owner=st.sampled_from([OWNER, OTHER]),
        effect=st.sampled_from(Effect),
        retry=st.booleans(),
        hidden=st.booleans(),
    )
    def create(self, owner, effect, retry, hidden):
        self.count += 1
        ident = f"{self.count:032d}"
        now = self.store.now()
        repeatable = retry and effect != "consequential"
        made = NewWork(
            task(id=ident, owner=owner, created_ms=now, updated_ms=now, ttl_ms=600_000, version=1, hidden=hidden),
            operation(
                id=ident, owner=owner, deadline_ms=now + 600_000, version=1, effect=effect, repeatable=repeatable
            ),
            ident.encode(),
            LIMIT,
            100,
            RETENTION,
        )
        busy = sum(work.unfinished for work in self.model.values() if work.owner == owner)
        verdict = self.run(self.store.create(made)).verdict
        assert verdict is (Created.CREATED if busy < LIMIT else Created.QUOTA_PRINCIPAL)
        if verdict is Created.CREATED:
            self.model[ident] = Expected(owner, effect, repeatable, hidden)
        return ident

    @rule(place=PROCESSES, slots=st.integers(0, 3))
    def claim(self, place, slots):
        process = self.process(place)
        claims = self.run(self.store.claim(ClaimAsk("reports", process, 3_600_000, 0, 0, slots, 100)))
        taken = {kind: sum(claim.kind is kind for claim in claims) for kind in ClaimKind}
        assert taken[ClaimKind.RESUME] == min(slots, self.left("accepted"))
        assert taken[ClaimKind.START] == min(slots - taken[ClaimKind.RESUME], self.left("planned"))
        facts = {ClaimKind.START: "planned", ClaimKind.LOST: "sent", ClaimKind.RESUME: "accepted"}
        for claim in claims:
            work = self.model[claim.ref.id]
            assert work.holder is None
            assert work.fact == facts[claim.kind]
            assert claim.pair.operation.handle == work.handle
            assert claim.arguments == (claim.ref.id.encode() if claim.kind is ClaimKind.START else b"")
            assert claim.pair.fence > work.fence
            work.old_fences.add(work.fence)
            work.holder, work.fence = process, claim.pair.fence
            if claim.kind is ClaimKind.LOST:
                self.lose(claim.ref.id)

        self.run(self.show_what_was_left())

    def left(self, fact: str) -> int:
        """How much work in this state nobody holds."""
        return sum(work.fact == fact and work.holder is None for work in self.model.values())

    async def show_what_was_left(self):
        """What found no slot is looked at again within a lease; here at the next claim."""
        for ident, work in self.model.items():
            if work.fact == "accepted" and work.holder is None:
                await self.store._client.zadd(self.store.keys.watch("reports"), {self.ref(ident).member: 0})

    def lose(self, ident: str) -> None:
        work = self.model[ident]
        self.commit(ident, engine.Lose(), b'"lost"', work.fence)
        work.holder = None
        if work.repeatable and work.open and not work.cancel_asked:
            work.fact = "planned"
        else:
            work.fact = "unknown"
            work.end("failed", b'"lost"')

    @rule(ident=ids)
    def send(self, ident):
        work = self.model.get(ident)
        if work and work.fact == "planned" and work.holder:
            assert self.commit(ident, engine.Send(), None, work.fence) is Verdict.OK
            work.fact = "sent"
            work.sends += 1
            assert work.sends == 1 or work.repeatable

    @rule(ident=ids)
    def accept(self, ident):
        work = self.model.get(ident)
        if work and work.fact == "sent" and work.holder:
            work.seen = Seen("working", 1, 2)
            work.handle = f"theirs-{work.sends}"
            accepted = engine.Accept(work.handle, Place("2025-11-25", session="s"), work.seen, "digest")
            assert self.commit(ident, accepted, None, work.fence) is Verdict.OK
            work.fact = "accepted"

    @rule(ident=ids, at=st.integers(3, 9))
    def observe(self, ident, at):
        work = self.model.get(ident)
        if work and work.holder:
            seen = Seen("working", at, at + 1)
            verdict = self.commit(ident, engine.Observe(seen, "half"), None, work.fence)
            assert verdict is (Verdict.OK if work.fact == "accepted" else None)
            work.seen = seen if verdict else work.seen

    @rule(ident=ids)
    def forget(self, ident):
        work = self.model.get(ident)
        if work and work.fact == "accepted" and work.holder:
            assert self.commit(ident, engine.Forget("gone"), b'"gone"', work.fence) is Verdict.OK
            work.fact, work.holder = "unknown", None
            work.end("failed", b'"gone"')

    @rule(ident=ids)
    def give_back(self, ident):
        """A process that stops leaves to others what an upstream has taken."""
        work = self.model.get(ident)
        if work and work.fact == "accepted" and work.holder:
            assert self.commit(ident, engine.Lose(), None, work.fence, give_back=True) is Verdict.OK
            work.holder = None

    @rule(ident=ids, kind=st.sampled_from(OutcomeKind))
    def answer(self, ident, kind):
        work = self.model.get(ident)
        if work and work.fact in ("sent", "accepted") and work.holder:
            body = f'"{kind}"'.encode()
            assert self.commit(ident, engine.Answer(kind), body, work.fence) is Verdict.OK
            work.fact, work.holder = "answered", None
            work.end("failed" if kind == "error" else "completed", body)

    @rule(ident=ids)
    def give_up(self, ident):
        work = self.model.get(ident)
        if work and work.holder and work.fact == "accepted":
            assert self.commit(ident, engine.GiveUp("no"), b'"no"', work.fence) is None
        elif work and work.holder:
            assert self.commit(ident, engine.GiveUp("no"), b'"no"', work.fence) is Verdict.OK
            work.fact, work.holder = "dropped", None
            work.end("failed", b'"no"')

    @rule(ident=ids, final=st.booleans())
    def cancel(self, ident, final):
        work = self.model.get(ident)
        if not work:
            return
        verdict = self.commit(ident, engine.Cancel(final=final), None, None)
        assert (verdict is Verdict.OK) is (work.open and (final or work.fact == "planned" or not work.cancel_asked))
        if work.open:
            work.cancel_asked = True
            if work.fact == "planned":
                work.fact, work.holder = "dropped", None
                work.end("cancelled")
            elif final:
                work.end("cancelled")

    @rule(ident=ids)
    def promote(self, ident):
        work = self.model.get(ident)
        if work and work.hidden:
            assert self.commit(ident, engine.Promote(600_000, 1), None, None) is Verdict.OK
            work.hidden = False

    @rule(ident=ids)
    def late_answer(self, ident):
        work = self.model.get(ident)
        if work and work.fact == "unknown":
            assert self.commit(ident, engine.Answer(OutcomeKind.RESULT), b'"late"', None) is Verdict.OK
            work.fact = "answered"

    @rule(ident=ids, data=st.data())
    def zombie_writes(self, ident, data):
        work = self.model.get(ident)
        if work and work.old_fences:
            fence = data.draw(st.sampled_from(sorted(work.old_fences)))
            verdict = self.commit(ident, engine.Answer(OutcomeKind.RESULT), b'"zombie"', fence)
            assert verdict in (Verdict.FENCED, None)

    @rule(place=PROCESSES)
    def die(self, place):
        """The process is gone and its lease has lapsed; the one that takes its place has another name."""
        process = self.process(place)
        self.generations[place] += 1

        async def lapse():
            await self.store._client.delete(self.store.keys.heartbeat(process))
            for ident, work in self.model.items():
                if work.holder == process:
                    work.holder = None
                    await self.store._client.zadd(self.store.keys.watch("reports"), {self.ref(ident).member: 0})

        self.run(lapse())

    def commit(self, ident, command, body, fence, *, give_back=False) -> Verdict | None:
        async def attempt() -> Verdict | None:
            pair: Pair = await self.store.load(self.ref(ident))
            after = apply(pair.task, pair.operation, command, pair.now)
            if not isinstance(after, Applied):
                return None
            kept = body if after.finished else None
            change = Change(self.ref(ident), pair, after, RETENTION, kept, fence, give_back=give_back)
            return await self.store.commit(change)

        return self.run(attempt())

    @invariant()
    def everybody_sees_what_is_theirs_and_true(self):
        for ident, work in self.model.items():
            self.run(self.look(ident, work))

    async def look(self, ident: str, work: Expected) -> None:
        foreign = OTHER if work.owner == OWNER else OWNER
        assert (await self.store.poll(Ref(foreign, ident), None, want_body=True)).task is None
        polled = await self.store.poll(self.ref(ident), None, want_body=True)
        fact: Operation = (await self.store.load(self.ref(ident))).operation
        assert fact.state == work.fact
        assert fact.attempt == work.sends
        assert fact.seen == work.seen
        if work.hidden:
            assert polled.task is None
            return
        assert shown(polled.task) == work.visible
        assert polled.body == work.body

    @invariant()
    def counters_count_what_is_unfinished(self):
        async def counts(owner):
            return await self.store._client.zcard(self.store.keys.active_of_owner(owner))

        for owner in (OWNER, OTHER):
            unfinished = sum(work.unfinished for work in self.model.values() if work.owner == owner)
            assert self.run(counts(owner)) == unfinished


def shown(promise: Task) -> str:
    if promise.state == "done":
        return "failed" if promise.outcome_kind == "error" else "completed"
    return str(promise.state)


@requirement("T25-ST-1", "OWN-ONCE", "OWN-FENCE", "OWN-CAS", "OWN-LEAK", "BR-3")
@pytest.mark.no_cover  # as all properties: tests/conftest.py
def test_the_store_agrees_with_the_model(server):
    StoreMachine.server = server
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
