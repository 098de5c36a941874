"""Opaque values: good for whoever they were made for, and for nobody and nothing else."""

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.wire.sealed import seal, unseal
from tests.requirements import requirement
from tests.unit.wire.samples import steady, thorough

SECRET = b"a secret of the store"
BINDINGS = ["cursor", "owner"]
PAYLOAD = [1_767_225_600_000, "a-task-id"]
VALUE = seal(SECRET, BINDINGS, PAYLOAD)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

secrets = st.binary(max_size=40)
words = st.text('ab,"\\[]é\U0001f600\n', max_size=6)
bindings = st.lists(words, max_size=4)
payloads = st.lists(words | st.integers(-(2**63), 2**64 - 1), max_size=6)


@requirement("T25-LST-1")
@thorough
@given(secrets, bindings, payloads)
def test_what_was_sealed_is_read_again(secret, bound, payload):
    value = seal(secret, bound, payload)
    assert set(value) <= set(ALPHABET)
    assert unseal(secret, bound, value) == payload


@thorough
@given(secrets, secrets, bindings, payloads)
def test_another_secret_reads_nothing(secret, other, bound, payload):
    # HMAC fills a short key with zeros: keys that differ in those only are one key
    assume(secret.ljust(64, b"\0") != other.ljust(64, b"\0"))
    assert unseal(other, bound, seal(secret, bound, payload)) is None


@thorough
@given(bindings, bindings, payloads)
def test_other_bindings_read_nothing(bound, others, payload):
    assume(bound != others)
    assert unseal(SECRET, others, seal(SECRET, bound, payload)) is None


@pytest.mark.parametrize(
    ("bound", "others"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["ab"], ["a", "b"]),
        (["a", ""], ["a"]),
        (["a", "b"], ["b", "a"]),
        ([], [""]),
        (['a","b'], ["a", "b"]),
    ],
)
def test_bindings_do_not_run_into_each_other(bound, others):
    assert unseal(SECRET, others, seal(SECRET, bound, PAYLOAD)) is None
    assert unseal(SECRET, bound, seal(SECRET, others, PAYLOAD)) is None


@requirement("T25-LST-1")
@pytest.mark.parametrize("at", range(len(VALUE)))
def test_any_changed_character_makes_it_worthless(at):
    found = [unseal(SECRET, BINDINGS, VALUE[:at] + other + VALUE[at + 1 :]) for other in ALPHABET + "+/= \n.é\0"]
    assert sorted(kept for kept in found if kept is not None) == [PAYLOAD]


@pytest.mark.parametrize("length", range(len(VALUE)))
def test_a_part_of_it_is_worthless(length):
    assert unseal(SECRET, BINDINGS, VALUE[:length]) is None
    assert unseal(SECRET, BINDINGS, VALUE[len(VALUE) - length :]) is None


@pytest.mark.parametrize(
    "spoilt",
    [
        VALUE + "=",
        VALUE + "==",
        VALUE + "A",
        VALUE + "AA",
        " " + VALUE,
        VALUE + "\n",
        VALUE[:4] + " " + VALUE[4:],
        VALUE[:4] + "!!!!" + VALUE[4:],
        VALUE[:4] + "=" + VALUE[4:],
        VALUE + "é",
        VALUE + "\udcff",
        VALUE + "\0",
        VALUE * 2,
        VALUE.lower(),
        "",
        "A",
        "=",
        "é",
    ],
)
def test_what_is_not_exactly_it_is_worthless(spoilt):
    assert unseal(SECRET, BINDINGS, spoilt) is None


def test_only_one_way_of_writing_the_same_bytes_counts():
    payloads_of_each_length = [["a" * size] for size in range(3)]
    values = [seal(SECRET, BINDINGS, payload) for payload in payloads_of_each_length]
    assert sorted(len(value) % 4 for value in values) == [0, 2, 3]
    for value in values:
        raw = urlsafe_b64decode(value + "=" * (-len(value) % 4))
        same = [
            value[:-1] + last
            for last in ALPHABET
            if urlsafe_b64decode(value[:-1] + last + "=" * (-len(value) % 4)) == raw
        ]
        assert len(same) == {0: 1, 2: 16, 3: 4}[len(value) % 4]
        assert [other for other in same if unseal(SECRET, BINDINGS, other) is not None] == [value]


def test_both_alphabets_of_the_encoding_are_not_one():
    sealed = next(value for size in range(99) if "-" in (value := seal(SECRET, BINDINGS, ["?" * size])))
    assert unseal(SECRET, BINDINGS, sealed) is not None
    assert unseal(SECRET, BINDINGS, sealed.replace("-", "+")) is None


@requirement("OWN-LIMITS")
def test_what_is_too_long_is_not_looked_at():
    longest, too_long = seal(SECRET, [], ["a" * 3052]), seal(SECRET, [], ["a" * 3053])
    assert (len(longest), len(too_long)) == (4096, 4098)
    assert unseal(SECRET, [], longest) == ["a" * 3052]
    assert unseal(SECRET, [], too_long) is None


@thorough
@given(st.text(max_size=80) | st.text(ALPHABET, max_size=80) | st.binary(max_size=60).map(lambda raw: raw.hex()))
def test_what_nobody_sealed_is_worthless(value):
    assert unseal(SECRET, BINDINGS, value) is None


@steady
@given(payloads)
def test_the_value_is_a_tag_and_the_payload_in_the_open(payload):
    value = seal(SECRET, BINDINGS, payload)
    raw = urlsafe_b64decode(value + "=" * (-len(value) % 4))
    assert json.loads(raw[16:]) == payload
    bound = json.dumps([BINDINGS, hashlib.sha256(raw[16:]).hexdigest()], separators=(",", ":")).encode()
    assert raw[:16] == hmac.digest(SECRET, bound, "sha256")[:16]


def test_a_tag_of_less_than_its_length_is_no_tag():
    raw = urlsafe_b64decode(VALUE + "=" * (-len(VALUE) % 4))
    for cut in (0, 8, 15):
        shorter = urlsafe_b64encode(raw[:cut]).decode().rstrip("=")
        assert unseal(SECRET, BINDINGS, shorter) is None
