"""Values in JSON text, found where a pointer says, as they were written."""

import pytest

from gateway.wire.pointers import find, path_of
from tests.requirements import requirement

BODY = b'{"a":{"b":[1.0,{"c/d":"x","~":1e400}]},"":2,"n":null}'


@requirement("OWN-BYTES")
@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("/a/b/0", b"1.0"),
        ("/a/b/1/c~1d", b'"x"'),
        ("/a/b/1/~0", b"1e400"),
        ("/", b"2"),
        ("/n", b"null"),
        ("/a/b", b'[1.0,{"c/d":"x","~":1e400}]'),
    ],
)
def test_a_value_is_found_as_it_was_written(pointer, found):
    assert bytes(find(BODY, path_of(pointer))) == found


@pytest.mark.parametrize(
    "pointer", ["/x", "/a/b/2", "/a/b/-", "/a/b/-1", "/a/b/00x", "/n/x", "/a/b/0/x", "/a/b/\u0661"]
)
def test_what_is_not_there_is_not_found(pointer):
    assert find(BODY, path_of(pointer)) is None


def test_no_steps_are_the_whole():
    assert bytes(find(BODY, path_of(""))) == BODY
