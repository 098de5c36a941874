"""The pool of sessions at an upstream."""

import pytest

from gateway.core.model import Owner
from gateway.upstream.links import Links, key_of
from gateway.upstream.port import Link


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def links(clock):
    return Links(2, 60, clock)


def link(name, capabilities="{}"):
    return Link(Owner("i", name, "t", "u"), "2025-11-25", f"s-{name}", capabilities)


def key(one):
    return key_of(one)


def opened(links, *names):
    made = [link(name) for name in names]
    for one in made:
        assert links.make_room() == []
        links.add(one)
    return made


def test_a_session_is_found_by_its_owner_and_capabilities(links):
    (one,) = opened(links, "a")
    assert links.find(key(one)) is one
    assert links.find((one.owner, '{"roots":{}}')) is None
    assert links.find(key(link("b"))) is None


def test_the_one_that_was_used_longest_ago_makes_room(links, clock):
    one, two = opened(links, "a", "b")
    clock.now += 1
    links.find(key(one))
    assert links.make_room() == [two]
    assert list(links) == [one]


def test_what_is_under_way_makes_no_room(links):
    one, two = opened(links, "a", "b")
    with links.using(one), links.using(two):
        assert links.make_room() is None
        with links.using(one):
            pass
        assert links.make_room() is None
    assert links.make_room() == [one]


def test_all_that_were_idle_for_too_long_are_ended(links, clock):
    one, two = opened(links, "a", "b")
    clock.now += 59
    assert links.find(key(two)) is two
    with links.using(one):
        clock.now += 2
        assert links.make_room() == [two]
    clock.now += 59
    assert links.make_room() == []
    clock.now += 1
    assert links.make_room() == [one]
    assert list(links) == []


def test_a_session_that_has_ended_is_forgotten_and_its_successor_is_not(links):
    (one,) = opened(links, "a")
    links.drop(one)
    assert links.find(key(one)) is None
    newer = Link(one.owner, one.version, "s-new", one.capabilities)
    links.add(newer)
    links.drop(one)
    assert links.find(key(one)) is newer
