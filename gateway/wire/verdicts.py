"""What an authority says of an operation, read from the result of a tool. Pure."""

import re
from collections.abc import Collection
from typing import Final

from gateway.core.model import OutcomeKind
from gateway.wire.jsonrpc import text
from gateway.wire.pointers import find, path_of

_AS_WRITTEN: Final = re.compile(rb"true|false|-?[0-9].*", re.DOTALL)


def word(body: bytes, source: str) -> str | None:
    """The word at `result:/POINTER`: a string, or a number or boolean as it is written. None for anything else."""
    found = find(body, path_of(source.partition(":")[2]))
    if found is None:
        return None
    said = text(found)
    if said is not None:
        return said
    return bytes(found).decode() if _AS_WRITTEN.fullmatch(bytes(found)) else None


def verdict(said: str | None, succeeded: Collection[str], failed: Collection[str]) -> OutcomeKind | None:
    """What a word means; None where it means neither. Words are compared letter by letter."""
    if said in succeeded:
        return OutcomeKind.RESULT
    return OutcomeKind.TOOL_ERROR if said in failed else None
