"""What every store must do, on every server that is here."""

import asyncio
from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.engine import Applied, apply
from gateway.core.model import Effect, OperationState, OutcomeKind, Place, Question, Seen
from gateway.store.keys import Ref
from gateway.store.placement import TOMBSTONE_MS
from gateway.store.port import Change, ClaimAsk, ClaimKind, Created, NewWork, Session, StoreAway, Verdict
from gateway.store.redis import RedisStore, connect
from tests.records import ID, OTHER, OWNER, operation, task
from tests.requirements import requirement
from tests.stores import LEASE_MS, PREFIX, SESSION_IDLE_MS

REF = Ref(OWNER, ID)
ACCEPTED = engine.Accept("theirs", Place("2025-11-25"), Seen("working", 1, 2), "digest")
SEEN = engine.Observe(Seen("working", 3, 4))
DAY = 86_400_000


def work(store, *, effect=Effect.CONSEQUENTIAL, limits=(10, 10), ident=ID, owner=OWNER, ttl=60_000, **changes):
    now = store.now()
    promise = task(
        id=ident, owner=owner, created_ms=now, updated_ms=now, ttl_ms=ttl, version=1, status_message="", **changes
    )
    fact = operation(
        id=ident, owner=owner, created_ms=now, updated_ms=now, deadline_ms=now + 30_000, version=1, effect=effect
    )
    return NewWork(promise, fact, b'{"name":"build"}', *limits, 90 * DAY)


def ask(store, process="p1", **changes):
    asked = ClaimAsk("reports", process, LEASE_MS, 0, store.connected_since(), slots=10, max_running=10)
    return replace(asked, **changes)


async def change(store, command, ref=REF, **rest):
    pair = await store.load(ref)
    after = apply(pair.task, pair.operation, command, pair.now)
    assert isinstance(after, Applied), after
    return await store.commit(Change(ref, pair, after, 90 * DAY, **rest))


async def claimed(store, **changes):
    (claim,) = await store.claim(ask(store, **changes))
    return claim


async def sent(store, **rest):
    await store.create(work(store, **rest))
    claim = await claimed(store)
    assert await change(store, engine.Send(), fence=claim.pair.fence) is Verdict.OK
    return claim


async def died(store, redis):
    """The first process is gone for a second, and what it held is to be looked at."""
    await redis.set(store.keys.heartbeat("p1"), store.now() - 1000, px=60_000)
    await redis.zadd(store.keys.watch("reports"), {REF.member: 0})


class TestCreate:
    async def test_makes_both_records_and_remembers_the_arguments(self, store, redis):
        made = work(store)
        assert (await store.create(made)).verdict is Created.CREATED
        pair = await store.load(REF)
        assert (pair.task, pair.operation) == (made.task, made.operation)
        assert await redis.get(store.keys.arguments(REF)) == b'{"name":"build"}'

    async def test_of_the_same_id_again_is_no_second_creation(self, store, redis):
        made = work(store)
        await store.create(made)
        await change(store, engine.Cancel(final=True))
        assert (await store.create(made)).verdict is Created.CREATED
        assert (await store.load(REF)).task.state == "cancelled"
        assert await redis.zcard(store.keys.due("reports")) == 0

    @requirement("T25-SEC-3")
    async def test_beyond_the_limit_of_a_principal_changes_nothing(self, store, redis):
        await store.create(work(store, limits=(1, 10)))
        before = sorted(await redis.keys())
        assert (await store.create(work(store, limits=(1, 10), ident=ID[::-1]))).verdict is Created.QUOTA_PRINCIPAL
        assert sorted(await redis.keys()) == before
        assert (await store.create(work(store, limits=(1, 10), owner=OTHER))).verdict is Created.CREATED

    @requirement("T25-SEC-3")
    async def test_beyond_the_limit_of_a_tenant_changes_nothing(self, store):
        await store.create(work(store, limits=(5, 1)))
        assert (await store.create(work(store, limits=(5, 1), owner=OTHER))).verdict is Created.QUOTA_TENANT

    @requirement("OWN-LEAK")
    async def test_counters_heal_themselves(self, store, redis):
        for name in (store.keys.active_of_owner(OWNER), store.keys.active_of_tenant(OWNER)):
            await redis.zadd(name, {f"lost-{number}": 1 for number in range(10)})
            await redis.expire(name, 1000)
        assert (await store.create(work(store, limits=(1, 1)))).verdict is Created.CREATED

    @requirement("OWN-LEAK")
    async def test_every_key_ends(self, store, redis):
        made = work(store)
        await store.create(made)
        expiry = made.task.expires_ms
        wanted = {
            store.keys.task(REF): expiry,
            store.keys.arguments(REF): expiry,
            store.keys.tombstone(REF): expiry + TOMBSTONE_MS,
            store.keys.operation(REF): made.operation.deadline_ms + 90 * DAY,
            store.keys.active_of_owner(OWNER): expiry,
            store.keys.active_of_tenant(OWNER): expiry,
            store.keys.index(OWNER): expiry,
        }
        assert {key: await redis.pexpiretime(key) for key in wanted} == wanted


class TestPoll:
    async def test_tells_what_there_is_in_one_round_trip(self, store):
        made = work(store)
        await store.create(made)
        polled = await store.poll(REF, None, want_body=True)
        assert (polled.task, polled.body, polled.session, polled.expired) == (made.task, None, None, False)

    async def test_gives_the_body_only_when_it_is_wanted_and_there(self, store):
        claim = await sent(store)
        await change(store, engine.Answer(OutcomeKind.RESULT), fence=claim.pair.fence, body=b'{"a":1e400}')
        assert (await store.poll(REF, None, want_body=True)).body == b'{"a":1e400}'
        assert (await store.poll(REF, None, want_body=False)).body is None
        assert await store.body(REF) == b'{"a":1e400}'

    @requirement("OWN-KEY", "T25-SEC-1", "T25-SEC-6")
    @pytest.mark.parametrize("field", ["issuer", "subject", "tenant", "upstream"])
    async def test_finds_nothing_of_anybody_else(self, store, field):
        await store.create(work(store))
        foreign = Ref(replace(OWNER, **{field: "other"}), ID)
        polled = await store.poll(foreign, None, want_body=True)
        assert (polled.task, polled.body, polled.expired) == (None, None, False)
        assert (await store.load(foreign)).operation is None

    async def test_does_not_know_hidden_records(self, store):
        await store.create(work(store, hidden=True))
        assert (await store.poll(REF, None, want_body=True)).task is None
        assert (await store.load(REF)).task is not None
        await change(store, engine.Promote(70_000, 1))
        assert (await store.poll(REF, None, want_body=True)).task is not None

    @requirement("T25-SEC-5")
    async def test_tells_expired_from_unknown_to_the_owner(self, store, redis):
        await store.create(work(store))
        await redis.delete(store.keys.task(REF))
        assert (await store.poll(REF, None, want_body=True)).expired
        assert not (await store.poll(Ref(OTHER, ID), None, want_body=True)).expired
        assert not (await store.poll(Ref(OWNER, ID[::-1]), None, want_body=True)).expired

    @pytest.mark.parametrize(
        "odd", ["", "x", "*", "a b" * 9, "é" * 20, "x" * 100_000, "\ud800" * 20, ID + ":", "{s1}" * 6]
    )
    async def test_of_an_odd_id_finds_nothing(self, store, odd):
        assert (await store.poll(Ref(OWNER, odd), odd, want_body=True)).task is None

    async def test_keeps_the_session_alive_and_tells_when_it_has_gone(self, store, redis):
        await store.create(work(store))
        await store.open_session(OWNER, "s" * 32, Session("2025-11-25", '{"a":1}'))
        key = store.keys.session(OWNER, "s" * 32)
        await redis.pexpire(key, 500)
        polled = await store.poll(REF, "s" * 32, want_body=False)
        assert polled.session == Session("2025-11-25", '{"a":1}')
        assert SESSION_IDLE_MS - 1000 < await redis.pttl(key) <= SESSION_IDLE_MS
        gone = await store.poll(REF, "t" * 32, want_body=False)
        assert (gone.session, gone.task) == (None, None)


class TestSessions:
    async def test_live_until_they_are_idle_for_too_long(self, store, redis):
        await store.open_session(OWNER, "s" * 32, Session("2025-11-25"))
        await redis.pexpire(store.keys.session(OWNER, "s" * 32), 50)
        assert await store.read_session(OWNER, "s" * 32) == Session("2025-11-25", "{}")
        assert await redis.pttl(store.keys.session(OWNER, "s" * 32)) > SESSION_IDLE_MS - 1000

    async def test_belong_to_their_owner(self, store):
        await store.open_session(OWNER, "s" * 32, Session("2025-11-25"))
        assert await store.read_session(OTHER, "s" * 32) is None
        assert not await store.end_session(OTHER, "s" * 32)

    async def test_changes_are_made_one_after_the_other_and_to_what_is_there_only(self, store):
        await store.open_session(OWNER, "s" * 32, Session("2025-11-25"))

        def with_(uri):
            return lambda session: replace(session, resources=(*session.resources, uri))

        await asyncio.gather(*(store.change_session(OWNER, "s" * 32, with_(str(number))) for number in range(10)))
        found = await store.read_session(OWNER, "s" * 32)
        assert sorted(found.resources) == [str(number) for number in range(10)]
        assert await store.change_session(OTHER, "s" * 32, with_("x")) is None
        assert await store.read_session(OWNER, "s" * 32) == found

    async def test_can_be_ended_once(self, store):
        await store.open_session(OWNER, "s" * 32, Session("2025-11-25"))
        assert await store.end_session(OWNER, "s" * 32)
        assert not await store.end_session(OWNER, "s" * 32)
        assert await store.read_session(OWNER, "s" * 32) is None


class TestCommit:
    @requirement("OWN-CAS")
    async def test_refuses_what_was_decided_on_an_old_record(self, store):
        await store.create(work(store))
        old = await store.load(REF)
        await change(store, engine.Cancel(final=True))
        after = apply(old.task, old.operation, engine.Send(), old.now)
        assert await store.commit(Change(REF, old, after, DAY)) is Verdict.STALE
        assert (await store.load(REF)).operation.state == "dropped"

    @requirement("OWN-CAS")
    async def test_compares_the_version_of_the_task_too(self, store):
        await sent(store)
        old = await store.load(REF)
        await change(store, engine.Cancel(final=False))  # changes the task only
        after = apply(old.task, old.operation, engine.Answer(OutcomeKind.RESULT), old.now)
        assert await store.commit(Change(REF, old, after, DAY)) is Verdict.STALE

    @requirement("OWN-CAS")
    async def test_compares_the_version_of_the_operation_too(self, store):
        await sent(store)
        old = await store.load(REF)
        await change(store, engine.Accept("their-id"))  # changes the operation only
        after = apply(old.task, old.operation, engine.Lose(), old.now)
        assert await store.commit(Change(REF, old, after, DAY)) is Verdict.STALE

    @requirement("OWN-FENCE")
    async def test_refuses_a_holder_whose_fence_was_taken(self, store, redis):
        claim = await sent(store)
        await redis.delete(store.keys.heartbeat("p1"))
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        taken = await claimed(store, process="p2")
        assert taken.kind is ClaimKind.LOST
        assert taken.pair.fence > claim.pair.fence
        verdict = await change(store, engine.Answer(OutcomeKind.RESULT), fence=claim.pair.fence, body=b"{}")
        assert verdict is Verdict.FENCED
        assert await store.body(REF) is None

    async def test_of_what_is_not_there_says_so(self, store, redis):
        await store.create(work(store))
        pair = await store.load(REF)
        await redis.delete(store.keys.operation(REF))
        after = apply(pair.task, pair.operation, engine.Cancel(final=True), pair.now)
        assert await store.commit(Change(REF, pair, after, DAY)) is Verdict.GONE

    @requirement("OWN-LATE")
    async def test_after_the_task_expired_writes_the_operation_only(self, store, redis):
        claim = await sent(store)
        pair = await store.load(REF)
        await redis.delete(store.keys.task(REF))
        after = apply(pair.task, pair.operation, engine.Answer(OutcomeKind.RESULT), pair.now)
        verdict = await store.commit(Change(REF, pair, after, DAY, body=b"{}", fence=claim.pair.fence))
        assert verdict is Verdict.EXPIRED
        assert await redis.exists(store.keys.task(REF), store.keys.result(REF)) == 0
        assert (await store.load(REF)).operation.state == "answered"

    @requirement("OWN-LEAK")
    async def test_of_an_end_frees_what_the_work_held(self, store, redis):
        claim = await sent(store)
        assert await redis.zcard(store.keys.running("reports")) == 1
        await change(store, engine.Answer(OutcomeKind.RESULT), fence=claim.pair.fence, body=b"{}")
        for name in (
            store.keys.active_of_owner(OWNER),
            store.keys.active_of_tenant(OWNER),
            store.keys.running("reports"),
            store.keys.due("reports"),
            store.keys.watch("reports"),
        ):
            assert await redis.zcard(name) == 0, name
        assert not await redis.exists(store.keys.arguments(REF))
        assert await redis.zcard(store.keys.index(OWNER)) == 1

    @requirement("OWN-LEAK")
    async def test_keeps_an_unknown_outcome_for_ever_and_a_read_only_one_with_its_task(self, store, redis):
        claim = await sent(store)
        await change(store, engine.Lose(), fence=claim.pair.fence, body=b"{}")
        assert await redis.pttl(store.keys.operation(REF)) == -1
        await change(store, engine.Reconcile(OutcomeKind.RESULT))
        assert await redis.pttl(store.keys.operation(REF)) > 89 * DAY
        await redis.flushall()
        await store.bootstrap()
        claim = await sent(store, effect=Effect.READ_ONLY)
        await change(store, engine.Lose(), fence=claim.pair.fence, body=b"{}")
        assert 0 < await redis.pttl(store.keys.operation(REF)) < DAY

    async def test_extends_the_life_of_a_result_and_of_all_that_belongs_to_it(self, store, redis):
        claim = await sent(store, ttl=10_000, keep_result_ms=50_000)
        await change(store, engine.Answer(OutcomeKind.RESULT), fence=claim.pair.fence, body=b"{}")
        for name in (store.keys.task(REF), store.keys.result(REF), store.keys.index(OWNER)):
            assert 49_000 < await redis.pttl(name) <= 50_000, name
        assert await redis.pttl(store.keys.tombstone(REF)) > TOMBSTONE_MS + 49_000

    @requirement("T25-CAN-3")
    @pytest.mark.parametrize(("command", "word"), [(engine.Cancel(final=True), b"stop"), (engine.Lose(), b"look")])
    async def test_wakes_whoever_waits_and_tells_a_holder_to_stop(self, store, redis, command, word):
        await sent(store)
        async with redis.pubsub() as subscription:
            await subscription.subscribe(store.keys.channel)
            await subscription.get_message(timeout=5)
            await change(store, command)
            message = await subscription.get_message(timeout=5)
        assert message["data"] == REF.member.encode() + b" " + word

    @requirement("OWN-LEAK")
    async def test_forgets_questions_whose_tasks_have_expired(self, store, redis):
        for ident in (ID, ID[::-1]):
            await store.create(work(store, ident=ident))
            claim = await claimed(store)
            await change(store, engine.Send(), claim.ref, fence=claim.pair.fence)
            question = Question("input-1", "elicitation/create", "{}", store.now(), store.now() + 5_000)
            await change(store, engine.Ask(question), claim.ref)
            if ident == ID:
                await redis.zadd(store.keys.awaiting(OWNER), {REF.member: store.now() - 1})
        assert await redis.zrange(store.keys.awaiting(OWNER), 0, -1) == [Ref(OWNER, ID[::-1]).member.encode()]


class TestClaim:
    async def test_hands_out_what_is_due_with_its_arguments_once(self, store, redis):
        await store.create(work(store))
        before = store.now()
        claim = await claimed(store)
        assert (claim.kind, claim.ref, claim.arguments) == (ClaimKind.START, REF, b'{"name":"build"}')
        assert claim.pair.operation.state is OperationState.PLANNED
        assert claim.pair.fence >= before  # a time: no fence comes twice, whatever the store forgets
        assert await store.claim(ask(store, process="p2")) == []

    async def test_takes_no_more_than_there_are_slots(self, store):
        for number in range(3):
            await store.create(work(store, ident=f"{number}" * 32))
        assert len(await store.claim(ask(store, slots=0))) == 0
        assert len(await store.claim(ask(store, slots=2))) == 2

    async def test_takes_no_more_than_the_upstream_may_run(self, store):
        for number in range(3):
            await store.create(work(store, ident=f"{number}" * 32))
        assert len(await store.claim(ask(store, max_running=2))) == 2
        assert len(await store.claim(ask(store, process="p2", max_running=2))) == 0

    async def test_starts_the_oldest_first(self, store):
        idents = [f"{number}" * 32 for number in (3, 1, 2)]
        for ident in idents:
            await store.create(work(store, ident=ident))
        claims = [await claimed(store, slots=1) for _ in idents]
        assert sorted(claim.ref.id for claim in claims) == sorted(idents)

    async def test_leaves_alone_what_a_living_process_holds(self, store, redis):
        await sent(store)
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        assert await store.claim(ask(store, process="p2")) == []
        assert await redis.zscore(store.keys.watch("reports"), REF.member) > store.now()

    async def test_reminds_a_process_of_what_it_holds(self, store, redis):
        claim = await sent(store)
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        held = await claimed(store)
        assert (held.kind, held.pair.fence) == (ClaimKind.HELD, claim.pair.fence)

    async def test_starts_planned_work_of_a_dead_process_again(self, store, redis):
        await store.create(work(store))
        first = await claimed(store)
        await redis.delete(store.keys.heartbeat("p1"))
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        again = await claimed(store, process="p2", grace_ms=600_000)
        assert again.kind is ClaimKind.START
        assert again.pair.fence > first.pair.fence

    @requirement("OWN-FENCE")
    async def test_planned_work_of_a_process_that_stood_still_is_not_sent_by_it_any_more(self, store, redis):
        await store.create(work(store))
        first = await claimed(store)
        await died(store, redis)
        assert await store.claim(ask(store, process="p2", slots=0)) == []  # looked at, and taken by nobody yet
        assert await change(store, engine.Send(), fence=first.pair.fence) is Verdict.FENCED
        assert (await claimed(store, process="p2")).kind is ClaimKind.START

    @requirement("OWN-GRACE")
    async def test_declares_sent_work_lost_only_after_the_grace(self, store, redis):
        await sent(store)
        await redis.set(store.keys.heartbeat("p1"), store.now() - 1000, px=60_000)
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        assert await store.claim(ask(store, process="p2", connected_since=0, grace_ms=60_000)) == []
        at = await redis.zscore(store.keys.watch("reports"), REF.member)
        assert 58_000 < at - store.now() <= 59_000
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        assert (await claimed(store, process="p2", connected_since=0, grace_ms=500)).kind is ClaimKind.LOST

    @requirement("BR-3", "OWN-GRACE", "OWN-ONCE")
    async def test_resumes_what_an_upstream_took_after_the_grace_and_with_a_slot_of_its_own(self, store, redis):
        claim = await sent(store)
        await change(store, ACCEPTED, fence=claim.pair.fence)
        await died(store, redis)
        waiting = {"process": "p2", "connected_since": 0}
        assert await store.claim(ask(store, **waiting, grace_ms=60_000)) == []
        await died(store, redis)
        assert await store.claim(ask(store, **waiting, slots=0)) == []
        await died(store, redis)
        resumed = await claimed(store, **waiting)
        assert (resumed.kind, resumed.arguments, resumed.pair.operation.handle) == (ClaimKind.RESUME, b"", "theirs")
        assert await change(store, SEEN, fence=claim.pair.fence) is Verdict.FENCED
        assert await change(store, SEEN, fence=resumed.pair.fence) is Verdict.OK

    @requirement("BR-3", "OWN-DRAIN")
    async def test_resumes_at_once_what_was_given_back(self, store, redis):
        claim = await sent(store)
        await change(store, ACCEPTED, fence=claim.pair.fence)
        await change(store, engine.Lose(), fence=claim.pair.fence, give_back=True)
        assert await redis.zcard(store.keys.running("reports")) == 0
        resumed = await claimed(store, process="p2", slots=1)
        assert resumed.kind is ClaimKind.RESUME
        assert await redis.zcard(store.keys.running("reports")) == 1
        assert await redis.zcard(store.keys.active_of_owner(OWNER)) == 1

    @requirement("OWN-GRACE")
    async def test_counts_the_grace_from_the_claimers_own_reconnect_too(self, store, redis):
        await sent(store)
        await redis.delete(store.keys.heartbeat("p1"))
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        since = store.now()
        assert await store.claim(ask(store, process="p2", connected_since=since, grace_ms=60_000)) == []
        assert await redis.zscore(store.keys.watch("reports"), REF.member) == since + 60_000

    async def test_hands_out_planned_work_whose_deadline_passed(self, store, redis):
        await store.create(work(store))
        await redis.hset(store.keys.operation(REF), "dl", 1)
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        assert (await claimed(store, slots=0)).kind is ClaimKind.DEADLINE

    @requirement("BR-3", "OWN-DRAIN")
    async def test_leaves_to_others_soon_what_it_has_no_room_for(self, store, redis):
        claim = await sent(store)
        await change(store, ACCEPTED, fence=claim.pair.fence)
        await change(store, engine.Lose(), fence=claim.pair.fence, give_back=True)
        assert await store.claim(ask(store, process="p2", slots=0, lease_ms=60_000)) == []
        assert await redis.zscore(store.keys.watch("reports"), REF.member) <= store.now() + 1_000

    @requirement("OWN-LEAK")
    async def test_forgets_what_is_not_there_any_more(self, store, redis):
        await redis.zadd(store.keys.watch("reports"), {"x:y": 0})
        await redis.zadd(store.keys.due("reports"), {"x:y": 0})
        assert await store.claim(ask(store)) == []
        assert await redis.exists(store.keys.watch("reports"), store.keys.due("reports")) == 0

    async def test_renews_the_lease(self, store, redis):
        await store.claim(ask(store, slots=0))
        end = int(await redis.get(store.keys.heartbeat("p1")))
        assert 0 < end - store.now() <= LEASE_MS


class TestLate:
    """A store that was frozen runs scripts whose callers have been told that nothing happened."""

    @pytest.fixture
    def late(self, store):
        store._timeout_ms = -1
        yield store
        store._timeout_ms = 5000

    @requirement("OWN-AWAY")
    async def test_a_creation_creates_nothing(self, late, redis):
        with pytest.raises(StoreAway):
            await late.create(work(late))
        assert sorted(await redis.keys()) == sorted(name.encode() for name in (late.keys.marker, late.keys.switches))

    @requirement("OWN-GRACE")
    async def test_a_claim_takes_nothing_and_renews_nothing(self, store, redis, late):
        store._timeout_ms = 5000
        fence = (await sent(store)).pair.fence
        await redis.delete(store.keys.heartbeat("p1"))
        await redis.zadd(store.keys.watch("reports"), {REF.member: 0})
        store._timeout_ms = -1
        assert await late.claim(ask(late, process="p2", connected_since=0)) == []
        assert not await redis.exists(store.keys.heartbeat("p2"))
        assert await redis.hget(store.keys.operation(REF), "fn") == str(fence).encode()

    async def test_a_commit_writes_nothing(self, store, late):
        store._timeout_ms = 5000
        await store.create(work(store))
        store._timeout_ms = -1
        with pytest.raises(StoreAway):
            await change(late, engine.Cancel(final=True))
        assert (await store.load(REF)).task.state == "working"


class TestReleases:
    @requirement("OWN-SCHEMA")
    @pytest.mark.parametrize("place", ["due", "watch"])
    async def test_work_of_a_later_release_is_left_to_it(self, store, redis, place):
        await store.create(work(store))
        await redis.hset(store.keys.operation(REF), "sc", 99)
        await redis.zadd(getattr(store.keys, place)("reports"), {REF.member: 0})
        await store.create(work(store, ident=ID[::-1]))
        assert [claim.ref.id for claim in await store.claim(ask(store, slots=1))] == [ID[::-1]]
        assert await redis.zscore(store.keys.due("reports"), REF.member) is not None

    @requirement("OWN-SCHEMA")
    @pytest.mark.parametrize("place", ["due", "watch"])
    async def test_work_whose_task_a_later_release_has_changed_is_left_to_it(self, store, redis, place):
        await store.create(work(store))
        await redis.hset(store.keys.task(REF), mapping={"sc": 99, "head": '{"schema":99}'})
        await redis.zadd(getattr(store.keys, place)("reports"), {REF.member: 0})
        await store.create(work(store, ident=ID[::-1]))
        assert [claim.ref.id for claim in await store.claim(ask(store, slots=1))] == [ID[::-1]]


class TestHeld:
    async def test_work_that_is_held_is_not_given_away_by_a_change_of_its_task(self, store, redis):
        await store.create(work(store, hidden=True))
        claim = await claimed(store)
        await change(store, engine.Promote(70_000, 1))
        assert await store.claim(ask(store, process="p2")) == []
        assert await change(store, engine.Send(), fence=claim.pair.fence) is Verdict.OK

    async def test_work_is_given_back_as_it_is(self, store):
        await store.create(work(store))
        claim = await claimed(store)
        pair = await store.load(REF)
        given = Change(REF, pair, Applied(pair.task, pair.operation), DAY, fence=claim.pair.fence, give_back=True)
        assert await store.commit(given) is Verdict.OK
        again = await claimed(store, process="p2")
        assert (again.kind, again.pair.operation) == (ClaimKind.START, pair.operation)


class TestAway:
    @requirement("OWN-AWAY")
    async def test_a_store_that_does_not_answer_is_away(self, redis):
        lost = RedisStore(connect("unix:///nowhere.sock", 1), PREFIX, timeout_s=1, lease_ms=1, session_idle_ms=1)
        with pytest.raises(StoreAway):
            await lost.check()
        with pytest.raises(StoreAway):
            await lost.create(work(lost))
        await lost.close()

    async def test_a_command_that_cannot_be_written_keeps_nobody_waiting(self, store):
        async with asyncio.timeout(5):
            both = [store.call("SET", "\ud800", 1), store.load(REF)]
            told, _ = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(told, UnicodeEncodeError)
            assert (await store.load(REF)).task is None

    async def test_the_time_of_the_reconnect_is_remembered(self, store, redis):
        first = store.connected_since()
        await store.check()
        assert store.connected_since() == first
        store._connected_since = None
        await store.check()
        assert store.connected_since() >= first

    async def test_scripts_come_back_after_they_were_forgotten(self, store, redis):
        await redis.script_flush()
        assert (await store.create(work(store))).verdict is Created.CREATED
        await redis.script_flush()
        assert (await store.poll(REF, None, want_body=False)).task is not None
