"""Upstreams with real processes, and the proof that nothing is left of any of them."""

import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.telemetry import Telemetry
from gateway.upstream.pool import Bounds
from gateway.upstream.process import Command
from gateway.upstream.stdio import StdioUpstream
from gateway.wire.errors import Era
from tests.e2e.processes import alive
from tests.stdio_server import Stdio


class Log:
    """What an upstream logged."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.telemetry = Telemetry(self.stream)
        self.faults: list[str] = []
        """The faults that a test provokes."""

    def said(self, event: str) -> list[dict]:
        entries = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [entry for entry in entries if entry["event"] == event]

    def pids(self) -> list[int]:
        return [entry["pid"] for entry in self.said("upstream_started")]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def stdio(tmp_path: Path) -> Stdio:
    return Stdio(tmp_path)


@pytest.fixture
async def make(stdio: Stdio, log: Log) -> AsyncIterator[Callable[..., StdioUpstream]]:
    """Makes upstreams, and ends them."""
    made: list[StdioUpstream] = []

    def run(
        mode: str = "",
        *,
        command: Command | None = None,
        processes: int = 100,
        idle_s: float = 600,
        era: Era | None = None,
    ):
        bounds = Bounds(processes, idle_s)
        made.append(StdioUpstream(command or stdio.command(mode), bounds, log.telemetry, era))
        return made[-1]

    yield run
    for upstream in made:
        await upstream.close()
    assert [pid for pid in log.pids() if alive(pid)] == []
    assert len(log.said("upstream_exited")) == len(log.pids())
    assert zombies() == []
    assert [fault["error"] for fault in log.said("fault")] == log.faults


def zombies() -> list[int]:
    """Children of this process that have ended and were not collected."""
    path = Path("/proc/self/task")
    children = [int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in children if not alive(pid)]
