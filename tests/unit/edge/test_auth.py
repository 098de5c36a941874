"""Tokens: which are believed, whom they name, and what is remembered of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.identity import Issuer as Rules
from gateway.core.model import Principal
from gateway.edge.auth import (
    ANONYMOUS,
    MOST_TOKEN_BYTES,
    Fault,
    NoAuthentication,
    TokenAuthentication,
    bearer,
    claims_fault,
    principal_of,
    scopes_of,
    take_apart,
    token_authentication,
)
from gateway.edge.keys import URL_PACE, Keys, KeyUrl
from gateway.wire.errors import Reject
from tests.bad_tokens import ED, ES, ES_OTHER, FOREIGN, OTHER_ISSUER, REFUSED, RSA, encoded
from tests.issuers import ISSUER, RESOURCE, Issuer, KeyServer, Signer, key_set
from tests.requirements import requirement

CANARY = "SECRET-123"


@pytest.fixture
def idp(clock) -> Issuer:
    return Issuer(signer=ES, now=clock.now)


@pytest.fixture
async def authentication(tmp_path, clock, timer, log):
    """Two issuers with sets of keys in files, of which the second has a key that the first has not."""
    (tmp_path / "keys.json").write_text(key_set(ES, RSA, ED))
    (tmp_path / "other.json").write_text(key_set(FOREIGN))
    issuers = [Rules(issuer=ISSUER, jwks_file="keys.json"), Rules(issuer=OTHER_ISSUER, jwks_file="other.json")]
    made = token_authentication(issuers, tmp_path, log, clock, timer)
    await made.start()
    yield made
    await made.close()


async def identify(authentication, token, resource=RESOURCE):
    return await authentication.identify([f"Bearer {token}"], resource)


async def test_without_authentication_everybody_is_the_same():
    one, other = NoAuthentication(), NoAuthentication()
    assert await one.identify([], "a") == await other.identify(["Bearer x", "y"], "b") == ANONYMOUS
    assert (one.tells_apart, one.ready) == (False, True)


@requirement("OWN-TOKEN")
@pytest.mark.parametrize("signer", [ES, RSA, ED], ids=lambda signer: signer.algorithm)
@pytest.mark.parametrize("kind", ["JWT", "at+jwt", "application/at+jwt", "AT+JWT", None])
async def test_a_token_names_a_principal(authentication, idp, signer, kind):
    found = await identify(authentication, idp.token(signer, {"typ": kind}, scope="a b", jti="1"))
    assert found == Principal(ISSUER, "ada", "lab", frozenset({"a", "b"}), int(idp.now + 600) * 1000)
    assert authentication.tells_apart


@requirement("OWN-TOKEN", "OWN-QUIET")
@pytest.mark.parametrize("name", REFUSED)
async def test_a_token_that_is_not_exactly_right_is_refused(authentication, idp, log, name):
    cause, make = REFUSED[name]
    found = await identify(authentication, make(idp))
    assert isinstance(found, Reject)
    assert (found.reason, found.data) == ("unauthenticated", {"error": "invalid_token"})
    assert log.value("mtg_tokens_refused_total", cause=cause) == 1
    assert len(authentication._verified) == 0


@requirement("OWN-TOKEN")
@pytest.mark.parametrize(
    ("changes", "audience", "resource"),
    [
        ({}, (), RESOURCE),
        ({"aud": ["https://a.example", RESOURCE]}, (), RESOURCE),
        ({"aud": "https://gw.example/reports/mcp"}, (), "https://gw.example/reports/mcp"),
        ({"aud": "api"}, ("api", "other"), "https://anything.example/mcp"),
        ({"aud": ["x", "other"]}, ("api", "other"), RESOURCE),
        ({"exp": 1000 - 29}, (), RESOURCE),
        ({"exp": 1000.5}, (), RESOURCE),
        ({"nbf": 1030}, (), RESOURCE),
        ({"nbf": 0, "iat": "odd"}, (), RESOURCE),
    ],
)
def test_a_token_for_this_endpoint_and_this_moment_is_taken(changes, audience, resource):
    claims = Issuer(now=1000).claims(**changes)
    assert claims_fault(claims, Rules(issuer=ISSUER, audience=audience, jwks_file="x"), resource, 1000) is None


@pytest.mark.parametrize(
    ("changes", "audience"),
    [({}, ("api",)), ({"aud": ["api/"]}, ("api",)), ({"exp": 970}, (RESOURCE,)), ({"nbf": 1031}, (RESOURCE,))],
)
def test_a_token_for_another_one_is_not(changes, audience):
    claims = Issuer(now=1000).claims(**changes)
    found = claims_fault(claims, Rules(issuer=ISSUER, audience=audience, jwks_file="x"), RESOURCE, 1000)
    assert isinstance(found, Fault)


def test_no_leeway_is_none():
    rules = Rules(issuer=ISSUER, jwks_file="x", leeway_s=0)
    for changes in ({"exp": 1000}, {"nbf": 1001}):
        assert claims_fault(Issuer(now=1000).claims(**changes), rules, RESOURCE, 1000).cause == "time"
    assert claims_fault(Issuer(now=1000).claims(exp=1000.1, nbf=1000), rules, RESOURCE, 1000) is None


@requirement("OWN-TOKEN")
@pytest.mark.parametrize(
    ("tenant_claim", "claims", "tenant"),
    [
        ("org.id", {"org": {"id": "lab"}}, "lab"),
        ("org.id", {"org.id": "flat", "org": {"id": "deep"}}, "flat"),
        ("https://idp.example/tenant", {"https://idp.example/tenant": "lab"}, "lab"),
        ("org.id", {"org.id": None, "org": {"id": "deep"}}, None),
        ("org.id", {"org": "lab"}, None),
        ("org.id", {"org": {"id": {"x": "lab"}}}, None),
        ("org.id", {"org": [{"id": "lab"}]}, None),
        ("org.id", {"id": "lab"}, None),
        ("org", {"tid": "lab"}, None),
    ],
)
def test_a_tenant_is_found_where_the_configuration_says_and_nowhere_else(tenant_claim, claims, tenant):
    rules = Rules(issuer=ISSUER, jwks_file="x", tenant_claim=tenant_claim)
    found = principal_of({"sub": "ada", "exp": 1, **claims}, rules)
    assert (found.tenant if isinstance(found, Principal) else None) == tenant


def test_a_subject_is_found_where_the_configuration_says():
    rules = Rules(issuer=ISSUER, jwks_file="x", subject_claim="client_id")
    assert principal_of({"sub": "ada", "client_id": "c", "tid": "lab", "exp": 1}, rules).subject == "c"


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "a b  c"}, {"a", "b", "c"}),
        ({"scope": ""}, set()),
        ({"scp": "a b"}, {"a", "b"}),
        ({"scp": ["a", "b c", ""]}, {"a", "b c"}),
        ({"scope": "a", "scp": ["b"]}, {"a"}),
        ({"scope": ["a"]}, {"a"}),
        ({"scope": None, "scp": ["b"]}, set()),
        ({"scp": ["a", 1]}, set()),
        ({"scp": {"a": 1}}, set()),
        ({"scp": 5}, set()),
        ({"roles": ["a"]}, set()),
        ({}, set()),
    ],
)
def test_scopes_are_those_that_are_written_plainly(claims, scopes):
    assert scopes_of(claims) == scopes


@requirement("OWN-TOKEN")
@pytest.mark.parametrize(
    ("headers", "cause"),
    [
        ([], "absent"),
        (["Basic dTpw"], "absent"),
        ([""], "absent"),
        (["a.b.c"], "absent"),
        (["Bearer a.b.c", "Bearer a.b.c"], "malformed"),
        (["Bearer"], "malformed"),
        (["Bearer "], "malformed"),
        (["Bearer a.b.c, Bearer a.b.c"], "malformed"),
        (["Bearer a.b.c d"], "malformed"),
        (["Bearer\ta.b.c"], "absent"),
        (["Bearer a.b.é"], "malformed"),
        (["Bearer a.b.\udcff"], "malformed"),
        (["Bearer a.b.c\n"], "malformed"),
        (["Bearer " + "a" * (MOST_TOKEN_BYTES + 1)], "size"),
    ],
)
async def test_there_is_one_token_or_none(authentication, log, headers, cause):
    found = await authentication.identify(headers, RESOURCE)
    assert found.data == ({} if cause == "absent" else {"error": "invalid_token"})
    assert log.value("mtg_tokens_refused_total", cause=cause) == 1


@pytest.mark.parametrize("header", ["Bearer a.b.c", "bearer a.b.c", "BEARER   a.b.c  "])
def test_the_scheme_is_written_as_one_likes(header):
    assert bearer([header]) == "a.b.c"


def test_the_largest_token_is_taken_apart():
    claims = Issuer().claims()
    room = MOST_TOKEN_BYTES - len(ES.sign({**claims, "pad": ""}))
    text = ES.sign({**claims, "pad": "x" * (room * 3 // 4)})
    assert MOST_TOKEN_BYTES - 8 < len(text) <= MOST_TOKEN_BYTES
    assert bearer([f"Bearer {text}"]) == text
    assert take_apart(text).claims["pad"]


@given(st.text(alphabet="abcdefgh_-.=AZ09+/ {}\"'", max_size=40))
def test_no_text_raises(text):
    found = bearer([f"Bearer {text}"])
    assert isinstance(found if isinstance(found, Fault) else take_apart(found), Fault)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_bytes_raise(header, claims):
    assert isinstance(take_apart(f"{encoded(header)}.{encoded(claims)}.AAAA"), Fault) or header[:1] == b"{"


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from(["aud", "exp", "nbf", "sub", "tid", "scope", "scp"]), JSON))
def test_no_claims_raise(claims):
    rules = Rules(issuer=ISSUER, jwks_file="x")
    fault = claims_fault(claims, rules, RESOURCE, 1000)
    found = principal_of(claims, rules)
    assert fault is None or isinstance(fault, Fault)
    assert isinstance(found, Fault) or (found.subject.strip() and found.tenant.strip())


class TestRemembering:
    @requirement("OWN-TOKEN", "OWN-QUIET")
    async def test_keeps_digests_and_no_tokens(self, authentication, idp):
        token = idp.token(canary=CANARY)
        first = await identify(authentication, token)
        assert await identify(authentication, token) is first  # not verified again
        assert [len(key) for key in authentication._verified] == [32]
        assert token not in repr(dict(authentication._verified))
        assert CANARY not in repr(dict(authentication._verified))

    async def test_is_for_one_endpoint(self, authentication, idp):
        token = idp.token()
        assert isinstance(await identify(authentication, token), Principal)
        assert isinstance(await identify(authentication, token, "https://gw.example/reports/mcp"), Reject)

    async def test_lasts_a_minute(self, authentication, idp, timer):
        token = idp.token()
        first = await identify(authentication, token)
        timer.now += 59.9
        assert await identify(authentication, token) is first
        timer.now += 0.1
        again = await identify(authentication, token)
        assert (again == first, again is first) == (True, False)

    async def test_never_outlives_the_token(self, authentication, idp, clock):
        token = idp.token(exp=clock.now + 10)
        first = await identify(authentication, token)
        clock.now += 10
        again = await identify(authentication, token)  # within the leeway, and verified each time
        assert (again == first, again is first) == (True, False)
        clock.now += 30
        assert (await identify(authentication, token)).message == "The token has expired"

    async def test_of_a_token_within_its_leeway_keeps_nothing(self, authentication, idp, clock):
        assert isinstance(await identify(authentication, idp.token(exp=clock.now - 5)), Principal)
        assert len(authentication._verified) == 0

    @requirement("OWN-KEYS")
    async def test_ends_when_the_key_is_removed(self, authentication, idp, tmp_path):
        token = idp.token()
        await identify(authentication, token)
        (tmp_path / "keys.json").write_text(key_set(RSA, ED))
        await authentication._trusted[ISSUER][1].refresh()
        assert (await identify(authentication, token)).message == "The token is signed by a key that is not known"

    async def test_is_bounded(self, authentication, idp):
        authentication._verified = type(authentication._verified)(2, 60, authentication._verified.timer)
        for number in range(5):
            await identify(authentication, idp.token(jti=str(number)))
        assert len(authentication._verified) == 2


class TestRotation:
    @pytest.fixture
    async def server(self):
        async with KeyServer(ES) as running:
            yield running

    @pytest.fixture
    async def authentication(self, server, clock, timer, log):
        rules = Rules(issuer=ISSUER, jwks_url=server.url)
        keys = Keys(rules, "jwks_url", KeyUrl(server.url), URL_PACE, timer, log)
        made = TokenAuthentication([(rules, keys)], log, clock, timer)
        await keys.refresh()
        return made

    @requirement("OWN-KEYS")
    async def test_a_new_key_is_found_by_its_first_token(self, authentication, idp, server, timer):
        new = Signer("ES256", "new")
        server.signers = [new]
        assert isinstance(await identify(authentication, idp.token(new)), Reject)
        timer.now += 10
        assert isinstance(await identify(authentication, idp.token(new)), Principal)
        assert isinstance(await identify(authentication, idp.token()), Reject)
        assert server.asked == 2

    @requirement("OWN-KEYS")
    async def test_so_is_a_new_key_under_the_old_name(self, authentication, idp, server, timer):
        server.signers = [ES_OTHER]
        timer.now += 10
        assert isinstance(await identify(authentication, idp.token(FOREIGN)), Reject)
        assert isinstance(await identify(authentication, idp.token(ES_OTHER)), Principal)
        assert isinstance(await identify(authentication, idp.token()), Reject)

    @requirement("OWN-KEYS")
    async def test_guessed_names_make_few_requests(self, authentication, idp, server, timer):
        timer.now += 10
        for number in range(200):
            assert isinstance(await identify(authentication, idp.token(headers={"kid": f"k{number}"})), Reject)
            assert isinstance(await identify(authentication, idp.token()), Principal)
        assert server.asked == 2

    @requirement("OWN-TOKEN")
    async def test_nothing_that_a_token_names_is_fetched(self, authentication, idp, server, timer):
        async with KeyServer(ES_OTHER) as evil:
            timer.now += 10
            headers = {"jku": evil.url, "x5u": evil.url, "jwk": ES_OTHER.jwk(), "kid": evil.url}
            assert isinstance(await identify(authentication, idp.token(ES_OTHER, headers)), Reject)
            assert isinstance(await identify(authentication, idp.token(ES_OTHER, iss=evil.url)), Reject)
            assert evil.asked == 0

    @requirement("OWN-HEALTH")
    async def test_readiness_waits_for_the_keys_of_all(self, server, clock, timer, log, tmp_path):
        (tmp_path / "keys.json").write_text(key_set(ES))
        issuers = [Rules(issuer="a", jwks_file="keys.json"), Rules(issuer="b", jwks_file="absent.json")]
        made = token_authentication(issuers, tmp_path, log, clock, timer)
        await made.start()
        assert not made.ready
        (tmp_path / "absent.json").write_text(key_set(RSA))
        await made._trusted["b"][1].refresh()
        assert made.ready
        await made.close()


def test_times_that_no_clock_reaches_are_no_times():
    for value in (math.inf, -math.inf, math.nan, 10**400, 253_402_300_800):
        claims = {**Issuer(now=1000).claims(), "exp": value}
        assert claims_fault(claims, Rules(issuer=ISSUER, jwks_file="x"), RESOURCE, 1000).cause == "time"
