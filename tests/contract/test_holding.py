"""What a holder does where its store may have forgotten something, or does not say what it knows. On real servers."""

import asyncio
import io
from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.engine import apply
from gateway.core.model import Approval, Effect, Question
from gateway.policy.decide import Policy
from gateway.policy.model import PolicyFile
from gateway.running import progress
from gateway.running.holder import Held, Holder
from gateway.store.port import Change, ClaimKind, StoreAway, Verdict
from gateway.store.redis import RedisStore, connect
from gateway.store.streams import StreamStore
from gateway.telemetry import Telemetry
from gateway.wire import work as bodies
from gateway.wire.jsonrpc import Notification
from tests.contract.test_standing import becomes_another
from tests.contract.test_store import REF, change, claimed, work
from tests.integration.conftest import eventually
from tests.records import task
from tests.requirements import requirement
from tests.stores import LEASE_MS, SESSION_IDLE_MS


class LostAnswers(RedisStore):
    """A store whose answer to a commit is lost as often as is wanted."""

    lost = 0

    async def commit(self, change):
        verdict = await super().commit(change)
        if self.lost:
            self.lost -= 1
            raise StoreAway("lost")
        return verdict


@pytest.fixture
async def forgetful(server, redis):
    client = connect(server.url, 5)
    made = LostAnswers(client, "mtg", timeout_s=5, lease_ms=LEASE_MS, session_idle_ms=SESSION_IDLE_MS)
    await made.check()
    await made.bootstrap()
    yield made
    await made.close()


@pytest.fixture
def holder(forgetful):
    policies = {"reports": Policy(PolicyFile.model_validate({"version": 1}), "test")}
    return Holder(forgetful, policies, Telemetry(io.StringIO()), lambda: 0.0, "p1")


async def holding(store, **changes):
    await store.create(work(store, **changes))
    claim = await claimed(store)
    return Held(REF, claim.pair.fence, claim.pair, claim.arguments)


async def now_known(store):
    pair = await store.load(REF)
    return pair.operation.state, pair.task.state, pair.operation.attempt


@requirement("OWN-DOUBT", "OWN-ONCE")
async def test_a_holder_whose_lease_has_lapsed_sends_nothing_and_says_that_it_does_not_know(holder, forgetful, redis):
    held = await holding(forgetful)
    await becomes_another(forgetful, redis)
    forgetful._leased_until_s = 0
    assert not await holder.send(held)
    assert await now_known(forgetful) == ("unknown", "done", 0)
    assert b"may have lost" in await forgetful.body(REF)


@requirement("OWN-DOUBT", "OWN-ONCE")
async def test_such_a_holder_does_not_say_either_that_nothing_was_sent(holder, forgetful, redis):
    held = await holding(forgetful)
    await becomes_another(forgetful, redis)
    forgetful._leased_until_s = 0
    await holder.finish(held, engine.GiveUp("the upstream is down"), bodies.LOST)
    assert await now_known(forgetful) == ("unknown", "done", 0)


@requirement("OWN-SENT")
async def test_a_mark_whose_answer_was_lost_is_one(holder, forgetful):
    held = await holding(forgetful)
    forgetful.lost = 1
    assert await holder.send(held)
    assert await now_known(forgetful) == ("sent", "working", 1)


@requirement("OWN-DURABLE")
@pytest.mark.parametrize("effect", [Effect.CONSEQUENTIAL, Effect.READ_ONLY])
async def test_a_mark_whose_answer_was_lost_is_not_known_to_be_durable(holder, forgetful, server, effect):
    held = await holding(forgetful, effect=effect)
    forgetful.make_sure(connect(server.url, 5), "replica", 0.05)
    forgetful.lost = 1
    sent = effect is Effect.READ_ONLY  # which waits for nothing
    assert await holder.send(held) is sent
    assert await now_known(forgetful) == (("sent", "working", 1) if sent else ("planned", "working", 0))


@requirement("OWN-DOUBT")
async def test_what_is_gone_or_taken_or_not_in_flight_is_not_reminded_of(holder, forgetful, redis):
    held = await holding(forgetful)
    await holder.remind(held)  # nothing was sent yet
    assert await holder.send(held)
    await holder.remind(held)  # nothing was forgotten
    assert await now_known(forgetful) == ("sent", "working", 1)
    await redis.hincrby(forgetful.keys.operation(REF), "fn", 1)
    await holder.remind(held)  # somebody else has it
    await redis.delete(forgetful.keys.operation(REF))
    await holder.remind(held)
    assert not await redis.exists(forgetful.keys.operation(REF))


@requirement("OWN-APPROVE")
async def test_an_approval_that_was_taken_just_before_its_time_was_over_counts(holder, forgetful):
    made = work(forgetful)
    await forgetful.create(replace(made, operation=replace(made.operation, approval=Approval("really?", 5_000))))
    now = forgetful.now()
    await change(forgetful, engine.Ask(Question("approval", "elicitation/create", "{}", now - 2, now - 1)))
    claim = await claimed(forgetful)
    held = Held(REF, claim.pair.fence, claim.pair, claim.arguments)
    pair = await forgetful.load(REF)
    in_time = apply(pair.task, pair.operation, engine.Respond({"approval": "{}"}), now - 2)
    assert await forgetful.commit(Change(REF, pair, in_time, 1_000)) is Verdict.OK
    await holder.finish(held, engine.InputExpired(), bodies.UNANSWERED)
    assert await now_known(forgetful) == ("planned", "working", 0)
    assert (await claimed(forgetful, process="p2")).kind is ClaimKind.START


@requirement("OWN-AWAY", "OWN-LEAK")
async def test_notes_whose_store_went_away_leave_nothing_running_and_nothing_for_ever(
    forgetful, server, redis, monkeypatch
):
    monkeypatch.setattr(progress, "_LAST_WORDS_S", 0.01)
    streams = StreamStore(forgetful)
    await streams.note(REF, b"{}", 60_000)
    assert await streams.take_notes(REF) == [b"{}"]
    with server.away():
        notes = progress.Notes(streams, REF, task(hidden=True))
        notes(Notification("notifications/message", {}))
        before = asyncio.all_tasks()
        await notes.close()
        assert {one for one in asyncio.all_tasks() - before if one.get_coro().__name__ == "join"} == set()
    await eventually(lambda: redis.llen(forgetful.keys.notes(REF)))
    assert await redis.pttl(forgetful.keys.notes(REF)) > 0
