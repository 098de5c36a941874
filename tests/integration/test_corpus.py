"""Odd but legal messages arrive as written where they are only carried, or are refused with the right code."""

from collections.abc import AsyncIterator

import pytest

from tests.client import CAPABILITIES, VERSION
from tests.full_server import FullServer
from tests.integration.conftest import Harness
from tests.requirements import requirement

POLICY = {
    "version": 1,
    "defaults": {"inline_ms": 0, "max_arguments_bytes": 4_000_000, "effect": "read_only"},
    "tools": [{"match": "task", "task_support": "optional"}, {"match": "sync", "task_support": "optional"}],
}
CORPUS = {
    "beyond 2^53": b"9007199254740993",
    "64 bits": b"-9223372036854775808",
    "2^64": b"18446744073709551616",
    "40 digits": b"1234567890123456789012345678901234567890",
    "beyond double": b"1e400",
    "tiny": b"1e-400",
    "one as a float": b"1.0",
    "exponent": b"1E+2",
    "negative zero": b"-0",
    "many decimals": b"0.1000000000000000055511151231257827",
    "null": b"null",
    "no object at all": b"{}",
    "escapes": rb'"\u00e9\/\b\f\n\r\t\"\\ \ud83d\ude00"',
    "line separators": '"\u2028\u2029"'.encode(),
    "NUL": rb'"a\u0000b"',
    "raw emoji": '"\U0001f600é"'.encode(),
    "1 MB": b'"' + b"x" * 1_000_000 + b'"',
    "order and space": b'{ "z" : 1 ,\t"a":[ ] , "Z":{ } }',
    "a key twice": b'{"a":1,"a":2}',
    "escaped keys": rb'{"\u0061":1,"":2,"\/":3}',
    "deep": b"[" * 50 + b"]" * 50,
}
REFUSED = {
    "a lone surrogate": rb'"\ud800"',
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "too deep": b"[" * 100 + b"]" * 100,
    "a number without end": b"1" * 500,
    "a raw tab in a string": b'"\t"',
    "not UTF-8": b'"\xff"',
    "a leading zero": b"01",
}


@pytest.fixture(scope="session")
def server(any_server):
    """One kind of store is enough: what is shown here does not depend on it."""
    return any_server


@pytest.fixture
async def upstream() -> AsyncIterator[FullServer]:
    async with FullServer() as running:
        yield running


@pytest.fixture
async def client(harness: Harness):
    made = await harness.start(POLICY)
    await made.initialize()
    return made


async def legacy(client, method, params):
    body = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method.encode(), params)
    return await client.post(body, client.session)


def said(answer):
    """The bytes of an answer, which comes on a stream if it takes a while."""
    if "event-stream" not in answer.headers["Content-Type"]:
        return answer.body
    return [line[6:] for line in answer.body.splitlines() if line.startswith(b"data: {")][-1]


async def modern(client, method, params, name):
    meta = b'"%s":"2026-07-28","%s":{}' % (VERSION.encode(), CAPABILITIES.encode())
    body = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{"_meta":{%s},%s}' % (method.encode(), meta, params[1:])
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name}
    return await client.post(body, headers)


def odd(value):
    """Parameters and results that hold a value on every level."""
    return (
        b'{"name":"%s","uri":"%s","arguments":{"a":' + value + b',"b":[' + value + b"]},"
        b'"content":[],"x-unknown":' + value + b',"_meta":{"com.example/k":' + value + b"}}"
    )


def written(tool, value):
    return odd(value).replace(b"%s", tool.encode())


def params_of(raw):
    """The parameters in the bytes of a request."""
    return raw[raw.index(b'"params":') + 9 : -1]


@requirement("OWN-BYTES")
@pytest.mark.parametrize("value", CORPUS.values(), ids=CORPUS)
class TestCarried:
    @pytest.mark.parametrize("method", ["prompts/get", "tools/call", "made/up"])
    async def test_between_a_legacy_client_and_its_upstream(self, client, upstream, method, value):
        body = written("plain", value)
        upstream.results[method] = body
        told = await legacy(client, method, body)
        assert said(told) == b'{"jsonrpc":"2.0","id":1,"result":' + body + b"}"
        assert params_of(upstream.raw[-1]) == body

    async def test_in_an_error(self, client, upstream, value):
        error = b'{"code":-32000,"message":"no","data":' + value + b',"x":' + value + b"}"
        upstream.errors["prompts/get"] = error
        assert said(await legacy(client, "prompts/get", b"{}")) == b'{"jsonrpc":"2.0","id":1,"error":' + error + b"}"

    async def test_between_the_eras(self, client, upstream, value):
        body = written("plain", value)
        upstream.results["tools/call"] = body
        bare = body.replace(b',"_meta":{"com.example/k":' + value + b"}", b"")
        told = await modern(client, "tools/call", bare, "plain")
        assert (told.status, b'"result"' in said(told)) == (200, True), told.body
        for part in (b'"arguments":{"a":' + value + b',"b":[' + value + b"]}", b'"x-unknown":' + value):
            assert part in upstream.raw[-1]
            assert part in said(told)
        assert b'"com.example/k":' + value in said(told)

    async def test_in_a_bounded_call_and_in_a_task_of_either_dialect(self, client, upstream, value):
        for tool, more in (("sync", b""), ("task", b'"task":{},')):
            body = written(tool, value)
            upstream.results["tools/call"] = body
            told = await legacy(client, "tools/call", b"{" + more + body[1:])
            assert params_of(upstream.raw[-1]) == body if not more else True
            if more:
                task_id = told.result["task"]["taskId"]
                final = await client.legacy("tasks/result", {"taskId": task_id})
                assert params_of(upstream.raw[-1]) == body
                assert body[:-2] in said(final)  # `_meta` goes on with the related task
                detailed = await client.modern("tasks/get", {"taskId": task_id})
                assert b'"result":{"resultType":"complete",' + body[1:] in said(detailed)
            else:
                assert said(told) == b'{"jsonrpc":"2.0","id":1,"result":' + body + b"}"


@requirement("OWN-BYTES")
@pytest.mark.parametrize(
    "body",
    [
        rb'{ "n\u0061me" : "plain" , "x\u002dy":1,  "arguments" : { } }',
        b'{\t"name":"plain","x":1.0,"_meta" : { "com.example/k" : [ ] } }',
    ],
)
class TestAsWritten:
    """Spaces and escaped names next to the envelope, where nothing is taken away or added."""

    @pytest.mark.parametrize("method", ["prompts/get", "tools/call", "made/up"])
    async def test_what_passes(self, client, upstream, method, body):
        upstream.results[method] = body
        assert said(await legacy(client, method, body)) == b'{"jsonrpc":"2.0","id":1,"result":' + body + b"}"
        assert params_of(upstream.raw[-1]) == body

    async def test_a_bounded_call(self, client, upstream, body):
        body = body.replace(b"plain", b"sync")
        upstream.results["tools/call"] = body
        assert said(await legacy(client, "tools/call", body)) == b'{"jsonrpc":"2.0","id":1,"result":' + body + b"}"
        assert params_of(upstream.raw[-1]) == body


@requirement("OWN-LIMITS")
async def test_of_a_name_that_comes_twice_the_upstream_gets_the_one_that_was_looked_at(client, upstream):
    upstream.results["tools/call"] = b"{}"
    await legacy(client, "tools/call", b'{"name":"task","arguments":{"a":1},"name":"plain","arguments":{}}')
    assert params_of(upstream.raw[-1]) == b'{"name":"plain","arguments":{}}'


@requirement("OWN-BYTES", "OWN-LIMITS")
@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
class TestRefused:
    async def test_from_a_client(self, client, upstream, value):
        before = len(upstream.raw)
        for told in (
            await legacy(client, "prompts/get", written("plain", value)),
            await modern(client, "tools/call", written("plain", value), "plain"),
        ):
            assert (told.status, told.error["code"]) == (400, -32700)
        assert len(upstream.raw) == before

    async def test_from_an_upstream(self, client, upstream, value):
        upstream.results["prompts/get"] = written("plain", value)
        told = await legacy(client, "prompts/get", b"{}")
        assert (told.status, told.error["code"]) == (200, 50202)


@requirement("OWN-BYTES")
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("written_id", [b"9007199254740993", b'"\\u00e9"', b'""', b"-1", b'"' + b"x" * 250 + b'"'])
async def test_ids_come_back_as_they_were_written(client, upstream, written_id):
    upstream.results["made/up"] = b'{"x":1.0}'
    body = b'{"jsonrpc":"2.0","id":%s,"method":"made/up"}' % written_id
    assert (
        await client.post(body, client.session)
    ).body == b'{"jsonrpc":"2.0","id":%s,"result":{"x":1.0}}' % written_id


@requirement("OWN-BYTES")
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("params", [b"", b',"params":{}'])
async def test_absent_and_empty_parameters_are_the_same(client, upstream, params):
    upstream.results["prompts/list"] = b"{}"
    body = b'{"jsonrpc":"2.0","id":1,"method":"prompts/list"%s}' % params
    assert (await client.post(body, client.session)).body == b'{"jsonrpc":"2.0","id":1,"result":{}}'
    assert params_of(upstream.raw[-1]) == b"{}"
