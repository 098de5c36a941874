"""What the README tells people to try first."""

import subprocess
import sys


def test_the_demonstration_shows_a_task_in_both_dialects_and_ends(repository):
    shown = subprocess.run(
        [sys.executable, "examples/local.py", "demo"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    modern, legacy = shown.stdout.split("== 2025-11-25")
    assert '"status":"completed"' in modern
    assert "Report for a-1: all is well." in modern
    assert "Report for a-2: all is well." in legacy.split("tasks/result waits")[1]
