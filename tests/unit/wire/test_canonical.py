"""Arguments that mean the same have one digest, and no others."""

import pytest

from gateway.wire.canonical import meaning
from tests.requirements import requirement


@requirement("OWN-KEY-ONCE")
@pytest.mark.parametrize(
    "same",
    [
        (b'{"a":1,"b":[2,3]}', b'{ "b" : [2, 3],\n"a":1 }'),
        (b"1", b"1.0", b"10e-1", b"0.1E1", b"1e0", b"1.000"),
        (b"0", b"-0", b"0.0", b"0e99", b"-0.0e-5"),
        (b"120", b"1.2e2", b"12E+1"),
        (b"1e400", b"10e399"),
        (b"9007199254740993", b"9007199254740993.0"),
        ('"\u00e9"'.encode(), b'"\\u00e9"'),
        (b"1e99999999999999999999", b"10e99999999999999999998"),
    ],
)
def test_spelling_does_not_count(same):
    assert len({meaning(one).digest for one in same}) == 1


@requirement("OWN-KEY-ONCE")
def test_meaning_counts():
    different = [
        *(b"1", b"-1", b"10", b"0", b"1e400", b"9007199254740993", b"9007199254740992", b'"1"', b"true", b"null"),
        *(b"[]", b"{}", b"[1]", b"[1,2]", b"[2,1]", b"[[1],2]", b'{"a":1}', b'{"a":"1"}', b'{"b":1}', b'""', b"false"),
        *(b'{"a":[1,{"b":2}]}', b'{"a":[1],"b":2}', b'{"a":1,"a":2}', b'{"a":2,"a":1}', b'{"a":2}'),
    ]
    assert len({meaning(one).digest for one in different}) == len(different)


@requirement("OWN-ONE-MEANING")
@pytest.mark.parametrize(
    ("body", "twice"),
    [
        (b'{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}', False),
        (b'{"a":1,"a":1}', True),
        (b'{"a":1,"\\u0061":2}', True),
        (b'{"b":[{"a":{"x":1,"y":2,"x":3}}]}', True),
        (b"[1,1]", False),
    ],
)
def test_a_name_that_comes_twice_is_found_at_any_depth(body, twice):
    assert meaning(body).ambiguous is twice
