"""What the log says, and what it never says."""

import io
import json

import pytest

from gateway import telemetry
from gateway.telemetry import Telemetry, short
from tests.requirements import requirement

ID = "786512e2-9e0d-44bd-8f29-789f320fe840"


@pytest.fixture
def log():
    return io.StringIO()


def lines(log):
    return [json.loads(line) for line in log.getvalue().splitlines()]


@requirement("BR-3", "OWN-QUIET")
def test_an_id_of_an_upstreams_task_is_a_digest_whoever_prints_it(log):
    made = Telemetry(log)
    made.upstream_stderr(upstream="u", pid=1, line="before")
    made.accepted(upstream="u", task_id="ours", theirs=ID, dialect="2025-11-25")
    made.upstream_stderr(upstream="u", pid=1, line=f'task "{ID}" failed: x{ID}, not-{ID}, other-word')
    first, accepted, second = lines(log)
    assert first["line"] == "before"
    assert (accepted["id"], accepted["upstream_id"]) == (short("ours"), short(ID))
    assert second["line"] == f'task "{short(ID)}" failed: x{ID}, not-{ID}, other-word'


def test_only_so_many_ids_are_remembered(log, monkeypatch):
    monkeypatch.setattr(telemetry, "_REMEMBERED", 1)
    made = Telemetry(log)
    for theirs in ("their-task-1", "their-task-2"):
        made.accepted(upstream="u", task_id="ours", theirs=theirs, dialect="2025-11-25")
    made.upstream_stderr(upstream="u", pid=1, line="their-task-1 their-task-2")
    assert lines(log)[-1]["line"] == f"their-task-1 {short('their-task-2')}"
