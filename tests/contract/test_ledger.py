"""How the operator finds records, whoever they belong to."""

import pytest

from gateway.core import engine
from gateway.core.model import OperationState, TaskState
from gateway.store import ledger as module
from gateway.store.ledger import LedgerStore, Sought
from tests.contract.test_store import REF, change, sent, work
from tests.requirements import requirement


@pytest.fixture
def ledger(store):
    return LedgerStore(store)


async def made(store, redis, count):
    """Members in the order of their ends, the last one first; some of them end together."""
    members = []
    for number in range(count):
        new = work(store, ident=f"task-{number:027d}", limits=(99, 99))
        await store.create(new)
        member = f"{REF.member.partition(':')[0]}:{new.task.id}"
        await redis.zadd(store.keys.ledger, {member: 2**45 + number // 3})
        members.append(member)
    return members[::-1]


async def pages(ledger, size, sought=Sought(), after_each=None):  # noqa: B008  # a value
    found, cursor = [], None
    while True:
        page = await ledger.page(cursor, sought, size)
        found += [entry.member for entry in page.entries]
        if page.cursor is None:
            return found
        cursor = page.cursor
        if after_each is not None:
            await after_each(cursor)


@requirement("OWN-OPERATE")
@pytest.mark.parametrize(("size", "look"), [(1, 1), (3, 1), (4, 4), (4, 5), (13, 3), (14, 100)])
async def test_pages_hold_everything_once(store, redis, ledger, monkeypatch, size, look):
    monkeypatch.setattr(module, "_LOOK", look)
    members = await made(store, redis, 13)
    assert await pages(ledger, size) == members


@requirement("OWN-OPERATE")
async def test_what_stays_is_found_while_entries_leave_and_move(store, redis, ledger):
    members = await made(store, redis, 13)
    ends = iter(["leave", "to the front", "to the end", "leave"])

    async def disturb(cursor):
        last, kind = cursor.partition("~")[2], next(ends, None)
        if kind == "leave":
            await redis.zrem(store.keys.ledger, last)
        elif kind is not None:
            await redis.zadd(store.keys.ledger, {last: float("inf") if kind == "to the front" else 1})

    found = await pages(ledger, 3, after_each=disturb)
    assert [member for member in found if found.count(member) == 1] == [one for one in members if found.count(one) < 2]
    assert set(found) == set(members)
    assert await redis.zcard(store.keys.ledger) == 11


async def test_unknown_outcomes_come_first_and_states_are_told_apart(store, redis, ledger):
    fence = (await sent(store)).pair.fence
    await change(store, engine.Lose(), fence=fence, body=b"{}")
    members = await made(store, redis, 2)
    assert await pages(ledger, 1) == [REF.member, *members]
    assert await pages(ledger, 1, Sought(OperationState.UNKNOWN)) == [REF.member]
    assert await pages(ledger, 1, Sought(task=TaskState.WORKING)) == members
    assert await pages(ledger, 9, Sought(task=True)) == [REF.member, *members]
    await redis.delete(store.keys.task(REF))
    assert await pages(ledger, 9, Sought(task=True)) == members
    assert await pages(ledger, 9) == [REF.member, *members]


@requirement("OWN-OPERATE")
async def test_an_entry_is_found_by_either_name(store, redis, ledger):
    (member,) = await made(store, redis, 1)
    for name in (member, member.partition(":")[2]):
        assert await ledger.find(name) == member
    for name in ("*", "x" * 32, "x:y", "", f"{member} "):
        assert await ledger.find(name) is None
    assert await ledger.entry(f"{'x' * 22}:{'y' * 32}") is None


async def test_a_cursor_that_no_page_ended_with_is_refused(ledger):
    for cursor in ("", "1", "1~x", f"nan~{REF.member}", f"1~{REF.member}x~", f"-1~{REF.member}"):
        with pytest.raises(ValueError):
            await ledger.page(cursor, Sought(), 1)


async def test_what_a_newer_release_wrote_is_listed_by_name(store, redis, ledger):
    (member,) = await made(store, redis, 1)
    await redis.hset(f"{store.keys.base}o:{member}", "head", '{"schema":99}')
    (entry,) = (await ledger.page(None, Sought(), 9)).entries
    assert (entry.member, entry.operation) == (member, None)
