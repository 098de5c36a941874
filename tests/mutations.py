"""Changes to the code that must never go unnoticed, each with the tests that notice it.

Every change is made to a copy of the tree, in which its tests must then fail. A change whose place cannot be found any
more fails the run, as do tests that fail without any change.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "mutants", "__pycache__")
RECOVERY = "tests/integration/test_recovery.py::TestLostHolder::test_of_work_that_may_have_acted_makes_it_unknown"
SWITCH = "tests/integration/test_switch_race.py"
ALIVE = "return None if task is None or task.terminal else task"
STORE = "tests/contract/test_store.py"


@dataclass(frozen=True)
class Edit:
    """`old` stands in the file once, and `new` takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A change and who must notice it: each of the tests on its own."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "work whose holder was lost is sent again, whatever the policy says",
        (Edit("gateway/core/engine.py", "again = operation.repeatable and live", "again = live"),),
        ("tests/unit/core/test_engine_invariants.py", RECOVERY),
    ),
    Mutation(
        "a task that has ended is written again",
        (Edit("gateway/core/moves.py", ALIVE, "return task"),),
        ("tests/unit/core/test_engine_invariants.py",),
    ),
    Mutation(
        "a task that was cancelled may be done afterwards",
        (
            Edit("gateway/core/moves.py", ALIVE, "return task"),
            Edit("gateway/core/task.py", "_CANCELLED: (None, None, None,", "_CANCELLED: (None, None, _DONE,"),
        ),
        ("tests/unit/core/test_tables.py", "tests/integration/test_races.py"),
    ),
    Mutation(
        "an operation that somebody changed meanwhile is overwritten",
        (Edit("gateway/store/lua/commit.lua", "if operation[1] ~= ARGV[3] then return {now, 'stale'} end", ""),),
        (STORE,),
    ),
    Mutation(
        "a task that somebody changed meanwhile is overwritten",
        (Edit("gateway/store/lua/commit.lua", "if task and task ~= ARGV[2] then return {now, 'stale'} end", ""),),
        (STORE, "tests/integration/test_races.py"),
    ),
    Mutation(
        "a holder writes whose work was taken over",
        (
            Edit(
                "gateway/store/lua/commit.lua",
                "if ours and fence > ours then return {now, 'fenced'} end",
                "",
            ),
        ),
        (STORE,),
    ),
    Mutation(
        "the tenant is left out of the key",
        (
            Edit(
                "gateway/store/keys.py",
                "return digest(owner.issuer, owner.subject, owner.tenant, owner.upstream)",
                "return digest(owner.issuer, owner.subject, owner.upstream)",
            ),
        ),
        ("tests/unit/store/test_keys.py", "tests/integration/test_identity.py"),
    ),
    Mutation(
        "the kill switch is read before the script runs, not in it",
        (
            Edit("gateway/store/lua/create.lua", "if ARGV[22] ~= '1' then", "if false then"),
            Edit(
                "gateway/store/redis.py",
                '        reply = await self.run(\n            "create",',
                '        switch = await self.call("HGET", keys.switches, "all")\n'
                '        if not work.exempt and (switch is None or not switch.startswith(b"0")):\n'
                '            return Creation(Created("switch"), "all")\n'
                '        reply = await self.run(\n            "create",',
            ),
        ),
        (SWITCH,),
    ),
    Mutation(
        "the call leaves before the record says so",
        (
            Edit(
                "gateway/running/performing.py",
                "if not await self._holder.send(running):",
                "if asyncio.ensure_future(self._holder.send(running)) is None:",
            ),
        ),
        ("tests/integration/test_runner.py",),
    ),
    Mutation(
        "what was sent is called lost as soon as a lease has ended",
        (
            Edit(
                "gateway/store/lua/claim.lua",
                "local at = math.max(lapsed, connected, doubtful and since or 0) + grace",
                "local at = lapsed",
            ),
        ),
        (STORE, "tests/integration/test_outage.py"),
    ),
)


def main() -> int:
    """Exit status 0 when each change is noticed by each of its tests."""
    with tempfile.TemporaryDirectory(prefix="mtg-mutations-") as folder:
        tests = sorted({test for mutation in MUTATIONS for test in mutation.tests})
        base = _copied(ROOT, Path(folder) / "unchanged")
        if not _passes(base, *tests):
            print("these tests fail without any change:", *tests, sep="\n    ")
            return 1
        changed = Path(folder) / "changed"
        unnoticed = [found for mutation in MUTATIONS for found in _unnoticed(mutation, _copied(base, changed))]
    print(f"{len(MUTATIONS)} changes, {len(unnoticed)} times unnoticed")
    return 1 if unnoticed else 0


def _unnoticed(mutation: Mutation, tree: Path) -> list[str]:
    """The tests that pass in spite of a change; prints a line."""
    for edit in mutation.edits:
        file = tree / edit.file
        text = file.read_text()
        if text.count(edit.old) != 1:
            print(f"NOT FOUND {mutation.name}: {edit.file} has {text.count(edit.old)} times: {edit.old}")
            return [edit.file]
        file.write_text(text.replace(edit.old, edit.new))
    passed = [test for test in mutation.tests if _passes(tree, test)]
    print(f"{'UNNOTICED' if passed else 'noticed'}  {mutation.name}", *passed, sep="\n    ", flush=True)
    return passed


def _copied(source: Path, tree: Path) -> Path:
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(source, tree, ignore=LEFT_OUT)
    return tree


def _passes(tree: Path, *tests: str) -> bool:
    """Whether all pass, of those that are there. Raises RuntimeError when they cannot be run."""
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=tree, capture_output=True, text=True, check=False
    )
    if run.returncode not in (0, 1):
        raise RuntimeError(run.stdout[-2000:] + run.stderr[-2000:])
    return run.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
