"""The shape of a policy file, with the names and defaults that docs/configuration.md lists.

Every duration carries its unit in the name. Unknown keys are errors. A key whose feature this release does not have
is listed in `NOT_BUILT`: it is accepted at its default and refused at any other value, so that no policy promises
what nobody enforces.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.policy.operation import OperationRule
from gateway.policy.shape import STRICT, Finding, Many, refuse

TaskSupport: TypeAlias = Literal["forbidden", "optional", "required"]
EffectName: TypeAlias = Literal["read_only", "idempotent", "consequential"]
OnLost: TypeAlias = Literal["retry", "reconcile", "unknown"]
Scope: TypeAlias = Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")]
"""RFC 6749, 3.3: what can stand between quotes in a header, and between spaces in a token."""


class Settings(BaseModel):
    """What `[defaults]` sets for every tool of an upstream and a `[[tools]]` entry may override."""

    model_config = STRICT

    task_support: TaskSupport = "forbidden"
    advertise_2025: bool = True
    effect: EffectName = "consequential"
    ttl_min_s: int = Field(default=60, ge=1)
    ttl_default_s: int = Field(default=3600, ge=1)
    ttl_max_s: int = Field(default=86_400, ge=1)
    keep_result_s: int = Field(default=600, ge=0)
    deadline_s: int = Field(default=900, ge=1)
    inline_ms: int = Field(default=1000, ge=0, le=50_000)
    poll_interval_ms: Annotated[int, Field(ge=1)] | Literal["adaptive"] = 2000
    observe_min_ms: int = Field(default=500, ge=1)
    observe_max_ms: int = Field(default=10_000, ge=1)
    observe_budget_s: int = Field(default=300, ge=1)
    poll_burst: int = Field(default=3, ge=1)
    on_fast_poll: Literal["delay", "reject"] = "delay"
    poll_abuse: int = Field(default=100, ge=1)
    status_per_min: int = Field(default=600, ge=1)
    create_per_min: int = Field(default=60, ge=1)
    result_per_min: int = Field(default=300, ge=1)
    result_bytes_per_min: int = Field(default=268_435_456, ge=1)
    reconcile_per_min: int = Field(default=30, ge=1)
    failed_lookups_per_min: int = Field(default=30, ge=1)
    max_concurrent_per_principal: int = Field(default=10, ge=1)
    max_concurrent_per_tenant: int = Field(default=100, ge=1)
    max_concurrent_upstream: int = Field(default=50, ge=1)
    max_arguments_bytes: int = Field(default=262_144, ge=2)
    max_inline_result_bytes: int = Field(default=262_144, ge=2)
    max_result_bytes: int = Field(default=67_108_864, ge=2)
    on_lost: OnLost = "unknown"
    resend_on_session_404: bool = True
    input_phase: Literal["during", "before"] = "during"
    assume_elicitation: bool = False
    input_timeout_s: int = Field(default=600, ge=1)
    fallback: Literal["sync", "status_tools", "handoff", "refuse"] = "sync"
    sync_timeout_s: int = Field(default=50, ge=1)
    on_switch: Literal["refuse", "sync"] = "refuse"
    create_scopes: Many[Scope] = ()
    read_scopes: Many[Scope] = ()
    cancel_scopes: Many[Scope] = ()
    ledger_retention_days: int = Field(default=90, ge=1)
    redact: Many[str] = ()
    arguments_schema: str = "upstream"
    authorize: Many[Mapping[str, str]] = ()
    order: Many[Annotated[tuple[str, str], Field(strict=False)]] = ()
    max_range_days: int | None = None
    sensitive_fields: Many[str] = ()
    operation: OperationRule | None = None
    job: Mapping[str, object] | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        refuse(_contradictions(self))
        return self


def _contradictions(settings: Settings) -> Iterator[Finding]:
    if not settings.ttl_min_s <= settings.ttl_default_s <= settings.ttl_max_s:
        message = "ttl_min_s, ttl_default_s and ttl_max_s must be in this order"
        yield Finding((("ttl_default_s",), ("ttl_min_s",), ("ttl_max_s",)), message)
    if settings.observe_min_ms > settings.observe_max_ms:
        message = "observe_min_ms must not be larger than observe_max_ms"
        yield Finding((("observe_min_ms",), ("observe_max_ms",)), message)
    if settings.deadline_s + settings.keep_result_s > settings.ttl_max_s:
        message = "deadline_s plus keep_result_s must fit into ttl_max_s, or results would expire unseen"
        yield Finding((("deadline_s",), ("keep_result_s",), ("ttl_max_s",)), message)
    if settings.on_lost == "retry" and settings.effect == "consequential":
        message = 'on_lost = "retry" would repeat a consequential effect: declare the effect read_only or idempotent'
        yield Finding((("on_lost",), ("effect",)), message)
    if settings.operation is not None and settings.effect == "read_only":
        message = 'has no effect on a tool that changes nothing: effect is "read_only"'
        yield Finding((("operation",), ("effect",)), message)
    approval = None if settings.operation is None else settings.operation.approval
    asked = approval is not None and "timeout_s" in approval.model_fields_set
    if approval is not None and asked and approval.timeout_s > settings.deadline_s:
        message = f"is longer than deadline_s, {settings.deadline_s}: the call would end before its answer"
        yield Finding((("operation", "approval", "timeout_s"), ("operation",), ("deadline_s",)), message)
    if settings.on_lost == "reconcile" and (settings.operation is None or settings.operation.reconcile is None):
        message = "needs [tools.operation] with reconcile: nobody could be asked"
        yield Finding((("on_lost",), ("operation", "reconcile"), ("operation",)), message)


NOT_BUILT: Final = frozenset(
    {
        "poll_burst",
        "on_fast_poll",
        "poll_abuse",
        "status_per_min",
        "create_per_min",
        "result_per_min",
        "result_bytes_per_min",
        "reconcile_per_min",
        "failed_lookups_per_min",
        "max_inline_result_bytes",
        "fallback",
        "redact",
        "arguments_schema",
        "authorize",
        "order",
        "max_range_days",
        "sensitive_fields",
        "job",
        "pins",
        "rollout",
    }
)
"""Keys without effect in this release. `poll_interval_ms` lacks one value: see `NOT_BUILT_VALUES`."""

NOT_BUILT_VALUES: Final[Mapping[str, str]] = {"poll_interval_ms": "adaptive"}


ONLY_DEFAULTS: Final = frozenset({"max_concurrent_upstream"})
"""Keys that bound an upstream as a whole: a `[[tools]]` entry cannot change them."""


class ToolRule(BaseModel):
    """One `[[tools]]` entry: a name or a glob, and what differs from the defaults."""

    model_config = ConfigDict({**STRICT, "extra": "allow"})

    match: str = Field(min_length=1)

    @property
    def changes(self) -> Mapping[str, object]:
        """The settings that this entry overrides."""
        return self.model_extra or {}


class PolicyFile(BaseModel):
    """A policy file as written."""

    model_config = STRICT

    version: Literal[1]
    owners: Many[str] = ()
    pins: Mapping[str, object] | None = None
    defaults: Settings = Settings()
    tools: Many[ToolRule] = ()
    rollout: Mapping[str, object] | None = None
