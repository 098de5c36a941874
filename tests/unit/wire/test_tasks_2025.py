"""How a record looks to a client of revision 2025-11-25."""

import json

import pytest

from gateway.core.model import OutcomeKind, TaskState
from gateway.wire import tasks_2025
from tests.records import task
from tests.requirements import requirement

WORKING = task(
    id="t-1", created_ms=1_767_225_600_000, updated_ms=1_767_225_601_005, ttl_ms=60_000, poll_interval_ms=250
)
WRITTEN = (
    b'{"taskId":"t-1","status":"working","statusMessage":"before","createdAt":"2026-01-01T00:00:00.000Z",'
    b'"lastUpdatedAt":"2026-01-01T00:00:01.005Z","ttl":60000,"pollInterval":250}'
)
RELATED = b'"io.modelcontextprotocol/related-task":{"taskId":"t-1"}'
STATUSES = [
    (TaskState.WORKING, None, "working"),
    (TaskState.INPUT_REQUIRED, None, "input_required"),
    (TaskState.DONE, OutcomeKind.RESULT, "completed"),
    (TaskState.DONE, OutcomeKind.TOOL_ERROR, "failed"),
    (TaskState.DONE, OutcomeKind.ERROR, "failed"),
    (TaskState.CANCELLED, None, "cancelled"),
    (TaskState.CANCELLED, OutcomeKind.RESULT, "cancelled"),
]


@requirement("T25-CAP-1", "T25-CAP-2")
def test_the_capability_has_cancel_and_calls_and_a_list_only_where_callers_are_told_apart():
    requests = {"tools": {"call": {}}}
    assert tasks_2025.capability(listing=False) == {"cancel": {}, "requests": requests}
    assert tasks_2025.capability(listing=True) == {"list": {}, "cancel": {}, "requests": requests}


@requirement("T25-ST-2")
@pytest.mark.parametrize(("state", "kind", "word"), STATUSES)
def test_a_result_with_is_error_makes_the_task_failed(state, kind, word):
    found = task(state=state, outcome_kind=kind)
    assert tasks_2025.status(found) == word
    assert json.loads(tasks_2025.task_result(found, "pending"))["status"] == word


@requirement("T25-GET-1")
def test_a_task_is_flat_and_names_no_related_task():
    assert tasks_2025.task_result(WORKING, "pending") == WRITTEN


@requirement("T25-GET-1")
def test_without_a_message_there_is_no_member_for_it():
    found = json.loads(tasks_2025.task_result(task(status_message=""), "pending"))
    assert list(found) == ["taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"]


def test_a_created_task_stands_in_a_member_of_its_own_without_a_result_type():
    assert tasks_2025.create_result(WORKING, "pending") == b'{"task":' + WRITTEN + b"}"


@requirement("T25-RES-3")
@pytest.mark.parametrize(
    ("stored", "answered"),
    [
        (b"{}", b'{"_meta":{' + RELATED + b"}}"),
        (
            b'{"content":[ ],"_meta":{"b":1.0,"a":"\\u00e9"},"n":1e400}',
            b'{"content":[ ],"_meta":{"b":1.0,"a":"\\u00e9",' + RELATED + b'},"n":1e400}',
        ),
        (
            b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"upstream"},"a":1}}',
            b'{"_meta":{' + RELATED + b',"a":1}}',
        ),
        (b'{"_meta":null,"a":1}', b'{"_meta":{' + RELATED + b'},"a":1}'),
        (b'{"_meta":[1]}', b'{"_meta":{' + RELATED + b"}}"),
        (b"[]", b'{"_meta":{' + RELATED + b"}}"),
    ],
)
def test_a_final_result_names_the_task_and_keeps_all_else(stored, answered):
    assert tasks_2025.final_result(WORKING, stored) == answered


@requirement("T25-ST-2")
def test_the_result_of_a_task_that_failed_by_is_error_is_still_the_result():
    failed = task(id="t-1", state=TaskState.DONE, outcome_kind=OutcomeKind.TOOL_ERROR)
    assert tasks_2025.status(failed) == "failed"
    stored = b'{"content":[{"type":"text","text":"no"}],"isError":true}'
    assert tasks_2025.final_result(failed, stored) == stored[:-1] + b',"_meta":{' + RELATED + b"}}"


def test_a_result_has_no_type_in_this_dialect():
    stored = b'{"resultType":"complete","a":{"resultType":"x"}}'
    assert tasks_2025.final_result(WORKING, stored) == b'{"a":{"resultType":"x"},"_meta":{' + RELATED + b"}}"
