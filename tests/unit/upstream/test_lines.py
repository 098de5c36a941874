"""Lines out of chunks, whatever the chunks are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.lines import Beginnings, Budget, Lines, TooLong


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 50)))
def test_lines_do_not_depend_on_the_chunks(lines, cuts):
    text = b"\n".join(line.replace(b"\n", b"") for line in lines) + b"\n"
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:end] for start, end in pairwise(places)]
    reader, beginnings = Lines(), Beginnings(5)
    assert [line for chunk in chunks for line in reader.feed(chunk, 20)] == text.split(b"\n")[:-1]
    assert [line for chunk in chunks for line in beginnings.feed(chunk)] == [
        line[:5] for line in text.split(b"\n")[:-1]
    ]
    assert beginnings.rest() == b""


def test_a_line_may_be_as_long_as_allowed_and_no_longer():
    assert list(Lines().feed(b"12345\n", 5)) == [b"12345"]
    reader = Lines()
    assert list(reader.feed(b"1234", 5)) == []
    with pytest.raises(TooLong):
        list(reader.feed(b"56", 5))
    with pytest.raises(TooLong):
        list(Lines().feed(b"123456\n", 5))


def test_what_comes_before_a_line_that_is_too_long_is_read():
    fed = Lines().feed(b"1\n23456", 4)
    assert next(fed) == b"1"
    with pytest.raises(TooLong):
        next(fed)


def test_the_beginning_of_a_line_that_has_not_ended_is_kept():
    beginnings = Beginnings(3)
    assert list(beginnings.feed(b"ab")) == []
    assert list(beginnings.feed(b"cd" * 1000)) == []
    assert beginnings.rest() == b"abc"


def test_so_many_a_second_pass_and_the_others_are_counted():
    budget = Budget(2)
    assert [budget.passes(now) for now in (0.0, 0.1, 0.2, 0.9, 1.0, 1.5, 1.6)] == [
        *(True, True, False, False),
        *(True, True, False),
    ]
    assert (budget.take_left_out(), budget.take_left_out()) == (3, 0)
