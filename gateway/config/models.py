"""The shape of config.toml, with the names and defaults that docs/configuration.md lists."""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_STRICT: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
_MAX_PORT: Final = 65_535
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_RESERVED: Final = frozenset({"mcp", "artifacts", "healthz"})
_SECRET_HEADER: Final = re.compile(r"authorization|cookie|token|secret|key", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"(env|file):.+")


def check_listen(value: str) -> str:
    """HOST:PORT, or ValueError."""
    host, port = split_listen(value)
    if not host or not 0 <= port <= _MAX_PORT:
        message = "must be HOST:PORT"
        raise ValueError(message)
    return value


def check_reference(value: str | None) -> str | None:
    """A reference to a secret, or ValueError: a secret itself never stands in a config file."""
    if value is not None and not _REFERENCE.fullmatch(value):
        message = "must be env:NAME or file:PATH"
        raise ValueError(message)
    return value


def split_listen(value: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; port -1 if there is none."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else -1


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach the address."""
    host, _ = split_listen(listen)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Section(BaseModel):
    """Unknown keys are errors, values never change and never appear in error messages."""

    model_config = _STRICT


class Server(Section):
    """The front door. `listen` is HOST:PORT, durations are seconds."""

    listen: str = "127.0.0.1:8080"
    public_url: str | None = None
    allowed_origins: tuple[str, ...] = ()
    workers: int | Literal["auto"] = 1
    max_body_bytes: int = Field(default=4_194_304, ge=1024)
    drain_deadline_s: float = Field(default=60, ge=0)

    _listen = field_validator("listen")(check_listen)


class Admin(Section):
    """The listener for health, readiness and metrics."""

    listen: str = "127.0.0.1:8081"
    token: str | None = None

    _listen = field_validator("listen")(check_listen)
    _token = field_validator("token")(check_reference)


class Store(Section):
    """Where the records live. `url` is `embedded:DIRECTORY` or a Redis URL, which may be a reference."""

    url: str = "embedded:./data"
    prefix: str = Field(default="mtg", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    shards: int = Field(default=1, ge=1)
    sent_durability: Literal["local", "fsync", "replica"] = "local"
    timeout_s: float = Field(default=2, gt=0)

    @field_validator("url")
    @classmethod
    def _known(cls, value: str) -> str:
        if not re.match(r"(embedded:.|rediss?://|unix://|env:.|file:.)", value):
            message = "must be embedded:DIRECTORY, redis://, rediss://, unix://, or a reference to one"
            raise ValueError(message)
        return value


class Runner(Section):
    """The loop that does the work. A process holds its work by a lease; others wait for the grace beyond it."""

    concurrency: int = Field(default=200, ge=1)
    lease_s: float = Field(default=15, gt=0)
    takeover_grace_s: float = Field(default=30, ge=0)
    cancel_grace_s: float = Field(default=5, ge=0)


class Sessions(Section):
    """Legacy sessions of clients."""

    idle_ttl_s: float = Field(default=3600, gt=0)
    max_per_principal: int = Field(default=50, ge=1)


class Auth(Section):
    """Who calls. `none` serves a loopback listener only."""

    mode: Literal["none", "jwt"] = "none"
    issuers: tuple[Mapping[str, object], ...] = ()


class Secrets(Section):
    """Secrets shared by replicas."""

    keys: tuple[Mapping[str, str], ...] = ()
    encrypt_at_rest: bool = False


class Upstream(Section):
    """One server behind the gateway. `policy` is a path relative to the config file."""

    name: str
    transport: Literal["streamable-http", "sse", "stdio", "auto"] = "streamable-http"
    url: str = Field(pattern=r"^https?://[^/\s]+")
    headers: Mapping[str, str] = Field(default_factory=dict)
    session_scope: Literal["principal", "tenant", "shared"] = "principal"
    max_sessions: int = Field(default=100, ge=1)
    session_idle_s: float = Field(default=600, gt=0)
    connect_timeout_s: float = Field(default=5, gt=0)
    allowed_hosts: tuple[str, ...] = ()
    policy: str | None = None

    @field_validator("name")
    @classmethod
    def _named(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or value in _RESERVED:
            message = f"must match {_NAME.pattern} and be none of {', '.join(sorted(_RESERVED))}"
            raise ValueError(message)
        return value

    @field_validator("headers")
    @classmethod
    def _secrets_by_reference(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, content in value.items():
            if _SECRET_HEADER.search(name) and not _REFERENCE.fullmatch(content):
                message = f"{name} looks like a secret: give it as env:NAME or file:PATH"
                raise ValueError(message)
        return value


class Config(Section):
    """config.toml as written."""

    server: Server = Server()
    admin: Admin = Admin()
    store: Store = Store()
    secrets: Secrets = Secrets()
    runner: Runner = Runner()
    sessions: Sessions = Sessions()
    auth: Auth = Auth()
    upstreams: tuple[Upstream, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        names = [upstream.name for upstream in self.upstreams]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            message = f"upstreams: name used twice: {', '.join(repeated)}"
            raise ValueError(message)
        if self.auth.mode == "none" and not is_loopback(self.server.listen):
            message = 'auth.mode = "none" serves a loopback listener only: set server.listen to 127.0.0.1:PORT'
            raise ValueError(message)
        if self.admin.token is None and not is_loopback(self.admin.listen):
            message = "admin.token is required when admin.listen is not a loopback address"
            raise ValueError(message)
        return self


NOT_BUILT: Final = frozenset(
    {
        "server.public_url",
        "server.workers",
        "admin.token",
        "store.shards",
        "store.sent_durability",
        "secrets.keys",
        "secrets.encrypt_at_rest",
        "sessions.max_per_principal",
        "auth.mode",
        "auth.issuers",
        "upstreams.transport",
        "upstreams.session_scope",
        "upstreams.max_sessions",
        "upstreams.session_idle_s",
        "upstreams.allowed_hosts",
    }
)
"""Keys without effect in this release: accepted at their default, refused at any other value."""
