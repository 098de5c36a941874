"""What the soak has come to: what happened, and what must not have."""

import json
from collections import Counter
from collections.abc import Iterator

from redis.asyncio import Redis

from gateway.store.keys import Keys
from gateway.wire import canonical
from tests.oracle import FINAL, STATUSES, wrong_steps
from tests.soak.stage import Call, Soak
from tests.stores import PREFIX, leaks


async def verdict(soak: Soak) -> tuple[dict[str, object], list[str]]:
    """What happened, and what must not have."""
    redis = Redis.from_url(soak.server.url)
    operations = await read_operations(redis)
    unknown = {name.decode().rpartition(":")[2] for name in await redis.zrange(Keys(PREFIX).unknown("bank"), 0, -1)}
    wrong = [f"lives for ever: {key}" for key in await leaks(redis)]
    await redis.aclose()
    effects, by_digest = soak.bank.effects(), {one["arguments_digest"]: one for one in operations}
    for call in soak.calls:
        operation = by_digest.pop(canonical.meaning(json.dumps(call.arguments).encode()).digest, None)
        wrong += [f"{call.key}: {what}" for what in faults_of(call, operation, effects[call.key], unknown)]
        if soak.bank.taken[call.key] > 1:
            wrong.append(f"{call.key}: sent {soak.bank.taken[call.key]} times")
    wrong += [f"an operation of nobody: {digest}" for digest in by_digest]
    told_no = [call.key for call in soak.calls if call.refused == 50303 and effects[call.key]]
    wrong += [f"{key}: refused, and yet done" for key in told_no]
    report: dict[str, object] = {
        "calls": len(soak.calls),
        "tasks": sum(bool(call.task) for call in soak.calls),
        "told": dict(Counter(ending(call) for call in soak.calls)),
        "operations": dict(Counter(one["state"] for one in operations)),
        "unknown, listed": len(unknown),
        "effects": sum(effects.values()),
        "refused, and yet done": told_no,
        "deeds": dict(soak.deeds),
    }
    return report, wrong


def ending(call: Call) -> str:
    """What the client was told, in a word."""
    if call.refused is not None:
        return f"refused {call.refused}"
    if not call.task:
        return "no answer"
    return f"{call.statuses[-1]}{f' {call.error}' if call.error else ''}"


def faults_of(call: Call, operation: dict | None, effects: int, unknown: set[str]) -> Iterator[str]:
    """What must not be, of one call."""
    state = None if operation is None else operation["state"]
    if effects > 1:
        yield f"{effects} effects"
    if state is None and (call.task or effects):
        yield "no record"
    if state == "answered" and effects != 1:
        yield "answered without an effect"
    if state == "dropped" and effects:
        yield "dropped, and yet done"
    if state in ("planned", "sent", "accepted"):
        yield f"left {state}"
    if state == "unknown" and operation["id"] not in unknown:
        yield "unknown, and not listed"
    if call.task and call.statuses[-1] not in FINAL:
        yield f"still {call.statuses[-1]}"
    if wrong_steps(call.statuses, STATUSES):
        yield f"steps {call.statuses}"


async def read_operations(redis: "Redis") -> list[dict]:
    """All entries of the ledger."""
    names = [name async for name in redis.scan_iter(match=f"{PREFIX}:{{s0}}:o:*", count=1000)]
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hget(name, "head")
    return [json.loads(head) for head in await pipeline.execute()]
