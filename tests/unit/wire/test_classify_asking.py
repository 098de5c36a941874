"""What a request asks for: answers to questions, lists of tasks, streams of notifications."""

import pytest

from gateway.wire import intent as want
from gateway.wire.classify import Rejected, classify
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import Inbound, Speech, id_of
from tests.requirements import requirement
from tests.unit.wire.samples import DECLARED, MODERN, body, compact, modern_headers, modern_meta

SESSION = {"mcp-session-id": ["s-1"]}
ANSWERS_REFUSED = Reject("arguments", "inputResponses must be an object")
IDS_REFUSED = Reject("arguments", "taskIds must be at most 100 strings")


def legacy(method, params):
    return classify(SESSION, body(method, params)).intent


def modern(method, params, capabilities=DECLARED):
    """What a modern request becomes."""
    sent = body(method, {**params, "_meta": modern_meta(capabilities)})
    return classify(modern_headers(method, params.get("name")), sent)


class TestClientAnswer:
    @requirement("T25-INP-1")
    @pytest.mark.parametrize(
        ("sent", "ok", "kept"),
        [
            (b'"result":{ "n" : 1.0 }', True, b'{ "n" : 1.0 }'),
            (b'"result":{}', True, b"{}"),
            (b'"error":{ "code":-1 , "message":"no" }', False, b'{ "code":-1 , "message":"no" }'),
        ],
    )
    @pytest.mark.parametrize(
        ("request_id", "read"),
        [(b'"t.q1"', "t.q1"), (b'"\\u00e9"', "é"), (b'""', ""), (b"7", ""), (b"-1", "")],
    )
    def test_an_answer_has_the_id_that_we_gave_and_the_body_as_it_was_written(self, request_id, read, sent, ok, kept):
        found = classify(SESSION, b'{"jsonrpc":"2.0","id":' + request_id + b"," + sent + b"}")
        assert found == Inbound(Speech(Era.LEGACY, None, session="s-1"), want.ClientAnswer(read, ok, kept))

    @pytest.mark.parametrize("intent", [want.ClientAnswer("q1", ok=True, body=b"{}"), want.Note("notifications/x")])
    def test_neither_an_answer_nor_a_notification_is_answered(self, intent):
        assert id_of(intent) is None

    @pytest.mark.parametrize("intent", [want.Ping(b"7"), want.ListTasks(b"7", None), want.Listen(b"7", None)])
    def test_a_request_is_answered_under_its_id(self, intent):
        assert id_of(intent) == b"7"


class TestRetry:
    @requirement("TX-NEW-3")
    def test_a_modern_call_brings_answers_as_written_and_the_state_as_given(self):
        params = b'{"name":"x","inputResponses":{"q1":{ "n" : 1.0 },"q2":5},"requestState":"s\\u00e9","_meta":'
        sent = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params + compact(modern_meta()) + b"}}"
        found = classify(modern_headers("tools/call", "x"), sent).intent
        assert {key: bytes(answer) for key, answer in found.answers.items()} == {"q1": b'{ "n" : 1.0 }', "q2": b"5"}
        assert found.request_state == "sé"

    @pytest.mark.parametrize("params", [{}, {"inputResponses": {}}, {"requestState": None}, {"requestState": 5}])
    def test_a_call_without_them_has_none(self, params):
        found = modern("tools/call", {"name": "x", **params}).intent
        assert (found.answers, found.request_state) == ({}, None)

    @requirement("OWN-LIMITS")
    @pytest.mark.parametrize("answers", [None, [], "{}", 5, True])
    def test_answers_are_an_object(self, answers):
        found = modern("tools/call", {"name": "x", "inputResponses": answers}).intent
        assert found == want.Refuse(b"1", ANSWERS_REFUSED)


class TestCapabilities:
    @requirement("TX-CAP-2")
    @pytest.mark.parametrize(
        ("capabilities", "kept"),
        [
            ({}, "{}"),
            ({"elicitation": {}}, '{"elicitation":{}}'),
            ({"sampling": {"tools": {}}, **DECLARED, "roots": {}}, '{"roots":{},"sampling":{"tools":{}}}'),
            ({"elicitation": True, "roots": None, "tasks": {}}, "{}"),
        ],
    )
    def test_a_modern_request_says_what_its_client_can_be_asked(self, capabilities, kept):
        assert modern("tools/list", {}, capabilities).speech.capabilities == kept

    def test_of_a_legacy_client_its_session_knows(self):
        sent = body("ping", {"_meta": {"capabilities": {"elicitation": {}}}})
        assert classify(SESSION, sent) == Inbound(Speech(Era.LEGACY, None, session="s-1"), want.Ping(b"1"))


class TestListTasks:
    @requirement("T25-LST-1")
    @pytest.mark.parametrize(("params", "cursor"), [({}, None), ({"cursor": "é"}, "é"), ({"cursor": ""}, "")])
    def test_an_empty_cursor_is_a_cursor(self, params, cursor):
        assert legacy("tasks/list", params) == want.ListTasks(b"1", cursor)

    @requirement("T25-LST-1", "OWN-LIMITS")
    @pytest.mark.parametrize("cursor", [None, 5, True, [], {"after": 1}])
    def test_a_cursor_that_is_no_string_is_unknown(self, cursor):
        refused = Reject("not_found", "cursor must be a string")
        assert legacy("tasks/list", {"cursor": cursor}) == want.Refuse(b"1", refused)
        assert (refused.code(Era.LEGACY), refused.http(Era.LEGACY)) == (-32602, 200)


class TestListen:
    @requirement("TX-NOT-1")
    @pytest.mark.parametrize(
        ("notifications", "task_ids", "lists", "resources"),
        [
            ({"taskIds": ["b", "a", "b"]}, ("b", "a", "b"), [], ()),
            ({"taskIds": ["é"], "toolsListChanged": True}, ("é",), ["toolsListChanged"], ()),
            ({"taskIds": [], "promptsListChanged": False}, (), [], ()),
            ({"taskIds": [], "promptsListChanged": 1}, (), [], ()),
            ({"taskIds": ["t"] * 100, "resourceSubscriptions": ["a:b"]}, ("t",) * 100, [], ("a:b",)),
        ],
    )
    def test_what_is_wanted_is_named(self, notifications, task_ids, lists, resources):
        found = modern("subscriptions/listen", {"notifications": notifications})
        wanted = want.Listen(b"1", task_ids, frozenset(lists), resources)
        assert found == Inbound(Speech(Era.MODERN, MODERN, declares_tasks=True), wanted)

    @requirement("TX-NOT-1")
    @pytest.mark.parametrize("capabilities", [DECLARED, {}])
    @pytest.mark.parametrize("notifications", [{}, {"toolsListChanged": True}])
    def test_who_asks_for_no_tasks_need_not_declare_them(self, notifications, capabilities):
        found = modern("subscriptions/listen", {"notifications": notifications}, capabilities)
        assert found.intent == want.Listen(b"1", None, frozenset(notifications))

    @requirement("TX-CAP-5")
    @pytest.mark.parametrize("task_ids", [["t"], []])
    def test_tasks_must_be_declared(self, task_ids):
        found = modern("subscriptions/listen", {"notifications": {"taskIds": task_ids}}, {})
        required = {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
        reject = Reject("capability", "Missing required client capability", required)
        assert found == Rejected(reject, Era.MODERN, b"1")
        assert (reject.code(Era.MODERN), reject.http(Era.MODERN)) == (-32021, 400)

    @requirement("OWN-LIMITS")
    @pytest.mark.parametrize("capabilities", [DECLARED, {}])
    @pytest.mark.parametrize("params", [{}, {"notifications": None}, {"notifications": []}, {"notifications": "all"}])
    def test_notifications_are_an_object(self, params, capabilities):
        refused = Reject("arguments", "notifications must be an object")
        assert modern("subscriptions/listen", params, capabilities).intent == want.Refuse(b"1", refused)

    @requirement("TX-NOT-1", "OWN-LIMITS")
    @pytest.mark.parametrize("task_ids", [None, "t", {}, {"t": 1}, 5, [5], ["t", None], [["t"]], ["t"] * 101])
    def test_ids_are_strings_and_not_too_many(self, task_ids):
        found = modern("subscriptions/listen", {"notifications": {"taskIds": task_ids}})
        assert found.intent == want.Refuse(b"1", IDS_REFUSED)
