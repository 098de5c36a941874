"""Keys of issuers: which are usable, when they are looked for, and how long they are believed."""

import asyncio
import gzip
import json

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.identity import Issuer as Rules
from gateway.edge.keys import FILE_PACE, URL_PACE, KeyFile, Keys, KeyUrl, Pace, key_problem, keys_of, read_keys
from tests.issuers import CURVES, ISSUER, KeyServer, Signer, key_set, never, rsa_key, until
from tests.requirements import requirement

ALL = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
RSA = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
NO_KEY = f"holds no key for {', '.join(ALL)}"
SIGNERS = {name: Signer(name) for name in ("RS256", *CURVES, "EdDSA", "Ed448")}


def read(setting, content, algorithms=ALL):
    return read_keys(setting, content.encode() if isinstance(content, str) else content, algorithms)


def as_set(*keys):
    return json.dumps({"keys": list(keys)})


@pytest.mark.parametrize("name", SIGNERS)
def test_a_public_key_serves_the_algorithms_of_its_kind(name):
    (key,) = read("public_key_file", SIGNERS[name].pem)
    assert key.algorithms == {"RS256": RSA, "Ed448": {"EdDSA"}}.get(name, {name})
    assert (key.kid, key.public) == (None, SIGNERS[name].key.public_key())


@pytest.mark.parametrize("name", ["RS256", *CURVES, "EdDSA"])
def test_a_key_of_a_set_is_the_key_of_the_file(name):
    (of_set,), (of_file,) = read("jwks_file", key_set(SIGNERS[name])), read("public_key_file", SIGNERS[name].pem)
    assert (of_set.public, of_set.algorithms, of_set.kid) == (of_file.public, of_file.algorithms, "k1")


@requirement("OWN-TOKEN")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no public key in PEM form"),
        (b"SECRET-123", "holds no public key in PEM form"),
        (SIGNERS["ES256"].pem[:80], "holds no public key in PEM form"),
        (b"-----BEGIN PRIVATE KEY-----", "holds a private key: the gateway needs the public one only"),
        (b"-----BEGIN RSA PRIVATE KEY-----", "holds a private key: the gateway needs the public one only"),
        (Signer("RS256", key=rsa_key(1024)).pem, NO_KEY),
        (b"x" * 262_145, "is larger than 262144 bytes"),
    ],
    ids=["empty", "no key", "cut", "private", "private RSA", "too short", "too large"],
)
def test_what_is_no_usable_public_key_is_told_and_not_shown(content, problem):
    assert read("public_key_file", content) == problem
    assert key_problem("public_key_file", content, ALL) == problem


@requirement("OWN-TOKEN")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is no JSON"),
        (b"\xff", "is no JSON"),
        ("<html>", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no JSON Web Key Set"),
        ("{}", "is no JSON Web Key Set"),
        ('{"keys": {}}', "is no JSON Web Key Set"),
        ('{"keys": []}', NO_KEY),
        ('{"keys": [1, null, "x", []]}', NO_KEY),
        (as_set(*[SIGNERS["ES256"].jwk()] * 101), "holds more than 100 keys"),
        (as_set({"kty": "oct", "k": "c2VjcmV0"}), NO_KEY),
        (as_set({"kty": ["RSA"]}), NO_KEY),
        (as_set({"kty": "RSA"}), NO_KEY),
        (as_set({"kty": "RSA", "n": 5, "e": "AQAB"}), NO_KEY),
        (as_set({"kty": "RSA", "n": "", "e": ""}), NO_KEY),
        (as_set({"kty": "OKP", "crv": "X25519", "x": "AAAA"}), NO_KEY),
        (as_set({"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}), NO_KEY),
        (as_set({"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"}), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(crv="secp256k1")), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(crv="P-384")), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(y=SIGNERS["ES256"].jwk()["x"])), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(use="enc")), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(key_ops=["encrypt"])), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(key_ops=5)), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(kid=5)), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(alg=["ES256"])), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(alg="HS256")), NO_KEY),
        (as_set(SIGNERS["RS256"].jwk(alg="RSA-OAEP")), NO_KEY),
        (as_set(SIGNERS["ES256"].jwk(d="AAAA")), NO_KEY),
        (key_set(Signer("RS256", key=rsa_key(1024))), NO_KEY),
    ],
)
def test_what_is_no_usable_set_of_keys_is_told_and_not_shown(content, problem):
    assert read("jwks_file", content) == problem


def test_a_key_that_names_its_algorithm_serves_no_other():
    (key,) = read("jwks_file", as_set(SIGNERS["RS256"].jwk(alg="PS512", use="sig", key_ops=["verify"])))
    assert key.algorithms == {"PS512"}


def test_keys_for_other_purposes_are_passed_over():
    usable = SIGNERS["ES256"].jwk(kid="good")
    found = read("jwks_file", as_set({"kty": "oct", "k": "x"}, 7, usable, SIGNERS["ES384"].jwk(use="enc")))
    assert [key.kid for key in found] == ["good"]


@requirement("OWN-TOKEN")
def test_a_key_serves_only_the_algorithms_of_its_issuer():
    (key,) = read("public_key_file", SIGNERS["RS256"].pem, ["RS256", "ES256"])
    assert key.algorithms == {"RS256"}
    assert read("public_key_file", SIGNERS["RS256"].pem, ["ES256"]) == "holds no key for ES256"
    assert read("public_key_file", SIGNERS["RS256"].pem, []) == "holds no key for any algorithm"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
MEMBERS = ("kty", "crv", "x", "y", "n", "e", "d", "alg", "use", "key_ops", "kid")
WORDS = st.sampled_from(["RSA", "EC", "OKP", "P-256", "Ed25519", "AQAB", "sig", "ES256", "AAAA", "=", "é"])


@given(st.lists(st.dictionaries(st.sampled_from(MEMBERS), WORDS | JSON), max_size=3))
def test_no_set_of_keys_raises(keys):
    assert isinstance(read("jwks_file", json.dumps({"keys": keys})), str | list)


@given(st.binary(max_size=64))
def test_no_bytes_raise(content):
    assert isinstance(read("jwks_file", content), str)
    assert isinstance(read("public_key_file", content), str)


@pytest.fixture
async def server():
    async with KeyServer(SIGNERS["ES256"]) as running:
        yield running


@pytest.fixture
async def keys(server, timer, log):
    made = Keys(rules(), "jwks_url", KeyUrl(server.url, timeout_s=0.5), URL_PACE, timer, log)
    yield made
    await made.close()


def rules(**changes):
    return Rules(issuer=ISSUER, **{"jwks_url": "https://idp.example/jwks", **changes})


def found(keys, kid="k1", algorithm="ES256"):
    return [key.public for key in keys.find(kid, algorithm)[1]]


@requirement("OWN-KEYS")
async def test_keys_are_fetched_at_the_start(keys, server, log):
    assert not keys.ready
    await keys.start()
    assert keys.ready
    assert found(keys) == [SIGNERS["ES256"].key.public_key()]
    assert (server.asked, log.events) == (1, ["keys_loaded"])
    assert log.value("mtg_keys", issuer=ISSUER) == 1


@requirement("OWN-KEYS")
async def test_a_server_that_is_away_at_the_start_is_no_fault_and_is_found_later(keys, server, log):
    port = int(server.url.split(":")[2].split("/")[0])
    (site,) = server._runner.sites
    await site.stop()
    await keys.start()
    assert (keys.ready, found(keys), log.events) == (False, [], ["keys_failed"])
    assert "ClientConnectorError" in log.text
    await keys.refresh()
    assert log.events == ["keys_failed"]  # told once
    await server.listen(port)
    await keys.refresh()
    assert (keys.ready, len(found(keys)), log.events) == (True, 1, ["keys_failed", "keys_loaded"])
    assert log.value("mtg_key_looks_total", issuer=ISSUER, outcome="failed") == 2


def says(**options):
    async def answer(_):
        return web.Response(**options)

    return answer


OTHER_SET = key_set(SIGNERS["EdDSA"])
html = says(text="<html>SECRET-123</html>", content_type="text/html")
broken = says(status=500, text=OTHER_SET)
empty = says()
no_keys = says(text='{"keys":[]}')
huge = says(text=OTHER_SET + " " * 262_145)
packed = says(body=gzip.compress(b" " * 10_000_000), headers={"Content-Encoding": "gzip"})


async def elsewhere(request):
    if request.path == "/elsewhere":
        return web.Response(text=OTHER_SET)
    raise web.HTTPFound("/elsewhere")


async def cut(request):
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    request.transport.close()
    return response


@requirement("OWN-KEYS")
@pytest.mark.parametrize("answer", [html, broken, empty, no_keys, huge, packed, elsewhere, cut, never])
async def test_an_answer_without_keys_changes_nothing(keys, server, log, answer):
    await keys.refresh()
    server.answer = answer
    await keys.refresh()
    assert found(keys) == [SIGNERS["ES256"].key.public_key()]
    assert found(keys, None, "EdDSA") == []
    assert log.events == ["keys_loaded", "keys_failed"]
    assert "SECRET-123" not in log.text
    server.answer = None
    await keys.refresh()
    assert log.events[2:] == ["keys_loaded"]


@requirement("OWN-KEYS")
async def test_keys_are_believed_for_an_hour_of_outage_and_no_longer(keys, server, timer, log):
    await keys.refresh()
    before = keys.generation
    server.answer = broken
    timer.now += 3600
    await keys.refresh()
    assert (len(found(keys)), keys.generation) == (1, before)
    timer.now += 1
    assert found(keys) == []
    assert keys.generation != before
    assert log.events == ["keys_loaded", "keys_failed", "keys_dropped"]
    assert keys.ready  # other replicas would have it no better
    server.answer = None
    await keys.refresh()
    assert len(found(keys)) == 1


@requirement("OWN-KEYS")
async def test_a_removed_key_is_gone_with_the_next_look_and_another_is_there(keys, server):
    await keys.refresh()
    before = keys.generation
    server.signers = [Signer("EdDSA", "k2")]
    await keys.refresh()
    assert found(keys) == []
    assert len(found(keys, "k2", "EdDSA")) == 1
    assert keys.generation != before


@requirement("OWN-KEYS")
async def test_the_same_keys_are_no_new_generation(keys, server, log):
    await keys.refresh()
    before = keys.generation
    await keys.refresh()
    server.answer = lambda _: asyncio.sleep(0, web.Response(text=key_set(SIGNERS["ES256"]) + "\n"))
    await keys.refresh()
    assert (keys.generation, server.asked, log.events) == (before, 3, ["keys_loaded"])


@requirement("OWN-KEYS")
async def test_all_who_miss_a_key_wait_for_one_look(keys, server):
    await keys.refresh()
    gate, asked = asyncio.Event(), asyncio.Event()

    async def held(_):
        asked.set()
        await gate.wait()
        return web.Response(text=key_set(Signer("ES256", "k2", SIGNERS["ES256"].key)))

    server.answer = held
    keys._clock.now += 10
    waiting = [asyncio.create_task(keys.renew()) for _ in range(50)]
    await asked.wait()
    waiting[0].cancel()  # a client that leaves
    late = asyncio.create_task(keys.renew())
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*waiting[1:], late) == [True] * 50
    assert waiting[0].cancelled()
    assert server.asked == 2
    assert len(found(keys, "k2")) == 1


@requirement("OWN-KEYS")
async def test_a_missing_key_makes_nobody_look_twice_within_ten_seconds(keys, server, timer):
    await keys.refresh()
    for seconds, asked in ((0, 1), (9.9, 1), (0.1, 2), (0, 2), (9.9, 2), (0.1, 3)):
        timer.now += seconds
        assert not await keys.renew()
        assert server.asked == asked


async def test_a_key_without_a_name_may_have_made_any_token(keys, server):
    server.signers = [Signer("ES256", None), Signer("ES256", "k2"), Signer("EdDSA", "k2")]
    await keys.refresh()
    assert [len(found(keys, kid)) for kid in (None, "k2", "other", "")] == [2, 2, 1, 1]
    assert len(found(keys, "k2", "EdDSA")) == 1


@requirement("OWN-KEYS")
async def test_keys_are_looked_for_now_and_then(server, log):
    keys = Keys(rules(), "jwks_url", KeyUrl(server.url), Pace(0.01, 0.01), asyncio.get_running_loop().time, log)
    server.answer = broken
    await keys.start()
    await until(lambda: server.asked > 2)
    server.answer = None
    await until(lambda: keys.ready)
    asked = server.asked
    await until(lambda: server.asked > asked + 1)
    await keys.close()
    assert log.events == ["keys_failed", "keys_loaded"]


@requirement("OWN-KEYS")
async def test_a_file_is_read_again_and_its_loss_changes_nothing(tmp_path, timer, log):
    file = tmp_path / "keys.json"
    keys = keys_of(rules(jwks_url=None, jwks_file="keys.json"), tmp_path, timer, log)
    await keys.start()
    assert (keys.ready, log.events) == (False, ["keys_failed"])
    file.write_text(key_set(SIGNERS["ES256"]))
    assert not await keys.renew()  # a second has not passed
    timer.now += FILE_PACE.least_s
    assert await keys.renew()
    file.write_text(key_set(Signer("ES256", "k2")))
    await keys.refresh()
    assert (found(keys), len(found(keys, "k2"))) == ([], 1)
    file.unlink()
    await keys.refresh()
    assert len(found(keys, "k2")) == 1
    assert "No such file" in log.text
    await keys.close()


async def test_a_single_public_key_makes_every_token_of_its_issuer(tmp_path, timer, log):
    (tmp_path / "key.pem").write_bytes(SIGNERS["EdDSA"].pem)
    keys = keys_of(rules(jwks_url=None, public_key_file="key.pem"), tmp_path, timer, log)
    await keys.start()
    assert len(found(keys, "any", "EdDSA")) == 1
    await keys.close()


async def test_a_url_is_fetched_from_where_the_configuration_says(server, timer, log, tmp_path):
    keys = keys_of(rules(jwks_url=server.url), tmp_path, timer, log)
    await keys.start()
    await keys.close()
    assert (keys.ready, server.asked) == (True, 1)


async def test_a_fault_of_ours_is_told_and_ends_nothing(tmp_path, timer, log):
    class Odd(KeyFile):
        async def read(self):
            raise KeyError("SECRET-123")

    keys = Keys(rules(), "jwks_url", Odd(tmp_path), URL_PACE, timer, log)
    await keys.refresh()
    await keys.refresh()
    assert log.events == ["fault", "fault"]
    assert "SECRET-123" not in log.text


async def test_closing_ends_a_look_that_is_under_way(keys, server):
    server.answer = never
    looking = asyncio.create_task(keys.refresh())
    await until(lambda: server.asked)
    await keys.close()
    await looking
    assert not keys.ready


async def test_the_answer_is_asked_for_without_cookies_and_as_it_is(server, timer, log):
    seen = []

    async def keep(request):
        seen.append(dict(request.headers))
        response = web.Response(text=key_set(SIGNERS["ES256"]))
        response.set_cookie("a", "b")
        return response

    server.answer = keep
    keys = Keys(rules(), "jwks_url", KeyUrl(server.url), URL_PACE, timer, log)
    await keys.refresh()
    await keys.refresh()
    assert [headers["Accept-Encoding"] for headers in seen] == ["identity"] * 2
    assert all("Cookie" not in headers and "Authorization" not in headers for headers in seen)
    assert aiohttp.hdrs.ACCEPT in seen[0]
