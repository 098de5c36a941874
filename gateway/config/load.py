"""Reads config and policy files. Every problem is found and reported at once, with file and line."""

import errno
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from gateway.config import models, programs
from gateway.config.findings import examine
from gateway.config.identity import Issuer
from gateway.config.models import Config, Upstream, is_store_url
from gateway.config.positions import key_lines, line_of
from gateway.policy import model as policy_model
from gateway.policy.decide import BUILT_IN, Policy
from gateway.policy.model import PolicyFile, Settings
from gateway.policy.shape import Finding, Path

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")

KeyProblem: TypeAlias = Callable[[str, bytes, Collection[str]], str | None]
"""What is wrong with a key file, from the name of its setting, its content and the algorithms it must serve."""


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
        self.values: Mapping[str, Any] = {}
        self._lines: Mapping[Path, int] = {}
        source = b""
        try:
            source = path.read_bytes()
            self.values = tomllib.loads(source.decode())
            self._lines = key_lines(source)
        except OSError as error:
            self._add(1, "file", f"cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            self._add(source.count(b"\n", 0, error.start) + 1, "file", "is not UTF-8")
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"line (\d+)", str(error))
            self._add(int(found[1]) if found else source.count(b"\n") + 1, "syntax", str(error))
        except (ValueError, RecursionError) as error:
            self._add(1, "file", f"cannot be read: {error}")

    def problem(self, path: Path, message: str) -> None:
        """Notes a problem at a key."""
        key = ".".join(
            part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False) for part in map(str, path)
        )
        self._add(line_of(self._lines, path), key, message)

    def examine(
        self, model: type[BaseModel], values: Mapping[str, Any], base: Path = (), ignore: Iterable[Path] = ()
    ) -> Sequence[Finding]:
        """Notes everything that a model refuses, each at the first of its keys that is written."""
        findings = examine(model, values, ignore)
        for found in findings:
            paths = [(*base, *key) for key in found.keys]
            self.problem(next((path for path in paths if path in self._lines), paths[0]), found.message)
        return findings

    def tables(self, *names: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """The table `[name]`, or each of `[[name]]`, by its dotted name; what is no table is refused elsewhere."""
        value: Any = self.values
        base: Path = names
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        entries = [((*base, index), entry) for index, entry in enumerate(value)] if isinstance(value, list) else []
        yield from ((path, table) for path, table in [(base, value), *entries] if isinstance(table, dict))

    def refuse_repeated(self, name: str, key: str) -> None:
        """Notes each value of a key that an earlier entry of `[[name]]` has too."""
        seen: dict[str, int] = {}
        for base, entry in self.tables(name):
            path, value = (*base, key), entry.get(key)
            if isinstance(value, str):
                if value in seen:
                    self.problem(path, f"is used twice: see line {seen[value]}")
                seen.setdefault(value, line_of(self._lines, path))

    def _add(self, line: int, key: str, message: str) -> None:
        self.problems.append(Problem(self.name, line, key, message))


def load_config(path: FilePath, key_problem: KeyProblem | None = None) -> Loaded | list[Problem]:
    """The configuration with all its policies, or all problems in the order of files and lines.

    Key files are always read; what is in them is for `key_problem`, as keys are known to the edge only.
    """
    file = _File(path)
    if file.problems:
        return file.problems
    file.examine(Config, file.values)
    file.refuse_repeated("upstreams", "name")
    _refuse_unbuilt_config(file)
    _check_references(file, path.parent)
    _check_key_files(file, path.parent, key_problem)
    _check_commands(file, path.parent)
    _check_audit(file, path.parent)
    policies, problems = [], set(file.problems)
    for _, table in file.tables("upstreams"):
        policy = table.get("policy")
        loaded = load_policy(path.parent / policy) if isinstance(policy, str) else built_in_policy()
        if isinstance(loaded, Policy):
            policies.append(loaded)
        else:
            problems.update(loaded)
    if problems:
        return sorted(problems)
    config = Config.model_validate(file.values)
    return Loaded(config, [Site(*pair) for pair in zip(config.upstreams, policies, strict=True)])


def load_policy(path: FilePath) -> Policy | list[Problem]:
    """One policy file, or all its problems."""
    file = _File(path)
    if file.problems:
        return file.problems
    findings = file.examine(PolicyFile, file.values)
    _check_rules(file, {key[1:] for found in findings for key in found.keys if key[0] == "defaults"})
    file.refuse_repeated("tools", "match")
    _refuse_unbuilt_policy(file)
    if file.problems:
        return sorted(set(file.problems))
    policy = Policy(PolicyFile.model_validate(file.values), file.name)
    _check_helpers(file, policy)
    return sorted(set(file.problems)) or policy


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
        try:
            text = (base / rest).read_text(encoding="utf-8").strip()
        except ValueError as error:
            raise OSError(errno.EINVAL, "it is no UTF-8 text") from error
        if not text:
            raise OSError(errno.ENODATA, "it is empty")
        return text
    return reference


def _references(file: _File) -> Iterator[tuple[Path, Any]]:
    for base, table in file.tables("admin"):
        yield (*base, "token"), table.get("token")
    for base, table in file.tables("store"):
        yield (*base, "url"), table.get("url")
    for base, table in file.tables("upstreams"):
        for key in ("headers", "env"):
            values = table.get(key)
            if isinstance(values, dict):
                yield from (((*base, key, name), value) for name, value in values.items())


def _check_references(file: _File, base: FilePath) -> None:
    for path, reference in _references(file):
        if not isinstance(reference, str):
            continue
        try:
            value = resolve(reference, base)
        except LookupError as error:
            file.problem(path, f"environment variable {error.args[0]} is not set or empty")
        except OSError as error:
            file.problem(path, f"cannot be read: {error.strerror}")
        else:
            if path[0] == "store" and value != reference and not is_store_url(value):
                file.problem(path, "what it refers to is no embedded:DIRECTORY, redis://, rediss:// or unix://")
            elif path[0] == "admin" and value != reference and not models.is_token(value):
                file.problem(path, "what it refers to must be visible ASCII characters: a header has to hold it")


def _check_key_files(file: _File, base: FilePath, key_problem: KeyProblem | None) -> None:
    for path, entry in file.tables("auth", "issuers"):
        written = entry.get("algorithms", Issuer.model_fields["algorithms"].default)
        algorithms = [name for name in written if isinstance(name, str)] if isinstance(written, (list, tuple)) else []
        for source in ("public_key_file", "jwks_file"):
            name = entry.get(source)
            if isinstance(name, str) and name:
                wrong = _key_file_problem(source, base / name, algorithms, key_problem)
                if wrong is not None:
                    file.problem((*path, source), wrong)


def _key_file_problem(
    source: str, path: FilePath, algorithms: Collection[str], key_problem: KeyProblem | None
) -> str | None:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return None if key_problem is None else key_problem(source, content, algorithms)


def _check_commands(file: _File, base: FilePath) -> None:
    for path, table in file.tables("upstreams"):
        cwd, command, variables = table.get("cwd"), table.get("command"), table.get("env")
        folder = base / cwd if isinstance(cwd, str) else base
        if not folder.is_dir():
            file.problem((*path, "cwd"), "is no directory")
        elif isinstance(command, list) and command and isinstance(command[0], str) and command[0]:
            search = variables.get("PATH") if isinstance(variables, dict) else None
            wrong = command_problem(command[0], folder, search if isinstance(search, str) else None, base)
            if wrong is not None:
                file.problem((*path, "command"), wrong)


def _check_audit(file: _File, base: FilePath) -> None:
    for path, table in file.tables("audit"):
        name = table.get("file")
        if isinstance(name, str) and name and "\0" not in name:
            target = base / name
            if not target.parent.is_dir():
                file.problem((*path, "file"), "lies in no directory that is there")
            elif target.is_dir():
                file.problem((*path, "file"), "is a directory: name a file in it")


def command_problem(program: str, folder: FilePath, search: str | None, base: FilePath) -> str | None:
    """Why a program cannot be run in a folder, or None. `search` is a PATH of its own, which may be a reference."""
    try:
        return programs.missing(program, folder, {} if search is None else {"PATH": resolve(search, base)})
    except (LookupError, OSError):
        return None  # a reference that leads nowhere is a problem of its own
    except ValueError as error:
        return f"cannot be looked for: {error}"


class _Entry(Settings):
    """All that a `[[tools]]` entry may hold. That `match` is there and right is checked with the file."""

    match: object = None


def _check_rules(file: _File, refused: Collection[Path]) -> None:
    """Each rule with what it inherits. What was refused of the defaults is inherited by none."""
    defaults = dict(next(file.tables("defaults"), ((), {}))[1])
    for base, entry in file.tables("tools"):
        file.examine(_Entry, {**defaults, **entry}, base, {key for key in refused if key and key[0] not in entry})


_HELPERS: Final = (("approval", "preview_tool"), ("reconcile", "tool"))
"""Tools that are called on the side of an operation."""


def _check_helpers(file: _File, policy: Policy) -> None:
    """Whatever is called on the side must change nothing: it is called without being asked for."""
    for base, table in (*file.tables("defaults"), *file.tables("tools")):
        for part, key in _HELPERS:
            name = table.get("operation", {}).get(part, {}).get(key)
            if name is not None and policy.settings(name)[0].effect != "read_only":
                wrong = f'{name} must be declared read_only: [[tools]] match = "{name}", effect = "read_only"'
                file.problem((*base, "operation", part, key), wrong)


_UNBUILT: Final = "has no effect in this release; remove it or set it to its default"


def _refuse_unbuilt_config(file: _File) -> None:
    for section, field in Config.model_fields.items():
        model = Upstream if section == "upstreams" else type(field.default)
        for base, table in file.tables(section):
            for key, value in table.items():
                name = f"{section}.{key}"
                if name in models.NOT_BUILT and value != _plain(model.model_fields[key].default):
                    file.problem((*base, key), _UNBUILT)


def _refuse_unbuilt_policy(file: _File) -> None:
    for key in ("pins", "rollout"):
        if key in file.values:
            file.problem((key,), _UNBUILT)
    for base, table in (*file.tables("defaults"), *file.tables("tools")):
        for key, value in table.items():
            if policy_model.NOT_BUILT_VALUES.get(key) == value:
                file.problem((*base, key), _UNBUILT)
            elif key in policy_model.NOT_BUILT & Settings.model_fields.keys():
                if value != _plain(Settings.model_fields[key].default):
                    file.problem((*base, key), _UNBUILT)
            elif key in policy_model.ONLY_DEFAULTS and base[0] == "tools":
                file.problem((*base, key), "bounds the upstream as a whole: set it in [defaults]")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
