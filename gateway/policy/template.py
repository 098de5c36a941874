"""Templates over the arguments of a call: `publish {arguments.reportId}`. `{{` and `}}` are braces. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[^{}]+|[{}]")
_NAME: Final = re.compile(r"arguments(\.[^.{}\s]+)+")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value of the arguments is put: the names of members, from the outermost on."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A text with places in it."""

    parts: Sequence[str | Place]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError with what is wrong."""
        parts: list[str | Place] = []
        for found in _PART.finditer(text):
            if found[1] is not None:
                if not _NAME.fullmatch(found[1]):
                    message = f"{found[0]} names no argument: write {{arguments.NAME}}, and {{{{ for a brace"
                    raise ValueError(message)
                parts.append(Place(tuple(found[1].split(".")[1:])))
            elif found[0] in ("{", "}"):
                message = "has a brace without its partner: write {{ or }} for a brace"
                raise ValueError(message)
            else:
                parts.append({"{{": "{", "}}": "}"}.get(found[0], found[0]))
        return cls(tuple(parts))

    @property
    def alone(self) -> Place | None:
        """The place, where the template is nothing else."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only if isinstance(only, Place) else None

    def render(self, look: Callable[[Place], str]) -> str:
        """The text, with what `look` gives for each place."""
        return "".join(part if isinstance(part, str) else look(part) for part in self.parts)
