"""Text for people, made of what programs wrote: one line, of bounded length, without what could deceive. Pure."""

import re
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and those that change the order in which people read."""


def one_line(text: str, longest: int) -> str:
    """The text with a space for whatever controls how it is shown; at most `longest` characters."""
    return _CONTROL.sub(" ", text)[:longest]
