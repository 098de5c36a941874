"""The shape of `[tools.operation]`: the domain side of a tool that changes something."""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, Field, model_validator

from gateway.policy.shape import STRICT, Finding, Many, refuse
from gateway.policy.template import Template

_LONGEST: Final = 1000


def _template(value: str) -> str:
    Template.parse(value)
    return value


def _source(*kinds: str) -> Callable[[str], str]:
    """A validator for `KIND:/pointer`, where KIND is one of these."""

    def check(value: str) -> str:
        kind, _, pointer = value.partition(":")
        if kind not in kinds or not (pointer.startswith("/") or (kind == "meta" and pointer)):
            forms = " or ".join(f"{name}:NAME" if name == "meta" else f"{name}:/POINTER" for name in kinds)
            message = f"must be {forms}"
            raise ValueError(message)
        return value

    return check


def _key(value: str) -> str:
    return value if value == DERIVED else _source("argument", "meta")(value)


DERIVED: Final = "derived"
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=_LONGEST), AfterValidator(_template)]
"""A template."""
OfArgument: TypeAlias = Annotated[str, AfterValidator(_source("argument"))]
OfResult: TypeAlias = Annotated[str, AfterValidator(_source("result"))]


class Approval(BaseModel):
    """What the requestor has to agree to. `preview_tool` is a read-only tool that shows what would be done."""

    model_config = STRICT

    message: Text
    preview_tool: str | None = Field(default=None, min_length=1)
    timeout_s: int = Field(default=600, ge=1)


class Reconcile(BaseModel):
    """Who is asked what became of an operation: a read-only tool of the same upstream.

    It is asked again with growing pauses, for `budget_s` seconds.
    """

    model_config = STRICT

    tool: str = Field(min_length=1)
    arguments: Mapping[str, object] = Field(default_factory=dict)
    outcome: OfResult
    succeeded: Many[str] = ()
    failed: Many[str] = ()
    receipt: OfResult | None = None
    budget_s: int = Field(default=86_400, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> "Reconcile":
        refuse(_contradictions(self))
        return self


def _contradictions(rule: Reconcile) -> Iterator[Finding]:
    if not rule.succeeded and not rule.failed:
        message = "must name at least one word, here or in failed: no answer could tell what became of the work"
        yield Finding((("succeeded",), ("failed",)), message)
    if both := set(rule.succeeded) & set(rule.failed):
        yield Finding((("failed",), ("succeeded",)), f"{', '.join(sorted(both))} cannot mean both")
    for path, text in _texts(("arguments",), rule.arguments):
        try:
            Template.parse(text)
        except ValueError as error:
            yield Finding((path,), str(error))
    for path in _unwritable(("arguments",), rule.arguments):
        yield Finding((path,), "cannot be written in JSON: give it as a text or a finite number")


def _unwritable(path: tuple[str | int, ...], value: object) -> Iterator[tuple[str | int, ...]]:
    """Where values stand that TOML has and JSON has not."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _unwritable((*path, str(name)), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _unwritable((*path, index), item)
    elif not isinstance(value, (str, int, float)) or (isinstance(value, float) and not isfinite(value)):
        yield path


def _texts(path: tuple[str | int, ...], value: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text within a value, and where it stands."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts((*path, str(name)), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _texts((*path, index), item)


class OperationRule(BaseModel):
    """What the ledger keeps of a call, and what has to be there before and after it."""

    model_config = STRICT

    idempotency_key: Annotated[str, AfterValidator(_key)] | None = None
    derived_window_s: int = Field(default=300, ge=1)
    missing_key: Literal["refuse", "accept"] = "refuse"
    object_version: OfArgument | None = None
    intended_effect: Text | None = None
    receipt: OfResult | None = None
    approval: Approval | None = None
    reconcile: Reconcile | None = None
