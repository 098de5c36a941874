"""What a client of revision 2026-07-28 says of itself, and what it reads from `server/discover`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from gateway.wire import modern_client
from gateway.wire.classify import Rejected, classify, decode_header
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Notification, Response, members, request
from gateway.wire.modern_client import Discovered
from gateway.wire.render import SERVER_INFO
from tests.requirements import requirement
from tests.unit.wire.samples import CAPABILITIES, MODERN, VERSION, compact, steady

INFO = "io.modelcontextprotocol/clientInfo"
SERVER = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def params(given_, capabilities="{}"):
    return json.loads(compact_of(modern_client.params(members(compact(given_)), MODERN, capabilities)))


def compact_of(found):
    return b"{" + b",".join(compact(name) + b":" + bytes(value) for name, value in found.items()) + b"}"


class TestParams:
    def test_carry_what_every_request_needs(self):
        expected = {VERSION: MODERN, CAPABILITIES: {}, INFO: SERVER_INFO}
        assert params({"name": "x"}) == {"name": "x", "_meta": expected}

    def test_keep_what_the_caller_said_but_for_the_version(self):
        meta = {VERSION: "1999-01-01", INFO: {"name": "c"}, "progressToken": "t", "traceparent": "00", "a/b": [1]}
        told = params({"_meta": meta})["_meta"]
        assert told == {**meta, VERSION: MODERN, CAPABILITIES: {}}

    def test_say_no_log_level_unless_the_caller_does(self):
        assert "io.modelcontextprotocol/logLevel" not in params({})["_meta"]

    @pytest.mark.parametrize(
        ("carried", "link", "joined"),
        [
            ({}, '{"roots":{}}', {"roots": {}}),
            ({"sampling": {}}, '{"roots":{}}', {"roots": {}, "sampling": {}}),
            (
                {"elicitation": {"url": {}}, "x": 1},
                '{"elicitation":{"form":{}},"x":{}}',
                {"elicitation": {"form": {}, "url": {}}, "x": 1},
            ),
            (5, '{"roots":{}}', {"roots": {}}),
        ],
    )
    def test_join_both_declarations(self, carried, link, joined):
        assert params({"_meta": {CAPABILITIES: carried}}, link)["_meta"][CAPABILITIES] == joined

    def test_survive_a_meta_that_is_none(self):
        assert params({"_meta": 5})["_meta"][VERSION] == MODERN

    @requirement("OWN-BYTES")
    def test_leave_values_as_they_were_written(self):
        found = modern_client.params({"arguments": Raw(b'{ "n" : 1.0 }'), "_meta": Raw(b'{"x":1e400}')}, MODERN, "{}")
        assert bytes(found["arguments"]) == b'{ "n" : 1.0 }'
        assert b'"x":1e400' in bytes(found["_meta"])


class TestHeaders:
    @pytest.mark.parametrize(
        ("method", "given_", "name"),
        [
            ("tools/call", {"name": "x"}, "x"),
            ("prompts/get", {"name": "x"}, "x"),
            ("resources/read", {"uri": "file:///a b"}, "file:///a b"),
            ("tasks/get", {"taskId": "t"}, "t"),
            ("tools/call", {"name": 5}, None),
            ("tools/call", {}, None),
            ("tools/list", {"name": "x", "": "y"}, None),
        ],
    )
    def test_repeat_method_and_name(self, method, given_, name):
        found = modern_client.headers(method, members(compact(given_)), MODERN, {})
        expected = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        assert found == (expected if name is None else {**expected, "Mcp-Name": name})

    def test_carry_mirrored_arguments(self):
        found = modern_client.headers("tools/call", {}, MODERN, {"Region": "us", "Text": "a\r\nX-Evil: 1"})
        assert found["Mcp-Param-Region"] == "us"
        assert found["Mcp-Param-Text"] == "=?base64?YQ0KWC1FdmlsOiAx?="

    @pytest.mark.parametrize(
        ("value", "written"),
        [
            ("us-west1", "us-west1"),
            ("", ""),
            ("a b", "a b"),
            ("Hello, \u4e16\u754c", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ("\x7f", "=?base64?fw==?="),
            ("x\n", "=?base64?eAo=?="),
            ("=?base64?x", "=?base64?x"),
        ],
    )
    def test_are_encoded_as_the_specification_shows(self, value, written):
        assert modern_client.encode_header(value) == written

    @steady
    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def test_hold_nothing_that_ends_a_header_and_are_read_as_they_were_meant(self, value):
        written = modern_client.encode_header(value)
        assert all(character == "\t" or " " <= character <= "~" for character in written)
        assert written == written.strip()
        assert decode_header(written) == value
        assert inbound.decode_header_value(written) == value

    @steady
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.sampled_from(["tools/call", "x/y"]))
    def test_with_their_request_pass_the_ladder_of_a_server(self, name, method):
        told = modern_client.params(members(compact({"name": name})), MODERN, "{}")
        headers = modern_client.headers(method, told, MODERN, {})
        lower = {key.lower(): [value] for key, value in headers.items()}
        assert not isinstance(classify(lower, request(b"1", method, told)), Rejected)


def answer(result=None, error=None):
    body = compact(error if result is None else result)
    return Response(b"1", ok=result is not None, body=body)


class TestDiscovered:
    def test_says_what_the_server_said(self):
        body = (
            b'{"resultType":"complete","supportedVersions":["2031-01-01","2026-07-28"],"capabilities":{ "tools":{} },'
            b'"instructions":"Hi.","_meta":{"' + SERVER.encode() + b'":{ "name":"s" }},"more":1}'
        )
        found = modern_client.discovered(Response(b"1", ok=True, body=body))
        meta = b'{"' + SERVER.encode() + b'":{ "name":"s" }}'
        assert found == Discovered(MODERN, b'{ "tools":{} }', b'{ "name":"s" }', b'"Hi."', meta)

    def test_may_say_little(self):
        found = modern_client.discovered(answer({"supportedVersions": [MODERN], "capabilities": 5, "_meta": 5}))
        assert found == Discovered(MODERN, b"{}", None, None, b"5")

    @pytest.mark.parametrize(
        "found",
        [
            answer({"tools": []}),
            answer({"supportedVersions": ["2025-11-25", "2024-11-05"]}),
            answer({"resultType": "input_required", "supportedVersions": [MODERN]}),
            answer(error={"code": -32601, "message": "no"}),
            answer(error={"code": -32602, "message": "no"}),
            answer(error={"code": -32000, "message": "Server not initialized"}),
            answer(error={"code": -32022, "message": "no"}),
            answer(error={"code": -32022, "message": "no", "data": 5}),
            answer(error={"code": -32022, "message": "no", "data": {"supported": ["2025-06-18"]}}),
            answer(error={}),
        ],
    )
    def test_is_nothing_where_the_server_is_of_the_other_era(self, found):
        assert modern_client.discovered(found) is None

    @pytest.mark.parametrize(
        "found",
        [
            answer({"supportedVersions": ["2031-01-01"]}),
            answer({"supportedVersions": 5}),
            answer(error={"code": -32022, "message": "no", "data": {"supported": ["2031-01-01"]}}),
            answer(error={"code": -32021, "message": "no"}),
            answer(error={"code": -32020, "message": "no"}),
        ],
    )
    def test_is_a_refusal_where_the_server_is_modern_and_of_no_use(self, found):
        assert isinstance(modern_client.discovered(found), Reject)


@pytest.mark.parametrize(
    ("capabilities", "resources", "wanted"),
    [
        ({}, ["x"], {}),
        ({"tools": {}, "prompts": {"listChanged": False}, "resources": 5}, ["x"], {}),
        ({"tools": {"listChanged": True}}, [], {"toolsListChanged": True}),
        (
            {"prompts": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}},
            ["x"],
            {"promptsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": ["x"]},
        ),
        ({"resources": {"subscribe": True}}, [], {}),
        ({"resources": {}}, ["x"], {}),
    ],
)
def test_a_subscription_asks_for_what_the_server_tells(capabilities, resources, wanted):
    assert modern_client.subscription(compact(capabilities), resources) == wanted


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"_meta": {SUBSCRIPTION: 1}}, {}),
        ({"_meta": {SUBSCRIPTION: "a", "x": 1.0}, "uri": "u"}, {"uri": "u", "_meta": {"x": 1.0}}),
        ({"uri": "u"}, {"uri": "u"}),
        ({"_meta": 5}, {"_meta": 5}),
    ],
)
def test_what_a_subscription_brings_loses_its_mark_and_nothing_else(before, after):
    found = modern_client.told(Notification("notifications/x", members(compact(before))))
    assert (found.method, json.loads(compact_of(found.params))) == ("notifications/x", after)


def test_an_acknowledgement_is_for_nobody_else():
    assert modern_client.told(Notification("notifications/subscriptions/acknowledged", {})) is None


@pytest.mark.parametrize(("body", "code"), [(b'{"code":-32020}', -32020), (b'{"code":"x"}', None), (b"{}", None)])
def test_the_code_of_an_error(body, code):
    assert modern_client.code_of(Response(b"1", ok=False, body=body)) == code
    assert modern_client.code_of(Response(b"1", ok=True, body=body)) is None
