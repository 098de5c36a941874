"""`decide()`: may this call be a task, and within which limits. No I/O, no state, no clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from gateway.policy.model import PolicyFile, Settings, ToolRule


class Ask(StrEnum):
    """What a call can mean, once era, revision and declaration are known."""

    TASK_2025 = "task-augmented call of 2025-11-25"
    PLAIN_2025 = "plain call of 2025-11-25"
    EXTENSION = "call that declares the extension"
    WITHOUT_TASKS = "call of a client without Tasks"


class Mode(StrEnum):
    """How a call is served."""

    TASK = "task"
    INLINE = "wait inline_ms, then a task"
    SYNC = "bounded synchronous call"
    PLAIN = "plain call"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer: a mode, the settings that bound it, and the rule that made it. `reason` names a refusal."""

    mode: Mode
    settings: Settings
    rule: str
    reason: str = ""


_MODES: Final[Mapping[tuple[str, Ask], Mode | str]] = {
    ("forbidden", Ask.TASK_2025): "task_forbidden",
    ("forbidden", Ask.PLAIN_2025): Mode.PLAIN,
    ("forbidden", Ask.EXTENSION): Mode.PLAIN,
    ("forbidden", Ask.WITHOUT_TASKS): Mode.PLAIN,
    ("optional", Ask.TASK_2025): Mode.TASK,
    ("optional", Ask.PLAIN_2025): Mode.SYNC,
    ("optional", Ask.EXTENSION): Mode.INLINE,
    ("optional", Ask.WITHOUT_TASKS): Mode.SYNC,
    ("required", Ask.TASK_2025): Mode.TASK,
    ("required", Ask.PLAIN_2025): "task_required",
    ("required", Ask.EXTENSION): Mode.INLINE,
    ("required", Ask.WITHOUT_TASKS): "task_required",
}
"""A required task is never turned into a synchronous call; a task-augmented call is never answered plainly."""


class Policy:
    """A policy file made ready: the best rule of each name is found once."""

    def __init__(self, file: PolicyFile, source: str) -> None:
        """`source` is what `Decision.rule` names, a path or a phrase.

        `scopes` are all that some rule asks for, `meta_keys` all names of `_meta` that some rule finds a key under.
        """
        self.source = source
        self.defaults = file.defaults
        self._rules = tuple((rule, overlay(file.defaults, rule)) for rule in _by_precedence(file.tools))
        self._found: dict[str, tuple[Settings, str]] = {}
        every = (self.defaults, *(settings for _, settings in self._rules))
        self.scopes = sorted({scope for settings in every for scope in scopes_of(settings)})
        named = (one.operation.idempotency_key or "" for one in every if one.operation is not None)
        self.meta_keys = sorted({key.removeprefix("meta:") for key in named if key.startswith("meta:")})

    def settings(self, tool: str) -> tuple[Settings, str]:
        """The settings for a tool and the rule they come from: exact name before glob, longer glob before shorter."""
        if tool not in self._found and len(self._found) < _REMEMBERED:
            self._found[tool] = self._find(tool)
        return self._found.get(tool) or self._find(tool)

    def decide(self, tool: str, ask: Ask) -> Decision:
        """How this call is served."""
        settings, rule = self.settings(tool)
        mode = _MODES[settings.task_support, ask]
        if not isinstance(mode, Mode):
            return Decision(Mode.REFUSE, settings, rule, mode)
        if mode is Mode.INLINE and settings.inline_ms == 0:
            mode = Mode.TASK
        return Decision(mode, settings, rule)

    def _find(self, tool: str) -> tuple[Settings, str]:
        for rule, settings in self._rules:
            if rule.match == tool or fnmatchcase(tool, rule.match):
                return settings, f'{self.source}: [[tools]] match = "{rule.match}"'
        return self.defaults, f"{self.source}: [defaults]"


def scopes_of(settings: Settings) -> Sequence[str]:
    """Every scope that these settings ask for."""
    return (*settings.create_scopes, *settings.read_scopes, *settings.cancel_scopes)


_REMEMBERED: Final = 10_000
"""Names of tools come from callers: what is remembered of them is bounded."""


def overlay(defaults: Settings, rule: ToolRule) -> Settings:
    """The defaults with a rule's changes. Raises pydantic.ValidationError where the result makes no sense."""
    return Settings.model_validate({**defaults.model_dump(exclude_unset=True), **rule.changes})


def _by_precedence(rules: Iterable[ToolRule]) -> list[ToolRule]:
    return sorted(rules, key=lambda rule: (_is_glob(rule.match), -len(rule.match)))


def _is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


BUILT_IN: Final = PolicyFile(version=1, defaults=Settings(task_support="optional"))
"""What `serve --upstream` uses without `--policy`."""
