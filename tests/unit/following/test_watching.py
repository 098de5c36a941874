"""How often an upstream is asked about its task, and for how long in vain."""

import pytest

from gateway.following.watching import Pace
from gateway.policy.model import Settings
from gateway.wire.theirs import Sight
from tests.requirements import requirement

SIGHT = Sight("t", "working")


def pace(jitter=0.5, **settings):
    return Pace.of(Settings(**settings), lambda: jitter)


@requirement("BR-3")
@pytest.mark.parametrize(
    ("wish_ms", "seconds"),
    [(None, 2), (0, 0.5), (1, 0.5), (750, 0.75), (10_000, 10), (86_400_000, 10)],
)
def test_as_it_wishes_within_the_bounds_of_the_policy(wish_ms, seconds):
    sight = Sight("t", "working", interval_ms=wish_ms)
    assert pace(jitter=0).after(sight) == seconds
    assert pace(jitter=1).after(sight) == pytest.approx(seconds * 1.1)


@requirement("BR-3")
def test_without_a_wish_as_clients_are_told():
    assert pace(jitter=0, poll_interval_ms=3000).after(SIGHT) == 3
    assert pace(jitter=0, poll_interval_ms="adaptive").after(SIGHT) == 10


@requirement("BR-3")
def test_ever_more_seldom_after_failures_and_never_all_together():
    assert [pace().again(failures, 0) for failures in range(1, 8)] == [1, 2, 4, 8, 10, 10, 10]
    assert pace().again(10_000, 0) == 10
    assert pace(jitter=0).again(3, 0) == 2
    assert pace(jitter=1).again(3, 0) == 6


@requirement("BR-3")
def test_not_before_it_wants_to_be_asked_again():
    assert pace().again(1, 30) == 30
    assert pace().again(5, 3) == 10
    assert pace(observe_budget_s=60).again(1, 99_999) == 60
