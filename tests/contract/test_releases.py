"""What earlier releases wrote: it is read, claimed, finished and listed by this one."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core import engine
from gateway.core.model import SCHEMA, OperationState, OutcomeKind, TaskState
from gateway.store.keys import Ref
from gateway.store.port import ClaimKind, Created, Creation, Verdict
from gateway.store.redis import RedisStore, connect
from gateway.store.streams import StreamStore
from tests.contract.test_store import ask, change, work
from tests.corpus.make import SINCE_3, STORIES, ident
from tests.records import OWNER
from tests.requirements import requirement
from tests.stores import LEASE_MS, SESSION_IDLE_MS

CORPUS = Path(__file__).parent.parent / "corpus"
READABLE = [f"schema-{number}" for number in (SCHEMA - 1, SCHEMA)]
MOMENT = re.compile(r"\b1[789]\d{11}\b")
ENDED = {
    "answered": (TaskState.DONE, OutcomeKind.RESULT),
    "tool_error": (TaskState.DONE, OutcomeKind.TOOL_ERROR),
    "unknown": (TaskState.DONE, OutcomeKind.ERROR),
    "cancelled": (TaskState.CANCELLED, None),
    "late": (TaskState.CANCELLED, None),
}


@pytest.fixture(params=READABLE)
def release(request):
    """Which release it was."""
    return request.param


@pytest.fixture
async def store(release, server, redis):
    """A store as a gateway of that release left it, a moment ago."""
    made = RedisStore(connect(server.url, 5), "mtg", timeout_s=5, lease_ms=LEASE_MS, session_idle_ms=SESSION_IDLE_MS)
    await made.check()
    text = (CORPUS / f"{release}.json").read_text()
    shift = made.now() - json.loads(text)["now"]
    kept = json.loads(MOMENT.sub(lambda found: str(int(found[0]) + shift), text))["keys"]
    for key, entry in kept.items():
        await put(redis, key, entry)
    await redis.hdel(made.keys.marker, "run", "replid")  # the server is the same: only the gateway is another
    await made.bootstrap()
    yield made
    await made.close()


async def put(redis, key, entry):
    if entry["kind"] == "hash":
        await redis.hset(key, mapping=entry["value"])
    elif entry["kind"] == "zset":
        await redis.zadd(key, entry["value"])
    else:
        await redis.set(key, entry["value"].encode("latin-1"))
    if entry["ttl"] > 0:
        await redis.pexpire(key, entry["ttl"])


def ref(name):
    return Ref(OWNER, ident(name))


@requirement("OWN-SCHEMA")
def test_there_is_a_corpus_of_this_release_and_of_the_one_before():
    assert [(CORPUS / f"{name}.json").exists() for name in READABLE] == [True, True]


@requirement("OWN-SCHEMA")
class TestEarlierRelease:
    @pytest.mark.parametrize("name", ENDED)
    async def test_what_has_ended_is_told_as_it_was(self, store, name):
        polled = await store.poll(ref(name), ident("session"), want_body=True)
        assert (polled.task.state, polled.task.outcome_kind) == ENDED[name]
        assert polled.body == (b'{"content":[],"n":1.0}' if ENDED[name][1] else None)
        assert polled.session.log_level == "info"

    async def test_all_tasks_are_listed_and_hidden_ones_are_not(self, store, release):
        page = await StreamStore(store).page(OWNER, None, 50)
        told = STORIES if release == "schema-2" else {**STORIES, **SINCE_3}
        assert {task.id for task in page.tasks} == {ident(name) for name in (*told, "read_only")}

    async def test_work_is_taken_over_and_finished(self, store, redis):
        await redis.delete(store.keys.heartbeat("p1"))
        for member in await redis.zrange(store.keys.watch("reports"), 0, -1):
            await redis.zadd(store.keys.watch("reports"), {member: 0})
        claims = {
            claim.ref.id: claim for claim in await store.claim(ask(store, process="p2", slots=50, max_running=50))
        }
        kinds = {name: claims[ident(name)].kind for name in ("planned", "sent", "late", "asking", "accepted")}
        assert kinds == {
            "planned": ClaimKind.START,
            "sent": ClaimKind.LOST,
            "late": ClaimKind.LOST,
            "asking": ClaimKind.LOST,
            "accepted": ClaimKind.RESUME,
        }
        assert claims[ident("planned")].arguments == b'{"name":"build","arguments":{"n":1.0}}'
        for name, commands in (
            ("planned", [engine.Send(), engine.Answer(OutcomeKind.RESULT)]),
            ("sent", [engine.Answer(OutcomeKind.RESULT)]),
            ("late", [engine.Answer(OutcomeKind.RESULT)]),
            ("asking", [engine.Respond({"q1": "{}"}), engine.Answer(OutcomeKind.RESULT)]),
            ("accepted", [engine.Answer(OutcomeKind.RESULT)]),
        ):
            for command in commands:
                held = None if isinstance(command, engine.Respond) else claims[ident(name)].pair.fence
                assert await change(store, command, ref=ref(name), fence=held, body=b"{}") is Verdict.OK, name
            assert (await store.load(ref(name))).operation.state is OperationState.ANSWERED

    async def test_outcomes_that_nobody_knows_are_listed_and_can_be_resolved(self, store, redis):
        listed = await redis.zrange(store.keys.unknown("reports"), 0, -1)
        assert ref("unknown").member.encode() in listed
        everything = await redis.zrange(store.keys.ledger, 0, -1)
        assert {ref(name).member.encode() for name in STORIES} <= {*everything}
        assert await redis.zscore(store.keys.ledger, ref("unknown").member) == float("inf")
        kept = (await store.load(ref("unknown"))).operation
        assert (kept.schema, await redis.hget(store.keys.operation(ref("unknown")), "sc")) == (
            SCHEMA,
            str(SCHEMA).encode(),
        )
        assert await change(store, engine.Reconcile(OutcomeKind.RESULT), ref=ref("unknown")) is Verdict.OK
        assert await redis.zscore(store.keys.unknown("reports"), ref("unknown").member) is None

    async def test_what_the_ledger_keeps_goes_on(self, store, release, redis):
        if release == "schema-2":
            assert not await redis.exists(store.keys.operation(ref("named")))
            return
        entry = (await store.load(ref("resolved"))).operation
        assert (entry.outcome, entry.learnt, entry.history[-1].by) == ("succeeded", "resolved", "ops")
        named = (await store.load(ref("named"))).operation
        again = work(store, ident="b" * 32, limits=(100, 100))
        known = {"idempotency_key": named.idempotency_key, "arguments_digest": named.arguments_digest}
        made = replace(again, operation=replace(again.operation, **known))
        assert await store.create(made) == Creation(Created.EXISTS, ident("named"))
        await redis.delete(store.keys.heartbeat("p1"))
        await redis.zadd(store.keys.watch("reports"), {ref("inquiring").member: 0})
        (claim,) = await store.claim(ask(store, process="p2", slots=1))
        assert (claim.kind, claim.ref) == (ClaimKind.INQUIRE, ref("inquiring"))
        await change(store, engine.Respond({"approval": "{}"}), ref=ref("approving"))
        assert await redis.zscore(store.keys.due("reports"), ref("approving").member) <= store.now()

    async def test_an_upgrade_that_was_cut_off_is_done_by_the_next_start(self, store, redis):
        await redis.delete(store.keys.ledger, store.keys.unknown("reports"))
        await redis.hdel(store.keys.marker, "entered")
        await redis.hset(f"{store.keys.base}o:later", "head", b'{"schema":99}')
        await store.bootstrap()
        assert ref("unknown").member.encode() in await redis.zrange(store.keys.unknown("reports"), 0, -1)
        await redis.delete(store.keys.ledger, f"{store.keys.base}o:later")
        await store.bootstrap()
        assert not await redis.exists(store.keys.ledger)

    async def test_new_work_starts_beside_it(self, store):
        assert (await store.create(work(store, limits=(100, 100)))).verdict is Created.CREATED
