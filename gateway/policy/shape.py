"""What the models of the operator's files share: strictness, arrays, and refusals that name their keys."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, TypeVar

from pydantic import ConfigDict, Field
from pydantic_core import PydanticCustomError

_T = TypeVar("_T")

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list indexes from the top of a file or a table."""

Many: TypeAlias = Annotated[tuple[_T, ...], Field(strict=False)]
"""An array: strictness is for what stands in it, a tuple is never written in TOML."""

STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)
"""Unknown keys are errors, types are not guessed, values never change and never appear in messages."""

FINDINGS: Final = "findings"
"""The type of the error that carries findings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong about one key, or about several that contradict each other; the first is the one to change."""

    keys: tuple[Path, ...]
    message: str


def refuse(findings: Iterable[Finding]) -> None:
    """For validators: raises all findings as one error, if there are any."""
    found = tuple(findings)
    if found:
        text = "; ".join(f"{'.'.join(map(str, finding.keys[0]))}: {finding.message}" for finding in found)
        raise PydanticCustomError(FINDINGS, "{text}", {"text": text, FINDINGS: found})
