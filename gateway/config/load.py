"""Reads config and policy files. Every problem is found and reported at once, with file and line."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.config import models
from gateway.config.models import Config, Upstream
from gateway.config.positions import Path, key_lines, line_of
from gateway.policy import model as policy_model
from gateway.policy.decide import BUILT_IN, Policy, overlay
from gateway.policy.model import PolicyFile, Settings

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, order=True)
class Problem:
    """Something that keeps the gateway from starting."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        """As compilers write it, so that editors find the line."""
        return f"{self.file}:{self.line}: {self.key}: {self.message}"


@dataclass(frozen=True)
class Site:
    """An upstream with the policy that applies to it."""

    upstream: Upstream
    policy: Policy


@dataclass(frozen=True)
class Loaded:
    """Everything that the operator wrote, valid."""

    config: Config
    sites: Sequence[Site]


class _File:
    """One TOML file: its values, and where its keys stand."""

    def __init__(self, path: FilePath) -> None:
        self.name = str(path)
        self.problems: list[Problem] = []
        self.lines: Mapping[Path, int] = {}
        self.values: dict[str, Any] = {}
        try:
            source = path.read_bytes()
            self.values = tomllib.loads(source.decode())
            self.lines = key_lines(source)
        except OSError as error:
            self._add(1, "file", f"cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            self._add(1, "file", "is not UTF-8")
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"line (\d+)", str(error))
            self._add(int(found[1]) if found else 1, "syntax", str(error))

    def problem(self, path: Path, message: str) -> None:
        """Notes a problem at a key."""
        self._add(line_of(self.lines, path), ".".join(map(str, path)) or "file", message)

    def parse(self, model: type[_M]) -> _M | None:
        """The file as a model, or None after noting why not."""
        if self.problems:
            return None
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            self.note(error, (), model)
            return None

    def note(self, error: ValidationError, base: Path, model: type[BaseModel]) -> None:
        """Notes what a model refused."""
        for item in error.errors(include_input=False, include_url=False):
            path = (*base, *item["loc"])
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                message = "unknown key" + _suggestion(str(item["loc"][-1]), _fields(model, item["loc"][:-1]))
            self.problem(path, message)

    def _add(self, line: int, key: str, message: str) -> None:
        self.problems.append(Problem(self.name, line, key, message))


def load_config(path: FilePath) -> Loaded | list[Problem]:
    """The configuration with all its policies, or all problems in the order of files and lines."""
    file = _File(path)
    config = file.parse(Config)
    if config is None:
        return sorted(file.problems)
    _refuse_unbuilt_config(file, config)
    _check_references(file, config, path.parent)
    sites, problems = [], file.problems
    for upstream in config.upstreams:
        policy = built_in_policy() if upstream.policy is None else load_policy(path.parent / upstream.policy)
        if isinstance(policy, Policy):
            sites.append(Site(upstream, policy))
        else:
            problems += policy
    return sorted(set(problems)) if problems else Loaded(config, sites)


def load_policy(path: FilePath) -> Policy | list[Problem]:
    """One policy file, or all its problems."""
    file = _File(path)
    parsed = file.parse(PolicyFile)
    if parsed is None:
        return sorted(file.problems)
    _refuse_unbuilt_policy(file)
    for index, rule in enumerate(parsed.tools):
        try:
            overlay(parsed.defaults, rule)
        except ValidationError as error:
            file.note(error, ("tools", index), Settings)
    return sorted(file.problems) if file.problems else Policy(parsed, file.name)


def built_in_policy() -> Policy:
    """What applies where the operator names no policy."""
    return Policy(BUILT_IN, "built-in policy")


def resolve(reference: str, base: FilePath) -> str:
    """The value behind `env:NAME` or `file:PATH`; anything else is the value itself. Raises LookupError, OSError.

    Files are read at each call, so that a rotated secret is found.
    """
    kind, _, rest = reference.partition(":")
    if kind == "env":
        value = os.environ.get(rest)
        if not value:
            raise LookupError(rest)
        return value
    if kind == "file":
        return (base / rest).read_text().strip()
    return reference


def _references(config: Config) -> Iterator[tuple[Path, str]]:
    yield ("store", "url"), config.store.url
    for index, upstream in enumerate(config.upstreams):
        for name, value in upstream.headers.items():
            yield ("upstreams", index, "headers", name), value


def _check_references(file: _File, config: Config, base: FilePath) -> None:
    for path, value in _references(config):
        try:
            resolve(value, base)
        except LookupError as error:
            file.problem(path, f"environment variable {error.args[0]} is not set or empty")
        except OSError as error:
            file.problem(path, f"cannot be read: {error.strerror}")


_UNBUILT: Final = "has no effect in this release; remove it or set it to its default"


def _refuse_unbuilt_config(file: _File, config: Config) -> None:
    for section, values in file.values.items():
        entries = values if isinstance(values, list) else [values]
        for index, entry in enumerate(entries):
            base: Path = (section, index) if isinstance(values, list) else (section,)
            owner = getattr(config, section)
            owner = owner[index] if isinstance(values, list) else owner
            for key in entry:
                default = type(owner).model_fields[key].default
                if f"{section}.{key}" in models.NOT_BUILT and getattr(owner, key) != default:
                    file.problem((*base, key), _UNBUILT)


def _refuse_unbuilt_policy(file: _File) -> None:
    for key in ("pins", "rollout"):
        if key in file.values:
            file.problem((key,), _UNBUILT)
    places: list[tuple[Path, Mapping[str, Any]]] = [(("defaults",), file.values.get("defaults", {}))]
    places += [(("tools", index), entry) for index, entry in enumerate(file.values.get("tools", []))]
    for base, entry in places:
        for key, value in entry.items():
            field = Settings.model_fields.get(key)
            only = policy_model.NOT_BUILT_VALUES.get(key)
            differs = field is not None and value != _plain(field.default)
            if (key in policy_model.NOT_BUILT and differs) or (only is not None and value == only):
                file.problem((*base, key), _UNBUILT)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _fields(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part)) if isinstance(part, str) else None
        if field is not None:
            inner = [
                kind for kind in _kinds(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)
            ]
            model = inner[0] if inner else model
    return list(model.model_fields)


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _kinds(argument)


def _suggestion(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
