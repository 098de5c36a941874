"""`token`: a token that the gateway takes with the section that is printed beside it."""

import stat
import time
import tomllib

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from gateway.cli.main import main
from gateway.config.identity import Issuer
from gateway.core.model import Principal
from gateway.edge.auth import token_authentication
from gateway.telemetry import Telemetry
from tests.issuers import Signer, rsa_key
from tests.requirements import requirement

WHO = ("token", "--subject", "ada", "--tenant", "lab")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    status = main([*WHO, *arguments])
    return status, *capsys.readouterr()


def pem(key, encryption=None):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


async def taken(section, token, resource, folder):
    issuers = [Issuer.model_validate(entry) for entry in tomllib.loads(section)["auth"]["issuers"]]
    authentication = token_authentication(issuers, folder, Telemetry(), time.time, time.monotonic)
    await authentication.start()
    found = await authentication.identify([f"Bearer {token}"], resource)
    await authentication.close()
    return found


@requirement("OWN-TOKEN")
@pytest.mark.parametrize(
    ("options", "issuer", "scopes"),
    [
        ((), "http://localhost/dev", set()),
        (("--scopes", "a,b:c"), "http://localhost/dev", {"a", "b:c"}),
        (("--scopes", ",a,,"), "http://localhost/dev", {"a"}),
        (("--issuer", "urn:x", "--audience", "api", "--ttl-s", "5", "--key", "k"), "urn:x", set()),
    ],
)
async def test_what_is_printed_fits_together(capsys, tmp_path, options, issuer, scopes):
    status, out, err = run(capsys, *options)
    assert status == 0
    (token,) = out.splitlines()
    assert tomllib.loads(err)["auth"]["mode"] == "jwt"
    found = await taken(err, token, "http://127.0.0.1:8080/any/mcp", tmp_path.parent)
    claims = jwt.decode(token, options={"verify_signature": False})
    assert found == Principal(issuer, "ada", "lab", frozenset(scopes), claims["exp"] * 1000)
    assert claims["exp"] - claims["iat"] == (5 if "--ttl-s" in options else 3600)
    assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "typ": "at+jwt"}


@requirement("OWN-QUIET")
def test_the_key_is_made_once_for_its_user_only(capsys, folder):
    first = run(capsys)
    made = (folder / "dev-key.pem").read_bytes()
    assert stat.S_IMODE((folder / "dev-key.pem").stat().st_mode) == 0o600
    assert b"PUBLIC KEY" in (folder / "dev-key.pub.pem").read_bytes()
    second = run(capsys)
    assert (folder / "dev-key.pem").read_bytes() == made
    assert first[2] == second[2]
    assert first[1] != second[1]  # each has an id of its own
    assert sorted(path.name for path in folder.iterdir()) == ["dev-key.pem", "dev-key.pub.pem"]
    for text in (*first[1:], *second[1:]):
        assert "PRIVATE" not in text


def test_a_key_that_is_there_is_used_and_its_public_half_written(capsys, folder):
    signer = Signer("EdDSA")
    (folder / "mine.key").write_bytes(pem(signer.key))
    status, out, _ = run(capsys, "--key", "mine.key")
    assert status == 0
    jwt.decode(out.strip(), signer.key.public_key(), ["EdDSA"], audience="http://127.0.0.1:8080/mcp")
    assert (folder / "mine.key.pub.pem").read_bytes() == signer.pem


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"SECRET-123", "k.pem: holds no private key without a password\n"),
        (Signer("EdDSA").pem, "k.pem: holds no private key without a password\n"),
        (pem(Signer("EdDSA").key, BestAvailableEncryption(b"x")), "k.pem: holds no private key without a password\n"),
        (pem(rsa_key()), "k.pem: holds no Ed25519 key\n"),
    ],
)
def test_another_key_is_refused_and_left_as_it_is(capsys, folder, content, message):
    (folder / "k.pem").write_bytes(content)
    assert run(capsys, "--key", "k.pem") == (2, "", message)
    assert [path.name for path in folder.iterdir()] == ["k.pem"]
    assert (folder / "k.pem").read_bytes() == content


def test_somebody_elses_public_key_is_not_overwritten(capsys, folder):
    (folder / "dev-key.pub.pem").write_bytes(Signer("EdDSA").pem)
    status, out, err = run(capsys)
    assert (status, out) == (2, "")
    assert err.startswith("dev-key.pub.pem: is not the public half of dev-key.pem")


def test_a_key_that_cannot_be_written_ends_with_1(capsys):
    assert run(capsys, "--key", "absent/k.pem") == (1, "", "absent/k.pem: No such file or directory\n")


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (("--subject", ""), ["--subject: must not be empty"]),
        (("--tenant", " "), ["--tenant: must not be empty"]),
        (("--ttl-s", "0"), ["--ttl-s: must be at least 1"]),
        (("--issuer", "a b"), ["--issuer: must not be empty and must hold no white space"]),
        (
            ("--audience", "", "--subject", "\t"),
            ["--subject: must not be empty", "--audience: must not be empty and must hold no white space"],
        ),
    ],
)
def test_what_the_gateway_would_refuse_is_not_made(capsys, folder, options, lines):
    status, out, err = run(capsys, *options)
    assert (status, out, err.splitlines()) == (2, "", lines)
    assert list(folder.iterdir()) == []
