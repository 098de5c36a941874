"""How a record looks to a client of the extension with revision 2026-07-28."""

import json

import pytest

from gateway.core.model import OutcomeKind, Question, TaskState
from gateway.wire import tasks_ext
from gateway.wire.jsonrpc import write
from gateway.wire.render import SERVER_INFO
from tests.records import task
from tests.requirements import requirement
from tests.unit.wire.samples import SERVER, compact

INFO = compact(SERVER_INFO)
META = b'"_meta":{"io.modelcontextprotocol/serverInfo":' + INFO + b"}"
TIMES = b'"createdAt":"2026-01-01T00:00:00.000Z","lastUpdatedAt":"2026-01-01T00:00:01.005Z"'
REST = TIMES + b',"ttlMs":60000,"pollIntervalMs":250,'
QUESTIONS = (
    Question("q1", "elicitation/create", '{ "message" : "1.0?" }', 1, 2),
    Question("q2", "sampling/createMessage", "{}", 1, 2, answer="{}"),
    Question("q3", "roots/list", "{}", 1, 2),
)


def record(state, kind=None, **changes):
    return task(
        id="t-1",
        state=state,
        outcome_kind=kind,
        created_ms=1_767_225_600_000,
        updated_ms=1_767_225_601_005,
        ttl_ms=60_000,
        poll_interval_ms=250,
        **{"status_message": "", **changes},
    )


STATUSES = [
    (TaskState.WORKING, None, "working"),
    (TaskState.INPUT_REQUIRED, None, "input_required"),
    (TaskState.DONE, OutcomeKind.RESULT, "completed"),
    (TaskState.DONE, OutcomeKind.TOOL_ERROR, "completed"),
    (TaskState.DONE, OutcomeKind.ERROR, "failed"),
    (TaskState.CANCELLED, None, "cancelled"),
    (TaskState.CANCELLED, OutcomeKind.ERROR, "cancelled"),
]


@requirement("TX-GET-2")
@pytest.mark.parametrize(("state", "kind", "word"), STATUSES)
def test_failed_is_for_json_rpc_errors_only(state, kind, word):
    assert tasks_ext.status(record(state, kind)) == word
    assert json.loads(tasks_ext.detailed(record(state, kind), b"{}", "pending"))["status"] == word


@requirement("TX-NEW-1", "TX-HTTP-5")
def test_a_created_task_is_flat_and_has_the_units_in_its_names():
    created = tasks_ext.create_result(record(TaskState.WORKING, status_message="on it"), "pending")
    head = b'{"resultType":"task","taskId":"t-1","status":"working","statusMessage":"on it",'
    assert created == head + REST + META + b"}"


@requirement("TX-UPD-1", "TX-CAN-1")
def test_an_acknowledgement_has_no_member_of_a_task():
    assert tasks_ext.ACKNOWLEDGED == b'{"resultType":"complete",' + META + b"}"


@requirement("TX-GET-1")
@pytest.mark.parametrize(
    ("state", "kind", "word", "body", "detail"),
    [
        (TaskState.WORKING, None, b"working", None, b""),
        (TaskState.WORKING, None, b"working", b'{"left":"over"}', b""),
        (TaskState.INPUT_REQUIRED, None, b"input_required", b'{"left":"over"}', b'"inputRequests":{},'),
        (TaskState.CANCELLED, None, b"cancelled", b'{"left":"over"}', b""),
        (
            TaskState.DONE,
            OutcomeKind.RESULT,
            b"completed",
            b'{"content": [ ] , "n":1e400}',
            b'"result":{"resultType":"complete","content": [ ] , "n":1e400},',
        ),
        (
            TaskState.DONE,
            OutcomeKind.TOOL_ERROR,
            b"completed",
            b'{"isError":true}',
            b'"result":{"resultType":"complete","isError":true},',
        ),
        (
            TaskState.DONE,
            OutcomeKind.ERROR,
            b"failed",
            b'{ "code":-1,"message":"no","data":1.0 }',
            b'"error":{ "code":-1,"message":"no","data":1.0 },',
        ),
        (TaskState.DONE, OutcomeKind.RESULT, b"completed", None, b""),
        (TaskState.DONE, OutcomeKind.ERROR, b"failed", None, b""),
    ],
)
def test_a_detailed_task_has_what_belongs_to_its_status(state, kind, word, body, detail):
    head = b'{"resultType":"complete","taskId":"t-1","status":"' + word + b'",'
    assert tasks_ext.detailed(record(state, kind), body, "pending") == head + REST + detail + META + b"}"


@requirement("TX-GET-1")
def test_the_questions_that_are_shown_are_those_without_an_answer():
    found = tasks_ext.detailed(record(TaskState.INPUT_REQUIRED, questions=QUESTIONS), None, "pending")
    assert list(json.loads(found)["inputRequests"]) == ["q1", "q3"]
    first = b'"q1":{"method":"elicitation/create","params":{ "message" : "1.0?" }}'
    assert b'"inputRequests":{' + first + b',"q3":{"method":"roots/list","params":{}}},"_meta"' in found


@requirement("TX-GET-1")
@pytest.mark.parametrize("state", [TaskState.WORKING, TaskState.CANCELLED, TaskState.DONE])
def test_questions_are_shown_only_while_input_is_required(state):
    found = json.loads(tasks_ext.detailed(record(state, OutcomeKind.RESULT, questions=QUESTIONS), b"{}", "pending"))
    assert "inputRequests" not in found


@requirement("TX-NOT-1")
@pytest.mark.parametrize("body", [None, b"{}", b'{ "code" : -32002 }'])
@pytest.mark.parametrize(("state", "kind"), [(state, kind) for state, kind, _ in STATUSES])
def test_a_notification_says_what_tasks_get_would_answer(state, kind, body):
    shown = record(state, kind, questions=QUESTIONS, status_message="on it")
    told = write(tasks_ext.notification(shown, body))
    assert tasks_ext.detailed(shown, body, "pending") == b'{"resultType":"complete",' + told[1:-1] + b"," + META + b"}"


@requirement("TX-NOT-1")
def test_a_notification_is_a_task_with_its_details_and_nothing_of_an_answer():
    told = write(tasks_ext.notification(record(TaskState.DONE, OutcomeKind.ERROR), b'{ "code":-1 }'))
    assert told == b'{"taskId":"t-1","status":"failed",' + REST + b'"error":{ "code":-1 }}'


@requirement("TX-NOT-3")
@pytest.mark.parametrize("request_id", [b"7", b'"\\u00e9"'])
def test_the_end_of_a_stream_names_its_subscription(request_id):
    subscription = b',"io.modelcontextprotocol/subscriptionId":' + request_id
    written = b'{"resultType":"complete",' + META[:-1] + subscription + b"}}"
    assert tasks_ext.listen_result(request_id) == written


@requirement("TX-NEW-3")
def test_input_before_the_work_asks_what_is_open_and_carries_a_state():
    asked = b'"q1":{"method":"elicitation/create","params":{ "message" : "1.0?" }}'
    questions = b'"inputRequests":{' + asked + b',"q3":{"method":"roots/list","params":{}}},'
    written = b'{"resultType":"input_required",' + questions + b'"requestState":"s-1",' + META + b"}"
    assert tasks_ext.input_required(record(TaskState.INPUT_REQUIRED, questions=QUESTIONS), "s-1") == written


@requirement("TX-HTTP-5")
@pytest.mark.parametrize(
    ("stored", "written"),
    [
        (b"{}", b'{"resultType":"complete"}'),
        (b"{ \n}", b'{"resultType":"complete"}'),
        (b'{"a":1}', b'{"resultType":"complete","a":1}'),
        (b'{ \n "a" : 1.0 , "b":{}}', b'{"resultType":"complete","a" : 1.0 , "b":{}}'),
    ],
)
def test_a_stored_result_gets_its_type_without_being_parsed(stored, written):
    assert tasks_ext.complete(stored) == written


@requirement("TX-HTTP-5")
@pytest.mark.parametrize(
    ("body", "written"),
    [
        (b"{}", b'{"resultType":"complete",' + META + b"}"),
        (b'{"b":1.0,"a":[ ]}', b'{"resultType":"complete","b":1.0,"a":[ ],' + META + b"}"),
        (b'{"a":1,"resultType":"task"}', b'{"resultType":"complete","a":1,' + META + b"}"),
        (b'{"_meta":null,"a":1}', b'{"resultType":"complete",' + META + b',"a":1}'),
        (b'{"_meta":[]}', b'{"resultType":"complete",' + META + b"}"),
        (b'{"_meta":{"x":1.0}}', b'{"resultType":"complete",' + META[:-1] + b',"x":1.0}}'),
        (
            compact({"_meta": {"x": 1, SERVER: {"name": "other"}}}),
            compact({"resultType": "complete", "_meta": {SERVER: {"name": "other"}, "x": 1}}),
        ),
        (b"[]", b'{"resultType":"complete",' + META + b"}"),
    ],
)
def test_a_plain_result_is_complete_and_says_who_served_it(body, written):
    assert tasks_ext.plain_result(body) == written


@requirement("TX-HTTP-6")
@pytest.mark.parametrize(
    ("code", "shown"), [(b"-32002", b"-32602"), (b"-32042", b"-32603"), (b"-32020", b"-32603"), (b"-32099", b"-32603")]
)
def test_an_error_with_a_code_that_is_not_the_upstreams_to_use_keeps_all_else(code, shown):
    body = b'{"message":"\\u00e9","code":' + code + b',"data":{ "uri" : "x" }}'
    written = b'{"message":"\\u00e9","code":' + shown + b',"data":{ "uri" : "x" }}'
    assert tasks_ext.error(body) == written


@requirement("OWN-BYTES", "TX-HTTP-6")
@pytest.mark.parametrize(
    "body",
    [
        b'{ "code" : -32602 , "message" : "no" }',
        b'{ "code" : -1 , "data" : 1.0 }',
        b'{ "code" : -32019 }',
        b'{ "code" : -32002.0 }',
        b'{ "code" : "-32002" }',
        b'{ "message" : "no code" }',
        b'{ "data" : {"code":-32002} }',
    ],
)
def test_any_other_error_passes_as_it_is(body):
    assert tasks_ext.error(body) == body
