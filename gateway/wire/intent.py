"""What a requestor can want, whatever the era and dialect in which it said so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gateway.wire.errors import Era, Reject
from gateway.wire.jsonrpc import Members

LEGACY_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions with a handshake, newest first."""
MODERN_VERSIONS: Final = ("2026-07-28",)
"""Revisions in which each request carries everything."""
TASKS_2025: Final = "2025-11-25"
"""The revision whose core has Tasks; also the name of that dialect."""


@dataclass(frozen=True, slots=True)
class Speech:
    """How a request speaks. `session` is None in the modern era and before a handshake.

    `capabilities` is what a modern client can be asked, as JSON text; of a legacy client its session knows. `log_level`
    is from which level on a modern request wants to be told log messages; None means none. `parameters` are the headers
    that repeat arguments of a modern call, by their lower-case names; None where there are no headers.
    """

    era: Era
    version: str | None
    session: str | None = None
    declares_tasks: bool = False
    capabilities: str = "{}"
    log_level: str | None = None
    parameters: Mapping[str, Sequence[str]] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Initialize:
    """The legacy handshake."""

    id: bytes
    version: str
    params: Members


@dataclass(frozen=True, slots=True)
class Discover:
    """The modern question for versions and capabilities."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """Is anybody there (legacy only)."""

    id: bytes


@dataclass(frozen=True, slots=True)
class ListTools:
    """Which tools are there."""

    id: bytes
    params: Members


@dataclass(frozen=True, slots=True)
class TaskAsk:
    """The wish for a task, and for how long it should be kept."""

    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a tool. `task` is what `params.task` says, and counts in 2025-11-25 only.

    `arguments` is the JSON text as written, `{}` where there were none; `params` are all of them, `raw` their text.
    `answers` and `request_state` come with the retry of a modern call that was answered with questions.
    """

    id: bytes
    name: str
    arguments: bytes
    params: Members
    task: TaskAsk | Reject | None = None
    progress_token: bytes | None = None
    answers: Members = field(default_factory=dict)
    request_state: str | None = None
    raw: bytes = field(default=b"{}", compare=False)


@dataclass(frozen=True, slots=True)
class GetTask:
    """How is my task."""

    id: bytes
    task_id: str


@dataclass(frozen=True, slots=True)
class GetResult:
    """Wait for the result of my task (2025-11-25 only)."""

    id: bytes
    task_id: str


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Stop my task."""

    id: bytes
    task_id: str


@dataclass(frozen=True, slots=True)
class UpdateTask:
    """Here are answers to what my task asked (extension only)."""

    id: bytes
    task_id: str
    answers: Members = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forward:
    """A request that is the upstream's to answer. `raw` is the JSON text of its parameters."""

    id: bytes
    method: str
    params: Members
    progress_token: bytes | None = None
    raw: bytes = field(default=b"{}", compare=False)


@dataclass(frozen=True, slots=True)
class Note:
    """A notification: accepted, and nothing comes back."""

    method: str
    params: Members = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListTasks:
    """Which tasks are mine (2025-11-25 only). An empty cursor is a cursor; None is the first page."""

    id: bytes
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Listen:
    """Tell me when these things change (modern only). `task_ids` is None where no tasks were asked for.

    `lists` are the notifications of changed lists that are wanted, `resources` the URIs.
    """

    id: bytes
    task_ids: tuple[str, ...] | None
    lists: frozenset[str] = frozenset()
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """An answer to a request of ours (legacy only). `id` is the id that we gave it."""

    id: str
    ok: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Several messages in one (2025-03-26 only), each as written."""

    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Something that is refused once it is known that the session exists."""

    id: bytes
    reject: Reject


Intent: TypeAlias = (
    Initialize
    | Discover
    | Ping
    | ListTools
    | CallTool
    | GetTask
    | GetResult
    | CancelTask
    | UpdateTask
    | ListTasks
    | Listen
    | ClientAnswer
    | Forward
    | Batch
    | Note
    | Refuse
)


def era_of(version: str) -> Era:
    """The era of a revision."""
    return Era.MODERN if version in MODERN_VERSIONS else Era.LEGACY


def id_of(intent: Intent) -> bytes | None:
    """The id under which an intent is answered; None for what gets no answer."""
    return None if isinstance(intent, (Note, ClientAnswer, Batch)) else intent.id


@dataclass(frozen=True, slots=True)
class Inbound:
    """A request that passed every check which needs no record."""

    speech: Speech
    intent: Intent
