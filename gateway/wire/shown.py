"""Text for people, made of what programs wrote: one line, of bounded length, without what could deceive. Pure."""

import re
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and those that change the order in which people read."""


_CUT: Final = "..."


def one_line(text: str, longest: int) -> str:
    """The text with a space for whatever controls how it is shown; at most `longest` characters.

    Whoever reads sees where something is missing: an argument can be as long as its caller likes, and what follows it
    may be what counts.
    """
    bare = _CONTROL.sub(" ", text)
    return bare if len(bare) <= longest else bare[: longest - len(_CUT)] + _CUT
