"""What the runner writes for an upstream and reads from it."""

import json

import pytest
from msgspec import Raw

from gateway.core.model import OutcomeKind
from gateway.wire import work
from gateway.wire.errors import Era, Reject
from gateway.wire.jsonrpc import Response, members, write
from tests.requirements import requirement
from tests.unit.wire.samples import compact

BETWEEN_PEERS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "c"},
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/logLevel": "debug",
    "io.modelcontextprotocol/related-task": {"taskId": "t"},
    "progressToken": "theirs",
}


def forwarded(params, token=None):
    return work.forwarded(members(params), token)


@requirement("OWN-BYTES")
def test_what_is_not_between_client_and_gateway_passes_as_it_was_written():
    params = b'{"name":"\\u00e9","arguments":{ "n" : 9007199254740993 , "x":1e400 },"future":[ ],"a":-0}'
    assert forwarded(params) == params


@pytest.mark.parametrize("key", BETWEEN_PEERS)
def test_what_is_between_client_and_gateway_stays_here(key):
    params = compact({"name": "x", "_meta": {key: BETWEEN_PEERS[key], "traceparent": "00-1"}})
    assert forwarded(params) == b'{"name":"x","_meta":{"traceparent":"00-1"}}'
    assert forwarded(compact({"name": "x", "_meta": {key: BETWEEN_PEERS[key]}})) == b'{"name":"x"}'


@pytest.mark.parametrize(
    "params",
    [
        b'{"task":{"ttl":1},"name":"x"}',
        b'{"name":"x","task":null}',
        b'{"inputResponses":{"q1":{}},"name":"x","requestState":"s"}',
        b'{"name":"x","inputResponses":null}',
        b'{"requestState":5,"name":"x"}',
        b'{"_meta":{},"name":"x"}',
        b'{"_meta":null,"name":"x"}',
        b'{"_meta":[1],"name":"x"}',
    ],
)
def test_neither_the_wish_for_a_task_nor_answers_to_us_nor_an_empty_meta_are_passed_on(params):
    assert forwarded(params) == b'{"name":"x"}'


@requirement("OWN-BYTES")
def test_only_members_of_the_call_itself_are_ours():
    params = b'{"arguments":{"task":1,"inputResponses":2,"requestState":3},"_meta":{"task":4,"requestState":5}}'
    assert forwarded(params) == params


@requirement("OWN-BYTES")
def test_other_meta_keys_pass_in_order_and_as_written():
    params = b'{"_meta":{"b":1.0,"progressToken":1,"a":{ "c" : [] }},"name":"x"}'
    assert forwarded(params) == b'{"name":"x","_meta":{"b":1.0,"a":{ "c" : [] }}}'


@pytest.mark.parametrize(
    ("params", "token", "written"),
    [
        (b'{"name":"x"}', 7, b'{"name":"x","_meta":{"progressToken":7}}'),
        (b'{"name":"x"}', 0, b'{"name":"x","_meta":{"progressToken":0}}'),
        (b'{"_meta":{"progressToken":"theirs","a":1}}', 7, b'{"_meta":{"a":1,"progressToken":7}}'),
        (b'{"_meta":null}', 7, b'{"_meta":{"progressToken":7}}'),
    ],
)
def test_the_progress_token_is_our_own(params, token, written):
    assert forwarded(params, token) == written


@requirement("OWN-BYTES")
def test_stored_parameters_are_sent_as_they_were_written():
    stored = b'{"name":"x","arguments":{ "n" : 1.0 },"_meta":{"a":"\\u00e9"}}'
    assert write(work.call_params(stored)) == stored


def test_parameters_that_are_no_object_are_none():
    assert work.call_params(b"[]") == {}


@requirement("OWN-BYTES")
@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        (b'{"name":"x"}', b'{"name":"x","_meta":{"progressToken":7}}'),
        (b'{"_meta":{"a":1.0},"n":{ "b" : 1 }}', b'{"_meta":{"a":1.0,"progressToken":7},"n":{ "b" : 1 }}'),
        (b'{"_meta":{"progressToken":"theirs","a":1}}', b'{"_meta":{"progressToken":7,"a":1}}'),
        (b'{"_meta":null}', b'{"_meta":{"progressToken":7}}'),
        (b'{"_meta":[]}', b'{"_meta":{"progressToken":7}}'),
        (b"[]", b'{"_meta":{"progressToken":7}}'),
    ],
)
def test_progress_is_asked_for_with_a_token_of_our_own(stored, sent):
    assert write(work.call_params(stored, 7)) == sent


def test_zero_is_a_progress_token():
    assert write(work.call_params(b"{}", 0)) == b'{"_meta":{"progressToken":0}}'


@pytest.mark.parametrize(
    ("ok", "body", "kind", "stored"),
    [
        (True, b'{ "content" : [] }', OutcomeKind.RESULT, b'{ "content" : [] }'),
        (True, b'{ "isError" : true }', OutcomeKind.TOOL_ERROR, b'{ "isError" : true }'),
        (True, b'{ "isError" : false }', OutcomeKind.RESULT, b'{ "isError" : false }'),
        (True, b'{ "isError" : "true" }', OutcomeKind.RESULT, b'{ "isError" : "true" }'),
        (True, b'{ "isError" : 1 }', OutcomeKind.RESULT, b'{ "isError" : 1 }'),
        (True, b'{ "isError" : null }', OutcomeKind.RESULT, b'{ "isError" : null }'),
        (True, b'{ "a" : {"isError":true} }', OutcomeKind.RESULT, b'{ "a" : {"isError":true} }'),
        (True, b'{"resultType":"complete","isError":true}', OutcomeKind.TOOL_ERROR, b'{"isError":true}'),
        (True, b"[]", OutcomeKind.RESULT, b"[]"),
        (False, b'{ "code" : -1 }', OutcomeKind.ERROR, b'{ "code" : -1 }'),
        (False, b'{"resultType":"x","isError":true}', OutcomeKind.ERROR, b'{"resultType":"x","isError":true}'),
    ],
)
def test_an_answer_is_a_result_an_error_of_the_tool_or_an_error(ok, body, kind, stored):
    assert work.outcome(Response(b"1", ok, body)) == (kind, stored)


@requirement("OWN-BYTES")
@pytest.mark.parametrize(
    "body",
    [b'{ "a" : 1.0 }', b'{ "a" : {"resultType":"complete"} }', b'{ "a" : "\\"resultType\\"" }', b'{"resultType_":1}'],
)
def test_a_result_without_a_type_of_its_own_is_stored_as_it_is(body):
    assert work.outcome(Response(b"1", ok=True, body=body)) == (OutcomeKind.RESULT, body)


@pytest.mark.parametrize("name", [b'"resultType"', b'"result\\u0054ype"'])
@pytest.mark.parametrize("value", [b'"complete"', b"null", b'"task"', b'{"a":1}'])
def test_a_result_is_stored_without_its_type(name, value):
    body = b'{ "b" : 1.0 ,' + name + b":" + value + b',"a":[ ]}'
    assert work.outcome(Response(b"1", ok=True, body=body)) == (OutcomeKind.RESULT, b'{"b":1.0,"a":[ ]}')


@requirement("OWN-ERRORS")
def test_a_failed_task_carries_the_error_object_of_its_reason():
    reject = Reject("upstream_down", "gone", {"again": False})
    data = b'{"reason":"upstream_down","retryable":true,"again":false}'
    assert work.failure(reject) == b'{"code":50201,"message":"gone","data":' + data + b"}"


@requirement("OWN-ERRORS")
def test_what_ends_a_task_without_an_answer_has_its_code():
    deadline = {"reason": "deadline", "retryable": False}
    unknown = {"reason": "outcome_unknown", "retryable": False}
    lost = "the outcome is unknown: the work was sent and its answer was lost"
    assert compact({"code": 50401, "message": "the deadline passed", "data": deadline}) == work.failure(work.DEADLINE)
    assert compact({"code": 50305, "message": lost, "data": unknown}) == work.failure(work.LOST)
    unanswered = {"reason": "expired_input", "retryable": False}
    message = "nobody answered what the tool asked in time"
    assert compact({"code": 50402, "message": message, "data": unanswered}) == work.failure(work.UNANSWERED)


def test_parameters_given_as_raw_values_are_spliced():
    assert work.forwarded({"name": Raw(b'"x"'), "n": Raw(b"1.0")}) == b'{"name":"x","n":1.0}'


@requirement("BR-4")
@pytest.mark.parametrize(
    ("era", "sent"),
    [
        (Era.MODERN, b'{"_meta":{"io.modelcontextprotocol/logLevel":"info","progressToken":7},"n":1}'),
        (Era.LEGACY, b'{"_meta":{"progressToken":7},"n":1}'),
    ],
)
def test_a_log_level_is_said_in_the_modern_era_only(era, sent):
    stored = work.forwarded(members(b'{"_meta":{},"n":1}'), log_level="info")
    assert json.loads(write(work.call_params(stored, 7, era=era))) == json.loads(sent)
