"""A client of both eras that shows everything it gets: status, headers, bytes."""

import io
import json
from dataclasses import dataclass
from typing import Any

import aiohttp

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@dataclass
class Answer:
    """One HTTP answer; `messages` are the JSON-RPC messages in it, the last is the answer to the request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def messages(self) -> list[dict[str, Any]]:
        if "event-stream" in self.headers.get("Content-Type", ""):
            lines = [line[5:] for line in self.body.decode().splitlines() if line.startswith("data: {")]
            return [json.loads(line) for line in lines]
        return [json.loads(self.body)] if self.body else []

    @property
    def result(self) -> dict[str, Any]:
        return self.messages[-1]["result"]

    @property
    def error(self) -> dict[str, Any]:
        return self.messages[-1]["error"]


class Client:
    """Speaks to one endpoint. `session` is the legacy session, once there is one; `token` goes along with all."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None = None) -> None:
        self.http = http
        self.url = url
        self.token = token
        self.session: dict[str, str] = {}

    async def post(self, body: object, headers: dict[str, str] | None = None, **options: Any) -> Answer:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        known = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        async with self.http.post(
            self.url, data=data, headers={**JSON, **known, **(headers or {})}, **options
        ) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    def modern_request(self, method, params=None, *, capabilities=None, request_id=1):
        declared = TASKS if capabilities is None else capabilities
        meta = {VERSION: "2026-07-28", CAPABILITIES: declared, **(params or {}).get("_meta", {})}
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**(params or {}), "_meta": meta}}
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
        if method in NAMED:
            headers["Mcp-Name"] = str((params or {}).get(NAMED[method]))
        return body, headers

    async def modern(self, method, params=None, *, headers=None, **options) -> Answer:
        body, known = self.modern_request(method, params, **options)
        return await self.post(body, {**known, **(headers or {})})

    async def call(self, tool, arguments=None, **options) -> Answer:
        return await self.modern("tools/call", {"name": tool, "arguments": arguments or {}}, **options)

    async def call_raw(self, tool, *, meta, **options) -> Answer:
        """A modern call that says more about itself."""
        return await self.modern("tools/call", {"name": tool, "arguments": {}, "_meta": meta}, **options)

    async def initialize(self, version="2025-11-25", capabilities=None) -> Answer:
        declared = capabilities or {}
        params = {"protocolVersion": version, "capabilities": declared, "clientInfo": {"name": "t", "version": "1"}}
        answer = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        return answer

    async def legacy(self, method, params=None, *, request_id=1, **options) -> Answer:
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}
        return await self.post(body, self.session, **options)

    async def legacy_call(self, tool, arguments=None, **params) -> Answer:
        return await self.legacy("tools/call", {"name": tool, "arguments": arguments or {}, **params})

    async def task(self, tool, arguments=None, ttl=600_000) -> str:
        """The id of a new task of 2025-11-25."""
        return (await self.legacy_call(tool, arguments, task={"ttl": ttl})).result["task"]["taskId"]
