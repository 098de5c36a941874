"""What of the ledger waits for the audit sink: kept until it was written, and written anew when it has changed."""

import pytest

from gateway.core import engine
from gateway.core.model import Effect, OutcomeKind
from gateway.store import exports as module
from gateway.store.exports import Exports
from gateway.store.keys import Ref
from gateway.store.redis import RedisStore, connect
from tests.contract.test_store import REF, change, claimed, sent, work
from tests.records import OWNER
from tests.requirements import requirement
from tests.stores import LEASE_MS, SESSION_IDLE_MS


@pytest.fixture
async def exporting(server, redis):
    """A store whose changes are to be exported."""
    options = {"timeout_s": 5, "lease_ms": LEASE_MS, "session_idle_ms": SESSION_IDLE_MS}
    made = RedisStore(connect(server.url, 5), "mtg", exports=True, **options)
    await made.check()
    await made.bootstrap()
    yield made
    await made.close()


async def unknown(store):
    fence = (await sent(store)).pair.fence
    await change(store, engine.Lose(), fence=fence, body=b"{}")


@requirement("OWN-AUDIT")
async def test_an_entry_waits_until_it_was_written(exporting, monkeypatch):
    exports = Exports(exporting)
    assert await exports.take(9) == []
    await unknown(exporting)
    (taken,) = await exports.take(9)
    assert (taken.member, taken.operation.state) == (REF.member, "unknown")
    assert await exports.take(9) == []  # somebody writes it
    monkeypatch.setattr(module, "HANDED_OUT_MS", -1)
    await exporting.call("ZADD", exporting.keys.exports, 1, REF.member)  # whoever took it has died
    assert await exports.take(9) == [taken]
    await exports.written([taken])
    assert (await exports.take(9), await exports.waiting()) == ([], 0)


@requirement("OWN-AUDIT")
async def test_what_has_changed_since_is_written_again(exporting):
    exports = Exports(exporting)
    await unknown(exporting)
    (taken,) = await exports.take(9)
    await change(exporting, engine.Reconcile(OutcomeKind.RESULT))
    (again,) = await exports.take(9)
    await exports.written([taken])
    assert [one.operation.state for one in await exports.take(9)] == ["reconciled"]
    await exports.written([again])
    assert await exports.waiting() == 0


@requirement("OWN-AUDIT")
async def test_an_entry_that_has_ended_is_told_as_such(exporting, redis):
    exports = Exports(exporting)
    await unknown(exporting)
    await redis.delete(exporting.keys.operation(REF))
    (lost,) = await exports.take(9)
    assert (lost.operation, await exports.waiting()) == (None, 0)
    await exports.written([lost])


async def test_only_what_became_known_of_an_effect_waits(exporting, store):
    exports = Exports(exporting)
    fence = (await sent(exporting, effect=Effect.READ_ONLY)).pair.fence
    await change(exporting, engine.Answer(OutcomeKind.RESULT), fence=fence, body=b"{}")
    assert await exports.waiting() == 0
    second = "another-task-id-of-thirty-two-le"
    await exporting.create(work(exporting, ident=second))
    assert await exports.waiting() == 0
    ref = Ref(OWNER, second)
    fence = (await claimed(store)).pair.fence  # by a gateway without a sink
    await change(store, engine.Send(), ref, fence=fence)
    await change(store, engine.Lose(), ref, fence=fence, body=b"{}")
    assert await exports.waiting() == 0
