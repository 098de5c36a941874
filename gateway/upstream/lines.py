"""Lines out of chunks: whole ones up to a bound, or only their beginnings, or only so many a second."""

from collections.abc import Iterator


class TooLong(Exception):  # noqa: N818  # says what the line is
    """A line is longer than the reader was told to take."""


class Lines:
    """Whole lines. A line that comes in many chunks is put together once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes, limit: int) -> Iterator[bytes]:
        """The lines that the chunk completes, without their ends. Raises TooLong beyond `limit` bytes."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._add(part, limit)
            yield b"".join(self._parts)
            self._parts, self._size = [], 0
        self._add(rest, limit)

    def _add(self, part: bytes, limit: int) -> None:
        self._size += len(part)
        if self._size > limit:
            raise TooLong
        self._parts.append(part)


class Beginnings:
    """The first `longest` bytes of each line, for a log that must not grow with what somebody else prints."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._begun = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that the chunk completes."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield self._with(part)
            self._begun = b""
        self._begun = self._with(rest)

    def rest(self) -> bytes:
        """What came after the last line end."""
        return self._begun

    def _with(self, part: bytes) -> bytes:
        return self._begun + part[: self._longest - len(self._begun)]


class Budget:
    """So many a second, and a count of those that were too many. Times are seconds on any clock that goes forward."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._since = float("-inf")
        self._passed = 0
        self.left_out = 0

    def passes(self, now: float) -> bool:
        """Whether one more may pass now."""
        if now - self._since >= 1:
            self._since, self._passed = now, 0
        if self._passed < self._per_second:
            self._passed += 1
            return True
        self.left_out += 1
        return False

    def take_left_out(self) -> int:
        """How many did not pass since the last look."""
        count, self.left_out = self.left_out, 0
        return count
