"""What is refused before anything is believed: bytes that are no text, nesting too deep, numbers too long.

The decoders recurse on nesting and convert numbers at a cost that grows with the square of their length, so both are
bounded on the bytes, before any decoder sees them. Lone surrogates are the decoder's own refusal.
"""

import re
from typing import Final

MAX_DEPTH: Final = 64
MAX_NUMBER: Final = 400
"""Characters of one number. 1e400 and 64-bit integers pass, a megabyte of digits does not."""

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of the body where it never ends: each byte is looked at once."""
_LONG_NUMBER: Final = re.compile(rb"[0-9eE+.\-]{%d}" % (MAX_NUMBER + 1))
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_INNERMOST: Final = re.compile(rb"[\[{][^\[\]{}]*[\]}]")
_PAIR: Final = re.compile(rb"\{\}|\[\]")


def violation(body: bytes) -> str | None:
    """Why a body must not be decoded, or None. Costs a few passes in C over the bytes, whatever they hold."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return "the body is not UTF-8"
    deep = body.count(b"{") + body.count(b"[") > MAX_DEPTH
    if not deep and _LONG_NUMBER.search(body) is None:
        return None
    bare = _STRING.sub(b"", body)
    if _too_deep(bare):
        return f"nested deeper than {MAX_DEPTH} levels, or brackets do not match"
    if _LONG_NUMBER.search(bare):
        return f"a number is longer than {MAX_NUMBER} characters"
    return None


def count(body: bytes) -> int:
    """How many members an object has, names that come twice counted twice. The body passed `violation`."""
    bare = _STRING.sub(b"0", body).strip()[1:-1]
    while (flat := _INNERMOST.sub(b"0", bare)) != bare:
        bare = flat
    return bare.count(b",") + 1 if bare.strip() else 0


def _too_deep(bare: bytes) -> bool:
    """Takes away the innermost level of nesting a round."""
    brackets = bare.translate(None, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        fewer = _PAIR.sub(b"", brackets)
        if fewer == brackets:
            break
        brackets = fewer
    return brackets != b""
