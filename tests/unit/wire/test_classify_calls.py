"""What a request asks for, once its era is known: tools, tasks and their parameters."""

import pytest

from gateway.wire import intent as want
from gateway.wire.classify import classify
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import TaskAsk
from tests.requirements import requirement
from tests.unit.wire.samples import DECLARED, body, compact, modern_headers, modern_meta

SESSION = {"mcp-session-id": ["s-1"]}
TTL_REFUSED = Reject("arguments", "task.ttl must be a positive integer of milliseconds")


def legacy(method, params):
    return classify(SESSION, body(method, params)).intent


def modern(method, params):
    meta = modern_meta(DECLARED)
    headers = modern_headers(method, params.get("name"))
    return classify(headers, body(method, {**params, "_meta": {**meta, **params.get("_meta", {})}})).intent


def written(params):
    """A legacy call whose parameters are this JSON text."""
    return classify(SESSION, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params + b"}").intent


@pytest.mark.parametrize("era", [legacy, modern])
class TestInBothEras:
    def test_a_list_is_asked_for_with_its_parameters(self, era):
        intent = era("tools/list", {"cursor": "c"})
        assert isinstance(intent, want.ListTools)
        assert (intent.id, bytes(intent.params["cursor"])) == (b"1", b'"c"')

    def test_a_call_names_its_tool(self, era):
        intent = era("tools/call", {"name": "echo", "arguments": {"a": 1}})
        assert isinstance(intent, want.CallTool)
        assert (intent.id, intent.name, intent.arguments) == (b"1", "echo", b'{"a":1}')
        assert (intent.task, intent.progress_token) == (None, None)

    def test_a_call_without_arguments_has_none(self, era):
        intent = era("tools/call", {"name": "echo"})
        assert intent.arguments == b"{}"
        assert "arguments" not in intent.params

    @requirement("OWN-LIMITS")
    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"name": None},
            {"name": 5},
            {"name": ["echo"]},
            {"name": "echo", "arguments": []},
            {"name": "echo", "arguments": None},
            {"name": "echo", "arguments": "{}"},
        ],
    )
    def test_a_call_without_a_name_or_with_odd_arguments_is_refused(self, era, params):
        refused = Reject("arguments", "name must be a string, arguments an object")
        headers = {**SESSION, **modern_headers("tools/call", "echo"), "mcp-protocol-version": ["2025-11-25"]}
        if era is modern:
            params, headers = {**params, "_meta": modern_meta()}, modern_headers("tools/call", "echo")
        assert classify(headers, body("tools/call", params)).intent == want.Refuse(b"1", refused)

    @requirement("OWN-LIMITS")
    @pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
    @pytest.mark.parametrize("task_id", [None, 5, ["t"], {"taskId": "t"}])
    def test_an_id_that_is_no_string_is_an_unknown_task(self, era, method, task_id):
        refused = Reject("not_found", "Task not found")
        assert era(method, {"taskId": task_id}) == want.Refuse(b"1", refused)
        assert era(method, {}) == want.Refuse(b"1", refused)

    @pytest.mark.parametrize(("method", "intent"), [("tasks/get", want.GetTask), ("tasks/cancel", want.CancelTask)])
    def test_a_task_is_asked_for_by_its_id(self, era, method, intent):
        assert era(method, {"taskId": "té"}) == intent(b"1", "té")

    @pytest.mark.parametrize(
        ("token", "kept"),
        [
            ("a", b'"a"'),
            (0, b"0"),
            (-7, b"-7"),
            (9007199254740993, b"9007199254740993"),
            (1.5, None),
            (None, None),
            (True, None),
            ([1], None),
            ({}, None),
        ],
    )
    def test_a_progress_token_is_a_string_or_an_integer(self, era, token, kept):
        intent = era("tools/call", {"name": "echo", "_meta": {"progressToken": token}})
        assert intent.progress_token == kept


@requirement("OWN-BYTES")
def test_the_parameters_of_a_call_are_as_they_were_written():
    arguments = b'{ "n" : 9007199254740993 , "x":1e400,"s":"\\u00e9" }'
    intent = written(
        b'{"future":1.0,"name":"\\u00e9","arguments":' + arguments + b',"_meta":{"progressToken":"\\u0061"}}'
    )
    assert (intent.name, intent.arguments, intent.progress_token) == ("é", arguments, b'"\\u0061"')
    raw = {name: bytes(value) for name, value in intent.params.items()}
    assert list(raw) == ["future", "name", "arguments", "_meta"]
    assert (raw["future"], raw["arguments"]) == (b"1.0", arguments)


@requirement("T25-GET-2", "OWN-LIMITS")
@pytest.mark.parametrize("params", [{}, {"taskId": 5}])
def test_a_result_of_an_id_that_is_no_string_is_refused_like_an_unknown_task(params):
    intent = legacy("tasks/result", params)
    assert intent == want.Refuse(b"1", Reject("not_found", "Task not found"))
    assert (intent.reject.code(Era.LEGACY), intent.reject.http(Era.LEGACY)) == (-32602, 200)


@requirement("T25-NEW-3")
@pytest.mark.parametrize(
    ("task", "asked"),
    [
        (b"{}", TaskAsk(None)),
        (b'{"ttl":null}', TaskAsk(None)),
        (b'{"ttl":1}', TaskAsk(1)),
        (b'{"ttl":60000,"other":[]}', TaskAsk(60_000)),
        (b'{"ttl":9007199254740993}', TaskAsk(9_007_199_254_740_993)),
        (b'{"ttl":36893488147419103232}', TaskAsk(2**65)),
        (b'{"ttl":0}', TTL_REFUSED),
        (b'{"ttl":-0}', TTL_REFUSED),
        (b'{"ttl":-1}', TTL_REFUSED),
        (b'{"ttl":1.5}', TTL_REFUSED),
        (b'{"ttl":1.0}', TTL_REFUSED),
        (b'{"ttl":1e3}', TTL_REFUSED),
        (b'{"ttl":1e400}', TTL_REFUSED),
        (b'{"ttl":"60000"}', TTL_REFUSED),
        (b'{"ttl":[1]}', TTL_REFUSED),
        (b'{"ttl":true}', TTL_REFUSED),
        (b"null", Reject("arguments", "task must be an object")),
        (b"[]", Reject("arguments", "task must be an object")),
        (b"true", Reject("arguments", "task must be an object")),
    ],
)
def test_the_wish_for_a_task_has_a_positive_time_to_live_or_none(task, asked):
    intent = written(b'{"name":"echo","task":' + task + b"}")
    assert intent.task == asked


@requirement("T25-NEW-3")
def test_a_bad_time_to_live_is_invalid_parameters():
    assert (TTL_REFUSED.code(Era.LEGACY), TTL_REFUSED.http(Era.LEGACY)) == (-32602, 200)


def test_a_modern_call_carries_the_wish_as_well_and_nobody_asks_for_it():
    assert modern("tools/call", {"name": "echo", "task": {"ttl": 5}}).task == TaskAsk(5)


class TestUpdate:
    def test_answers_are_kept_as_they_were_written(self):
        sent = body("tasks/update", {"taskId": "t", "inputResponses": {"never": {"a": "é"}, "q1": 1}})
        found = classify(
            modern_headers("tasks/update"), sent[:-2] + b',"_meta":' + compact(modern_meta(DECLARED)) + b"}}"
        )
        assert (found.intent.id, found.intent.task_id) == (b"1", "t")
        answers = {key: bytes(value) for key, value in found.intent.answers.items()}
        assert answers == {"never": '{"a":"é"}'.encode(), "q1": b"1"}

    def test_no_answers_at_all_are_an_update(self):
        assert modern("tasks/update", {"taskId": "t", "inputResponses": {}}) == want.UpdateTask(b"1", "t", {})

    @requirement("OWN-LIMITS")
    @pytest.mark.parametrize("params", [{}, {"inputResponses": None}, {"inputResponses": []}, {"inputResponses": "x"}])
    def test_answers_are_an_object(self, params):
        refused = Reject("arguments", "inputResponses must be an object")
        assert modern("tasks/update", {"taskId": "t", **params}) == want.Refuse(b"1", refused)

    @requirement("OWN-LIMITS")
    @pytest.mark.parametrize("params", [{}, {"taskId": 5}, {"taskId": 5, "inputResponses": {}}])
    def test_an_id_that_is_no_string_is_an_unknown_task(self, params):
        refused = Reject("not_found", "Task not found")
        assert modern("tasks/update", params) == want.Refuse(b"1", refused)
