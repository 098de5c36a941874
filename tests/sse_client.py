"""A client's side of an open event stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.client import JSON, Client


class Stream:
    """Messages as they come. `ids` are the event ids seen, `raw` everything."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.status = response.status
        self.ids: list[str] = []
        self.raw = b""

    async def event(self) -> bytes:
        """The next event or comment; empty at the end."""
        async with asyncio.timeout(10):
            try:
                block = await self.response.content.readuntil(b"\n\n")
            except asyncio.IncompleteReadError as error:
                return error.partial
        self.raw += block
        self.ids += [line[4:].decode() for line in block.splitlines() if line.startswith(b"id: ")]
        return block

    async def message(self, method: str | None = None) -> dict[str, Any]:
        """The next message (of this method; an answer has none, and is asked for by "")."""
        while True:
            block = await self.event()
            if not block:
                raise AssertionError(f"the stream ended before {method}: {self.raw.decode()}")
            data = [line[6:] for line in block.splitlines() if line.startswith(b"data: {")]
            found = json.loads(data[0]) if data else None
            if found is not None and (method is None or found.get("method", "") == method):
                return found

    async def end(self) -> bytes:
        """Everything until the stream ends."""
        while await self.event():
            pass
        return self.raw


@asynccontextmanager
async def opened(client: Client, body: dict[str, Any], headers: dict[str, str]) -> AsyncIterator[Stream]:
    """The stream that answers a POST."""
    data = json.dumps(body)
    async with client.http.post(client.url, data=data, headers={**JSON, **_token(client), **headers}) as response:
        yield Stream(response)


@asynccontextmanager
async def session_stream(client: Client, event_id: str | None = None) -> AsyncIterator[Stream]:
    """The GET stream of the client's session."""
    resume = {} if event_id is None else {"Last-Event-ID": event_id}
    headers = {"Accept": "text/event-stream", **_token(client), **client.session, **resume}
    async with client.http.get(client.url, headers=headers) as response:
        yield Stream(response)


def result_of(client: Client, task_id: str, request_id: object = "r"):
    """The stream of a tasks/result."""
    body = {"jsonrpc": "2.0", "id": request_id, "method": "tasks/result", "params": {"taskId": task_id}}
    return opened(client, body, client.session)


def _token(client: Client) -> dict[str, str]:
    return {} if client.token is None else {"Authorization": f"Bearer {client.token}"}
