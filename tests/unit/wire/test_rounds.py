"""Multi round-trip requests: what an answer asks for, and how a request goes on."""

import json

import pytest
from msgspec import Raw

from gateway.wire import rounds
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Response, members
from gateway.wire.rounds import Asked
from tests.requirements import requirement
from tests.unit.wire.samples import compact

ASK = {"method": "elicitation/create", "params": {"message": "Who?", "more": 1.0}}


def asked(result):
    return rounds.asked(Response(b"1", ok=True, body=result if isinstance(result, bytes) else compact(result)))


@pytest.mark.parametrize("result", [{"content": []}, {"resultType": "complete", "inputRequests": {"a": ASK}}])
def test_a_final_answer_asks_nothing(result):
    assert asked(result) is None


def test_an_error_asks_nothing():
    assert rounds.asked(Response(b"1", ok=False, body=b'{"resultType":"input_required"}')) is None


@requirement("BR-2")
def test_questions_and_state_are_taken_as_they_came():
    found = asked(b'{"resultType":"input_required","inputRequests":{"a":{"method":"x","params":{"n": 1.0 }}},'
                  b'"requestState":"\\u00e9","more":1}')  # fmt: skip
    assert found.requests == {"a": ("x", {"n": Raw(b"1.0")})}
    assert bytes(found.state) == b'"\\u00e9"'


@pytest.mark.parametrize(
    ("result", "requests", "state"),
    [
        ({"inputRequests": {"a": {"method": "roots/list"}}}, {"a": ("roots/list", {})}, None),
        ({"inputRequests": None, "requestState": "s"}, {}, b'"s"'),
        ({"inputRequests": {"a": {"method": "m"}}, "requestState": None}, {"a": ("m", {})}, None),
    ],
)
def test_either_may_be_missing(result, requests, state):
    found = asked({"resultType": "input_required", **result})
    assert (found.requests, None if found.state is None else bytes(found.state)) == (requests, state)


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "task"},
        {"resultType": None},
        {"resultType": "Complete"},
        {"resultType": "input_required"},
        {"resultType": "input_required", "inputRequests": {}, "requestState": None},
        {"resultType": "input_required", "inputRequests": [ASK], "requestState": "s"},
        {"resultType": "input_required", "inputRequests": {"a": 5}},
        {"resultType": "input_required", "inputRequests": {"a": {"method": 5}}},
        {"resultType": "input_required", "inputRequests": {"a": {"method": "m", "params": []}}},
        {"resultType": "input_required", "inputRequests": {str(number): ASK for number in range(21)}},
    ],
)
def test_what_is_neither_is_refused(result):
    assert isinstance(asked(result), Reject)


@requirement("BR-2")
def test_the_request_goes_on_with_answers_and_state_and_without_those_of_before():
    given = members(b'{"name":"x","n":1.0,"inputResponses":{"old":{}},"requestState":"old"}')
    question = Asked({"a": ("m", {})}, Raw(b'"\\u00e9"'))
    found = rounds.again(given, question, {"a": b'{ "action":"accept" }'})
    told = {name: bytes(value) for name, value in found.items()}
    expected = {"name": b'"x"', "n": b"1.0", "requestState": b'"\\u00e9"'}
    assert told == {**expected, "inputResponses": b'{"a":{ "action":"accept" }}'}


def test_what_was_not_there_is_not_sent():
    given = members(b'{"requestState":"old","inputResponses":{}}')
    assert rounds.again(given, Asked({"a": ("m", {})}, None), {"a": b"{}"}).keys() == {"inputResponses"}
    assert rounds.again(given, Asked({}, Raw(b'"s"')), {}).keys() == {"requestState"}


@pytest.mark.parametrize(
    ("error", "why"),
    [(b'{"code":-1,"message":"no"}', "no"), (b"{}", "no reason given"), (b'{"message":5}', "no reason given")],
)
def test_a_refusal_says_what_was_refused(error, why):
    found = json.loads(rounds.refused(Asked({"a": ("m", {}), "b": ("n", {})}, None), {"b": error}))
    assert (found["code"], found["message"]) == (49902, f"the upstream needs n, which was refused: {why}")
    told = {"b": {"method": "n", "error": json.loads(error)}}
    assert found["data"] == {"reason": "input_refused", "retryable": False, "inputRequests": told}
