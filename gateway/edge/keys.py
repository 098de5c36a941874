"""The public keys of one issuer: read from a file or fetched from its URL, renewed, and forgotten when too old.

A set of keys replaces the one before as a whole, so a key that its issuer removed stops working with the next
successful look. A look that fails changes nothing until the keys are an hour old.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import aiohttp
import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gateway.config.identity import Issuer
from gateway.telemetry import Telemetry

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

_MOST_BYTES: Final = 262_144
_MOST_KEYS: Final = 100
_FETCH_S: Final = 5.0
_RSA_BITS: Final = range(2048, 16_385)
"""Shorter ones can be broken; longer ones take so long to use that a few requests would keep a process busy."""

_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_EC: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


@dataclass(frozen=True, slots=True)
class Key:
    """A public key and the algorithms that it may verify. Without `kid` it may have made any token of its issuer."""

    public: PublicKey
    algorithms: frozenset[str]
    kid: str | None = None


def read_keys(setting: str, content: bytes, algorithms: Collection[str]) -> Sequence[Key] | str:
    """The keys that serve one of the algorithms, or what is wrong. `setting` is the key of the configuration."""
    if len(content) > _MOST_BYTES:
        return f"is larger than {_MOST_BYTES} bytes"
    found = _read_pem(content) if setting == "public_key_file" else _read_set(content)
    if isinstance(found, str):
        return found
    fitting = [replace(key, algorithms=key.algorithms.intersection(algorithms)) for key in found]
    usable = [key for key in fitting if key.algorithms]
    return usable or f"holds no key for {', '.join(algorithms) or 'any algorithm'}"


def key_problem(setting: str, content: bytes, algorithms: Collection[str]) -> str | None:
    """For `check`: what is wrong with a key file, if anything."""
    found = read_keys(setting, content, algorithms)
    return found if isinstance(found, str) else None


def _read_pem(content: bytes) -> Sequence[Key] | str:
    if b"PRIVATE KEY" in content:
        return "holds a private key: the gateway needs the public one only"
    try:
        return _as_keys(load_pem_public_key(content), None)
    except (ValueError, UnsupportedAlgorithm):
        return "holds no public key in PEM form"


def _read_set(content: bytes) -> Sequence[Key] | str:
    """RFC 7517. Keys that cannot be used are passed over, as sets hold keys for other purposes too."""
    try:
        written = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return "is no JSON"
    keys = written.get("keys") if isinstance(written, dict) else None
    if not isinstance(keys, list):
        return "is no JSON Web Key Set"
    if len(keys) > _MOST_KEYS:
        return f"holds more than {_MOST_KEYS} keys"
    return [key for entry in keys if isinstance(entry, dict) for key in _read_jwk(entry)]


def _read_jwk(entry: dict[str, Any]) -> Sequence[Key]:
    kid, named, uses = entry.get("kid"), entry.get("alg"), entry.get("key_ops", ["verify"])
    if not isinstance(kid, str | None) or not isinstance(named, str | None):
        return ()
    if entry.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        return ()
    if "d" in entry:  # a private key in a set is everybody's: whoever reads it can sign
        return ()
    kind = {"RSA": "RS256", "OKP": "EdDSA", "EC": _EC.get(str(entry.get("crv")))}.get(str(entry.get("kty")))
    if kind is None:
        return ()
    try:
        found = _as_keys(jwt.PyJWK(entry, kind).key, kid)
    except (jwt.PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        return ()
    return [replace(key, algorithms=key.algorithms & {named}) for key in found] if named is not None else found


def _as_keys(public: object, kid: str | None) -> Sequence[Key]:
    match public:
        case RSAPublicKey() if public.key_size in _RSA_BITS:
            return [Key(public, _RSA, kid)]
        case EllipticCurvePublicKey() if public.curve.name in _CURVES:
            return [Key(public, frozenset({_CURVES[public.curve.name]}), kid)]
        case Ed25519PublicKey() | Ed448PublicKey():
            return [Key(public, frozenset({"EdDSA"}), kid)]
        case _:
            return ()


class SourceFailed(Exception):  # noqa: N818  # says what happened
    """The keys could not be had; the message says why and holds nothing of an answer."""


class Source(Protocol):
    """Where keys come from."""

    async def read(self) -> bytes:
        """The whole content. Raises SourceFailed."""


class KeyFile:
    """A file beside the configuration."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> bytes:
        """Read off the loop, as a file may lie on a slow disk."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise SourceFailed(f"cannot be read: {error.strerror}") from error


class KeyUrl:
    """The URL of the configuration, and no other: redirects are not followed, cookies not kept."""

    def __init__(self, url: str, timeout_s: float = _FETCH_S) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def read(self) -> bytes:
        """One request of bounded time, and no more of the answer than a set of keys may hold."""
        try:
            async with aiohttp.ClientSession(timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
                return await self._fetch(session)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceFailed(f"cannot be fetched: {type(error).__name__}") from error

    async def _fetch(self, session: aiohttp.ClientSession) -> bytes:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with session.get(self._url, headers=headers, allow_redirects=False) as response:
            if response.status != 200:  # noqa: PLR2004  # OK
                raise SourceFailed(f"cannot be fetched: HTTP {response.status}")
            content = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                content += chunk
                if len(content) > _MOST_BYTES:
                    break
            return bytes(content)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between two looks, between two looks that somebody asked for, and until keys are too old."""

    every_s: float
    least_s: float
    keep_s: float = 3600


FILE_PACE: Final = Pace(every_s=5, least_s=1)
URL_PACE: Final = Pace(every_s=300, least_s=10)


class Keys:
    """The keys of one issuer. `generation` counts the sets: what was verified with an earlier one is not believed."""

    def __init__(
        self,
        rules: Issuer,
        setting: str,
        source: Source,
        pace: Pace,
        clock: Callable[[], float],
        telemetry: Telemetry,
    ) -> None:
        """`clock` gives seconds that only grow."""
        self._rules = rules
        self._setting = setting
        self._source = source
        self._pace = pace
        self._clock = clock
        self._telemetry = telemetry
        self._keys: Sequence[Key] = ()
        self._content: bytes | None = None
        self._generation = 0
        self._asked = self._loaded = float("-inf")
        self._failing = False
        self._load: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self.ready = False

    @property
    def generation(self) -> int:
        """Which set of keys is in force."""
        if self._keys and self._clock() - self._loaded > self._pace.keep_s:
            # An issuer that could not be asked for so long may have withdrawn them.
            self._replace((), None)
            self._telemetry.keys_dropped(issuer=self._rules.issuer)
        return self._generation

    def find(self, kid: str | None, algorithm: str) -> tuple[int, Sequence[Key]]:
        """The generation in force, and its keys that may have signed so."""
        generation = self.generation
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        return generation, [key for key in fitting if kid is None or key.kid is None or key.kid == kid]

    async def start(self) -> None:
        """Looks once, and from then on now and then."""
        await self.refresh()
        self._loop = self._background(self._run())

    async def close(self) -> None:
        """Ends the looking."""
        tasks = [task for task in (self._loop, self._load) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self) -> None:
        """Looks now. Whoever asks meanwhile waits for the same look."""
        if self._load is None or self._load.done():
            self._load = self._background(self._look())
        # A client that leaves takes nobody else's look with it.
        await asyncio.wait({self._load})

    async def renew(self) -> bool:
        """Looks because no key made a token that came; too soon after the last look it does not. True: other keys."""
        before = self._generation
        looking = self._load is not None and not self._load.done()
        if not looking and self._clock() - self._asked < self._pace.least_s:
            return False
        await self.refresh()
        return self._generation != before

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pace.least_s if self._failing else self._pace.every_s)
            await self.refresh()

    async def _look(self) -> None:
        self._asked = self._clock()
        try:
            content = await self._source.read()
        except SourceFailed as error:
            return self._failed(str(error))
        if content == self._content:
            return self._succeeded(self._keys, content)
        found = await asyncio.to_thread(read_keys, self._setting, content, self._rules.algorithms)
        return self._failed(found) if isinstance(found, str) else self._succeeded(found, content)

    def _succeeded(self, keys: Sequence[Key], content: bytes) -> None:
        self._loaded = self._clock()
        changed = keys != self._keys
        news = changed or self._failing
        self._telemetry.keys_loaded(issuer=self._rules.issuer, keys=len(keys), news=news)
        self._failing = False
        self.ready = True
        if changed:
            self._replace(keys, content)
        self._content = content

    def _failed(self, reason: str) -> None:
        self._telemetry.keys_failed(issuer=self._rules.issuer, reason=reason, news=not self._failing)
        self._failing = True

    def _replace(self, keys: Sequence[Key], content: bytes | None) -> None:
        self._keys = keys
        self._content = content
        self._generation += 1

    def _background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name="keys")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._telemetry.fault("keys", fault)


def keys_of(rules: Issuer, base: Path, clock: Callable[[], float], telemetry: Telemetry) -> Keys:
    """The keys of an issuer as configured. Paths count from `base`."""
    if rules.jwks_url is not None:
        return Keys(rules, "jwks_url", KeyUrl(rules.jwks_url), URL_PACE, clock, telemetry)
    setting = "jwks_file" if rules.jwks_file is not None else "public_key_file"
    path = base / (rules.jwks_file or rules.public_key_file or "")
    return Keys(rules, setting, KeyFile(path), FILE_PACE, clock, telemetry)
