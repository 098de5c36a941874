"""The sessions that are open at one upstream: so many at most, and none that nobody has used for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from gateway.core.model import Owner
from gateway.upstream.port import Link

Key: TypeAlias = tuple[Owner, str, str]
"""Whose session it is, which capabilities were declared in it, and which client session it belongs to alone."""


def key_of(link: Link) -> Key:
    """Where a session is found."""
    return link.owner, link.capabilities, link.client


class Links:
    """Sessions by owner, capabilities and client. `clock` is monotonic, in seconds; what is under way counts as use."""

    def __init__(self, most: int, idle_s: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._links: dict[Key, Link] = {}
        self._used: dict[Link, float] = {}
        self._busy: dict[Link, int] = {}

    def __iter__(self) -> Iterator[Link]:
        """All that are open."""
        return iter(list(self._links.values()))

    def find(self, key: Key) -> Link | None:
        """The session of this key, which counts as a use of it."""
        link = self._links.get(key)
        if link is not None:
            self._used[link] = self._clock()
        return link

    def holds(self, link: Link) -> bool:
        """Whether somebody may be given this session."""
        return self._links.get(key_of(link)) == link

    def idle_s(self, link: Link) -> float:
        """For how long nobody has used it here; nothing while something is under way."""
        return 0.0 if self._busy.get(link) else self._clock() - self._used.get(link, self._clock())

    @property
    def busy(self) -> Iterator[Link]:
        """Those on which something is under way."""
        return iter(list(self._busy))

    def make_room(self) -> list[Link] | None:
        """The sessions to end so that one more may be opened; None if all are busy."""
        now = self._clock()
        leaving = [link for link in self if not self._busy.get(link) and self._used[link] + self._idle_s <= now]
        if len(self._links) - len(leaving) >= self._most:
            idle = [link for link in self if not self._busy.get(link)]
            if not idle:
                return None
            leaving = leaving or [min(idle, key=lambda link: self._used[link])]
        for link in leaving:
            self.drop(link)
        return leaving

    def add(self, link: Link) -> None:
        """A session that was opened."""
        self._links[key_of(link)] = link
        self._used[link] = self._clock()

    def drop(self, link: Link) -> None:
        """A session that has ended."""
        if self._links.get(key_of(link)) == link:
            del self._links[key_of(link)]
        self._used.pop(link, None)

    @contextmanager
    def using(self, link: Link) -> Iterator[None]:
        """A session on which something is under way."""
        self._busy[link] = self._busy.get(link, 0) + 1
        try:
            yield
        finally:
            self._busy[link] -= 1
            if not self._busy[link]:
                del self._busy[link]
            if link in self._used:
                self._used[link] = self._clock()
