"""First the changes that must never go unnoticed (`mutations.py`), then small changes of the core of every kind.

Passes when all of the first and at least nine tenths of the others are noticed; survivors are listed with what they
changed.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests import mutations

ROOT = Path(__file__).parent.parent
MUTMUT = Path(sys.executable).parent / "mutmut"
WANTED = 0.9


def main() -> int:
    """Exit status 0 when enough changes are noticed."""
    return mutations.main() or everything()


def everything() -> int:
    """All small changes of the core."""
    run = subprocess.run([MUTMUT, "run"], cwd=ROOT, capture_output=True, text=True, check=False)
    counts = re.findall(r"(\d+)/(\d+)\s+\S+\s+(\d+)", run.stdout)
    if not counts:
        print(run.stdout[-2000:], run.stderr[-2000:])
        return 1
    _, total, killed = (int(number) for number in counts[-1])
    listed = subprocess.run([MUTMUT, "results"], cwd=ROOT, capture_output=True, text=True, check=False)
    for name in re.findall(r"(\S+): (?!killed)\w+", listed.stdout):
        shown = subprocess.run([MUTMUT, "show", name], cwd=ROOT, capture_output=True, text=True, check=False)
        changed = [line for line in shown.stdout.splitlines() if re.match(r"[-+][^-+]", line)]
        print(name, *changed, sep="\n    ")
    print(f"{killed} of {total} changes of the core were noticed ({killed / total:.1%})")
    return 0 if killed >= WANTED * total else 1


if __name__ == "__main__":
    sys.exit(main())
