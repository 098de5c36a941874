"""How commands print what a gateway said: tables for people, JSON for programs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side. What is no printable character could steer the terminal, and is shown as `?`."""
    cells = [[clean(cell) for cell in row] for row in [titles, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def facts(values: Mapping[str, Any]) -> str:
    """One line for each value, nested ones by their dotted names."""
    return table(("FIELD", "VALUE"), list(_flat(values)))


def as_json(values: Mapping[str, Any]) -> str:
    """For programs."""
    return json.dumps(values, indent=2)


def age(then_ms: int, now_ms: int) -> str:
    """How long ago, in its largest unit."""
    seconds = max(0, now_ms - then_ms) // 1000
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return "0s"


def clean(text: str) -> str:
    """Without what could steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _flat(values: Mapping[str, Any], base: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{base}{name}.")
        elif isinstance(value, list):
            yield from _flat({str(index): item for index, item in enumerate(value)}, f"{base}{name}.")
        elif value not in (None, ""):
            yield f"{base}{name.removesuffix('_ms')}", _time(value) if _is_time(name, value) else str(value)


def _is_time(name: str, value: object) -> bool:
    return name.endswith("_ms") and isinstance(value, int) and value > _YEAR_2000_MS


def _time(value_ms: int) -> str:
    return datetime.fromtimestamp(value_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_YEAR_2000_MS: Final = 946_684_800_000
"""What is smaller is a duration."""
