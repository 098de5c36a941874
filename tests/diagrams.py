"""Holds the diagrams in ARCHITECTURE.md against the tables; `--write` writes them anew."""

import re
import sys
from pathlib import Path

from gateway.core.diagram import operation_diagram, task_diagram

PAGE = Path(__file__).parent.parent / "ARCHITECTURE.md"


def with_diagrams(page: str) -> str:
    """The page with the diagrams that the tables give."""
    for name, diagram in (("task", task_diagram()), ("operation", operation_diagram())):
        block = f"<!-- {name} -->\n```mermaid\n{diagram}\n```"
        page, count = re.subn(
            rf"<!-- {name} -->\n```mermaid\n.*?```", lambda _, block=block: block, page, flags=re.DOTALL
        )
        assert count == 1, name
    return page


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(with_diagrams(PAGE.read_text()))
