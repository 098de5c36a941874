"""What both dialects share in writing a record."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import __version__
from gateway.wire.render import RELATED_TASK, SERVER_INFO, SUBSCRIPTION_ID, timestamp
from tests.requirements import requirement
from tests.unit.wire.samples import steady

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 253_402_300_799_999


@pytest.fixture(params=["UTC", "EAST-05:30", "WEST+03:30"])
def _far_away(request, monkeypatch):
    """A machine whose clock shows another time of day."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@requirement("T25-GET-1")
@pytest.mark.parametrize(
    ("at_ms", "written"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (7, "1970-01-01T00:00:00.007Z"),
        (999, "1970-01-01T00:00:00.999Z"),
        (1_000, "1970-01-01T00:00:01.000Z"),
        (951_782_400_010, "2000-02-29T00:00:00.010Z"),
        (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
        (1_767_225_600_000, "2026-01-01T00:00:00.000Z"),
        (LAST_MS, "9999-12-31T23:59:59.999Z"),
    ],
)
@pytest.mark.usefixtures("_far_away")
def test_a_time_is_rfc_3339_in_utc_with_milliseconds(at_ms, written):
    assert timestamp(at_ms) == written


@steady
@given(st.integers(0, LAST_MS))
def test_a_time_loses_nothing(at_ms):
    assert datetime.fromisoformat(timestamp(at_ms)) - EPOCH == timedelta(milliseconds=at_ms)


def test_the_server_says_its_name_and_version():
    assert {"name": "mcp-task-gateway", "version": __version__} == SERVER_INFO


def test_keys_have_the_names_of_the_specification():
    assert RELATED_TASK == "io.modelcontextprotocol/related-task"
    assert SUBSCRIPTION_ID == "io.modelcontextprotocol/subscriptionId"
