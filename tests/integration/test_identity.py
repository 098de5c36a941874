"""Who may see, end and start what: real tokens, keys over HTTP, both dialects."""

import asyncio
import json
import logging
from contextlib import suppress

import pytest
from aiohttp import web

from gateway.config.identity import Issuer as Rules
from gateway.config.models import Auth
from gateway.edge.keys import KeyUrl
from tests.bad_tokens import ED, ES, ES_OTHER, FOREIGN, OTHER_ISSUER, REFUSED, RSA
from tests.client import TASKS, Client
from tests.integration.conftest import POLICY, eventually
from tests.issuers import ISSUER, Issuer, KeyServer, Signer, never
from tests.requirements import requirement

PUBLIC = "https://gw.example"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
CANARY = "SECRET-CANARY-123"
TASK_METHODS = {
    "legacy": ("tasks/get", "tasks/result", "tasks/cancel"),
    "modern": ("tasks/get", "tasks/update", "tasks/cancel"),
}
SCOPED = {
    **POLICY,
    "defaults": {**POLICY["defaults"], "create_scopes": ["run"], "read_scopes": ["look"], "cancel_scopes": ["stop"]},
    "tools": [*POLICY["tools"], {"match": "fail", "task_support": "optional", "create_scopes": ["fail"]}],
}


@pytest.fixture
async def servers():
    """The keys of two issuers."""
    async with KeyServer(ES, RSA, ED) as first, KeyServer(FOREIGN) as second:
        yield first, second


@pytest.fixture
def auth(servers) -> Auth:
    first, second = servers
    return Auth(
        mode="jwt",
        issuers=(Rules(issuer=ISSUER, jwks_url=first.url), Rules(issuer=OTHER_ISSUER, jwks_url=second.url)),
    )


@pytest.fixture
async def gateway(harness, auth) -> Client:
    """A gateway that takes tokens, and a client that has none."""
    return await harness.start(auth=auth, public_url=PUBLIC)


@pytest.fixture
def idp() -> Issuer:
    return Issuer(signer=ES)


def as_(client: Client, token: str) -> Client:
    return Client(client.http, client.url, token)


async def with_session(client: Client, token: str) -> Client:
    made = as_(client, token)
    await made.initialize()
    return made


def keys(harness, issuer):
    """The keys that the gateway has of an issuer."""
    return harness.gateways[-1].front.door._authenticator._trusted[issuer][1]


async def away(_):
    return web.Response(status=503)


async def ask(client: Client, dialect: str, method: str, task_id: str):
    params = {"taskId": task_id, **({"inputResponses": {}} if method == "tasks/update" else {})}
    return await (client.legacy if dialect == "legacy" else client.modern)(method, params)


def seen(answer):
    """Everything that a caller can see, but for the time."""
    return answer.status, answer.body, {name: value for name, value in answer.headers.items() if name != "Date"}


async def written(redis) -> set[bytes]:
    """The keys of records and sessions."""
    return set(await redis.keys("*:[toarzsq]*:*"))


@requirement("OWN-TOKEN")
@pytest.mark.parametrize("name", [name for name in REFUSED if name != "1 MB"])
async def test_a_bad_token_is_401_and_writes_nothing(gateway, idp, redis, upstream, harness, name):
    client = as_(gateway, REFUSED[name][1](idp))
    start = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    conflicting = {"X-Tenant": "lab", "X-Forwarded-User": "ada", "Mcp-Session-Id": "x" * 32}
    answers = [
        await client.post(start, {"X-Tenant": "lab"}),
        await client.call("echo"),
        await client.post({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "x"}}, conflicting),
    ]
    async with client.http.delete(
        client.url, headers={"Authorization": f"Bearer {client.token}", "Mcp-Session-Id": "x" * 32}
    ) as response:
        assert response.status == 401
    for answer in answers:
        assert (answer.status, answer.error["code"]) == (401, -32600)
        assert answer.error["data"] == {"reason": "unauthenticated", "retryable": False, "error": "invalid_token"}
        assert answer.headers["WWW-Authenticate"] == (
            f'Bearer resource_metadata="{PUBLIC}{WELL_KNOWN}/mcp", error="invalid_token"'
        )
        assert client.token not in answer.body.decode()
    assert await written(redis) == set()
    assert upstream.seen == []
    assert client.token not in harness.log.getvalue()


@requirement("OWN-TOKEN", "OWN-RESOURCE")
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Basic dTpw"}, {"authorization": "Token x"}, {"Cookie": "token=a.b.c"}],
)
async def test_no_token_is_401_with_the_way_to_one(gateway, idp, redis, headers):
    gateway.url += f"?access_token={idp.token()}"  # a token in a URL is not looked at
    answer = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers)
    assert (answer.status, answer.error["data"]) == (401, {"reason": "unauthenticated", "retryable": False})
    assert answer.headers["WWW-Authenticate"] == f'Bearer resource_metadata="{PUBLIC}{WELL_KNOWN}/mcp"'
    assert await written(redis) == set()


@requirement("OWN-TOKEN")
async def test_two_tokens_are_one_too_many(gateway, idp):
    token = idp.token()
    headers = [("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")]
    async with gateway.http.post(gateway.url, json={}, headers=headers) as response:
        assert response.status == 401


async def test_a_good_token_is_served_whatever_its_scheme_looks_like(gateway, idp):
    body, headers = gateway.modern_request("server/discover")
    for scheme in ("Bearer", "bearer", "BEARER"):
        answer = await gateway.post(body, {**headers, "Authorization": f"{scheme} {idp.token()}"})
        assert answer.status == 200


@requirement("OWN-TOKEN", "T25-SEC-6")
async def test_each_url_is_an_audience_of_its_own(harness, auth, idp):
    client = await harness.start(names=("reports", "other"), auth=auth, public_url=PUBLIC)
    root = client.url.removesuffix("/mcp")
    paths = ("/mcp", "/reports/mcp", "/other/mcp")
    for audience in paths:
        client.token = idp.token(aud=f"{PUBLIC}{audience}")
        statuses = []
        for path in paths:
            client.url = root + path
            statuses.append((await client.modern("server/discover")).status)
        assert statuses == [200 if path == audience else 401 for path in paths]


STRANGERS = {
    "another subject": lambda: Issuer(signer=ES).token(sub="eve"),
    "another tenant": lambda: Issuer(signer=ES).token(tid="shop"),
    "another issuer": lambda: Issuer(OTHER_ISSUER, FOREIGN).token(),
    "parts shifted": lambda: Issuer(signer=ES).token(sub="ada:lab", tid="x"),
    "parts exchanged": lambda: Issuer(signer=ES).token(sub="lab", tid="ada"),
}


@requirement("T25-SEC-1", "T25-GET-2", "TX-GET-4", "OWN-KEY")
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_task_of_somebody_else_looks_like_none(gateway, idp, upstream, stranger):
    owner = await with_session(gateway, idp.token())
    task_id = await owner.task("gate", {"name": "a"})
    other = await with_session(gateway, STRANGERS[stranger]())
    for dialect, methods in TASK_METHODS.items():
        for method in methods:
            foreign = await ask(other, dialect, method, task_id)
            unknown = await ask(other, dialect, method, "A" * 32)
            own_unknown = await ask(owner, dialect, method, "A" * 32)
            assert seen(foreign) == seen(unknown) == seen(own_unknown)
            assert (foreign.status, foreign.error["code"]) == (200, -32602)
    assert (await owner.legacy("tasks/get", {"taskId": task_id})).result["status"] == "working"
    assert upstream.cancelled() == []


@requirement("T25-SEC-1", "OWN-KEY")
async def test_parts_of_an_identity_do_not_run_into_each_other(gateway, idp):
    one = await with_session(gateway, idp.token(sub="a:b", tid="c"))
    task_id = await one.task("gate", {"name": "a"})
    for sub, tid in (("a", "b:c"), ("a:b:c", "c"), ("a%3Ab", "c"), ("a:b", "c "), ("A:B", "c"), ("a:b", "ć")):
        other = await with_session(gateway, idp.token(sub=sub, tid=tid))
        assert (await other.legacy("tasks/get", {"taskId": task_id})).error["code"] == -32602


@requirement("T25-SEC-1", "OWN-KEYS")
async def test_a_refreshed_token_finds_the_same_tasks(gateway, harness, idp, servers, upstream):
    owner = await with_session(gateway, idp.token(jti="1", sid="s1", client_id="c1"))
    first, second = [await owner.task("gate", {"name": name}) for name in ("a", "b")]
    new = Signer("RS256", "new", RSA.key)
    servers[0].signers.append(new)
    later = Issuer(signer=new, now=idp.now + 60).token(jti="2", sid="s2", client_id="c2", scope="more")
    keys(harness, ISSUER)._asked -= 10  # so long after the last look the new key is looked for
    refreshed = as_(gateway, later)
    refreshed.session = owner.session
    assert (await refreshed.legacy("tasks/get", {"taskId": first})).result["status"] == "working"
    upstream.open("a")
    result = await refreshed.legacy("tasks/result", {"taskId": first})
    assert result.result["content"][0]["text"] == "through a"
    assert (await refreshed.legacy("tasks/cancel", {"taskId": second})).result["status"] == "cancelled"


@requirement("T25-SEC-2")
async def test_every_operation_asks_for_its_own_scope(harness, auth, idp, upstream):
    gateway = await harness.start(SCOPED, auth=auth, public_url=PUBLIC)
    owner = await with_session(gateway, idp.token(scope="run look stop"))
    task_id = await owner.task("gate", {"name": "a"})
    lost = await with_session(gateway, idp.token(scope="other runs"))

    def refused(answer, scope):
        assert (answer.status, answer.error["code"]) == (403, -32600)
        assert answer.error["data"] == {"reason": "forbidden", "retryable": False, "requiredScopes": [scope]}
        assert answer.headers["WWW-Authenticate"] == (
            f'Bearer resource_metadata="{PUBLIC}{WELL_KNOWN}/mcp", error="insufficient_scope", scope="{scope}"'
        )

    for dialect, methods in TASK_METHODS.items():
        for method in methods:
            refused(await ask(lost, dialect, method, task_id), "stop" if method == "tasks/cancel" else "look")
    refused(await lost.legacy_call("gate", {"name": "b"}, task={}), "run")
    refused(await lost.legacy_call("plain"), "run")
    refused(await lost.call("gate", {"name": "b"}), "run")
    refused(await lost.call("fail"), "fail")
    assert len(upstream.calls()) <= 1
    assert (await owner.legacy("tasks/get", {"taskId": task_id})).result["status"] == "working"


YES = {"action": "accept", "content": {"approve": True}}
CAN = {**TASKS, "elicitation": {"form": {}}}


class TestApproval:
    """Whoever agrees to a call is who may make it, at the time of the answer."""

    @pytest.fixture
    async def gateway(self, harness, auth):
        rule = {"approval": {"message": "Really?"}}
        tools = [
            {"match": "echo", "operation": rule},
            {"match": "plain", "task_support": "forbidden", "operation": rule},
        ]
        return await harness.start({**SCOPED, "tools": tools}, auth=auth, public_url=PUBLIC)

    async def begun(self, client):
        task_id = (await client.call("echo", capabilities=CAN)).result["taskId"]
        await self.until(client, task_id, "input_required")
        return task_id

    async def until(self, client, task_id, status):
        async def look():
            return (await client.modern("tasks/get", {"taskId": task_id})).result

        return await eventually(look, lambda task: task["status"] == status)

    async def update(self, client, task_id):
        params = {"taskId": task_id, "inputResponses": {"approval": YES}}
        return await client.modern("tasks/update", params)

    @requirement("OWN-APPROVE", "T25-SEC-2")
    async def test_needs_the_scope_of_the_call_anew(self, gateway, idp, upstream):
        owner = as_(gateway, idp.token(scope="run look"))
        task_id = await self.begun(owner)
        refused = await self.update(as_(gateway, idp.token(scope="look")), task_id)
        assert (refused.status, refused.error["data"]["requiredScopes"]) == (403, ["run"])
        reader = await with_session(gateway, idp.token(scope="look"))
        answered = {"jsonrpc": "2.0", "id": f"{task_id}:approval:x", "result": YES}
        told = await reader.post(answered, reader.session)
        assert (told.status, told.error["data"]["requiredScopes"]) == (403, ["run"])
        await self.until(owner, task_id, "input_required")
        assert upstream.calls() == []
        assert (await self.update(owner, task_id)).status == 200
        await self.until(owner, task_id, "completed")

    @requirement("OWN-APPROVE", "T25-SEC-2")
    async def test_needs_the_scope_in_a_request_that_is_sent_again(self, gateway, idp, upstream):
        owner, reader = (as_(gateway, idp.token(scope=scope)) for scope in ("run look", "look"))
        asked = (await owner.call("plain", capabilities=CAN)).result
        params = {"name": "plain", "arguments": {}, "requestState": asked["requestState"]}
        again = {**params, "inputResponses": {"approval": YES}}
        assert (await reader.modern("tools/call", again, capabilities=CAN)).status == 403
        assert upstream.calls() == []
        assert (await owner.modern("tools/call", again, capabilities=CAN)).result["content"]

    @requirement("OWN-APPROVE", "T25-SEC-1")
    @pytest.mark.parametrize("stranger", ["another subject", "another tenant"])
    async def test_of_somebody_else_is_none(self, gateway, idp, upstream, stranger):
        owner = as_(gateway, idp.token(scope="run look"))
        task_id = await self.begun(owner)
        thief = await with_session(gateway, STRANGERS[stranger]())
        assert (await self.update(thief, task_id)).error["code"] == -32602
        answered = {"jsonrpc": "2.0", "id": f"{task_id}:approval:x", "result": YES}
        assert (await thief.post(answered, thief.session)).status == 202
        await self.until(owner, task_id, "input_required")
        assert upstream.calls() == []


@requirement("T25-SEC-2")
@pytest.mark.parametrize("claims", [{"scp": ["run", "look"]}, {"scp": "run look"}, {"scope": "look run"}])
async def test_a_scope_is_found_in_either_claim(harness, auth, idp, claims):
    gateway = await harness.start(SCOPED, auth=auth, public_url=PUBLIC)
    client = await with_session(gateway, idp.token(**claims))
    task_id = await client.task("gate", {"name": "a"})
    assert (await client.legacy("tasks/get", {"taskId": task_id})).status == 200
    assert (await client.legacy("tasks/cancel", {"taskId": task_id})).status == 403


@requirement("T25-SEC-1")
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_session_of_somebody_else_is_none(gateway, idp, stranger):
    owner = await with_session(gateway, idp.token())
    task_id = await owner.task("gate", {"name": "a"})
    thief = as_(gateway, STRANGERS[stranger]())
    for method in ("ping", "tools/list", "tasks/get", "tasks/result", "tasks/cancel"):
        params = {"taskId": task_id}
        thief.session = owner.session
        stolen = await thief.legacy(method, params)
        thief.session = {"Mcp-Session-Id": "A" * 32}
        assert seen(stolen) == seen(await thief.legacy(method, params))
        assert stolen.status == 404
    headers = {**owner.session, "Authorization": f"Bearer {thief.token}"}
    async with thief.http.delete(thief.url, headers=headers) as response:
        assert response.status == 404
    assert (await owner.legacy("ping")).status == 200


class TestMetadata:
    @pytest.fixture
    async def client(self, harness, auth) -> Client:
        return await harness.start(SCOPED, names=("reports", "other"), auth=auth, public_url=PUBLIC)

    async def get(self, client, path, headers=None):
        url = client.url.removesuffix("/mcp") + path
        async with client.http.get(url, headers=headers) as response:
            return response.status, response.content_type, await response.read()

    @requirement("OWN-RESOURCE")
    @pytest.mark.parametrize(
        ("path", "resource", "name"),
        [("", "/mcp", "reports"), ("/mcp", "/mcp", "reports")]
        + [(f"/{name}/mcp", f"/{name}/mcp", name) for name in ("reports", "other")],
    )
    async def test_is_there_for_everybody_and_from_the_configuration(self, client, path, resource, name):
        spoofed = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "http", "Forwarded": "host=evil.example"}
        for headers in ({}, spoofed, {"Host": "localhost:1"}, {"Authorization": "Bearer bad"}):
            status, kind, body = await self.get(client, f"{WELL_KNOWN}{path}", headers)
            assert (status, kind) == (200, "application/json")
            assert json.loads(body) == {
                "resource": f"{PUBLIC}{resource}",
                "authorization_servers": [ISSUER, OTHER_ISSUER],
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["fail", "look", "run", "stop"],
                "resource_name": name,
            }

    @requirement("OWN-RESOURCE")
    async def test_is_what_a_refusal_points_to(self, client):
        root = client.url.removesuffix("/mcp")
        for path in ("/mcp", "/reports/mcp", "/other/mcp"):
            client.url = root + path
            challenge = (await client.modern("server/discover")).headers["WWW-Authenticate"]
            assert challenge == (f'Bearer resource_metadata="{PUBLIC}{WELL_KNOWN}{path}", scope="fail look run stop"')
            async with client.http.get(challenge.split('"')[1].replace(PUBLIC, root)) as response:
                assert (await response.json())["resource"] == f"{PUBLIC}{path}"

    @requirement("OWN-LIMITS")
    async def test_is_for_loopback_names_and_known_upstreams_only(self, client):
        assert (await self.get(client, WELL_KNOWN, {"Host": "evil.example"}))[0] == 403
        for path in ("/nothing/mcp", "/", "/mcp/", "/reports", "/x/y/mcp"):
            assert (await self.get(client, f"{WELL_KNOWN}{path}"))[0] == 404

    async def test_is_not_there_without_authentication(self, harness):
        client = await harness.start()
        for path in ("", "/mcp", "/reports/mcp"):
            assert (await self.get(client, f"{WELL_KNOWN}{path}"))[0] == 404


@requirement("T25-SEC-2")
async def test_without_authentication_a_scope_is_refused_and_no_way_is_shown(harness):
    client = await harness.start(SCOPED)
    answer = await client.call("gate", {"name": "a"})
    assert answer.status == 403
    assert "WWW-Authenticate" not in answer.headers


@requirement("OWN-HEALTH", "OWN-KEYS")
async def test_a_gateway_without_keys_starts_unready_and_refuses_tokens(harness, auth, servers, idp):
    servers[1].answer = away
    client = await harness.start(auth=auth, public_url=PUBLIC)
    client.token = idp.token()
    gateway = harness.gateways[0]

    async def ready():
        async with client.http.get(f"{gateway.admin_address}/readyz") as response:
            return response.status, await response.text()

    assert await ready() == (503, "the keys of an issuer were never there\n")
    assert (await client.modern("server/discover")).status == 200  # the other issuer is served
    client.token = Issuer(OTHER_ISSUER, FOREIGN).token()
    assert (await client.modern("server/discover")).status == 401
    servers[1].answer = None
    await keys(harness, OTHER_ISSUER).refresh()
    assert await ready() == (200, "ready\n")
    assert (await client.modern("server/discover")).status == 200
    log = harness.log.getvalue()
    assert f'"issuer":"{OTHER_ISSUER}","reason":"cannot be fetched: HTTP 503"' in log


@requirement("OWN-QUIET")
async def test_no_token_is_repeated_anywhere(harness, auth, idp, servers, caplog, capfd):
    """B33: a canary in every part of tokens, headers and key sets."""
    caplog.set_level(logging.DEBUG)
    client = await harness.start(SCOPED, auth=auth, public_url=PUBLIC)
    claims = {"canary": CANARY, "email": f"{CANARY}@x", "scope": f"look {CANARY}", "jti": CANARY}
    good = idp.token(**claims, sub=f"sub-{CANARY}", tid=f"tid-{CANARY}")
    tokens = [
        good,
        idp.token(ES_OTHER, **claims),
        idp.token(**{**claims, "aud": CANARY}),
        idp.token(iss=CANARY),
        idp.token(headers={"kid": CANARY}),
        idp.token(headers={"typ": CANARY}),
        idp.token(sub=["x", CANARY]),
        CANARY,
        f"{CANARY}.{CANARY}.{CANARY}",
        f"{good}.{CANARY}",
    ]
    answers = []
    for token in tokens:
        client.token = token
        answers += [await client.call("echo"), await client.modern("tasks/get", {"taskId": f"{CANARY}-{'x' * 32}"})]
    with suppress(ConnectionResetError):  # the rest of it is not read, which may overtake the answer
        assert b" 413 " in await spoken(client.url, f"Authorization: Bearer {CANARY}{'x' * 1_000_000}")
    raw = [
        await spoken(client.url, f"Authorization: Bearer {CANARY}{'x' * 30_000}"),
        await spoken(client.url, f"Authorization: Bearer {CANARY}\x01"),
        await spoken(client.url, f"Author\x01ization{CANARY}: Bearer {CANARY}"),
        await spoken(client.url, f"Authorization{CANARY}"),
    ]
    assert [body.split(b" ")[1] for body in raw] == [b"413", b"400", b"400", b"400"]
    async with client.http.get(f"{harness.gateways[0].admin_address}/metrics") as response:
        metrics = await response.text()
    told = [harness.log.getvalue(), metrics, caplog.text, *capfd.readouterr(), *map(str, raw)]
    told += [str(seen(answer)) for answer in answers]
    for text in told:
        assert CANARY not in text
        assert all(part not in text for token in tokens for part in token.split(".") if len(part) > 20)
    assert '"event":"request_unreadable"' in harness.log.getvalue()


async def spoken(url: str, line: str) -> bytes:
    """The answer to a head with this line."""
    host, port = url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST /mcp HTTP/1.1\r\nHost: {host}\r\n{line}\r\nContent-Length: 0\r\n\r\n".encode("latin-1"))
    answer = await reader.read()
    writer.close()
    return answer


@requirement("OWN-LIMITS", "OWN-ERRORS")
async def test_a_head_that_cannot_be_read_is_refused_in_our_own_words(gateway):
    for line, status, reason in (
        ("Authorization: Bearer " + "x" * 30_000, b"413", "too_large"),
        ("X: \x01", b"400", "invalid_request"),
    ):
        head, _, body = (await spoken(gateway.url, line)).partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        assert b"Content-Type: application/json" in head
        assert json.loads(body)["error"]["data"]["reason"] == reason
        assert json.loads(body)["id"] is None


@requirement("OWN-KEYS", "OWN-TOKEN")
async def test_a_key_server_that_hangs_holds_up_nobody_else(harness, auth, servers, idp):
    client = await harness.start(auth=auth, public_url=PUBLIC)
    servers[0].answer = never
    held = keys(harness, ISSUER)
    held._source, held._asked = KeyUrl(held._source._url, 1), held._asked - 10
    unknown = as_(client, idp.token(headers={"kid": "other"}))
    waiting = [asyncio.create_task(unknown.modern("server/discover")) for _ in range(20)]
    await eventually(lambda: asyncio.sleep(0, servers[0].asked), lambda asked: asked == 2)
    client.token = idp.token()
    for _ in range(50):
        assert (await client.modern("server/discover")).status == 200
    assert {answer.status for answer in await asyncio.gather(*waiting)} == {401}
    assert servers[0].asked == 2
