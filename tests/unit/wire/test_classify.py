"""The ladder from headers and body to an era and an intent, or to a rejection."""

import json

import pytest

from gateway.wire import intent as want
from gateway.wire.classify import Rejected, classify
from gateway.wire.errors import Era
from gateway.wire.intent import Inbound, Speech
from tests.requirements import requirement
from tests.unit.wire.samples import (
    CAPABILITIES,
    DECLARED,
    MODERN,
    TASKS,
    VERSION,
    body,
    compact,
    modern_headers,
    modern_meta,
)

SESSION = {"mcp-session-id": ["s-1"]}
LEGACY_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
TASK_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")


def legacy(method, params=None, headers=None, **members):
    """The intent of a request in a legacy session."""
    found = classify({**SESSION, **(headers or {})}, body(method, params, **members))
    assert isinstance(found, Inbound)
    assert found.speech == Speech(Era.LEGACY, None, session="s-1")
    return found.intent


def modern(method, params=None, *, capabilities=None, name=None):
    """What a modern request with everything in order becomes."""
    meta = modern_meta(DECLARED if capabilities is None else capabilities)
    return classify(modern_headers(method, name), body(method, {**(params or {}), "_meta": meta}))


def refused(found, era=Era.MODERN, request_id=b"1"):
    """Reason, code and status of a rejection."""
    assert isinstance(found, Rejected)
    assert (found.era, found.id) == (era, request_id)
    return found.reject.reason, found.reject.code(era), found.reject.http(era)


def told(intent):
    """Reason and message of a refusal that waits for its session."""
    assert isinstance(intent, want.Refuse)
    assert intent.id == b"1"
    return intent.reject.reason, intent.reject.message


class TestEra:
    @requirement("OWN-LIMITS")
    @pytest.mark.parametrize(
        ("headers", "era"),
        [
            ({}, Era.LEGACY),
            ({"mcp-protocol-version": []}, Era.LEGACY),
            ({"mcp-protocol-version": ["2025-06-18"]}, Era.LEGACY),
            ({"mcp-protocol-version": [MODERN]}, Era.MODERN),
            ({"mcp-protocol-version": ["2031-01-01"]}, Era.MODERN),
        ],
    )
    @pytest.mark.parametrize(("sent", "reason"), [(b"{", "parse"), (b"[]", "invalid_request")])
    def test_what_is_no_message_is_refused_in_the_era_of_the_header(self, headers, era, sent, reason):
        assert refused(classify(headers, sent), era, None)[0] == reason

    @requirement("TX-HTTP-1")
    @pytest.mark.parametrize("headers", [{}, SESSION, {"mcp-protocol-version": ["2025-11-25"]}])
    @pytest.mark.parametrize("meta", [{VERSION: MODERN}, {CAPABILITIES: {}}, modern_meta()])
    def test_a_modern_meta_makes_it_modern_whatever_the_headers_say(self, headers, meta):
        assert refused(classify(headers, body("ping", {"_meta": meta})))[0] in {"meta", "headers"}

    def test_a_session_id_makes_no_difference_to_a_modern_request(self):
        sent = body("server/discover", {"_meta": modern_meta()})
        found = classify({**SESSION, **modern_headers("server/discover")}, sent)
        assert found == Inbound(Speech(Era.MODERN, MODERN), want.Discover(b"1"))

    @requirement("TX-HTTP-1")
    @pytest.mark.parametrize(
        ("headers", "params"),
        [
            ({}, {}),
            ({"mcp-protocol-version": ["2025-11-25"]}, {"_meta": {"progressToken": 1}}),
            ({"mcp-protocol-version": ["2025-11-25"]}, {"_meta": 5}),
            (SESSION, {"_meta": {"io.modelcontextprotocol/clientInfo": {}}}),
        ],
    )
    def test_everything_else_is_legacy(self, headers, params):
        found = classify(headers, body("tools/list", params))
        era = found.era if isinstance(found, Rejected) else found.speech.era
        assert era is Era.LEGACY

    def test_initialize_is_legacy_although_a_modern_header_came_along(self):
        found = classify({"mcp-protocol-version": [MODERN]}, body("initialize", {"protocolVersion": MODERN}))
        assert refused(found, Era.LEGACY) == ("version", -32600, 400)

    @requirement("TX-HTTP-3")
    @pytest.mark.parametrize("version", [MODERN, "2031-01-01"])
    def test_a_modern_header_without_session_and_meta_misses_the_meta(self, version):
        found = classify({"mcp-protocol-version": [version]}, body("tools/list", {}))
        assert refused(found) == ("meta", -32602, 400)


class TestModern:
    @requirement("TX-HTTP-3")
    @pytest.mark.parametrize(
        ("meta", "message"),
        [
            ({CAPABILITIES: {}}, f"params._meta lacks {VERSION}"),
            ({VERSION: MODERN}, f"params._meta lacks {CAPABILITIES}"),
            ({}, f"params._meta lacks {VERSION}, {CAPABILITIES}"),
            (None, f"params._meta lacks {VERSION}, {CAPABILITIES}"),
            ([], f"params._meta lacks {VERSION}, {CAPABILITIES}"),
            ({VERSION: MODERN, CAPABILITIES: None}, f"{CAPABILITIES} must be an object"),
            ({VERSION: MODERN, CAPABILITIES: [1]}, f"{CAPABILITIES} must be an object"),
        ],
    )
    def test_the_meta_must_be_complete(self, meta, message):
        found = classify(modern_headers("tools/list"), body("tools/list", {"_meta": meta}))
        assert refused(found) == ("meta", -32602, 400)
        assert found.reject.message == message

    @requirement("TX-HTTP-2")
    @pytest.mark.parametrize(
        ("changed", "name"),
        [
            ({"mcp-protocol-version": []}, "mcp-protocol-version"),
            ({"mcp-protocol-version": ["2025-11-25"]}, "mcp-protocol-version"),
            ({"mcp-method": []}, "mcp-method"),
            ({"mcp-method": [""]}, "mcp-method"),
            ({"mcp-method": ["Tools/Call"]}, "mcp-method"),
        ],
    )
    def test_version_and_method_equal_their_headers(self, changed, name):
        sent = body("tools/call", {"name": "echo", "_meta": modern_meta()})
        found = classify({**modern_headers("tools/call", "echo"), **changed}, sent)
        assert refused(found) == ("headers", -32020, 400)
        assert found.reject.message == f"Header mismatch: {name} does not equal the body's value"

    @requirement("TX-HTTP-2")
    @pytest.mark.parametrize("version", [None, 5, {}, ["2026-07-28"]])
    def test_a_version_that_is_no_string_equals_no_header(self, version):
        sent = body("tools/list", {"_meta": {VERSION: version, CAPABILITIES: {}}})
        assert refused(classify(modern_headers("tools/list"), sent))[0] == "headers"
        assert refused(classify({"mcp-method": ["tools/list"]}, sent))[0] == "headers"

    @requirement("TX-HTTP-2")
    @pytest.mark.parametrize(
        ("method", "parameter"),
        [
            ("tools/call", "name"),
            ("prompts/get", "name"),
            ("resources/read", "uri"),
            ("tasks/get", "taskId"),
            ("tasks/update", "taskId"),
            ("tasks/cancel", "taskId"),
        ],
    )
    def test_the_name_equals_its_header(self, method, parameter):
        params = {parameter: "x", "inputResponses": {}}
        assert isinstance(modern(method, params, name="x"), Inbound)
        assert isinstance(modern(method, params, name="=?base64?eA==?="), Inbound)
        for wrong in ("y", "", "X", "=?base64?eB==?=", "=?base64?eQ==?="):
            found = modern(method, params, name=wrong)
            assert refused(found) == ("headers", -32020, 400)
            assert found.reject.message == f"Header mismatch: mcp-name does not equal params.{parameter}"

    @requirement("TX-HTTP-2")
    @pytest.mark.parametrize(("method", "parameter"), [("tools/call", "name"), ("resources/read", "uri")])
    def test_a_missing_name_header_is_refused(self, method, parameter):
        assert refused(modern(method, {parameter: "x"})) == ("headers", -32020, 400)

    @requirement("TX-HTTP-2")
    @pytest.mark.parametrize("method", TASK_METHODS)
    def test_a_missing_name_header_is_accepted_for_tasks(self, method):
        found = modern(method, {"taskId": "t", "inputResponses": {}})
        assert isinstance(found, Inbound)
        assert found.intent.task_id == "t"

    def test_a_name_header_that_belongs_to_nothing_is_ignored(self):
        assert modern("tools/list", name="anything").intent == want.ListTools(b"1", modern("tools/list").intent.params)
        assert told(modern("tools/call", {}, name="echo").intent)[0] == "arguments"

    @requirement("TX-HTTP-2")
    @pytest.mark.parametrize("name", ["mcp-protocol-version", "mcp-method", "mcp-name"])
    def test_a_header_that_came_twice_is_refused_even_if_both_are_right(self, name):
        headers = modern_headers("tools/call", "echo")
        sent = body("tools/call", {"name": "echo", "_meta": modern_meta()})
        found = classify({**headers, name: headers[name] * 2}, sent)
        assert refused(found) == ("headers", -32020, 400)
        assert found.reject.message == f"Header mismatch: {name} was sent more than once"

    @requirement("TX-HTTP-4")
    @pytest.mark.parametrize("version", ["2025-11-25", "2031-01-01", ""])
    def test_a_version_that_is_not_served_is_told_with_those_that_are(self, version):
        sent = body("tools/list", {"_meta": {VERSION: version, CAPABILITIES: {}}})
        found = classify({"mcp-protocol-version": [version], "mcp-method": ["tools/list"]}, sent)
        assert refused(found) == ("version", -32022, 400)
        assert found.reject.data == {"supported": [MODERN], "requested": version}

    @requirement("TX-CAP-5")
    @pytest.mark.parametrize("method", TASK_METHODS)
    @pytest.mark.parametrize(
        "capabilities",
        [
            {},
            {"extensions": {}},
            {"extensions": None},
            {"extensions": [TASKS]},
            {"extensions": {TASKS: None}},
            {"extensions": {TASKS: True}},
            {"extensions": {TASKS + "x": {}}},
            {TASKS: {}},
            {"tasks": {}},
        ],
    )
    def test_tasks_must_be_declared_on_the_very_request(self, method, capabilities):
        found = modern(method, {"taskId": "t", "inputResponses": {}}, capabilities=capabilities)
        assert refused(found) == ("capability", -32021, 400)
        assert found.reject.message == "Missing required client capability"
        assert found.reject.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}

    @requirement("TX-CAP-2")
    @pytest.mark.parametrize(
        ("capabilities", "declares"),
        [({}, False), (DECLARED, True), ({"extensions": {TASKS: {"a": 1}, "other": 5}}, True), ({"tasks": {}}, False)],
    )
    def test_the_declaration_is_read_from_each_request(self, capabilities, declares):
        found = modern("tools/call", {"name": "echo"}, capabilities=capabilities, name="echo")
        assert found.speech == Speech(Era.MODERN, MODERN, session=None, declares_tasks=declares, capabilities="{}")

    @requirement("TX-CAP-6", "TX-HTTP-4")
    @pytest.mark.parametrize("method", ["tasks/result", "tasks/list", "initialize", "subscriptions/made"])
    def test_what_this_revision_does_not_serve_is_no_method(self, method):
        found = modern(method, {"taskId": "t", "name": "p"}, name="p")
        assert told(found.intent) == ("method", f"Method not found: {method}")
        assert (found.intent.reject.code(Era.MODERN), found.intent.reject.http(Era.MODERN)) == (-32601, 404)

    @requirement("BR-5")
    @pytest.mark.parametrize("method", ["ping", "prompts/get", "made/up"])
    def test_what_is_not_ours_is_the_upstreams_to_answer(self, method):
        found = modern(method, {"name": "p", "x": 1}, name="p").intent
        assert isinstance(found, want.Forward)
        assert (found.id, found.method, bytes(found.params["x"])) == (b"1", method, b"1")

    @pytest.mark.parametrize("params", [{"result": {}}, {"error": {}}])
    def test_a_client_sends_no_answers(self, params):
        sent = compact({"jsonrpc": "2.0", "id": 1, **params})
        found = classify({"mcp-protocol-version": [MODERN]}, sent)
        assert refused(found, request_id=None) == ("invalid_request", -32600, 400)
        assert found.reject.message == "a client sends no responses in this revision"

    @pytest.mark.parametrize(
        ("headers", "meta", "version"),
        [
            ({"mcp-protocol-version": [MODERN]}, None, MODERN),
            ({"mcp-protocol-version": [MODERN], **SESSION}, modern_meta(), MODERN),
            ({}, modern_meta(), None),
        ],
    )
    def test_a_notification_is_accepted(self, headers, meta, version):
        found = classify(headers, body("notifications/cancelled", {"_meta": meta, "requestId": 1}, id=None))
        assert found == Inbound(Speech(Era.MODERN, version), want.Note("notifications/cancelled"))

    @requirement("TX-HTTP-4", "OWN-LIMITS")
    @pytest.mark.parametrize(
        ("version", "requested"), [("2031-01-01", "2031-01-01"), ("", ""), ("\udcff", "?"), ("é", "é")]
    )
    def test_a_notification_in_a_version_that_is_not_served_is_refused_in_writing(self, version, requested):
        found = classify({"mcp-protocol-version": [version]}, body("notifications/cancelled", {}, id=None))
        assert refused(found, request_id=None) == ("version", -32022, 400)
        data = json.loads(found.reject.body(found.era))["data"]
        assert (data["supported"], data["requested"]) == ([MODERN], requested)


class TestLegacy:
    @pytest.mark.parametrize("version", LEGACY_VERSIONS)
    def test_each_revision_with_a_handshake_is_served(self, version):
        assert legacy("ping", headers={"mcp-protocol-version": [version]}) == want.Ping(b"1")

    @requirement("OWN-ERRORS")
    @pytest.mark.parametrize("version", [MODERN, "2031-01-01", ""])
    def test_another_version_in_the_header_is_refused(self, version):
        found = classify({**SESSION, "mcp-protocol-version": [version]}, body("ping"))
        assert refused(found, Era.LEGACY) == ("version", -32600, 400)
        assert found.reject.message == "Unsupported protocol version"
        assert found.reject.data == {"supported": [*LEGACY_VERSIONS, MODERN]}
        note = classify({**SESSION, "mcp-protocol-version": [version]}, body("notifications/x", id=None))
        assert refused(note, Era.LEGACY, None)[0] == "version"

    @requirement("OWN-ERRORS")
    @pytest.mark.parametrize(
        ("sent", "request_id"),
        [
            (body("ping"), b"1"),
            (body("made/up"), b"1"),
            (body("initialize", {}), b"1"),
            (body("notifications/initialized", id=None), None),
            (compact({"jsonrpc": "2.0", "id": 1, "result": {}}), None),
        ],
    )
    def test_only_initialize_comes_without_a_session(self, sent, request_id):
        found = classify({}, sent)
        assert refused(found, Era.LEGACY, request_id) == ("session_missing", -32600, 400)
        assert found.reject.message == "Mcp-Session-Id is required: send initialize first"

    @pytest.mark.parametrize("headers", [{}, SESSION])
    def test_initialize_asks_for_a_version(self, headers):
        found = classify(headers, body("initialize", {"protocolVersion": "1999-01-01", "capabilities": {}}))
        assert found.speech == Speech(Era.LEGACY, None, session="s-1" if headers else None)
        assert (found.intent.id, found.intent.version) == (b"1", "1999-01-01")
        assert list(found.intent.params) == ["protocolVersion", "capabilities"]

    @pytest.mark.parametrize("params", [None, {}, {"protocolVersion": 5}, {"protocolVersion": None}])
    def test_initialize_without_a_version_is_refused(self, params):
        assert told(legacy("initialize", params)) == ("arguments", "protocolVersion must be a string")

    def test_two_session_ids_are_no_session_of_ours(self):
        found = classify({"mcp-session-id": ["a", "b"]}, body("ping"))
        assert found == Inbound(Speech(Era.LEGACY, None, session="a,b"), want.Ping(b"1"))

    def test_notifications_are_taken_note_of(self):
        assert legacy("notifications/initialized", id=None) == want.Note("notifications/initialized")

    @pytest.mark.parametrize("method", ["subscriptions/listen", "tasks/update", "server/discover", "tasks/made-up"])
    def test_what_these_revisions_do_not_serve_is_no_method(self, method):
        intent = legacy(method, {"taskId": "t"})
        assert told(intent) == ("method", f"Method not found: {method}")
        assert (intent.reject.code(Era.LEGACY), intent.reject.http(Era.LEGACY)) == (-32601, 200)

    @requirement("BR-5")
    @pytest.mark.parametrize("method", ["prompts/list", "logging/setLevel", "made/up"])
    def test_what_is_not_ours_is_the_upstreams_to_answer(self, method):
        found = legacy(method, {"x": 1, "_meta": {"progressToken": "p"}})
        assert isinstance(found, want.Forward)
        assert (found.method, found.progress_token, bytes(found.params["x"])) == (method, b'"p"', b"1")

    def test_headers_of_the_modern_era_mean_nothing(self):
        assert legacy("ping", headers={"mcp-method": ["x", "y"], "mcp-name": ["z"]}) == want.Ping(b"1")

    @requirement("T25-GET-3")
    @pytest.mark.parametrize(
        ("method", "intent"),
        [("tasks/get", want.GetTask), ("tasks/result", want.GetResult), ("tasks/cancel", want.CancelTask)],
    )
    def test_the_task_is_the_one_of_the_parameters(self, method, intent):
        related = {"io.modelcontextprotocol/related-task": {"taskId": "other"}}
        assert legacy(method, {"taskId": "t-1", "_meta": related}) == intent(b"1", "t-1")


@requirement("TX-HTTP-2")
def test_headers_that_repeat_arguments_are_collected_and_no_others():
    sent = {
        "mcp-param-region": ["eu"],
        "mcp-param-rows": ["1", "2"],
        "x-mcp-param-a": ["x"],
        "authorization": ["CANARY"],
    }
    meta = modern_meta(DECLARED)
    headers = {**modern_headers("tools/call", "x"), **sent}
    found = classify(headers, body("tools/call", {"name": "x", "_meta": meta}))
    assert found.speech.parameters == {"mcp-param-region": ["eu"], "mcp-param-rows": ["1", "2"]}
