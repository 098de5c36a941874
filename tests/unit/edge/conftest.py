"""A clock that stands still until it is moved, and a log that can be read."""

import io
import json

import pytest

from gateway.telemetry import Telemetry


class Clock:
    """Seconds."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Log(Telemetry):
    """Remembers what was logged."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        super().__init__(self._stream)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.text.splitlines()]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_000_000.0)


@pytest.fixture
def timer() -> Clock:
    return Clock(5000.0)


@pytest.fixture
def log() -> Log:
    return Log()
