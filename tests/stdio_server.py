"""What tests know of the stdio servers that they start: how to start them, and what arrived there."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config.load import resolve
from gateway.core.model import Owner
from gateway.upstream.port import Call
from gateway.upstream.process import Command
from gateway.wire import jsonrpc
from gateway.wire.jsonrpc import Response

SERVER = Path(__file__).parent / "fixtures_stdio" / "server.py"
MODERN_SERVER = SERVER.with_name("modern.py")
ALICE = Owner("issuer", "alice", "t", "reports")
BOB = Owner("issuer", "bob", "t", "reports")


class Stdio:
    """A folder in which servers write down what they see."""

    def __init__(self, folder: Path, server: Path = SERVER) -> None:
        self.folder = folder
        self.server = server
        self.environment: dict[str, str] = {}

    def arguments(self, mode: str = "") -> list[str]:
        return [sys.executable, "-S", str(self.server), str(self.folder), mode]

    def command(self, mode: str = "", **variables: str) -> Command:
        def resolved() -> dict[str, str]:
            return {name: resolve(value, self.folder) for name, value in variables.items()}

        return Command(self.arguments(mode), self.folder, resolved)

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Each message that arrived, with the process that got it."""
        path = self.folder / "seen"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def seen(self) -> list[dict[str, Any]]:
        return [entry["message"] for entry in self.entries]

    def methods(self) -> list[str]:
        return [message["method"] for message in self.seen if "method" in message]

    def calls(self, tool: str | None = None) -> list[dict[str, Any]]:
        """The tool calls that arrived."""
        sent = [message for message in self.seen if message.get("method") == "tools/call"]
        return [message for message in sent if tool is None or message["params"]["name"] == tool]

    def cancelled(self) -> list[Any]:
        """The ids of the requests that were cancelled."""
        notes = [message for message in self.seen if message.get("method") == "notifications/cancelled"]
        return [note["params"]["requestId"] for note in notes]

    def open(self, name: str) -> None:
        (self.folder / f"gate-{name}").touch()

    async def until(self, condition: Callable[[], Any], timeout_s: float = 10) -> None:
        """Waits for what another process does. Fails when it does not."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)


def call_of(upstream: Any, tool: str, max_bytes: int = 1_000_000, **arguments: Any) -> Call:
    """A call of a tool, with its own id as its progress token, as the gateway makes them."""
    call_id = upstream.next_id()
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": call_id}}
    return Call(call_id, "tools/call", jsonrpc.members(jsonrpc.write(params)), max_bytes)


def text_of(response: Response) -> str:
    """The text that a tool answered."""
    return json.loads(response.body)["content"][0]["text"]
