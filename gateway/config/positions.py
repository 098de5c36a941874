"""Where each key of a TOML file stands. The standard library's parser knows the values, tree-sitter the lines."""

import tomllib
from collections.abc import Iterator, Mapping

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

from gateway.policy.shape import Path

_KEYS = {"bare_key", "quoted_key", "dotted_key"}


def key_lines(source: bytes) -> Mapping[Path, int]:
    """The line (from 1) of every key, table and array item of a valid TOML file; of a table, where it first appears."""
    root = Parser(Language(tree_sitter_toml.language())).parse(source).root_node
    lines: dict[Path, int] = {}
    for path, line in _places(root):
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)
    return lines


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a key, or of the nearest thing around it that has one."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _places(root: Node) -> Iterator[tuple[Path, int]]:
    counts: dict[Path, int] = {}
    for node in root.children:
        if node.type == "pair":
            yield from _pair(node, ())
        elif node.type in ("table", "table_array_element"):
            base = _table_path(node, counts)
            yield base, _line(node)
            for child in node.children:
                if child.type == "pair":
                    yield from _pair(child, base)


def _table_path(node: Node, counts: dict[Path, int]) -> Path:
    names = next(_names(child) for child in node.children if child.type in _KEYS)
    path: Path = ()
    for position, name in enumerate(names):
        path = (*path, name)
        last = position == len(names) - 1
        if node.type == "table_array_element" and last:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _pair(node: Node, base: Path) -> Iterator[tuple[Path, int]]:
    path = (*base, *_names(node.children[0]))
    yield path, _line(node)
    yield from _value(node.children[-1], path)


def _value(node: Node, path: Path) -> Iterator[tuple[Path, int]]:
    if node.type == "inline_table":
        for child in node.children:
            if child.type == "pair":
                yield from _pair(child, path)
    elif node.type == "array":
        items = [child for child in node.children if child.is_named and child.type != "comment"]
        for index, item in enumerate(items):
            yield (*path, index), _line(item)
            yield from _value(item, (*path, index))


def _names(node: Node) -> tuple[str, ...]:
    if node.type == "dotted_key":
        return tuple(name for child in node.children if child.type in _KEYS for name in _names(child))
    return tuple(tomllib.loads(f"{(node.text or b'').decode()} = 0"))


def _line(node: Node) -> int:
    return int(node.start_point.row) + 1
