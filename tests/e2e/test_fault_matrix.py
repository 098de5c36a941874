"""Nothing is lost, nothing is done twice, nothing is claimed that is not known: whatever breaks, and whenever."""

import json
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from tests.e2e.cells import FAULTS, LEGACY, MOMENTS, Cell
from tests.e2e.matrix import played
from tests.oracle import OPERATIONS, STATUSES, TASKS, wrong_moves, wrong_pairs, wrong_steps
from tests.requirements import requirement
from tests.stores import PREFIX, leaks

DONE = ("completed", 1, "answered")
NOT_SENT = ("not sent", 0, "dropped")
NEVER_LEFT = ("unknown", 0, "unknown")
UNKNOWN = ("unknown", 1, "unknown")
CANCELLED = ("cancelled", 1, "unknown")


def either(*outcomes: tuple[str, int, str]) -> frozenset[tuple[str, int, str]]:
    return frozenset(outcomes)


EXPECTED: dict[str, dict[str, frozenset[tuple[str, int, str]]]] = {
    # What the client is told in the end, how often it was charged, and what the ledger says. Of more than one, any.
    "cut": {
        **dict.fromkeys(MOMENTS, either(DONE)),
        **dict.fromkeys(("creating", "recorded"), either(("nothing", 1, ""))),
        "cancelling": either(CANCELLED, ("cancelled", 1, "answered"), DONE),
    },
    "store": {
        **dict.fromkeys(MOMENTS, either(DONE)),
        # The gateway takes them back as soon as the store answers, unless the work has begun by then.
        "creating": either(("refused", 0, ""), ("unknown", 0, "")),
        "recorded": either(("unknown", 0, ""), ("unknown", 1, "")),
        "cancelling": either(CANCELLED, ("cancelled", 1, "answered"), DONE),
    },
    "upstream": {
        **dict.fromkeys(("creating", "recorded", "created", "claimed"), either(DONE, NOT_SENT)),
        "marked": either(DONE, NOT_SENT, NEVER_LEFT),
        "sent": either(UNKNOWN),
        "asking": either(NEVER_LEFT),  # it charges when it has its answer
        **dict.fromkeys(("answered", "written", "completed"), either(DONE)),
        "cancelling": either(CANCELLED),
    },
    "killed": {
        "creating": either(("nothing", 0, "")),
        "recorded": either(("nothing", 1, "")),
        **dict.fromkeys(("created", "claimed"), either(DONE)),
        "marked": either(NEVER_LEFT),
        "sent": either(UNKNOWN),
        "asking": either(NEVER_LEFT),
        "answered": either(UNKNOWN),
        **dict.fromkeys(("written", "completed"), either(DONE)),
        "cancelling": either(CANCELLED),
    },
}


@requirement("OWN-MATRIX", "OWN-ONCE", "OWN-AWAY", "OWN-LEAK", "T25-RES-1", "T25-ST-1")
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_becomes_of_calls_in_every_moment_of_their_life(any_server, tmp_path, fault):
    redis = Redis.from_url(any_server.url)
    await redis.flushall()
    cells = await played(tmp_path, any_server.url, fault)
    wrong = {cell.key: found for cell in cells if (found := [*faults_of(cell), *wrong_ways(cell)])}
    assert wrong == {}
    waited = {cell.key: len(cell.waited) for cell in cells if cell.waited is not None}
    assert len(waited) == 8
    assert set(waited.values()) == {1}, "whoever waits on another replica gets one answer"
    heads = [json.loads(await redis.hget(key, "head")) for key in await redis.keys(f"{PREFIX}:*:o:*")]
    assert {head["state"] for head in heads} <= {"answered", "unknown", "dropped"}
    assert await leaks(redis) == []
    await redis.aclose()


def faults_of(cell: Cell) -> Iterator[str]:
    """What is not as the table says."""
    came = (cell.told, cell.effects, cell.operation)
    if came not in EXPECTED[cell.fault][cell.moment]:
        yield f"{came}"
    if cell.arrivals > 1:
        yield f"arrived {cell.arrivals} times"
    if any(final != cell.finals[0] for final in cell.finals):
        yield f"different answers: {cell.finals}"
    if cell.moment == "cancelling" and cell.dialect == LEGACY and cell.told != "cancelled":
        yield "a cancellation that was confirmed did not stay"


def wrong_ways(cell: Cell) -> Iterator[str]:
    """What the oracle does not allow on the way."""
    found = [*wrong_steps(cell.statuses, STATUSES), *wrong_moves(["planned", *cell.history], OPERATIONS)]
    for steps in cell.steps:
        tasks, operations = zip(*steps, strict=True)
        found += wrong_steps(["working", *tasks], TASKS) + wrong_steps(["planned", *operations], OPERATIONS)
        found += wrong_pairs(steps)
    if cell.task and not cell.steps:
        yield "nothing is in the log"
    yield from map(str, found)
