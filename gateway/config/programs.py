"""Whether a command can be run, looked up as the process that is to run it would do it."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def missing(program: str, folder: Path, variables: Mapping[str, str]) -> str | None:
    """Why nothing can be run under this name, or None. It would run in `folder` and get `variables`."""
    if os.sep in program:
        return None if shutil.which(folder / program) else "is no file that can be run"
    search = variables.get("PATH", os.environ.get("PATH"))
    return None if shutil.which(program, path=search) else "names no program on PATH"
