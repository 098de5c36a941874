"""Whose name is taken out of the records, and what is done about work that somebody holds."""

from dataclasses import replace

import pytest

from gateway.core import engine
from gateway.core.erasure import ERASED, erased
from gateway.core.model import OutcomeKind, Owner
from gateway.operating.erasing import Erasing, Person
from gateway.store.keys import Ref
from gateway.store.ledger import Erasure, LedgerStore
from tests.contract.test_store import REF, ask, change, claimed, sent, work
from tests.contract.test_store_ledger import named
from tests.records import OTHER, OWNER
from tests.requirements import requirement

ELSEWHERE = Owner("https://other-idp", OWNER.subject, OWNER.tenant, "reports")


@pytest.fixture
def ledger(store):
    return LedgerStore(store)


@pytest.fixture
def erasing(store, ledger):
    async def cancel(entry):
        await change(store, engine.Cancel(final=True), entry.ref(entry.operation))

    return Erasing(ledger, store.secret, cancel)


async def planned(store, owner, ident):
    await store.create(work(store, owner=owner, ident=ident))
    return Ref(owner, ident)


async def subject(store, ref):
    return (await store.load(ref)).operation.owner.subject


@requirement("OWN-ERASE")
async def test_only_the_person_is_erased_and_planned_work_never_starts(store, redis, erasing):
    mine, theirs = await planned(store, OWNER, "a" * 32), await planned(store, OTHER, "b" * 32)
    same = await planned(store, ELSEWHERE, "c" * 32)
    done = await erasing.erase(Person(OWNER.subject, OWNER.issuer), None)
    assert (done.entries, done.tasks, done.under_way, done.cursor) == (1, 1, 0, None)
    assert await subject(store, mine) in done.subjects
    assert [await subject(store, ref) for ref in (theirs, same)] == [OTHER.subject, OWNER.subject]
    assert {claim.ref for claim in await store.claim(ask(store))} == {theirs, same}
    await change(store, engine.Send(), same)
    again = await erasing.erase(Person(OWNER.subject), None)
    assert (again.entries, again.under_way) == (0, 1)  # nobody knows yet what becomes of it
    for kind in ("t", "r", "a", "z"):
        assert await redis.exists(f"{store.keys.base}{kind}:{mine.member}") == 0
    assert await redis.zcard(store.keys.listed(OWNER)) == 0


@requirement("OWN-ERASE")
async def test_a_record_that_changes_or_is_held_is_not_overwritten(store, ledger):
    fence = (await sent(store)).pair.fence
    await change(store, engine.Answer(OutcomeKind.RESULT), fence=fence, body=b"{}")
    entry = await ledger.entry(REF.member)
    stale = erased(replace(entry.operation, version=entry.operation.version - 1), "p")
    assert await ledger.erase(entry, stale) is Erasure.STALE
    await store.call("HSET", store.keys.operation(REF), "hd", "p2")
    assert await ledger.erase(entry, erased(entry.operation, "p")) is Erasure.BUSY
    await store.call("DEL", store.keys.operation(REF))
    assert await ledger.erase(entry, erased(entry.operation, "p")) is Erasure.GONE


@requirement("OWN-ERASE", "OWN-ONCE")
async def test_an_unknown_one_that_is_settled_later_leaves_no_key(store, redis, erasing, ledger):
    first = named(store)
    await store.create(first)
    fence = (await claimed(store)).pair.fence
    await change(store, engine.Send(), fence=fence)
    await change(store, engine.Lose(), fence=fence, body=b"{}")
    assert (await erasing.erase(Person(OWNER.subject), None)).entries == 1
    entry = await ledger.entry(REF.member)
    assert entry.operation.owner.subject.startswith(ERASED)
    await change(store, engine.Reconcile(OutcomeKind.RESULT), entry.ref(entry.operation))
    key = store.keys.named(first.operation)
    assert await redis.pttl(key) > 0
