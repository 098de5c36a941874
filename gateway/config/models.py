"""The shape of config.toml, with the names and defaults that docs/configuration.md lists."""

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from gateway.config.identity import Issuer, check_public_url, repeated
from gateway.policy.shape import STRICT, Finding, Many, refuse

_MAX_PORT: Final = 65_535
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_RESERVED: Final = frozenset({"mcp", "artifacts", "healthz"})
_SECRET_HEADER: Final = re.compile(r"authorization|cookie|token|secret|key", re.IGNORECASE)
_SECRET_VARIABLE: Final = re.compile(r"authorization|cookie|token|secret|key|passw|credential", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE: Final = re.compile(r"(env|file):.+")
_TOKEN: Final = re.compile(r"[!-~]+")
_STORE_URL: Final = re.compile(r"embedded:.|rediss?://|unix://")
_PASSWORD: Final = re.compile(r"//[^?#]*:[^?#]*@|[?&]password=", re.IGNORECASE)


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


def is_store_url(value: str) -> bool:
    """Whether a store can be found by it, once references are resolved."""
    return _STORE_URL.match(value) is not None


def is_token(value: str) -> bool:
    """Whether it can be shown in a header: visible ASCII characters."""
    return _TOKEN.fullmatch(value) is not None


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

    model_config = STRICT


class Server(Section):
    """The front door. `listen` is HOST:PORT, durations are seconds."""

    listen: str = "127.0.0.1:8080"
    public_url: str | None = None
    allowed_origins: Many[str] = ()
    workers: int | Literal["auto"] = 1
    max_body_bytes: int = Field(default=4_194_304, ge=1024)
    drain_deadline_s: float = Field(default=60, ge=0)

    _listen = field_validator("listen")(check_listen)
    _public_url = field_validator("public_url")(check_public_url)

    @property
    def origin(self) -> str:
        """What the URLs of endpoints begin with: `public_url`, else the listener's own address."""
        host, port = split_listen(self.listen)
        return self.public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Admin(Section):
    """The listener for health, readiness, metrics and the operator. `token` is a reference, read at each request."""

    listen: str = "127.0.0.1:8081"
    token: str | None = None

    _listen = field_validator("listen")(check_listen)
    _token = field_validator("token")(check_reference)


class Store(Section):
    """Where the records live. `url` is `embedded:DIRECTORY` or a Redis URL, which may be a reference."""

    url: str = "embedded:./data"
    prefix: str = "mtg"
    shards: int = Field(default=1, ge=1)
    sent_durability: Literal["local", "fsync", "replica"] = "local"
    timeout_s: float = Field(default=2, gt=0)

    @field_validator("url")
    @classmethod
    def _known(cls, value: str) -> str:
        if not is_store_url(value) and not _REFERENCE.fullmatch(value):
            message = "must be embedded:DIRECTORY, redis://, rediss://, unix://, or a reference to one"
            raise ValueError(message)
        if _PASSWORD.search(value):
            message = "holds a password: give the whole URL as env:NAME or file:PATH"
            raise ValueError(message)
        return value

    @field_validator("prefix")
    @classmethod
    def _short(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", value):
            message = 'must be 1 to 32 letters, digits, "_" and "-"'
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
    issuers: Many[Issuer] = ()

    @model_validator(mode="after")
    def _unique(self) -> "Auth":
        refuse(repeated(self.issuers))
        return self


class Secrets(Section):
    """Secrets shared by replicas."""

    keys: Many[Mapping[str, str]] = ()
    encrypt_at_rest: bool = False


class Audit(Section):
    """Where the ledger is exported to: `file` is a path, relative to the config file; empty for nowhere."""

    file: str = ""

    @field_validator("file")
    @classmethod
    def _a_path(cls, value: str) -> str:
        if "\0" in value:
            message = "must hold no NUL"
            raise ValueError(message)
        return value


_OF_HTTP: Final = frozenset({"url", "headers", "connect_timeout_s"})
_OF_STDIO: Final = frozenset({"command", "cwd", "env"})
_NEEDED: Final = frozenset({"url", "command"})


class Upstream(Section):
    """One server behind the gateway, at a URL or run by a command.

    `policy` and `cwd` are paths relative to the config file, which is where a command runs that names no `cwd`.
    """

    name: str
    transport: Literal["streamable-http", "sse", "stdio", "auto"] = "streamable-http"
    era: Literal["auto", "legacy", "modern"] = "auto"
    url: str | None = Field(default=None, validate_default=True)
    headers: Mapping[str, str] = Field(default_factory=dict)
    command: Many[str] = Field(default=(), validate_default=True)
    cwd: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    session_scope: Literal["principal", "tenant", "shared"] = "principal"
    max_sessions: int = Field(default=100, ge=1)
    session_idle_s: float = Field(default=600, gt=0)
    connect_timeout_s: float = Field(default=5, gt=0)
    allowed_hosts: Many[str] = ()
    policy: str | None = None

    @field_validator("name")
    @classmethod
    def _named(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or value in _RESERVED:
            message = f"must match {_NAME.pattern} and be none of {', '.join(sorted(_RESERVED))}"
            raise ValueError(message)
        return value

    @field_validator(*sorted(_OF_HTTP | _OF_STDIO))
    @classmethod
    def _of_its_transport(cls, value: Any, info: ValidationInfo) -> Any:
        """A key of the other transport has no effect, and each transport has one key that it needs."""
        transport, key = info.data.get("transport"), info.field_name or ""
        if transport is None:
            return value
        mine = _OF_STDIO if transport == "stdio" else _OF_HTTP
        unset = value == cls.model_fields[key].get_default(call_default_factory=True)
        if key in mine & _NEEDED and unset:
            refuse([Finding(((),), "is missing")])
        if key not in mine and not unset:
            refuse([Finding(((),), f'has no effect with transport = "{transport}"')])
        return value

    @field_validator("era")
    @classmethod
    def _of_a_transport_that_has_it(cls, value: str, info: ValidationInfo) -> str:
        """HTTP+SSE is older than the modern era."""
        if value == "modern" and info.data.get("transport") == "sse":
            refuse([Finding(((),), 'no server speaks it with transport = "sse"')])
        return value

    @field_validator("url")
    @classmethod
    def _reachable(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not re.match(r"https?://[^/\s]", value):
            message = "must begin with http://HOST or https://HOST"
            raise ValueError(message)
        if re.match(r"https?://[^/?#]*@", value):
            message = "holds a user or a password: give them in headers, as env:NAME or file:PATH"
            raise ValueError(message)
        return value

    @field_validator("command")
    @classmethod
    def _runnable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not value[0]:
            message = "must begin with the name of a program"
            raise ValueError(message)
        if any("\0" in word for word in value):
            message = "must hold no NUL"
            raise ValueError(message)
        return value

    @field_validator("env", mode="before")
    @classmethod
    def _variables(cls, value: object) -> object:
        if isinstance(value, Mapping):
            refuse(_refused_variables(value))
        return value

    @field_validator("headers", mode="before")
    @classmethod
    def _secrets_by_reference(cls, value: object) -> object:
        if isinstance(value, Mapping):
            refuse(_refused_headers(value))
        return value


def _refused_headers(headers: Mapping[str, object]) -> Iterator[Finding]:
    for name, content in headers.items():
        if not isinstance(content, str):
            yield Finding(((name,),), "must be a valid string")
        elif _SECRET_HEADER.search(name) and not _REFERENCE.fullmatch(content):
            yield Finding(((name,),), "looks like a secret: give it as env:NAME or file:PATH")


def _refused_variables(variables: Mapping[str, object]) -> Iterator[Finding]:
    for name, content in variables.items():
        if not isinstance(content, str):
            yield Finding(((name,),), "must be a valid string")
        elif not _VARIABLE.fullmatch(name):
            yield Finding(((name,),), "is no name of a variable")
        elif _SECRET_VARIABLE.search(name) and not _REFERENCE.fullmatch(content):
            yield Finding(((name,),), "looks like a secret: give it as env:NAME or file:PATH")
        elif "\0" in content:
            yield Finding(((name,),), "must hold no NUL")


class Config(Section):
    """config.toml as written. That names of upstreams are unique is for the loader to see, which knows their lines."""

    server: Server = Server()
    admin: Admin = Admin()
    store: Store = Store()
    secrets: Secrets = Secrets()
    runner: Runner = Runner()
    sessions: Sessions = Sessions()
    auth: Auth = Auth()
    audit: Audit = Audit()
    upstreams: Many[Upstream] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        refuse(_contradictions(self))
        return self


def _contradictions(config: Config) -> Iterator[Finding]:
    if not config.upstreams:
        yield Finding((("upstreams",),), "must have at least one entry: [[upstreams]]")
    if config.auth.mode == "none" and not is_loopback(config.server.listen):
        message = 'must be a loopback address, such as 127.0.0.1:8080, while auth.mode is "none"'
        yield Finding((("server", "listen"), ("auth", "mode")), message)
    yield from _identities(config)
    if config.store.sent_durability == "replica" and config.store.url.startswith("embedded:"):
        message = 'must be "local" or "fsync" with an embedded store, which has no replica'
        yield Finding((("store", "sent_durability"), ("store", "url")), message)
    if config.admin.token is None and not is_loopback(config.admin.listen):
        message = "must be a loopback address, such as 127.0.0.1:8081, while there is no admin.token"
        yield Finding((("admin", "listen"), ("admin", "token")), message)


def _identities(config: Config) -> Iterator[Finding]:
    server, auth = config.server, config.auth
    if auth.mode == "none":
        if auth.issuers:
            yield Finding((("auth", "issuers"), ("auth", "mode")), 'has no effect while auth.mode is "none"')
        return
    if not auth.issuers:
        message = 'must have at least one entry while auth.mode is "jwt": [[auth.issuers]]'
        yield Finding((("auth", "issuers"), ("auth", "mode")), message)
    fixed = is_loopback(server.listen) and split_listen(server.listen)[1] != 0
    if server.public_url is None and not fixed:
        message = "needs server.public_url beside it: tokens are made for the address that clients use"
        yield Finding((("server", "public_url"), ("server", "listen")), message)


NOT_BUILT: Final = frozenset(
    {
        "server.workers",
        "store.shards",
        "secrets.keys",
        "secrets.encrypt_at_rest",
        "sessions.max_per_principal",
        "upstreams.session_scope",
        "upstreams.allowed_hosts",
    }
)
"""Keys without effect in this release: accepted at their default, refused at any other value."""
