"""Whose tokens are taken: `[[auth.issuers]]`, and how the addresses that tokens depend on are written."""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from gateway.policy.shape import STRICT, Finding, Many, refuse
from gateway.wire.hosts import is_local

Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures with a public key only: with a shared secret the verifier could sign, and `none` is no signature."""

KEY_SOURCES: Final = ("public_key_file", "jwks_file", "jwks_url")

_ORIGIN: Final = re.compile(r"(https?)://([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_MAX_PORT: Final = 65_535


def check_word(value: str) -> str:
    """Something that is compared as it stands, or ValueError."""
    if not value or " " in value or not value.isprintable():
        raise ValueError("must not be empty and must hold no white space")
    return value


Word: TypeAlias = Annotated[str, AfterValidator(check_word)]


def check_public_url(value: str | None) -> str | None:
    """The origin that clients use, in the one form in which they write it too, or ValueError.

    Tokens are made for exactly this text, so there must be only one way to spell it.
    """
    if value is None:
        return None
    found = _ORIGIN.fullmatch(value)
    if found is None or int(found[3] or "1") > _MAX_PORT:
        raise ValueError("must be https://HOST or https://HOST:PORT in lower case, with nothing behind it")
    if found[1] == "http" and not is_local(value):
        raise ValueError("must begin with https://; http:// is for loopback addresses only")
    if found[3] == _DEFAULT_PORTS[found[1]]:
        raise ValueError("must not name the port that its scheme has anyway")
    return value


class Issuer(BaseModel):
    """Whose tokens are taken, and by which keys they are verified. Paths count from the config file."""

    model_config = STRICT

    issuer: Word
    audience: Many[Word] = ()
    public_key_file: str | None = Field(default=None, min_length=1)
    jwks_file: str | None = Field(default=None, min_length=1)
    jwks_url: str | None = None
    algorithms: Many[Algorithm] = ("RS256", "ES256", "EdDSA")
    subject_claim: Word = "sub"
    tenant_claim: Word = "tid"
    leeway_s: float = Field(default=30, ge=0, le=300)

    @field_validator("jwks_url")
    @classmethod
    def _fetched_safely(cls, value: str | None) -> str | None:
        if value is not None:
            _check_jwks_url(value)
        return value

    @model_validator(mode="after")
    def _complete(self) -> "Issuer":
        refuse(_missing(self))
        return self


def _check_jwks_url(value: str) -> None:
    """Whoever can change the keys under way can be anybody: hence no plain HTTP off this machine."""
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or re.search(r"\s", value) or parts.scheme not in ("https", "http"):
        raise ValueError("must begin with https://HOST")
    if parts.username is not None:
        raise ValueError("holds a user or a password: keys of an issuer are public")
    if parts.scheme == "http" and not is_local(value):
        raise ValueError("must begin with https://; http:// is for loopback addresses only")


def _missing(issuer: Issuer) -> Iterator[Finding]:
    if not issuer.algorithms:
        yield Finding((("algorithms",),), "must have at least one entry")
    given = [name for name in KEY_SOURCES if getattr(issuer, name) is not None]
    if len(given) != 1:
        keys = tuple((name,) for name in (*given[1:], *KEY_SOURCES))
        yield Finding(keys, f"exactly one of {', '.join(KEY_SOURCES)} must be given")


def repeated(issuers: tuple[Issuer, ...]) -> Iterator[Finding]:
    """An issuer with two entries would be verified by the rules of one of them, and nobody could say which."""
    seen: set[str] = set()
    for index, entry in enumerate(issuers):
        if entry.issuer in seen:
            yield Finding((("issuers", index, "issuer"),), "is used twice: an issuer has one entry")
        seen.add(entry.issuer)
