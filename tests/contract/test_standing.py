"""A store that has become another one, and may have forgotten what was sent."""

from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.engine import apply
from gateway.core.model import Effect
from gateway.store.port import Change, ClaimKind, StoreUnfit, Verdict
from tests.contract.test_store import DAY, REF, ask, change, claimed, died, sent, work
from tests.records import ID
from tests.requirements import requirement

GRACE = 60_000


async def becomes_another(store, redis):
    """As after a failover: the same records as before, on another server."""
    await redis.hset(store.keys.marker, mapping={"run": "elsewhere", "replid": "else"})


async def looked_at(store, redis):
    """What is to be looked at again is looked at now."""
    await redis.zadd(store.keys.watch("reports"), {REF.member: 0})


class TestStanding:
    async def test_the_first_look_and_later_ones_find_the_same_store(self, store, redis):
        await store.create(work(store))
        assert (await claimed(store)).kind is ClaimKind.START
        assert store.epoch() == 1
        await store.claim(ask(store))
        assert store.epoch() == 1

    @requirement("OWN-DOUBT", "OWN-ONCE")
    async def test_what_looks_planned_is_not_started_and_is_in_doubt_after_the_grace(self, store, redis):
        await store.create(work(store))
        await becomes_another(store, redis)
        late = ask(store, grace_ms=GRACE, connected_since=0)
        assert await store.claim(late) == []
        assert store.epoch() == 2
        await looked_at(store, redis)
        assert await store.claim(late) == []
        since = int(await redis.hget(store.keys.marker, "since"))
        assert await redis.zscore(store.keys.watch("reports"), REF.member) == since + GRACE
        await redis.hset(store.keys.marker, "since", since - GRACE)
        await looked_at(store, redis)
        (doubtful,) = await store.claim(late)
        assert (doubtful.kind, doubtful.arguments) == (ClaimKind.DOUBTFUL, b"")
        assert await change(store, engine.Doubt(), fence=doubtful.pair.fence, body=b"{}") is Verdict.OK
        assert (await store.load(REF)).operation.state == "unknown"

    @requirement("OWN-DOUBT")
    async def test_the_deadline_is_no_reason_to_say_that_it_was_not_sent(self, store, redis):
        await store.create(work(store))
        await redis.hset(store.keys.operation(REF), "dl", 1)
        await becomes_another(store, redis)
        await looked_at(store, redis)
        assert (await claimed(store, slots=0)).kind is ClaimKind.DOUBTFUL

    @requirement("OWN-DOUBT")
    async def test_nobody_but_its_holder_can_say_that_it_was_not_sent(self, store, redis):
        await store.create(work(store))
        claim = await claimed(store)
        await becomes_another(store, redis)
        assert await change(store, engine.Cancel(final=True)) is Verdict.DOUBTFUL
        assert (await store.load(REF)).task.state == "working"
        pair = await store.load(REF)
        given = Change(REF, pair, engine.Applied(pair.task, pair.operation), DAY, fence=claim.pair.fence)
        assert await store.commit(replace(given, give_back=True)) is Verdict.OK
        assert (await claimed(store)).kind is ClaimKind.START

    @requirement("OWN-DOUBT", "OWN-ONCE")
    @pytest.mark.parametrize("command", [engine.Send(), engine.GiveUp("why")])
    async def test_a_holder_whose_lease_has_lapsed_cannot_say_that_it_was_not_sent(self, store, redis, command):
        await store.create(work(store))
        claim = await claimed(store)
        await becomes_another(store, redis)
        store._leased_until_s = 0
        assert await change(store, command, fence=claim.pair.fence) is Verdict.DOUBTFUL
        assert await change(store, engine.Doubt(), fence=claim.pair.fence) is Verdict.OK

    @requirement("OWN-DOUBT", "OWN-ONCE")
    async def test_work_that_such_a_holder_gives_back_is_not_started(self, store, redis):
        await store.create(work(store))
        claim = await claimed(store)
        await becomes_another(store, redis)
        store._leased_until_s = 0
        pair = await store.load(REF)
        given = Change(REF, pair, engine.Applied(pair.task, pair.operation), DAY, fence=claim.pair.fence)
        assert await store.commit(replace(given, give_back=True)) is Verdict.OK
        assert await store.claim(ask(store)) == []
        await looked_at(store, redis)
        assert (await claimed(store, connected_since=0)).kind is ClaimKind.DOUBTFUL

    @requirement("OWN-DOUBT")
    async def test_what_a_process_has_forgotten_that_holds_it_is_in_doubt_too(self, store, redis):
        await store.create(work(store))
        claim = await claimed(store)
        await becomes_another(store, redis)
        await looked_at(store, redis)
        again = await claimed(store)
        assert (again.kind, again.pair.fence) == (ClaimKind.DOUBTFUL, claim.pair.fence)

    @pytest.mark.parametrize("changes", [{"effect": Effect.READ_ONLY}, {"repeatable": True}])
    async def test_what_does_no_harm_twice_is_started(self, store, redis, changes):
        made = work(store, effect=Effect.IDEMPOTENT)
        await store.create(replace(made, operation=replace(made.operation, **changes)))
        await becomes_another(store, redis)
        assert (await claimed(store)).kind is ClaimKind.START

    async def test_work_that_is_new_is_started_also_before_anybody_has_noticed(self, store, redis):
        await store.create(work(store, ident=ID[::-1]))
        await becomes_another(store, redis)
        await store.create(work(store))
        claim = await claimed(store)
        assert (claim.kind, claim.ref) == (ClaimKind.START, REF)

    @requirement("OWN-DOUBT")
    async def test_work_of_a_release_that_knew_no_epochs_is_in_doubt_from_the_second_one_on(self, store, redis):
        await store.create(work(store))
        await redis.hdel(store.keys.operation(REF), "ep")
        await redis.delete(store.keys.marker)
        (claim,) = await store.claim(ask(store))
        assert claim.kind is ClaimKind.START
        await change(store, engine.Send(), fence=claim.pair.fence)
        await change(store, engine.Unsend(), fence=claim.pair.fence)
        await redis.hdel(store.keys.operation(REF), "ep")
        await becomes_another(store, redis)
        assert await store.claim(ask(store)) == []

    async def test_work_whose_holder_died_before_is_lost_as_ever(self, store, redis):
        await sent(store)
        await becomes_another(store, redis)
        await died(store, redis)
        assert (await claimed(store, process="p2", connected_since=0)).kind is ClaimKind.LOST

    async def test_a_first_replica_makes_no_other_store_of_it(self, store, redis):
        await store.claim(ask(store))
        await redis.hset(store.keys.marker, "replid", "before-the-first-replica-came")
        await store.claim(ask(store))
        assert store.epoch() == 1

    @requirement("OWN-DOUBT")
    async def test_a_master_that_was_a_replica_in_between_is_another_store(self, store, redis):
        await store.claim(ask(store))
        await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        await redis.execute_command("REPLICAOF", "NO", "ONE")
        await store.claim(ask(store))
        assert store.epoch() == 2

    @requirement("OWN-DOUBT")
    @pytest.mark.parametrize(("token", "epoch"), [("t1", 1), ("t2", 2), ("", 2)])
    async def test_after_a_clean_stop_nothing_is_in_doubt(self, store, redis, token, epoch):
        await store.check()
        await redis.hset(store.keys.marker, "closed", "t1")
        await becomes_another(store, redis)
        await store.meet(token)
        assert store.epoch() == epoch
        await becomes_another(store, redis)
        await store.meet(token)
        assert store.epoch() == epoch + 1

    async def test_a_user_that_may_not_ask_is_not_refused(self, store, redis, server):
        await store.create(work(store))
        await redis.execute_command("ACL", "SETUSER", "default", "-info")
        try:
            assert not (await store.meet("")).told.known
            assert (await claimed(store)).kind is ClaimKind.START
        finally:
            await redis.execute_command("ACL", "SETUSER", "default", "+info")


class TestForgotten:
    """What a holder writes to a store that has forgotten it."""

    @requirement("OWN-FENCE", "OWN-DOUBT")
    async def test_its_claim_is_remembered_again(self, store, redis):
        await store.create(work(store))
        before = await redis.dump(store.keys.operation(REF))
        claim = await claimed(store)
        await redis.restore(store.keys.operation(REF), 60_000, before, replace=True)
        pair = await store.load(REF)
        assert pair.fence < claim.pair.fence
        after = apply(pair.task, pair.operation, engine.Send(), pair.now)
        written = Change(REF, pair, after, DAY, fence=claim.pair.fence, holder="p1")
        assert await store.commit(written) is Verdict.OK
        pair = await store.load(REF)
        assert (pair.operation.state, pair.fence) == ("sent", claim.pair.fence)
        await looked_at(store, redis)
        assert await store.claim(ask(store, process="p2")) == []

    @requirement("OWN-FENCE")
    async def test_a_later_claim_has_a_fence_that_was_never_there(self, store, redis):
        await store.create(work(store))
        before = await redis.dump(store.keys.operation(REF))
        first = await claimed(store)
        await redis.restore(store.keys.operation(REF), 60_000, before, replace=True)
        await redis.zadd(store.keys.due("reports"), {REF.member: 0})
        again = await claimed(store, process="p2")
        assert again.pair.fence > first.pair.fence
        assert await change(store, engine.Send(), fence=first.pair.fence) is Verdict.FENCED


class TestUnfit:
    @requirement("OWN-HEALTH", "OWN-EVICT")
    async def test_a_store_that_may_evict_starts_nothing_until_it_may_not(self, store, redis):
        await store.create(work(store))
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        store._looked_s = 0  # it was looked at long ago
        try:
            assert await store.claim(ask(store)) == []
            with pytest.raises(StoreUnfit, match="set maxmemory-policy to noeviction"):
                await store.create(work(store, ident=ID[::-1]))
            with pytest.raises(StoreUnfit):
                await store.check()
        finally:
            await redis.config_set("maxmemory-policy", "noeviction")
        assert (await claimed(store)).kind is ClaimKind.START
        await store.check()
        await store.create(work(store, ident=ID[::-1]))
