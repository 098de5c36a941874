"""Nothing is lost, nothing is done twice, nothing is claimed that is not known: whatever breaks, and whenever."""

import asyncio
import json

import pytest
from redis.asyncio import Redis

from gateway.store.embedded import find_server
from tests.e2e.matrix import FAULTS, LEGACY, MODERN, MOMENTS, Cell, played
from tests.oracle import OPERATIONS, STATUSES, TASKS, wrong_moves, wrong_pairs, wrong_steps
from tests.requirements import requirement
from tests.stores import PREFIX, Server, leaks

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
CELLS = [
    (fault, moment, dialect, upstream)
    for fault in FAULTS
    for moment in MOMENTS
    for dialect in (LEGACY, MODERN)
    for upstream in ("http", "stdio")
]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """All of it, played once: the cells by name, what could not be played, and what was left in the store."""
    folder = tmp_path_factory.mktemp("matrix")
    with Server(find_server(), tmp_path_factory.mktemp("matrix-store")) as server:
        cells, broken = asyncio.run(played(folder, server.url))
        left, immortal = asyncio.run(_look(server.url))
    return {(cell.fault, cell.moment, cell.dialect, cell.upstream): cell for cell in cells}, broken, left, immortal


async def _look(url):
    """Operations that are neither settled nor unknown, and keys that would live for ever."""
    redis = Redis.from_url(url)
    heads = [json.loads(await redis.hget(key, "head")) for key in await redis.keys(f"{PREFIX}:*:o:*")]
    left = [head["state"] for head in heads if head["state"] not in ("answered", "unknown", "dropped")]
    immortal = await leaks(redis)
    await redis.aclose()
    return left, immortal


@requirement("OWN-MATRIX", "OWN-ONCE", "OWN-AWAY", "T25-RES-1", "T25-ST-1")
@pytest.mark.parametrize("name", CELLS, ids="-".join)
def test_what_becomes_of_a_call(outcome, name):
    cells, broken, _, _ = outcome
    cell: Cell = cells[name]
    assert broken.get(cell.fault) is None
    assert (cell.told, cell.effects, cell.operation) in EXPECTED[cell.fault][cell.moment]
    assert cell.arrivals <= 1
    assert wrong_steps(cell.statuses, STATUSES) == []
    assert all(final == cell.finals[0] for final in cell.finals)
    if cell.moment == "cancelling" and cell.dialect == LEGACY:
        assert cell.told == "cancelled"


@requirement("OWN-MATRIX", "T25-ST-1")
@pytest.mark.parametrize("fault", FAULTS)
def test_only_what_is_allowed_happens_on_the_way(outcome, fault):
    for cell in outcome[0].values():
        if cell.fault != fault or not cell.task:
            continue
        assert cell.steps, cell.key
        assert wrong_moves(["planned", *cell.history], OPERATIONS) == [], cell.key
        for steps in cell.steps:
            tasks, operations = zip(*steps, strict=True)
            assert wrong_steps(["working", *tasks], TASKS) == [], cell.key
            assert wrong_steps(["planned", *operations], OPERATIONS) == [], cell.key
            assert wrong_pairs(steps) == [], cell.key


@requirement("OWN-MATRIX", "T25-RES-1")
@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_waits_on_another_replica_gets_one_answer(outcome, fault):
    waited = [cell for cell in outcome[0].values() if cell.fault == fault and cell.waited is not None]
    assert len(waited) == 8
    assert {cell.key: len(cell.waited) for cell in waited} == {cell.key: 1 for cell in waited}


@requirement("OWN-MATRIX", "OWN-LEAK")
def test_nothing_is_left_open_and_nothing_stays_for_ever(outcome):
    _, _, left, immortal = outcome
    assert (left, immortal) == ([], [])
