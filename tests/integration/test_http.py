"""What the front door refuses before anything is believed."""

import asyncio
import json

import aiohttp
import pytest

from gateway.pending import Pending
from tests.requirements import requirement

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, -32700),
        (b"{", 400, -32700),
        (b"\xff", 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\ud800"}}', 400, -32700),
        (b"[" * 100_000, 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"9" * 10_000 + b"}}", 400, -32700),
        (b"[]", 400, -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600),
        (b'"ping"', 400, -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}', 400, -32600),
        (b" " * 5_000_000, 413, -32600),
    ],
)
async def test_bad_input_gets_the_right_error_and_changes_nothing(client, upstream, redis, body, status, code):
    before = set(await redis.keys("*:[tosr]:*"))
    await client.initialize()
    answer = await client.post(body, client.session)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.messages[0]["id"] is None
    assert len(set(await redis.keys("*:[tosr]:*")) - before) == 1  # the session
    assert {message["method"] for message in upstream.seen} == {
        "server/discover",
        "initialize",
        "notifications/initialized",
    }


async def test_an_id_comes_back_as_it_was_written(client):
    await client.initialize()
    for written in (b"12345678901234567890123", b"-1", b'"\\u00e9 \\" x"'):
        answer = await client.post(b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % written, client.session)
        assert answer.body == b'{"jsonrpc":"2.0","id":%s,"result":{}}' % written


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_only_json_is_taken(client, kind):
    answer = await client.post(CALL, {"Content-Type": kind or "x/y"})
    assert (answer.status, answer.error["code"]) == (400, -32600)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:6274"}, 200),
        ({}, 200),
    ],
)
async def test_web_pages_cannot_reach_a_loopback_listener(client, headers, status):
    body, modern = client.modern_request("server/discover")
    answer = await client.post(body, {**modern, **headers})
    assert answer.status == status
    async with client.http.delete(client.url, headers={"Mcp-Session-Id": "x" * 32, **headers}) as response:
        assert response.status == (403 if status == 403 else 404)


async def test_a_fault_of_ours_is_told_as_one_and_never_in_html(client, harness, monkeypatch):
    async def broken(*_):
        raise RuntimeError("CANARY")

    monkeypatch.setattr(harness.gateways[0].front.door._service, "_handle", broken)
    body, headers = client.modern_request("server/discover")
    answer = await client.post(body, headers)
    assert (answer.status, answer.error["code"], answer.messages[0]["id"]) == (200, -32603, 1)
    assert '"where":"request","error":"RuntimeError"' in harness.log.getvalue()
    assert "CANARY" not in harness.log.getvalue() + answer.body.decode()


async def test_unknown_paths_and_upstreams_are_not_found(client):
    for path in ("/", "/nothing/mcp", "/mcp/x"):
        async with client.http.post(client.url.replace("/mcp", path), json=CALL) as response:
            assert response.status == 404


async def test_a_delete_without_a_session_is_no_method_of_this_url(client):
    async with client.http.delete(client.url) as response:
        assert response.status == 405


async def test_a_session_id_that_was_sent_twice_is_unknown(client):
    await client.initialize()
    session = client.session["Mcp-Session-Id"]
    headers = [("Mcp-Session-Id", session), ("Mcp-Session-Id", session), ("Content-Type", "application/json")]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    async with client.http.post(client.url, data=body, headers=headers) as response:
        assert response.status == 404


async def test_an_unknown_version_of_a_legacy_session_is_a_bad_request(client):
    await client.initialize()
    answer = await client.post(CALL, {**client.session, "MCP-Protocol-Version": "2099-01-01"})
    assert answer.status == 400


async def test_a_stream_that_meets_a_fault_of_ours_ends(client, harness, monkeypatch):
    async def broken():
        await asyncio.sleep(0.1)
        raise RuntimeError("CANARY")

    async def handle(*_):
        answer = asyncio.ensure_future(broken())
        return Pending(answer, answer.cancel)

    monkeypatch.setattr(harness.gateways[0].front.door._service, "handle", handle)
    body, headers = client.modern_request("server/discover")
    async with asyncio.timeout(10):
        with pytest.raises(aiohttp.ClientError):
            await client.post(body, headers)


class TestBrowsers:
    """Pages of allowed origins may call and see what they need of the answer; others may not even ask."""

    PAGE = "http://localhost:6274"

    async def preflight(self, client, origin, wanted="Content-Type, Mcp-Session-Id, X-Evil, mcp-param-a"):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
        async with client.http.options(client.url, headers=asked) as response:
            return response.status, response.headers

    async def test_may_ask_before_they_send(self, client):
        status, headers = await self.preflight(client, self.PAGE)
        assert (status, headers["Access-Control-Allow-Origin"], headers["Vary"]) == (204, self.PAGE, "Origin")
        assert headers["Access-Control-Allow-Headers"] == "content-type, mcp-session-id, mcp-param-a"
        assert headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
        assert "Access-Control-Allow-Credentials" not in headers

    @pytest.mark.parametrize("origin", ["https://evil.example", "null"])
    async def test_that_are_not_allowed_may_not(self, client, origin):
        status, headers = await self.preflight(client, origin)
        assert (status, "Access-Control-Allow-Origin" in headers) == (403, False)
        refused = await client.post(CALL, {"Origin": origin})
        assert "Access-Control-Allow-Origin" not in refused.headers

    async def test_see_answers_errors_and_streams(self, client, upstream):
        await client.initialize()
        answers = [
            await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {**client.session, "Origin": self.PAGE}),
            await client.post(b"{", {"Origin": self.PAGE}),
        ]
        headers = [answer.headers for answer in answers]
        asked = {**client.session, "Origin": self.PAGE, "Accept": "text/event-stream"}
        async with client.http.get(client.url, headers=asked) as response:
            headers.append(response.headers)
        for one in headers:
            assert one["Access-Control-Allow-Origin"] == self.PAGE
            assert "Mcp-Session-Id" in one["Access-Control-Expose-Headers"]

    async def test_without_an_origin_nothing_is_said(self, client):
        assert not [name for name in (await client.post(b"{")).headers if name.startswith("Access-Control")]
