"""One digest for arguments that mean the same: neither the order of members nor the spelling of a number counts."""

import hashlib
import json
import re
from typing import Any, Final

_NUMBER: Final = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


def digest(body: bytes) -> str:
    """SHA-256 of a normal form, in hex. The body is JSON that passed `limits.violation`."""
    value = json.loads(body, parse_int=_Number, parse_float=_Number, object_pairs_hook=_Object)
    return hashlib.sha256(_normal(value).encode("utf-8", "surrogatepass")).hexdigest()


def names_twice(body: bytes) -> bool:
    """Whether an object in it names a member twice: one reader takes the first of them, another one the last."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) < len(pairs)

    json.loads(body, parse_int=_Number, parse_float=_Number, object_pairs_hook=look)
    return found


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
    found = _NUMBER.fullmatch(text)
    assert found is not None  # noqa: S101  # the decoder let nothing else through
    sign, whole, fraction, exponent = found[1], found[2], found[3] or "", int(found[4] or 0)
    digits = (whole + fraction).lstrip("0")
    bare = digits.rstrip("0")
    return f"{sign}{bare}e{exponent - len(fraction) + len(digits) - len(bare)}" if bare else "0"
