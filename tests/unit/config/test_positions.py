"""Where the keys of a file stand: each form in which TOML can write a key or a table."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.config.positions import key_lines, line_of
from tests.requirements import requirement


def paths(value: Any, base: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key and index of what the standard library reads."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*base, key)
        yield from paths(item, (*base, key))


PLAIN = """\
first = 1

# second = 0
second = "a # b"
[table]  # a comment
third = [1, 2]
"""

DOTTED = """\
a.b.c = 1
a . "b" . d = 2
[t.u]
v.w = 3
[t]
x = 4
"""

QUOTED = r"""
"a.b" = 1
'c.d' = 2
"" = 3
"e\"f" = 4
'g"h' = 5
"'i'" = 6
"j\u006b" = 7
'l\n' = 8
["m.n".'o p']
q = 9
[["r.s"]]
t = 10
"""

TABLES = """\
[[a]]
x = 1
[[a.b]]
y = 2
[[a.b]]
y = 3
[a.b.c]
z = 4
[[a]]
[[a.b]]
y = 5
[a.d]
e = 6
"""

ARRAYS = """\
a = [
  1,  # one
  # nothing

  2, 3,
]
b = [[1], [
  2,
]]
c = []
"""

INLINE = """\
a = { b = 1, c.d = 2, "e.f" = [3] }
g = [
  { h = 1, i = { j = 2 } },
  # between
  { h = 3, k = [
      { l = 4 },
      { l = 5 },
  ] },
]
m = {}
"""

STRINGS = '''\
a = """
[not.a.table]
b = 1
"""
c = \'\'\'
[[nor.this]]
d = 2\'\'\'
e = "é
"
'''.replace("é\n", "é\\n")

EXPECTED = {
    "plain": (
        PLAIN,
        {
            ("first",): 1,
            ("second",): 4,
            ("table",): 5,
            ("table", "third"): 6,
            ("table", "third", 0): 6,
            ("table", "third", 1): 6,
        },
    ),
    "dotted keys": (
        DOTTED,
        {
            ("a",): 1,
            ("a", "b"): 1,
            ("a", "b", "c"): 1,
            ("a", "b", "d"): 2,
            ("t",): 3,
            ("t", "u"): 3,
            ("t", "u", "v"): 4,
            ("t", "u", "v", "w"): 4,
            ("t", "x"): 6,
        },
    ),
    "quoted keys": (
        QUOTED,
        {
            ("a.b",): 2,
            ("c.d",): 3,
            ("",): 4,
            ('e"f',): 5,
            ('g"h',): 6,
            ("'i'",): 7,
            ("jk",): 8,
            ("l\\n",): 9,
            ("m.n",): 10,
            ("m.n", "o p"): 10,
            ("m.n", "o p", "q"): 11,
            ("r.s",): 12,
            ("r.s", 0): 12,
            ("r.s", 0, "t"): 13,
        },
    ),
    "nested arrays of tables": (
        TABLES,
        {
            ("a",): 1,
            ("a", 0): 1,
            ("a", 0, "x"): 2,
            ("a", 0, "b"): 3,
            ("a", 0, "b", 0): 3,
            ("a", 0, "b", 0, "y"): 4,
            ("a", 0, "b", 1): 5,
            ("a", 0, "b", 1, "y"): 6,
            ("a", 0, "b", 1, "c"): 7,
            ("a", 0, "b", 1, "c", "z"): 8,
            ("a", 1): 9,
            ("a", 1, "b"): 10,
            ("a", 1, "b", 0): 10,
            ("a", 1, "b", 0, "y"): 11,
            ("a", 1, "d"): 12,
            ("a", 1, "d", "e"): 13,
        },
    ),
    "arrays over several lines": (
        ARRAYS,
        {
            ("a",): 1,
            ("a", 0): 2,
            ("a", 1): 5,
            ("a", 2): 5,
            ("b",): 7,
            ("b", 0): 7,
            ("b", 0, 0): 7,
            ("b", 1): 7,
            ("b", 1, 0): 8,
            ("c",): 10,
        },
    ),
    "inline tables": (
        INLINE,
        {
            ("a",): 1,
            ("a", "b"): 1,
            ("a", "c"): 1,
            ("a", "c", "d"): 1,
            ("a", "e.f"): 1,
            ("a", "e.f", 0): 1,
            ("g",): 2,
            ("g", 0): 3,
            ("g", 0, "h"): 3,
            ("g", 0, "i"): 3,
            ("g", 0, "i", "j"): 3,
            ("g", 1): 5,
            ("g", 1, "h"): 5,
            ("g", 1, "k"): 5,
            ("g", 1, "k", 0): 6,
            ("g", 1, "k", 0, "l"): 6,
            ("g", 1, "k", 1): 7,
            ("g", 1, "k", 1, "l"): 7,
            ("m",): 10,
        },
    ),
    "strings over several lines": (STRINGS, {("a",): 1, ("c",): 5, ("e",): 8}),
    "nothing": ("", {}),
    "only a comment": ("# a = 1\n", {}),
}


@requirement("OWN-CONFIG")
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("name", EXPECTED)
def test_every_key_has_its_line_whatever_ends_the_lines(name, newline):
    source, lines = EXPECTED[name]
    assert key_lines(source.replace("\n", newline).encode()) == lines


@pytest.mark.parametrize("name", EXPECTED)
def test_keys_are_named_as_the_standard_library_names_them(name):
    source = EXPECTED[name][0]
    assert set(key_lines(source.encode())) == set(paths(tomllib.loads(source)))


def test_a_file_that_does_not_end_with_a_newline_has_all_its_keys():
    assert key_lines(b"[a]\nb = 1") == {("a",): 1, ("a", "b"): 2}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 3),
        (("a", "b"), 5),
        (("a", "b", 0, "unwritten"), 5),
        (("a", "unwritten"), 3),
        (("unwritten", "b"), 1),
        ((), 1),
    ],
)
def test_what_is_not_written_stands_where_the_nearest_thing_around_it_does(path, line):
    assert line_of({("a",): 3, ("a", "b"): 5}, path) == line
