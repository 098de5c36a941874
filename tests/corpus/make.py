"""Writes down the records of this release: `python -m tests.corpus.make REDIS_URL > tests/corpus/schema-N.json`.

The server must be an empty one. A corpus is made once, when a release is made, and never again: it is what users have
in their stores.
"""

import asyncio
import json
import sys
from dataclasses import replace

from redis.asyncio import Redis

from gateway.core import engine
from gateway.core.engine import Applied, apply
from gateway.core.model import SCHEMA, Approval, Effect, Inquiry, Learnt, OutcomeKind, Place, Question, Seen
from gateway.store.keys import Ref
from gateway.store.port import Change, ClaimAsk, NewWork, Session
from gateway.store.redis import RedisStore, connect
from tests.records import OWNER, operation, task

DAY = 86_400_000
ACCEPT = engine.Accept("theirs", Place("2025-11-25", "2025-11-25", "their-session"), Seen("working", 1, 2), "digest")
STORIES = {
    "planned": [],
    "sent": [engine.Send()],
    "accepted": [engine.Send(), ACCEPT],
    "answered": [engine.Send(), engine.Answer(OutcomeKind.RESULT)],
    "tool_error": [engine.Send(), engine.Answer(OutcomeKind.TOOL_ERROR)],
    "unknown": [engine.Send(), engine.Lose()],
    "cancelled": [engine.Cancel(final=True)],
    "late": [engine.Send(), engine.Cancel(final=True)],
    "asking": [engine.Send(), engine.Ask(Question("q1", "elicitation/create", '{"message":"name?"}', 1, 2))],
}
APPROVAL = Question("approval", "elicitation/create", '{"message":"really?"}', 1, 2)
SINCE_3 = {
    "named": [engine.Send()],
    "inquiring": [engine.Send(), engine.Lose()],
    "approving": [engine.Ask(APPROVAL)],
    "resolved": [
        engine.Send(),
        engine.Lose(),
        engine.Reconcile(OutcomeKind.RESULT, Learnt.RESOLVED, '"r"', "ops", "seen"),
    ],
}
"""What there is since the ledger."""
CHANGES = {
    "named": {"idempotency_key": "order-7", "object_version": "3", "intended_effect": "pay", "arguments_digest": "d"},
    "inquiring": {"inquiry": Inquiry("state", '{"id":1.0}', 86_400_000, first=True)},
    "approving": {"approval": Approval("really?", 200_000)},
}
HIDDEN, READ_ONLY = "hidden", "read_only"


def ident(name: str) -> str:
    """The id of the record of a story."""
    return f"{name}-{'0' * 31}"[:32]


async def tell(store: RedisStore, name: str, commands: list[engine.Command], **changes: object) -> None:
    """Makes one pair of records and does to it what the story says."""
    now = store.now()
    promise = task(
        id=ident(name), created_ms=now, updated_ms=now, ttl_ms=600_000, version=1, hidden=changes.pop(HIDDEN, False)
    )
    fact = operation(id=ident(name), created_ms=now, updated_ms=now, deadline_ms=now + 300_000, version=1, **changes)
    await store.create(NewWork(promise, fact, b'{"name":"build","arguments":{"n":1.0}}', 100, 100, 90 * DAY))
    ref, fence = Ref(OWNER, ident(name)), None
    if commands and isinstance(commands[0], engine.Send):
        claims = await store.claim(ClaimAsk("reports", "p1", 60_000, 0, store.connected_since(), 1, 100))
        fence = claims[0].pair.fence
    for command in commands:
        if isinstance(command, engine.Ask):
            question = command.question
            command = engine.Ask(replace(question, asked_ms=now, deadline_ms=now + 200_000))  # noqa: PLW2901  # in time
        pair = await store.load(ref)
        assert pair.operation is not None
        after = apply(pair.task, pair.operation, command, pair.now)
        assert isinstance(after, Applied), (name, command)
        body = b'{"content":[],"n":1.0}' if after.finished else None
        asked = isinstance(command, engine.Ask) and fence is None
        await store.commit(Change(ref, pair, after, 90 * DAY, body=body, fence=fence, give_back=asked))


async def dump(client: "Redis", now: int) -> dict[str, object]:
    """Everything in the store, as text."""
    found: dict[str, object] = {}
    async for raw in client.scan_iter(count=1000):
        key = raw.decode()
        kind = (await client.type(raw)).decode()
        value: object
        if kind == "hash":
            value = {k.decode(): v.decode() for k, v in (await client.hgetall(raw)).items()}
        elif kind == "zset":
            value = {member.decode(): score for member, score in await client.zrange(raw, 0, -1, withscores=True)}
        else:
            value = (await client.get(raw)).decode("latin-1")
        found[key] = {"kind": kind, "ttl": await client.pttl(raw), "value": value}
    return {"schema": SCHEMA, "now": now, "keys": dict(sorted(found.items()))}


async def main(url: str) -> None:
    """Tells all stories, and prints what they left."""
    store = RedisStore(connect(url, 5), "mtg", timeout_s=5, lease_ms=60_000, session_idle_ms=600_000)
    await store.check()
    bootstrap = getattr(store, "bootstrap", None)  # releases before the ledger have none
    if bootstrap is not None:
        await bootstrap()
    for name, commands in reversed({**STORIES, **SINCE_3}.items()):
        await tell(store, name, commands, **CHANGES.get(name, {}))
    await tell(store, HIDDEN, [], **{HIDDEN: True})
    await tell(store, READ_ONLY, [], effect=Effect.READ_ONLY)
    await store.open_session(OWNER, ident("session"), Session("2025-11-25", '{"elicitation":{}}', "info", ("x:1",)))
    await store.secret()
    client = connect(url, 5)
    print(json.dumps(await dump(client, store.now()), indent=1))
    await client.aclose()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
