"""Issuers that sign real tokens, and a real server that publishes their keys."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Self

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms

ISSUER = "https://idp.example/"
RESOURCE = "https://gw.example/mcp"
CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


@cache
def rsa_key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    """Made once for each number: it takes a while."""
    return rsa.generate_private_key(65537, bits)


def private_key(algorithm: str) -> Any:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return ed448.Ed448PrivateKey.generate() if algorithm == "Ed448" else rsa_key()


class Signer:
    """A private key with its name."""

    def __init__(self, algorithm: str = "ES256", kid: str | None = "k1", key: Any = None) -> None:
        self.algorithm = algorithm
        self.kid = kid
        self.key = private_key(algorithm) if key is None else key

    @property
    def pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def jwk(self, **changes: object) -> dict[str, Any]:
        """As it is published; a change to None leaves a member out."""
        public = get_default_algorithms()[self.algorithm].to_jwk(self.key.public_key(), as_dict=True)
        whole = {**public, "kid": self.kid, **changes}
        return {name: value for name, value in whole.items() if value is not None}

    def sign(self, claims: dict[str, Any], **headers: Any) -> str:
        named = {} if self.kid is None else {"kid": self.kid}
        return jwt.PyJWS().encode(json.dumps(claims).encode(), self.key, self.algorithm, {**named, **headers})


class Issuer:
    """Somebody whose tokens may be taken. Times count from `now`, in seconds since the epoch."""

    def __init__(self, url: str = ISSUER, signer: Signer | None = None, now: float | None = None) -> None:
        self.url = url
        self.signer = signer or Signer()
        self.now = time.time() if now is None else now

    def claims(self, **changes: object) -> dict[str, Any]:
        """What is taken, with some claims changed; a change to `...` leaves one out."""
        whole = {"iss": self.url, "aud": RESOURCE, "sub": "ada", "tid": "lab", "exp": int(self.now) + 600, **changes}
        return {name: value for name, value in whole.items() if value is not ...}

    def token(self, signer: Signer | None = None, headers: dict[str, Any] | None = None, **claims: object) -> str:
        return (signer or self.signer).sign(self.claims(**claims), **(headers or {}))


def key_set(*signers: Signer) -> str:
    return json.dumps({"keys": [signer.jwk() for signer in signers]})


class KeyServer:
    """Publishes keys over HTTP. `answer` takes the place of the usual one; `asked` counts requests."""

    def __init__(self, *signers: Signer) -> None:
        self.signers = list(signers)
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.asked = 0
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.listen(0)
        return self

    async def listen(self, port: int) -> None:
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/jwks.json"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.answer is not None:
            return await self.answer(request)
        return web.Response(text=key_set(*self.signers), content_type="application/json")


async def never(_: web.Request) -> web.StreamResponse:
    """An answer that does not come."""
    return await asyncio.get_running_loop().create_future()


async def until(condition: Callable[[], object]) -> None:
    """Waits for what other tasks do. Fails when they do not."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)
