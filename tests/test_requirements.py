"""The manifest and the tests hold each other to account."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import ENTRIES

HERE = Path(__file__).parent


def named() -> set[str]:
    return {name for file in HERE.rglob("test_*.py") for name in _ids(ast.parse(file.read_text()))}


def _ids(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "requirement":
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def test_every_test_names_an_entry():
    assert named() - ENTRIES.keys() == set()


def test_every_entry_has_a_test_or_a_reason():
    unshown = {name for name, entry in ENTRIES.items() if not entry.deferred} - named()
    assert unshown == set()


def test_what_is_shown_is_not_deferred():
    deferred = {name for name, entry in ENTRIES.items() if entry.deferred}
    for name in sorted(deferred):
        print(f"deferred: {name}: {ENTRIES[name].behaviour} ({ENTRIES[name].deferred})")
    assert deferred & named() == set()
