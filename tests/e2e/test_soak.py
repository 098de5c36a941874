"""A short soak: what `make soak` does with ten thousand tasks."""

import asyncio

from tests.requirements import requirement
from tests.soak.__main__ import soak
from tests.soak.stage import Plan


@requirement("OWN-SOAK", "OWN-ONCE", "OWN-LEAK")
def test_nothing_is_lost_or_done_twice_while_processes_are_killed_and_paused(tmp_path):
    plan = Plan(tasks=120, at_once=24, between_s=(0.1, 0.4), pause_s=(0.2, 1.2), seed=3, lease_s=0.4, grace_s=0.8)
    report, wrong = asyncio.run(soak(plan, tmp_path))
    assert wrong == []
    assert report["effects"] > 0
    assert report["deeds"]
