"""The structure that the import contracts and the wall stand for, seen from the sources themselves."""

import ast
from pathlib import Path

import pytest

from tests.requirements import requirement

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "gateway").rglob("*.py"))
PURE = [path for path in SOURCES if path.relative_to(ROOT).parts[1] in ("core", "wire", "policy")]
IMPURE = {"asyncio", "time", "random", "secrets", "os", "socket", "aiohttp", "redis", "mcp", "structlog", "subprocess"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


@requirement("OWN-PURE")
@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_wire_and_policy_do_no_io(path):
    assert set(imported(path)) & IMPURE == set()
    calls = {node.func.id for node in ast.walk(ast.parse(path.read_text())) if is_plain_call(node)}
    assert not calls & {"open", "print", "input"}


def is_plain_call(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_the_wall_and_none_is_without_a_word(path):
    assert len(path.read_text().splitlines()) <= 400
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_architecture_fits_one_page():
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 160
