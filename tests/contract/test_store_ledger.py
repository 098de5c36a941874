"""What a store does about switches, idempotency keys and outcomes that nobody knows."""

from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.model import Approval, Inquiry, OperationState, OutcomeKind, Owner, Question
from gateway.store.codec import switch_record
from gateway.store.keys import EVERYTHING, scope_of, tenant_digest
from gateway.store.port import ClaimKind, Created, Creation, Verdict
from gateway.store.redis import RedisStore, connect
from tests.contract.test_store import REF, ask, change, claimed, died, sent, work
from tests.records import ID, OTHER, OWNER
from tests.requirements import requirement
from tests.stores import LEASE_MS, SESSION_IDLE_MS

SECOND = "another-task-id-of-thirty-two-letters"[:32]
SCOPES = [
    EVERYTHING,
    scope_of(upstream="reports"),
    scope_of(upstream="reports", tool="build"),
    scope_of(tenant=tenant_digest(OWNER)),
]
ON = switch_record(on=True, reason="an incident", by="ops", at_ms=1)


def named(store, key="k", digest="d", *, derived=False, key_for_ms=None, **changes):
    made = work(store, **changes)
    fact = replace(made.operation, idempotency_key=key, arguments_digest=digest, derived=derived)
    return replace(made, operation=fact, key_for_ms=key_for_ms)


@requirement("OWN-SWITCH")
class TestSwitches:
    @pytest.mark.parametrize("scope", SCOPES)
    async def test_block_new_starts_and_nothing_is_written(self, store, redis, scope):
        await redis.hset(store.keys.switches, scope, ON)
        before = sorted(await redis.keys())
        assert await store.create(work(store)) == Creation(Created.SWITCH, scope)
        assert sorted(await redis.keys()) == before

    @pytest.mark.parametrize("scope", SCOPES)
    async def test_hold_back_what_is_planned_and_let_it_go_when_they_are_off(self, store, redis, scope):
        await store.create(work(store))
        await redis.hset(store.keys.switches, scope, ON)
        assert await store.claim(ask(store)) == []
        await redis.hset(store.keys.switches, scope, switch_record(on=False, reason="over", by="ops", at_ms=2))
        await redis.zadd(store.keys.due("reports"), {REF.member: 0})
        assert (await claimed(store)).kind is ClaimKind.START

    @pytest.mark.parametrize(
        "scope",
        [
            scope_of(upstream="other"),
            scope_of(upstream="other", tool="build"),
            scope_of(upstream="reports", tool="bui"),
            scope_of(tenant=tenant_digest(Owner("https://idp", "ann", "other", "reports"))),
        ],
    )
    async def test_concern_their_own_scope_only(self, store, redis, scope):
        await redis.hset(store.keys.switches, scope, ON)
        assert (await store.create(work(store))).verdict is Created.CREATED
        assert (await claimed(store)).kind is ClaimKind.START

    @pytest.mark.parametrize("content", [b"", b"?", b"true", b" 0", b"null"])
    async def test_block_when_they_cannot_be_read(self, store, redis, content):
        await store.create(work(store))
        await redis.hset(store.keys.switches, EVERYTHING, content)
        assert (await store.create(work(store, ident=SECOND))).verdict is Created.SWITCH
        assert await store.claim(ask(store)) == []

    async def test_block_when_the_one_of_everything_is_lost_and_no_start_makes_it_anew(self, store, redis):
        await store.create(work(store))
        await redis.delete(store.keys.switches)
        await store.bootstrap()
        assert await store.create(work(store, ident=SECOND)) == Creation(Created.SWITCH, EVERYTHING)
        assert await store.claim(ask(store)) == []

    async def test_a_store_is_set_up_once(self, store, redis):
        before = await redis.hgetall(store.keys.marker)
        assert (before[b"shards"], await store.bootstrap()) == (b"1", 1)
        assert await redis.hgetall(store.keys.marker) == before

    async def test_let_what_is_under_way_go_on(self, store, redis):
        await sent(store)
        await redis.hset(store.keys.switches, EVERYTHING, ON)
        await died(store, redis)
        assert (await claimed(store, process="p2")).kind is ClaimKind.LOST

    async def test_do_not_concern_what_is_no_task(self, store, redis):
        await redis.hset(store.keys.switches, EVERYTHING, ON)
        assert (await store.create(replace(work(store), exempt=True))).verdict is Created.CREATED
        assert (await claimed(store)).kind is ClaimKind.START

    async def test_work_that_is_held_back_keeps_nobody_else_waiting(self, store, redis):
        for number in range(70):
            held = work(store, ident=f"{number:032d}", limits=(100, 100))
            await store.create(replace(held, operation=replace(held.operation, tool="held")))
        await redis.hset(store.keys.switches, scope_of(upstream="reports", tool="held"), ON)
        await store.create(work(store, limits=(100, 100)))
        claims = [*await store.claim(ask(store)), *await store.claim(ask(store))]
        assert [claim.ref.id for claim in claims] == [ID]


@requirement("OWN-KEY-ONCE")
class TestIdempotency:
    async def test_a_key_begins_one_operation(self, store):
        assert (await store.create(named(store))).verdict is Created.CREATED
        assert await store.create(named(store, ident=SECOND)) == Creation(Created.EXISTS, ID)
        assert len(await store.claim(ask(store))) == 1

    async def test_the_same_creation_again_is_no_second_one(self, store):
        made = named(store)
        assert [(await store.create(made)).verdict for _ in range(2)] == [Created.CREATED, Created.CREATED]

    async def test_other_arguments_are_a_conflict(self, store):
        await store.create(named(store))
        assert await store.create(named(store, digest="e", ident=SECOND)) == Creation(Created.CONFLICT, ID)

    async def test_is_good_within_its_owner_and_its_tool(self, store):
        await store.create(named(store))
        assert (await store.create(named(store, owner=OTHER))).verdict is Created.CREATED
        other = named(store, ident=SECOND)
        other = replace(other, operation=replace(other.operation, tool="other"))
        assert (await store.create(other)).verdict is Created.CREATED

    async def test_a_key_of_a_running_operation_is_found_whatever_the_switches_say(self, store, redis):
        await store.create(named(store))
        await redis.hset(store.keys.switches, EVERYTHING, ON)
        assert (await store.create(named(store, ident=SECOND))).verdict is Created.EXISTS

    @pytest.mark.parametrize("command", [engine.Answer(OutcomeKind.RESULT), engine.Lose()])
    async def test_a_key_lives_as_long_as_the_ledger_entry(self, store, redis, command):
        made = named(store)
        await store.create(made)
        fence = (await claimed(store)).pair.fence
        await change(store, engine.Send(), fence=fence)
        await change(store, command, fence=fence, body=b"{}")
        assert (await store.create(named(store, ident=SECOND))).verdict is Created.EXISTS
        ends = [await redis.pexpiretime(key) for key in (store.keys.named(made.operation), store.keys.operation(REF))]
        assert ends[0] == ends[1]

    async def test_what_was_never_sent_may_be_begun_anew(self, store):
        await store.create(named(store))
        await change(store, engine.Cancel(final=True))
        assert (await store.create(named(store, ident=SECOND))).verdict is Created.CREATED
        assert await store.create(named(store, ident="c" * 32)) == Creation(Created.EXISTS, SECOND)

    async def test_a_refused_creation_takes_no_key(self, store, redis):
        assert (await store.create(named(store, limits=(0, 1)))).verdict is Created.QUOTA_PRINCIPAL
        assert (await store.create(named(store, ident=SECOND))).verdict is Created.CREATED

    async def test_a_derived_key_is_good_for_its_window_and_while_the_work_is_under_way(self, store, redis):
        first = named(store, derived=True, key_for_ms=60_000)
        await store.create(first)
        assert 0 < await redis.pttl(store.keys.named(first.operation)) <= 60_000
        again = named(store, derived=True, key_for_ms=60_000, ident=SECOND)
        assert (await store.create(again)).verdict is Created.EXISTS
        fence = (await claimed(store)).pair.fence
        await change(store, engine.Send(), fence=fence)
        assert (await store.create(again)).verdict is Created.EXISTS
        await change(store, engine.Answer(OutcomeKind.RESULT), fence=fence, body=b"{}")
        assert (await store.create(again)).verdict is Created.CREATED


@requirement("OWN-LEDGER")
class TestLedger:
    async def test_lists_every_operation_until_it_ends_and_unknown_ones_for_ever(self, store, redis):
        fence = (await sent(store)).pair.fence
        listed = await redis.zscore(store.keys.ledger, REF.member)
        assert listed == await redis.pexpiretime(store.keys.operation(REF))
        assert await redis.zcard(store.keys.unknown("reports")) == 0
        await change(store, engine.Lose(), fence=fence, body=b"{}")
        assert await redis.zscore(store.keys.ledger, REF.member) == float("inf")
        since = await redis.zscore(store.keys.unknown("reports"), REF.member)
        assert since <= store.now()
        await change(store, engine.Reconcile(OutcomeKind.RESULT))
        assert await redis.zscore(store.keys.ledger, REF.member) < float("inf")
        assert await redis.zcard(store.keys.unknown("reports")) == 0

    async def test_forgets_what_has_ended_when_something_is_added(self, store, redis):
        await redis.zadd(store.keys.ledger, {"gone": store.now() - 1})
        await store.create(work(store))
        assert await redis.zrange(store.keys.ledger, 0, -1) == [REF.member.encode()]

    async def test_says_beside_the_record_what_is_known_of_the_effect(self, store, redis):
        await store.create(work(store))
        assert await redis.hget(store.keys.operation(REF), "oc") == b"pending"
        fence = (await claimed(store)).pair.fence
        await change(store, engine.Send(), fence=fence)
        await change(store, engine.Lose(), fence=fence, body=b"{}")
        assert await redis.hget(store.keys.operation(REF), "oc") == b"unknown"


@requirement("OWN-RECONCILE")
class TestInquire:
    async def lost(self, store, **rest):
        made = work(store)
        inquiry = Inquiry("state", "{}", budget_ms=60_000, **rest)
        await store.create(replace(made, operation=replace(made.operation, inquiry=inquiry)))
        fence = (await claimed(store)).pair.fence
        await change(store, engine.Send(), fence=fence)
        await change(store, engine.Lose(), fence=fence, body=b"{}")

    async def test_what_is_unknown_is_handed_to_somebody_who_asks(self, store):
        await self.lost(store)
        claim = await claimed(store, process="p2")
        assert (claim.kind, claim.pair.operation.state) == (ClaimKind.INQUIRE, OperationState.UNKNOWN)
        assert await store.claim(ask(store, process="p3")) == []

    async def test_needs_a_slot(self, store):
        await self.lost(store)
        assert await store.claim(ask(store, slots=0)) == []

    async def test_is_handed_out_again_when_it_is_due_and_not_before(self, store, redis):
        await self.lost(store)
        fence = (await claimed(store)).pair.fence
        await change(store, engine.Inquired(store.now() + 20_000), fence=fence)
        assert await redis.zscore(store.keys.watch("reports"), REF.member) > store.now() + 19_000
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        assert (await claimed(store)).kind is ClaimKind.INQUIRE

    async def test_ends_with_its_budget(self, store, redis):
        await self.lost(store)
        fence = (await claimed(store)).pair.fence
        pair = await store.load(REF)
        late = pair.operation.inquiry.until_ms
        await change(store, engine.Inquired(late), fence=fence)
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        assert (await claimed(store)).kind is ClaimKind.INQUIRE  # whoever was asked last says that it is over

    async def test_counts_as_work_under_way_while_a_task_waits_for_it(self, store, redis):
        await self.lost(store, first=True)
        assert await redis.zcard(store.keys.active_of_owner(OWNER)) == 1
        await change(store, engine.Cancel(final=True))
        assert await redis.zcard(store.keys.active_of_owner(OWNER)) == 0

    async def test_whoever_asks_goes_on_when_the_task_is_cancelled(self, store, redis):
        await self.lost(store, first=True)
        fence = (await claimed(store)).pair.fence
        await change(store, engine.Cancel(final=True))
        assert await redis.zcard(store.keys.active_of_owner(OWNER)) == 0
        assert await store.claim(ask(store, process="p2")) == []
        await change(store, engine.Reconcile(OutcomeKind.RESULT), fence=fence)
        assert (await store.load(REF)).operation.state is OperationState.RECONCILED
        assert await redis.zscore(store.keys.watch("reports"), REF.member) is None

    async def test_is_taken_over_from_somebody_who_died_asking(self, store, redis):
        await self.lost(store)
        await claimed(store)
        await died(store, redis)
        assert (await claimed(store, process="p2")).kind is ClaimKind.INQUIRE


@requirement("OWN-APPROVE")
async def test_work_that_waits_for_an_approval_is_due_once_it_was_answered(store, redis):
    made = work(store)
    await store.create(replace(made, operation=replace(made.operation, approval=Approval("really?", 5_000))))
    fence = (await claimed(store)).pair.fence
    question = Question("approval", "elicitation/create", "{}", store.now(), store.now() + 5_000)
    await change(store, engine.Ask(question), fence=fence, give_back=True)
    assert await store.claim(ask(store, process="p2")) == []
    assert await redis.zscore(store.keys.watch("reports"), REF.member) == question.deadline_ms
    await change(store, engine.Respond({"approval": "{}"}))
    assert (await claimed(store, process="p2")).kind is ClaimKind.START


@requirement("OWN-APPROVE", "OWN-SWITCH")
async def test_a_switch_keeps_no_question_open_beyond_its_time(store, redis):
    made = work(store)
    await store.create(replace(made, operation=replace(made.operation, approval=Approval("really?", 5_000))))
    fence = (await claimed(store)).pair.fence
    question = Question("approval", "elicitation/create", "{}", store.now(), store.now() + 5_000)
    await change(store, engine.Ask(question), fence=fence, give_back=True)
    await redis.hset(store.keys.switches, EVERYTHING, ON)
    assert await store.claim(ask(store)) == []
    await redis.zadd(store.keys.watch("reports"), {REF.member: 0})  # its time is over
    claim = await claimed(store)
    assert (claim.kind, claim.pair.task.state) == (ClaimKind.START, "input_required")
    await change(store, engine.Respond({"approval": "{}"}))  # it came in the meantime
    assert await store.claim(ask(store)) == []


@requirement("OWN-APPROVE")
async def test_a_holder_that_approves_goes_on_and_whoever_follows_finds_it_approved(store, redis):
    made = work(store)
    await store.create(replace(made, operation=replace(made.operation, approval=Approval("really?", 5_000))))
    fence = (await claimed(store)).pair.fence
    await change(store, engine.Approve(), fence=fence, keep=True)
    assert await redis.hget(store.keys.operation(REF), "hd") == b"p1"
    assert await redis.zcard(store.keys.running("reports")) == 1
    assert await store.claim(ask(store, process="p2")) == []
    await died(store, redis)
    assert await store.claim(ask(store, process="p2", slots=0)) == []
    claim = await claimed(store, process="p2")
    assert (claim.kind, claim.pair.operation.approved) == (ClaimKind.START, True)
    assert await change(store, engine.Send(), fence=fence) is Verdict.FENCED


async def test_lost_work_that_may_be_repeated_is_due_whatever_its_upstream_had_asked(store, redis):
    made = work(store)
    await store.create(replace(made, operation=replace(made.operation, repeatable=True)))
    fence = (await claimed(store)).pair.fence
    await change(store, engine.Send(), fence=fence)
    question = Question("input-1", "elicitation/create", "{}", store.now(), store.now() + 5_000)
    await change(store, engine.Ask(question), fence=fence)
    await change(store, engine.Lose(), fence=fence)
    await redis.hset(store.keys.switches, EVERYTHING, ON)
    assert await store.claim(ask(store, process="p2")) == []  # a switch holds it back like any other
    await redis.hset(store.keys.switches, EVERYTHING, "0")
    await redis.zadd(store.keys.due("reports"), {REF.member: 0})
    assert (await claimed(store, process="p2")).kind is ClaimKind.START
    await change(store, engine.Respond({"input-1": "{}"}))
    assert await store.claim(ask(store, process="p3")) == []


@requirement("OWN-FENCE")
async def test_a_store_that_forgot_a_claim_believes_whoever_holds_it(store, redis):
    claim = await sent(store)
    await redis.hset(store.keys.operation(REF), "fn", claim.pair.fence - 1)
    await change(store, engine.Answer(OutcomeKind.RESULT), fence=claim.pair.fence, body=b"{}")
    assert (await store.load(REF)).fence == claim.pair.fence


async def test_two_gateways_set_a_store_up_as_one(server, store, redis):
    other = RedisStore(connect(server.url, 5), "mtg", timeout_s=5, lease_ms=LEASE_MS, session_idle_ms=SESSION_IDLE_MS)
    assert await other.bootstrap() == 1
    assert await redis.hlen(store.keys.switches) == 1
    await other.close()
