"""Who calls: nobody in particular, or whoever a signed token names.

A token is believed when all of this holds, and refused at the first that does not:

1. exactly one Authorization header, scheme Bearer, three parts, not larger than a limit
2. its `iss` is exactly that of a configured issuer; nothing in its header but `kid` leads to a key
3. its `alg` is on the list of that issuer, and one of the issuer's own keys for that algorithm made the signature
4. it is meant for this endpoint (`aud`) and for now (`exp`, `nbf`)
5. subject and tenant are there, as text
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import jwt
import msgspec
from cachetools import TTLCache

from gateway.config.identity import Issuer
from gateway.core.model import Principal
from gateway.edge.keys import Key, Keys, keys_of
from gateway.telemetry import Telemetry
from gateway.wire.errors import Reject

MOST_TOKEN_BYTES: Final = 16_384
_REMEMBERED: Final = 10_000
_REMEMBER_S: Final = 60
_TYPES: Final = frozenset({"jwt", "application/jwt", "at+jwt", "application/at+jwt"})
"""RFC 8725, 3.11: what was signed for another purpose, such as a logout or a proof, says so and is no access token."""
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_LATEST_S: Final = 253_402_300_799  # the year 9999
_JWS: Final = jwt.PyJWS()

Claims: TypeAlias = Mapping[str, object]


class Authenticator(Protocol):
    """Tells who sent a request, from nothing but its Authorization headers."""

    tells_apart: bool
    """Whether callers are told apart: only then may tasks be listed (T25-CAP-2)."""

    @property
    def ready(self) -> bool:
        """Whether callers can be told apart by now."""

    async def identify(self, authorization: Sequence[str], resource: str) -> Principal | Reject:
        """The principal, or `unauthenticated`. `resource` is the URL of the endpoint: the audience of its tokens."""


ANONYMOUS: Final = Principal("none", "anonymous", "local")


class NoAuthentication:
    """`auth.mode = "none"`: everybody is the same principal."""

    tells_apart = False
    ready = True

    async def identify(self, authorization: Sequence[str], resource: str) -> Principal | Reject:
        """Always the same."""
        del authorization, resource
        return ANONYMOUS


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a token is not believed. `cause` is a label of metrics; neither holds anything of the token."""

    cause: str
    message: str

    def reject(self) -> Reject:
        """The refusal; `error` is the word of RFC 6750 and is absent where no token was sent."""
        return Reject("unauthenticated", self.message, {} if self.cause == "absent" else {"error": "invalid_token"})


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was taken apart and not verified."""

    text: str
    header: Mapping[str, Any]
    claims: Claims

    @property
    def kid(self) -> str | None:
        """The name of the key that made it, as it says."""
        kid: str | None = self.header.get("kid")
        return kid


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    keys: Keys
    generation: int
    ends_s: float


class TokenAuthentication:
    """`auth.mode = "jwt"`: the principal that a signed token names."""

    tells_apart = True

    def __init__(
        self,
        trusted: Iterable[tuple[Issuer, Keys]],
        telemetry: Telemetry,
        clock: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        """`clock` gives seconds since the epoch, `timer` seconds that only grow."""
        self._trusted = {rules.issuer: (rules, keys) for rules, keys in trusted}
        self._telemetry = telemetry
        self._clock = clock
        self._verified: TTLCache[bytes, _Verified, float] = TTLCache(_REMEMBERED, _REMEMBER_S, timer)

    @property
    def ready(self) -> bool:
        """Whether the keys of every issuer were there once."""
        return all(keys.ready for _, keys in self._trusted.values())

    async def start(self) -> None:
        """Looks for the keys of all issuers at once. One that cannot be reached keeps nothing from starting."""
        await asyncio.gather(*(keys.start() for _, keys in self._trusted.values()))

    async def close(self) -> None:
        """Ends the looking for keys."""
        await asyncio.gather(*(keys.close() for _, keys in self._trusted.values()))

    async def identify(self, authorization: Sequence[str], resource: str) -> Principal | Reject:
        """The principal of the one token there is."""
        text = bearer(authorization)
        found = text if isinstance(text, Fault) else await self._principal(text, resource)
        if isinstance(found, Principal):
            return found
        self._telemetry.token_refused(found.cause)
        return found.reject()

    async def _principal(self, text: str, resource: str) -> Principal | Fault:
        return self._remembered(text, resource) or await self._verify(text, resource)

    def _remembered(self, text: str, resource: str) -> Principal | None:
        """Of a token that was verified less than a minute ago, by keys that are still in force, and has not ended."""
        known = self._verified.get(_digest(text, resource))
        if known is None or known.generation != known.keys.generation or known.ends_s <= self._clock():
            return None
        return known.principal

    async def _verify(self, text: str, resource: str) -> Principal | Fault:
        token = take_apart(text)
        if isinstance(token, Fault):
            return token
        issuer = token.claims.get("iss")
        rules, keys = self._trusted.get(issuer, (None, None)) if isinstance(issuer, str) else (None, None)
        if rules is None or keys is None:
            return Fault("issuer", "The token is of an issuer that is not trusted here")
        fault = header_fault(token.header, rules.algorithms)
        if fault is not None:
            return fault
        generation = await _signed(token, keys)
        if isinstance(generation, Fault):
            return generation
        now = self._clock()
        principal = claims_fault(token.claims, rules, resource, now) or principal_of(token.claims, rules)
        ends_s = _seconds(token.claims.get("exp")) or 0
        if isinstance(principal, Principal) and ends_s > now:
            self._verified[_digest(text, resource)] = _Verified(principal, keys, generation, ends_s)
        return principal


def bearer(authorization: Sequence[str]) -> str | Fault:
    """The token of the one Authorization header there may be."""
    if not authorization:
        return Fault("absent", "Authentication is needed: send a bearer token")
    if len(authorization) > 1:
        return Fault("malformed", "Send one Authorization header")
    scheme, _, text = authorization[0].partition(" ")
    if scheme.lower() != "bearer":
        return Fault("absent", "Authentication is needed: send a bearer token")
    if len(text) > MOST_TOKEN_BYTES:
        return Fault("size", f"The token is larger than {MOST_TOKEN_BYTES} bytes")
    text = text.strip(" ")
    return text if _COMPACT.fullmatch(text) else Fault("malformed", "The token is not a signed JWT")


def take_apart(text: str) -> Token | Fault:
    """What the token says. Nothing of it is believed yet."""
    try:
        whole = _JWS.decode_complete(text, options={"verify_signature": False})
        claims = msgspec.json.decode(whole["payload"])
    except (jwt.PyJWTError, msgspec.DecodeError, UnicodeError, RecursionError):
        return Fault("malformed", "The token is not a signed JWT")
    if not isinstance(claims, dict):
        return Fault("malformed", "The token is not a signed JWT")
    return Token(text, whole["header"], claims)


def header_fault(header: Mapping[str, Any], algorithms: Collection[str]) -> Fault | None:
    """What keeps a token from being verified. Keys and addresses of keys in a header are not looked at at all."""
    algorithm, kind = header.get("alg"), header.get("typ")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        return Fault("algorithm", "The token is signed by an algorithm that is not allowed")
    if "crit" in header:
        return Fault("malformed", "The token has an extension that is not understood")
    if kind is not None and (not isinstance(kind, str) or kind.lower() not in _TYPES):
        return Fault("malformed", "The token is not an access token")
    return None


async def _signed(token: Token, keys: Keys) -> int | Fault:
    """The generation of the keys of which one made the token. When none did, newer keys are looked for once."""
    algorithm = token.header["alg"]
    generation, candidates = keys.find(token.kid, algorithm)
    if any(_made(token, key, algorithm) for key in candidates):
        return generation
    if await keys.renew():
        generation, candidates = keys.find(token.kid, algorithm)
        if any(_made(token, key, algorithm) for key in candidates):
            return generation
    if candidates:
        return Fault("signature", "The signature of the token is wrong")
    return Fault("key", "The token is signed by a key that is not known")


def _made(token: Token, key: Key, algorithm: str) -> bool:
    """Whether the key made the token. The library checks once more that key and algorithm fit."""
    try:
        _JWS.decode_complete(token.text, key.public, [algorithm], {"enforce_minimum_key_length": True})
    except jwt.PyJWTError:
        return False
    return True


def claims_fault(claims: Claims, rules: Issuer, resource: str, now: float) -> Fault | None:
    """Why a signed token is not for this endpoint and this moment. `now` is seconds since the epoch."""
    wanted = rules.audience or (resource,)
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        return Fault("audience", "The token names no audience")
    if not any(one in wanted for one in named):
        return Fault("audience", "The token is for another audience")
    ends, begins = _seconds(claims.get("exp")), _seconds(claims.get("nbf", 0))
    if ends is None or begins is None:
        return Fault("time", "The token does not say when it ends, or says its times in no usable way")
    if ends + rules.leeway_s <= now:
        return Fault("time", "The token has expired")
    if begins - rules.leeway_s > now:
        return Fault("time", "The token is not valid yet")
    return None


def principal_of(claims: Claims, rules: Issuer) -> Principal | Fault:
    """Whom the token names. Nobody is ever put into a tenant that the token does not name."""
    subject, tenant = _text(claims, rules.subject_claim), _text(claims, rules.tenant_claim)
    if subject is None:
        return Fault("claims", "The token names no subject")
    if tenant is None:
        return Fault("claims", "The token names no tenant")
    ends = _seconds(claims.get("exp")) or 0
    return Principal(rules.issuer, subject, tenant, scopes_of(claims), int(ends * 1000))


def scopes_of(claims: Claims) -> frozenset[str]:
    """What the token allows, from `scope` or else `scp`. What is neither text nor a list of texts allows nothing."""
    written = claims.get("scope", claims.get("scp"))
    words = written.split(" ") if isinstance(written, str) else written
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return frozenset()
    return frozenset(word for word in words if word)


def _text(claims: Claims, name: str) -> str | None:
    """A claim that is text and not blank, by its name or else by the dotted path to it."""
    value: object = claims.get(name)
    if name not in claims:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value.strip() else None


def _seconds(value: object) -> float | None:
    """A NumericDate of RFC 7519 that a clock can reach."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= _LATEST_S else None


def _digest(text: str, resource: str) -> bytes:
    """What is remembered of a token: it cannot be turned back."""
    return hashlib.sha256(f"{len(resource)}:{resource}{text}".encode()).digest()


def token_authentication(
    issuers: Iterable[Issuer],
    base: Path,
    telemetry: Telemetry,
    clock: Callable[[], float],
    timer: Callable[[], float],
) -> TokenAuthentication:
    """As configured. Paths of keys count from `base`; for the clocks see TokenAuthentication."""
    trusted = [(rules, keys_of(rules, base, timer, telemetry)) for rules in issuers]
    return TokenAuthentication(trusted, telemetry, clock, timer)
