"""What is refused on the bytes, before any decoder sees them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import limits
from gateway.wire.jsonrpc import parse
from gateway.wire.limits import violation
from tests.requirements import requirement
from tests.unit.wire.samples import steady

TOO_DEEP = "nested deeper than 64 levels, or brackets do not match"
TOO_LONG = "a number is longer than 400 characters"
NOT_UTF_8 = "the body is not UTF-8"
MEGABYTE = 1_048_576


def nested(depth, opening=b"[", closing=b"]"):
    return opening * depth + closing * depth


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_sixty_four_levels_pass_and_one_more_does_not(opening, closing):
    levels = opening.count(b"[") + opening.count(b"{")
    assert violation(nested(64 // levels, opening, closing)) is None
    assert violation(b"[" + nested(64 // levels, opening, closing) + b"]") == TOO_DEEP


def test_breadth_is_not_depth():
    body = b"[" + b",".join([nested(63)] * 50) + b"]"
    assert violation(body) is None
    assert violation(b"[" + body + b"]") == TOO_DEEP


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b"[" * 65 + b'"',
        b'"' + b"}" * 65 + b'"',
        b'"\\"' + b"[" * 65 + b'"',
        b'"\\\\\\"' + b"{" * 65 + b'"',
        b'"line\\n' + b"[" * 65 + b'"',
    ],
)
def test_brackets_inside_a_string_do_not_count(text):
    assert violation(b'{"a":' + text + b',"b":[]}') is None


@pytest.mark.parametrize("text", [b'""', b'"\\\\"', b'"\\\\\\\\"', b'"a"'])
def test_brackets_after_a_string_count(text):
    assert violation(b"[" + text + b"," + nested(64) + b"]") == TOO_DEEP


@pytest.mark.parametrize("body", [nested(64) + b"[]]", b"{]" * 65, b"][" * 65, b"[" + b"{}" * 64])
def test_many_brackets_that_do_not_match_are_refused(body):
    assert violation(body) == TOO_DEEP


@pytest.mark.parametrize("brackets", [b"[{]}", b"[" * 64, b"{]" * 64, b"]" * 1000])
def test_brackets_that_cannot_nest_too_deep_are_left_to_the_decoder(brackets):
    assert violation(brackets) is None
    assert parse(b'{"a":' + brackets + b"}").reason == "parse"


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    ("number", "why"),
    [
        (b"1e400", None),
        (b"9007199254740993", None),
        (b"-0", None),
        (b"1" * 400, None),
        (b"1" * 401, TOO_LONG),
        (b"-" + b"1" * 399, None),
        (b"-" + b"1" * 400, TOO_LONG),
        (b"0." + b"3" * 398, None),
        (b"0." + b"3" * 399, TOO_LONG),
        (b"1e+" + b"0" * 398, TOO_LONG),
        (b"1E-" + b"0" * 398, TOO_LONG),
        (b"7" * MEGABYTE, TOO_LONG),
    ],
)
def test_a_number_may_have_four_hundred_characters(number, why):
    assert violation(number) == why
    assert violation(b'{"a":[' + number + b"]}") == why


@pytest.mark.parametrize("text", [b"1" * 401, b"-" * 401, b"e" * MEGABYTE, b'\\"' + b"5" * 401, b"0.E+-e" * 80])
def test_a_long_run_of_digits_inside_a_string_passes(text):
    assert violation(b'{"a":"' + text + b'","b":1}') is None


def test_a_long_number_is_found_next_to_a_long_string():
    assert violation(b'{"' + b"1" * 500 + b'":' + b"2" * 401 + b"}") == TOO_LONG


def test_numbers_are_told_apart_by_what_stands_between_them():
    assert violation(b"[" + b",".join([b"1" * 400] * 20) + b"]") is None


def test_depth_is_told_before_length():
    assert violation(nested(65) + b"1" * 401) == TOO_DEEP


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    "body",
    [
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b'"\xf4\x90\x80\x80"',
        '"ü"'.encode("latin-1"),
        '{"a":1}'.encode("utf-16"),
        "ü".encode()[:1],
        b"\xff" + b"[" * 65,
    ],
)
def test_what_is_not_utf_8_is_refused(body):
    assert violation(body) == NOT_UTF_8


@pytest.mark.parametrize("body", [b"", b"{}", '{"ü":"\U0001f600"}'.encode(), b"not JSON at all", b'"never ends'])
def test_whatever_else_it_is_stays_with_the_decoder(body):
    assert violation(body) is None


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[" * MEGABYTE, TOO_DEEP),
        (b"]" * MEGABYTE, None),
        (b"[{" * (MEGABYTE // 2), TOO_DEEP),
        (b"][" * (MEGABYTE // 2), TOO_DEEP),
        (b"[]" * (MEGABYTE // 2), None),
        (nested(64) * (MEGABYTE // 128), None),
        (nested(65) * (MEGABYTE // 130), TOO_DEEP),
        (b'["a",{}]' * (MEGABYTE // 8), None),
        (b"[" * 65 + b'"' + b'\\"' * (MEGABYTE // 2), TOO_DEEP),
        (b"[]" * 65 + b'"' + b'\\"' * (MEGABYTE // 2), None),
        (b"[]" * 65 + b'"' + b"\\" * MEGABYTE + b"\\", None),
        (b"[]" * 65 + b'"' * MEGABYTE, None),
        ((b"1" * 400 + b",") * (MEGABYTE // 401), None),
    ],
    ids=lambda value: f"{value[:4]!r}" if isinstance(value, bytes) else "",
)
def test_a_megabyte_made_to_be_slow_is_answered(body, why):
    assert violation(body) == why


leaves = st.none() | st.booleans() | st.integers() | st.text('[]{}"\\1e,:\n\u00fc', max_size=90)
wrappers = st.lists(st.sampled_from(["array", "object", "wide"]), min_size=30, max_size=100)


def wrapped(value, kind):
    return {"array": [value], "object": {"[": value}, "wide": [[], "]", value, {}]}[kind]


@steady
@given(leaves, wrappers)
def test_exactly_what_nests_deeper_than_sixty_four_is_refused(leaf, kinds):
    value = leaf
    for index, kind in enumerate(kinds):
        value = wrapped(value, kind if index else "array")
    body = json.dumps(value, ensure_ascii=False).encode()
    assert violation(body) == (TOO_DEEP if len(kinds) > 64 else None)


@pytest.mark.parametrize(
    ("body", "members"),
    [
        (b"{}", 0),
        (b" { } ", 0),
        (b'{"a":1}', 1),
        (b'{"a":1,"a":2}', 2),
        (b'{"a,b":"x,\\",y","b":[1,2,{"c":[1,2],"d":{}}], "c" : {"e":1,"f":","}}', 3),
        (b'{"a":[],"b":{},"c":[[],[[1,2],3]]}', 3),
        (b'{"":"[","\\u007b":"}"}', 2),
    ],
)
def test_members_are_counted_as_they_were_written(body, members):
    assert limits.count(body) == members
