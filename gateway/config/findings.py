"""What a model refuses, all of it and in an operator's words."""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.policy.shape import FINDINGS, Finding, Path

_WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "tuple_type": "must be an array",
    "dict_type": "must be a table",
    "model_type": "must be a table",
}


def examine(model: type[BaseModel], values: Mapping[str, Any], ignore: Iterable[Path] = ()) -> list[Finding]:
    """Everything that the model refuses, except what is about keys to be ignored.

    A model looks for contradictions between keys only once each of them is right. So it is asked again without those
    that it refused, until nothing new is found.
    """
    findings: list[Finding] = []
    refused = set(ignore)
    while fresh := [found for found in _refusals(model, _without(values, refused)) if not _touches(found, refused)]:
        findings += fresh
        refused |= {key for found in fresh for key in found.keys}
    return findings


def _refusals(model: type[BaseModel], values: Mapping[str, Any]) -> Sequence[Finding]:
    try:
        model.model_validate(values)
    except ValidationError as error:
        items = error.errors(include_input=False, include_url=False)
        return _merged(found for item in items for found in _translated(item, model, values))
    return ()


def _translated(item: ErrorDetails, model: type[BaseModel], values: Mapping[str, Any]) -> Iterator[Finding]:
    kind, loc = item["type"], item["loc"]
    if kind == FINDINGS:
        for found in item["ctx"][FINDINGS]:
            yield Finding(tuple((*loc, *key) for key in found.keys), found.message)
    elif kind == "extra_forbidden":
        yield Finding((loc,), "unknown key" + _suggestion(str(loc[-1]), _fields(model, loc[:-1])))
    else:
        message = re.sub(r"^(Input|String) should", "must", item["msg"].removeprefix("Value error, "))
        yield Finding((loc if kind == "missing" else _written(values, loc),), _WORDS.get(kind, message))


def _merged(findings: Iterable[Finding]) -> Sequence[Finding]:
    """One finding where a key may be one of several things and is none of them."""
    merged: dict[tuple[Path, ...], str] = {}
    for found in findings:
        merged[found.keys] = f"{merged[found.keys]}, or {found.message}" if found.keys in merged else found.message
    return [Finding(keys, message) for keys, message in merged.items()]


def _written(values: Any, loc: Path) -> Path:
    """A location without what is no key: the name of the alternative that was tried."""
    for depth, part in enumerate(loc):
        try:
            values = values[part]
        except (LookupError, TypeError):
            return loc[:depth]
    return loc


def _without(values: Mapping[str, Any], refused: Collection[Path]) -> Mapping[str, Any]:
    """The values without these keys; an array with something to leave out is left out as a whole."""
    kept = {}
    for key, value in values.items():
        below = {path[1:] for path in refused if path[:1] == (key,)}
        if not below:
            kept[key] = value
        elif isinstance(value, Mapping) and () not in below:
            kept[key] = _without(value, below)
    return kept


def _touches(found: Finding, refused: Collection[Path]) -> bool:
    return any(key[: len(path)] == path or path[: len(key)] == key for key in found.keys for path in refused)


def _fields(model: type[BaseModel], loc: Path) -> list[str]:
    for part in loc:
        if isinstance(part, str):
            kinds = [kind for kind in _kinds(model.model_fields[part].annotation) if isinstance(kind, type)]
            (model,) = (kind for kind in kinds if issubclass(kind, BaseModel))
    return list(model.model_fields)


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _kinds(argument)


def _suggestion(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
