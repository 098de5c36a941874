"""Server-sent events: a reader that takes bytes as they come, and a writer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KEEP_ALIVE = b": keep-alive\n\n"
_BOM = b"\xef\xbb\xbf"
_LONGEST_RETRY: Final = 9
"""Digits of it."""


class TooLong(Exception):  # noqa: N818  # says what the stream is
    """An event is longer than the reader was told to take."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` is None where the stream named none."""

    data: bytes
    event: str = "message"
    id: str | None = None


class Reader:
    """Feeds on chunks that may split anything, even a line ending or a character."""

    def __init__(self, limit: int) -> None:
        """`limit` bounds the bytes of one event; it may be changed between chunks."""
        self.limit = limit
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._after_cr = False
        self._begun = False
        self._data: list[bytes] = []
        self._size = 0
        self._event = "message"
        self._id: str | None = None
        self._last_id: str | None = None
        self.retry_ms: int | None = None
        """How long to wait before the stream is asked for again, if it said so."""

    @property
    def last_id(self) -> str | None:
        """Where the stream can be taken up again: after the last event that came whole."""
        return self._last_id or None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that the chunk completes. Raises TooLong."""
        for line in self._lines(chunk):
            self._bound(line.startswith(b":"), len(line))
            if line.startswith(b":"):
                continue
            self._size += len(line)
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                yield event
        begun = next((part for part in self._rest if part), b"")
        self._bound(begun.startswith(b":"), self._rest_size)

    def _bound(self, comment: bool, size: int) -> None:  # noqa: FBT001  # what the line is, whole or not
        """A comment belongs to no event, but no line of any kind may be longer than an event."""
        if (0 if comment else self._size) + size > self.limit:
            raise TooLong

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        """Whole lines; CR, LF and CRLF all end one. A line that comes in many chunks is put together once."""
        if not chunk:
            return
        fresh = chunk.removeprefix(b"\n") if self._after_cr else chunk
        self._after_cr = chunk.endswith(b"\r")
        self._rest.append(fresh)
        self._rest_size += len(fresh)
        if self._begun and b"\n" not in fresh and b"\r" not in fresh:
            return
        text = b"".join(self._rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._begun:
            if _BOM.startswith(text):
                return
            self._begun = True
            text = text.removeprefix(_BOM)
        *lines, rest = text.split(b"\n")
        self._rest, self._rest_size = [rest], len(rest)
        yield from lines

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace") or "message"
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _LONGEST_RETRY:
            self.retry_ms = int(value)

    def _dispatch(self) -> Event | None:
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "message", 0
        self._last_id = self._id
        return Event(b"\n".join(data), event, self._id) if data else None


_AGAIN: Final = b"retry: 3000\n"
"""In milliseconds. Common SDKs ask again twice, this long apart, and then wait in silence until their own time is over:
with a second, every restart of a single gateway was too long for them."""
RETRY: Final = _AGAIN + b"\n"
"""How a stream ends that is to be asked for again."""


def primer(event_id: str) -> bytes:
    """An event without data, whose id a client can resume from when its stream has ended."""
    return b"id: " + event_id.encode() + b"\n" + _AGAIN + b"data: \n\n"


def message(body: bytes, event_id: str | None = None) -> bytes:
    """One JSON-RPC message as an event. In JSON a line break is white space, and here it would end the line."""
    named = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    return named + b"event: message\ndata: " + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"
