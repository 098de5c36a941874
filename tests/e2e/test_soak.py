"""A short soak: what `make soak` does with ten thousand tasks."""

import asyncio

from tests.requirements import requirement
from tests.soak.__main__ import soak
from tests.soak.stage import Plan


@requirement("OWN-SOAK", "OWN-ONCE", "OWN-LEAK")
def test_nothing_is_lost_or_done_twice_while_processes_are_killed_and_paused(tmp_path):
    plan = Plan(tasks=150, at_once=24, between_s=(0.2, 0.6), pause_s=(0.2, 1.5), seed=3)
    report, wrong = asyncio.run(soak(plan, tmp_path))
    assert wrong == []
    assert report["effects"] > 0
    assert report["deeds"]
    print(report)
