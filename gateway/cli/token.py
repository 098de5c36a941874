"""`token`: a signed token for development, from a throw-away key of its own."""

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gateway.cli.check import WRONG
from gateway.config.identity import check_word

ISSUER: Final = "http://localhost/dev"
AUDIENCE: Final = "http://127.0.0.1:8080/mcp"
TTL_S: Final = 3600
KEY: Final = Path("dev-key.pem")

_SECTION: Final = """\
# The section of config.toml that accepts this token. For development only: whoever has the key can be anybody.
[auth]
mode = "jwt"
[[auth.issuers]]
issuer = {issuer}
audience = [{audience}]
public_key_file = {file}
algorithms = ["EdDSA"]
"""
_FAILED: Final = 1


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 with the token on standard output, 1 when there is no key to be had, 2 for unusable options."""
    wrong = list(_wrong(arguments))
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return WRONG
    try:
        key, public = open_key(arguments.key)
    except ValueError as error:
        print(error, file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return _FAILED
    print(section(arguments.issuer, arguments.audience, public), file=sys.stderr, end="")
    print(jwt.encode(_claims(arguments, time.time()), key, "EdDSA", {"typ": "at+jwt"}))
    return 0


def _wrong(arguments: argparse.Namespace) -> Iterator[str]:
    """What the gateway would refuse in a token."""
    for name in ("subject", "tenant"):
        if not getattr(arguments, name).strip():
            yield f"--{name}: must not be empty"
    for name in ("issuer", "audience"):
        try:
            check_word(getattr(arguments, name))
        except ValueError as error:
            yield f"--{name}: {error}"
    if arguments.ttl_s < 1:
        yield "--ttl-s: must be at least 1"


def open_key(path: Path) -> tuple[Ed25519PrivateKey, Path]:
    """The key of a file, which is made if it is not there, and the file with its public half. OSError, ValueError."""
    try:
        pem = path.read_bytes()
    except FileNotFoundError:
        pem = _make(path)
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: holds no private key without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path}: holds no Ed25519 key")  # noqa: TRY004  # it is the file that is wrong
    public = path.with_name(f"{path.name.removesuffix('.pem')}.pub.pem")
    half = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    if not public.exists():
        public.write_bytes(half)
    elif public.read_bytes() != half:
        raise ValueError(f"{public}: is not the public half of {path}: remove it, and it is written anew")
    return key, public


def _make(path: Path) -> bytes:
    """Never readable by others, not even for a moment, and never in the place of a file that is there."""
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    return pem


def section(issuer: str, audience: str, public: Path) -> str:
    """The configuration that goes with a token."""
    return _SECTION.format(issuer=_toml(issuer), audience=_toml(audience), file=_toml(str(public.resolve())))


def _toml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _claims(arguments: argparse.Namespace, now: float) -> dict[str, object]:
    claims: dict[str, object] = {
        "iss": arguments.issuer,
        "aud": arguments.audience,
        "sub": arguments.subject,
        "tid": arguments.tenant,
        "iat": int(now),
        "exp": int(now) + arguments.ttl_s,
        "jti": secrets.token_urlsafe(12),
    }
    scopes = [scope for scope in arguments.scopes.split(",") if scope]
    return {**claims, "scope": " ".join(scopes)} if scopes else claims
