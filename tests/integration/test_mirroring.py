"""Headers that repeat arguments are looked at here, for tools of an upstream of any era."""

import asyncio
import json

import pytest

from gateway.requests import mirroring
from tests.full_server import FullServer
from tests.integration.conftest import Harness
from tests.requirements import requirement

POLICY = {"version": 1, "defaults": {"task_support": "optional", "inline_ms": 2000}}
REGION = {"type": "string", "x-mcp-header": "Region"}
TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object", "properties": {"region": REGION}}},
    {"name": "odd", "inputSchema": {"type": "object", "properties": {"x": {"anyOf": [REGION]}}}},
]


class Server(FullServer):
    """Its list may be long in coming."""

    stalled = False

    async def serve(self, request, message):
        if self.stalled and message["method"] == "tools/list":
            await asyncio.Event().wait()
        return await super().serve(request, message)


@pytest.fixture
async def upstream():
    async with Server() as running:
        running.results["tools/list"] = json.dumps({"tools": TOOLS}).encode()
        yield running


@pytest.fixture
async def client(redis, server, upstream, http):
    harness = Harness(server.url, upstream, http)
    yield await harness.start(POLICY)
    for gateway in harness.gateways:
        await gateway.stop()


def lists(upstream):
    return len(upstream.methods("tools/list"))


async def call(client, header=None, tool="echo"):
    headers = {} if header is None else {"Mcp-Param-Region": header}
    return await client.call(tool, {"region": "eu"}, headers=headers)


@requirement("TX-HTTP-2", "BR-4")
async def test_a_legacy_upstreams_tools_have_such_headers_too(client, upstream):
    for header in (None, "us", "=?base64?dXM=?="):
        answer = await call(client, header)
        assert (answer.status, answer.error["code"], answer.error["data"]["reason"]) == (400, -32020, "headers")
        assert b"us" not in answer.body
    assert upstream.calls() == []
    assert (await call(client, "eu")).result["resultType"] == "complete"
    assert (await call(client, "=?base64?ZXU=?=")).result["resultType"] == "complete"


async def test_the_list_is_read_once_and_again_before_a_call_is_refused(client, upstream):
    await asyncio.gather(*(call(client, "eu") for _ in range(5)))
    assert lists(upstream) == 1
    await call(client)
    assert lists(upstream) == 2
    upstream.results["tools/list"] = b'{"tools":[{"name":"echo","inputSchema":{}}]}'
    assert (await call(client)).status == 200
    assert lists(upstream) == 3


async def test_a_tool_that_is_not_in_the_list_is_not_looked_for_each_time(client, upstream):
    for _ in range(3):
        assert (await call(client, tool="unheard-of")).status == 200
    assert lists(upstream) == 1


async def test_a_definition_against_the_rules_asks_for_nothing(client):
    assert (await call(client, tool="odd")).status == 200


async def test_a_legacy_client_has_no_such_headers(client, upstream):
    await client.initialize()
    assert "error" not in (await client.legacy_call("echo", {"region": "eu"})).messages[-1]
    assert lists(upstream) == 0


@pytest.mark.parametrize("fault", ["error", "stalled"])
async def test_a_list_that_cannot_be_had_stops_no_call(client, upstream, monkeypatch, fault):
    if fault == "error":
        del upstream.results["tools/list"]
        upstream.errors["tools/list"] = b'{"code":-32603,"message":"no"}'
    else:
        monkeypatch.setattr(mirroring, "_WITHIN_S", 0.1)
        upstream.stalled = True
    for _ in range(2):
        assert (await call(client)).status == 200
    assert lists(upstream) == 1
