"""Tokens that must be refused, each with the cause that is counted: wrong in one thing, right in all others.

The gateway trusts ISSUER with the keys ES, RSA and ED, and OTHER_ISSUER with the key FOREIGN.
"""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.edge.auth import MOST_TOKEN_BYTES
from tests.issuers import ISSUER, RESOURCE, Issuer, Signer

ES, ES_OTHER, RSA, ED = Signer("ES256", "es"), Signer("ES256", "es"), Signer("RS256", "rs"), Signer("EdDSA", "ed")
FOREIGN = Signer("ES256", "foreign")
OTHER_ISSUER = "https://other.example/"


def encoded(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def made_by_hand(header: Any, claims: Any, secret: bytes = b"") -> str:
    """A token with whatever is in it; signed with a shared secret where there is one."""
    signed = f"{encoded(header)}.{encoded(claims)}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256) if secret else b'x')}"


def with_secret(idp: Issuer, secret: bytes) -> str:
    return made_by_hand({"alg": "HS256", "kid": "rs"}, idp.claims(), secret)


def cut(token: str) -> str:
    head, _, signature = token.rpartition(".")
    return f"{head}.{encoded(base64.urlsafe_b64decode(signature + '==')[:-1])}"


def mixed(token: str, other: str) -> str:
    return ".".join([*token.split(".")[:2], other.split(".")[2]])


DER = RSA.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
REFUSED = {
    "alg none": ("malformed", lambda idp: jwt.encode(idp.claims(), None, "none")),
    "alg none, signed": ("algorithm", lambda idp: made_by_hand({"alg": "none"}, idp.claims())),
    "alg None": ("algorithm", lambda idp: made_by_hand({"alg": "None"}, idp.claims())),
    "alg nOnE": ("algorithm", lambda idp: made_by_hand({"alg": "nOnE"}, idp.claims())),
    "alg missing": ("algorithm", lambda idp: made_by_hand({"kid": "es"}, idp.claims())),
    "alg a list": ("algorithm", lambda idp: made_by_hand({"alg": ["ES256"]}, idp.claims())),
    "secret: public key as PEM": ("algorithm", lambda idp: with_secret(idp, RSA.pem)),
    "secret: public key as DER": ("algorithm", lambda idp: with_secret(idp, DER)),
    "secret: modulus": ("algorithm", lambda idp: with_secret(idp, RSA.jwk()["n"].encode())),
    "alg not listed": ("algorithm", lambda idp: idp.token(Signer("ES384", "es"))),
    "alg of another family": ("algorithm", lambda idp: idp.token(Signer("PS256", "rs", RSA.key))),
    "alg of another key": ("key", lambda idp: made_by_hand({"alg": "RS256", "kid": "es"}, idp.claims())),
    "key in the header": ("signature", lambda idp: idp.token(ES_OTHER, {"jwk": ES_OTHER.jwk()})),
    "key at a URL": ("signature", lambda idp: idp.token(ES_OTHER, {"jku": "http://127.0.0.1:1/x", "x5u": "http://x"})),
    "certificate in the header": ("signature", lambda idp: idp.token(ES_OTHER, {"x5c": ["AAAA"]})),
    "crit unknown": ("malformed", lambda idp: idp.token(headers={"crit": ["x"], "x": 1})),
    "crit b64": (
        "malformed",
        lambda idp: made_by_hand({"alg": "ES256", "crit": ["b64"], "b64": True}, idp.claims()),
    ),
    "crit empty": ("malformed", lambda idp: idp.token(headers={"crit": []})),
    "payload apart": ("malformed", lambda idp: made_by_hand({"alg": "ES256", "b64": False}, idp.claims())),
    "kid a path": ("key", lambda idp: idp.token(ES_OTHER, {"kid": "../../../../dev/null"})),
    "kid SQL": ("key", lambda idp: idp.token(ES_OTHER, {"kid": "x' UNION SELECT 'AAAA"})),
    "kid empty": ("key", lambda idp: idp.token(headers={"kid": ""})),
    "kid a number": ("malformed", lambda idp: made_by_hand({"alg": "ES256", "kid": 1}, idp.claims())),
    "kid of another issuer": ("key", lambda idp: idp.token(FOREIGN)),
    "key of another issuer": ("signature", lambda idp: idp.token(Signer("ES256", "es", FOREIGN.key))),
    "two dots more": ("malformed", lambda idp: f"{idp.token()}.a.b"),
    "a dot less": ("malformed", lambda idp: idp.token().rpartition(".")[0]),
    "encrypted": ("malformed", lambda _: ".".join("abcde")),
    "signature cut": ("signature", lambda idp: cut(idp.token())),
    "signature of another token": ("signature", lambda idp: mixed(idp.token(), idp.token(sub="eve"))),
    "signature empty": ("malformed", lambda idp: idp.token().rpartition(".")[0] + "."),
    "padded": ("malformed", lambda idp: idp.token() + "="),
    "too large": ("size", lambda idp: idp.token(padding="x" * (MOST_TOKEN_BYTES * 3 // 4))),
    "1 MB": ("size", lambda _: "x" * 1_000_000),
    "claims no object": ("malformed", lambda _: made_by_hand({"alg": "ES256"}, [1])),
    "claims no JSON": ("malformed", lambda _: made_by_hand({"alg": "ES256"}, b"{'a': 1}")),
    "claims not UTF-8": ("malformed", lambda _: made_by_hand({"alg": "ES256"}, b'{"iss":"\xff"}')),
    "claims deep": ("malformed", lambda _: made_by_hand({"alg": "ES256"}, b"[" * 9000)),
    "claims with infinity": ("malformed", lambda _: made_by_hand({"alg": "ES256"}, b'{"exp":Infinity}')),
    "header no object": ("malformed", lambda idp: made_by_hand([], idp.claims())),
    "for logging out": ("malformed", lambda idp: idp.token(headers={"typ": "logout+jwt"})),
    "for proving": ("malformed", lambda idp: idp.token(headers={"typ": "dpop+jwt"})),
    "typ a number": ("malformed", lambda idp: made_by_hand({"alg": "ES256", "typ": 1}, idp.claims())),
    "aud wrong": ("audience", lambda idp: idp.token(aud="https://gw.example/other/mcp")),
    "aud with a slash": ("audience", lambda idp: idp.token(aud=f"{RESOURCE}/")),
    "aud the origin": ("audience", lambda idp: idp.token(aud="https://gw.example")),
    "aud in capitals": ("audience", lambda idp: idp.token(aud=RESOURCE.upper())),
    "aud missing": ("audience", lambda idp: idp.token(aud=...)),
    "aud null": ("audience", lambda idp: idp.token(aud=None)),
    "aud empty": ("audience", lambda idp: idp.token(aud="")),
    "aud an empty list": ("audience", lambda idp: idp.token(aud=[])),
    "aud others": ("audience", lambda idp: idp.token(aud=["https://a.example", "https://b.example"])),
    "aud with a number": ("audience", lambda idp: idp.token(aud=[RESOURCE, 1])),
    "aud an object": ("audience", lambda idp: idp.token(aud={RESOURCE: 1})),
    "an ID token": ("audience", lambda idp: idp.token(aud="client-1", nonce="n", at_hash="h")),
    "iss with a slash less": ("issuer", lambda idp: idp.token(iss=ISSUER.rstrip("/"))),
    "iss of another tenant": ("issuer", lambda idp: idp.token(iss=f"{ISSUER}tenant-2")),
    "iss missing": ("issuer", lambda idp: idp.token(iss=...)),
    "iss a list": ("issuer", lambda idp: idp.token(iss=[ISSUER])),
    "iss of the other issuer": ("key", lambda idp: idp.token(iss=OTHER_ISSUER)),
    "exp missing": ("time", lambda idp: idp.token(exp=...)),
    "exp text": ("time", lambda idp: idp.token(exp=str(int(idp.now) + 600))),
    "exp true": ("time", lambda idp: idp.token(exp=True)),
    "exp null": ("time", lambda idp: idp.token(exp=None)),
    "exp in milliseconds": ("time", lambda idp: idp.token(exp=int(idp.now * 1000))),
    "exp huge": ("time", lambda idp: idp.token(exp=1e300)),
    "exp negative": ("time", lambda idp: idp.token(exp=-1)),
    "exp past": ("time", lambda idp: idp.token(exp=idp.now - 30)),
    "nbf to come": ("time", lambda idp: idp.token(nbf=idp.now + 31)),
    "nbf text": ("time", lambda idp: idp.token(nbf="0")),
    "nbf null": ("time", lambda idp: idp.token(nbf=None)),
} | {
    f"{claim} {name}": ("claims", lambda idp, claim=claim, value=value: idp.token(**{claim: value}))
    for claim in ("sub", "tid")
    for name, value in {
        "missing": ...,
        "null": None,
        "empty": "",
        "blank": " \t",
        "a number": 5,
        "true": True,
        "a list": ["lab", "b"],
        "an object": {"a": "lab"},
    }.items()
}
