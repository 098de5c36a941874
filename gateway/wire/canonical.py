"""One digest for arguments that mean the same: neither the order of members nor the spelling of a number counts."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

_NUMBER: Final = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a body says.

    `ambiguous`: an object in it names a member twice, of which one reader takes the first and another the last.
    `digest` is the SHA-256 of a normal form, in hex.
    """

    digest: str
    ambiguous: bool


def meaning(body: bytes) -> Meaning:
    """The body is JSON that passed `limits.violation`. Takes about a microsecond for each value in it."""
    ambiguous = False

    def members(pairs: list[tuple[str, Any]]) -> _Object:
        nonlocal ambiguous
        ambiguous = ambiguous or len({name for name, _ in pairs}) < len(pairs)
        return _Object(pairs)

    value = json.loads(body, parse_int=_Number, parse_float=_Number, object_pairs_hook=members)
    digest = hashlib.sha256(_normal(value).encode("utf-8", "surrogatepass")).hexdigest()
    return Meaning(digest, ambiguous)


class _Number(str):
    """A number as written."""

    __slots__ = ()


class _Object(list):  # type: ignore[type-arg]  # what a decoder gives
    """Members in order, repeated names included."""

    __slots__ = ()


def _normal(value: Any) -> str:
    if isinstance(value, _Number):
        return _number(value)
    if isinstance(value, _Object):
        ordered = sorted(value, key=lambda pair: pair[0])
        return "{" + ",".join(f"{json.dumps(name)}:{_normal(item)}" for name, item in ordered) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_normal, value)) + "]"
    return json.dumps(value)


def _number(text: str) -> str:
    """`1`, `1.0` and `10e-1` are one number, and so are `0` and `-0`. Never a float: no digit is lost."""
    if text.isdigit():
        bare = text.rstrip("0")
        return f"{bare}e{len(text) - len(bare)}" if bare else "0"
    found = _NUMBER.fullmatch(text)
    assert found is not None  # noqa: S101  # the decoder let nothing else through
    sign, whole, fraction, exponent = found[1], found[2], found[3] or "", int(found[4] or 0)
    digits = (whole + fraction).lstrip("0")
    bare = digits.rstrip("0")
    return f"{sign}{bare}e{exponent - len(fraction) + len(digits) - len(bare)}" if bare else "0"
