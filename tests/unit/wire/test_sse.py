"""Server-sent events: any split into chunks gives the same events, and nothing grows without bound."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import sse
from gateway.wire.jsonrpc import write
from gateway.wire.sse import Event, Reader, TooLong
from tests.requirements import requirement
from tests.unit.wire.samples import steady, thorough

BOM = b"\xef\xbb\xbf"


def read(*chunks, limit=10_000):
    """The events, and whether the reader gave up after them."""
    reader, events = Reader(limit), []
    try:
        for chunk in chunks:
            events.extend(reader.feed(chunk))
    except TooLong:
        return events, True
    return events, False


def cut(stream, places):
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def by_the_standard(stream):
    """The HTML standard's rules for interpreting an event stream, on all of it at once."""
    events, data, kind, last_id = [], [], b"", None
    for line in re.split(rb"\r\n|\r|\n", stream.removeprefix(BOM))[:-1]:
        if line == b"":
            if data:
                events.append(Event(b"\n".join(data), kind.decode("utf-8", "replace") or "message", last_id))
            data, kind = [], b""
            continue
        found = re.fullmatch(rb"([^:]*)(?:: ?(.*))?", line, re.DOTALL)
        name, value = found[1], found[2] or b""
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
        elif name == b"id" and b"\0" not in value:
            last_id = value.decode("utf-8", "replace")
    return events


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [Event(b"a")]),
        (b"data: a\r\r", [Event(b"a")]),
        (b"data: a\r\n\r\n", [Event(b"a")]),
        (b"data: a\r\n\n", [Event(b"a")]),
        (b"data: a\r\n\r", [Event(b"a")]),
        (b"data: a\n\r", [Event(b"a")]),
        (b"data: a\ndata: b\ndata:\ndata: c\n\n", [Event(b"a\nb\n\nc")]),
        (b"data:a\n\n", [Event(b"a")]),
        (b"data:  a \n\n", [Event(b" a ")]),
        (b"data\n\n", [Event(b"")]),
        (b'data: {"a":"b: c"}\n\n', [Event(b'{"a":"b: c"}')]),
        (BOM + b"data: a\n\n", [Event(b"a")]),
        (b"\n" + BOM + b"data: a\n\n", []),
        (BOM + BOM + b"data: a\n\n", []),
        (b"data: a\n\n" + BOM + b"data: b\n\n", [Event(b"a")]),
        (b": a comment\n\ndata: a\n: another\n\n", [Event(b"a")]),
        (b"event: endpoint\ndata: /x\n\ndata: a\n\n", [Event(b"/x", "endpoint"), Event(b"a")]),
        (b"event: lost\n\ndata: a\n\n", [Event(b"a")]),
        (b"event: one\nevent: two\ndata: a\n\n", [Event(b"a", "two")]),
        (b"event:\ndata: a\n\n", [Event(b"a", "message")]),
        (b"id: 7\ndata: a\n\ndata: b\n\n", [Event(b"a", id="7"), Event(b"b", id="7")]),
        (b"id: 7\n\ndata: b\n\n", [Event(b"b", id="7")]),
        (b"id: 7\ndata: a\n\nid\ndata: b\n\n", [Event(b"a", id="7"), Event(b"b", id="")]),
        (b"id: 7\nid: 8\0\ndata: a\n\n", [Event(b"a", id="7")]),
        ("event: é\nid: ü\ndata: ö\n\n".encode(), [Event("ö".encode(), "é", "ü")]),
        (b"event: \xff\nid: \xff\ndata: \xff\n\n", [Event(b"\xff", "\ufffd", "\ufffd")]),
        (b"retry: 1000\nother: x\nDATA: y\n data: z\ndata: a\n\n", [Event(b"a")]),
        (b"data: never ended\n", []),
        (b"data: never ended", []),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_a_stream_is_read_by_the_standard(stream, events):
    assert read(stream) == (events, False)
    assert read(*(bytes([byte]) for byte in stream)) == (events, False)
    assert by_the_standard(stream) == events


def test_an_event_comes_as_soon_as_it_is_complete():
    reader = Reader(100)
    assert list(reader.feed(b"data: a\n")) == []
    assert list(reader.feed(b"\ndata: b")) == [Event(b"a")]
    assert list(reader.feed(b"\r")) == []
    assert list(reader.feed(b"")) == []
    assert list(reader.feed(b"\n\r")) == [Event(b"b")]
    assert list(reader.feed(b"\ndata: c\n\n")) == [Event(b"c")]


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: a\r", b"\n", b"\n"],
        [b"data: a\r", b"", b"\n", b"\n"],
        [b"data: a\r", b"\n\r\n"],
        [b"data: a", b"\r\n\r", b"\n"],
        [b"\xef", b"\xbb", b"\xbf", b"data: a\n\n"],
        [b"\xef\xbb", b"\xbfdata: a\n\n"],
        [BOM, b"data: a\n\n"],
        [b"", BOM + b"data: a\n\n"],
        [b"da", b"ta", b":", b" ", b"a", b"\n", b"\n"],
    ],
)
def test_a_line_ending_and_a_mark_may_be_split(chunks):
    assert read(*chunks) == ([Event(b"a")], False)


def test_what_only_begins_like_a_mark_is_text():
    assert read(b"\xef", b"data: x\ndata: a\n\n") == ([Event(b"a")], False)


fields = st.sampled_from(
    [b"data: a", b"data", b"event: e", b"event:", b"id: 7", b"id", b"id: \0", b": c", b"x", b"\xff"]
)
lines = st.tuples(fields | st.just(b""), st.sampled_from([b"\r", b"\n", b"\r\n"])).map(b"".join)
marks = st.sampled_from([b"", BOM, BOM[:2], b"\n" + BOM, BOM + BOM])
streams = st.tuples(marks, st.lists(lines, max_size=20).map(b"".join), fields | st.just(b"")).map(b"".join)
places = st.lists(st.integers(0, 200), max_size=12) | st.just(range(200))


@requirement("OWN-BYTES")
@thorough
@given(streams, places)
def test_any_split_gives_the_events_of_the_standard(stream, cuts):
    assert read(*cut(stream, cuts)) == (by_the_standard(stream), False)


@requirement("OWN-LIMITS")
@thorough
@given(streams, places, st.integers(3, 40))
def test_any_split_reaches_the_limit_after_the_same_events(stream, cuts, limit):
    assert read(*cut(stream, cuts), limit=limit) == read(stream, limit=limit)


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    ("stream", "size"),
    [
        (b"data: 123\n\n", 9),
        (b"data: 1\ndata: 2\n\n", 14),
        (b"data: 1\r\ndata: 2\r\n\r\n", 14),
        (b"event: e\n: comment\nid: 4\ndata: 1\n\n", 20),
        (b"data: 12345678", 14),
        (b"data: 1\ndata", 11),
        (b": 2345678", 9),
    ],
)
def test_an_event_of_just_the_limit_passes_and_one_byte_less_is_too_little(stream, size):
    assert read(stream, limit=size) == (by_the_standard(stream), False)
    assert read(stream, limit=size - 1) == ([], True)


def test_the_limit_is_for_each_event_and_not_for_the_stream():
    assert read(b"data: 1\n\n" * 100, limit=7) == ([Event(b"1")] * 100, False)


def test_comments_do_not_count():
    assert read(b": keep-alive\n" * 100 + b"data: 1\n\n", limit=13) == ([Event(b"1")], False)


def test_the_events_before_one_that_is_too_long_are_read():
    assert read(b"data: 1\n\ndata: 22\n\ndata: 3\n\n", limit=7) == ([Event(b"1")], True)


def test_a_line_that_never_ends_is_too_long_before_it_ends():
    reader = Reader(10)
    assert list(reader.feed(b"data: 7890")) == []
    with pytest.raises(TooLong):
        list(reader.feed(b"1"))


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (b'{"a":1}', b'event: message\ndata: {"a":1}\n\n'),
        (b'{\n"a":\r\n1}', b'event: message\ndata: { "a":  1}\n\n'),
        (b"", b"event: message\ndata: \n\n"),
    ],
)
def test_a_message_is_one_event_on_one_line(body, written):
    assert sse.message(body) == written


@steady
@given(st.dictionaries(st.text("a\r\n:\0é\u2028"), st.text("a\r\n:\0é\ufeff") | st.integers(), max_size=5))
def test_a_message_is_read_as_it_was_written(content):
    body = write(content)
    assert read(sse.message(body)) == ([Event(body, "message")], False)


@pytest.mark.parametrize("event_id", ["7", "s-1/0", "é"])
def test_a_primer_gives_an_id_to_resume_from_and_says_nothing(event_id):
    assert sse.primer(event_id) == b"id: " + event_id.encode() + b"\nretry: 3000\ndata: \n\n"
    assert read(sse.primer(event_id) + sse.message(b"1")) == (
        [Event(b"", id=event_id), Event(b"1", "message", event_id)],
        False,
    )


@requirement("OWN-REATTACH")
def test_a_stream_is_taken_up_after_the_last_event_that_came_whole():
    reader = Reader(100)
    assert reader.last_id is None
    list(reader.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n"))
    assert reader.last_id == "1"
    list(reader.feed(b"\nid\ndata: c\n\n"))
    assert reader.last_id is None


def test_a_wait_before_the_next_attempt_is_no_event():
    assert sse.RETRY == b"retry: 3000\n\n"
    assert read(b"data: a\n\n" + sse.RETRY + b"data: b\n\n") == ([Event(b"a"), Event(b"b")], False)


def test_a_keep_alive_is_no_event():
    assert sse.KEEP_ALIVE == b": keep-alive\n\n"
    assert read(b"data: a\n\n" + sse.KEEP_ALIVE + b"data: b\n\n") == ([Event(b"a"), Event(b"b")], False)


@requirement("OWN-AGAIN")
@pytest.mark.parametrize("told", [sse.RETRY, sse.primer("1")])
def test_two_attempts_of_a_client_outlast_a_restart_of_five_seconds(told):
    attempts, restart_ms = 2, 5000
    reader = Reader(100)
    list(reader.feed(told))
    assert attempts * reader.retry_ms > restart_ms
