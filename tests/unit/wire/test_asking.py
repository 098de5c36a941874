"""What an upstream may ask of a client, and how questions and answers are kept and handed on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.model import Question
from gateway.wire import asking
from gateway.wire.jsonrpc import members, write
from tests.requirements import requirement
from tests.unit.wire.samples import compact, steady

RELATED = "io.modelcontextprotocol/related-task"


class TestDeclarable:
    @requirement("T25-INP-2")
    @pytest.mark.parametrize(
        ("capabilities", "kept"),
        [
            (None, "{}"),
            (b"{}", "{}"),
            (b"[]", "{}"),
            (b"null", "{}"),
            (b'{"elicitation":{}}', '{"elicitation":{}}'),
            (b'{"roots":{},"sampling":{},"elicitation":{}}', '{"elicitation":{},"roots":{},"sampling":{}}'),
            (b'{"sampling":{ "tools" : {} },"future":{}}', '{"sampling":{ "tools" : {} }}'),
            (b'{"elicitation":{"form":{},"url":{}},"tasks":{}}', '{"elicitation":{"form":{},"url":{}}}'),
            (b'{"elicitation":null,"sampling":true,"roots":[]}', "{}"),
            (b'{"Elicitation":{},"extensions":{"elicitation":{}}}', "{}"),
        ],
    )
    def test_exactly_what_was_declared_of_what_can_be_asked(self, capabilities, kept):
        assert asking.declarable(capabilities) == kept
        if capabilities is not None:
            assert asking.declarable(Raw(capabilities)) == kept
        assert asking.declarable(kept.encode()) == kept


FORM, URL, BOTH, EMPTY = '{"form":{}}', '{"url":{}}', '{"form":{},"url":{}}', "{}"


class TestDeclared:
    @requirement("T25-INP-2")
    @pytest.mark.parametrize(
        ("elicitation", "params", "allowed"),
        [
            (FORM, b"{}", True),
            (FORM, b'{"mode":"form"}', True),
            (FORM, b'{"mode":"url"}', False),
            (URL, b"{}", False),
            (URL, b'{"mode":"form"}', False),
            (URL, b'{"mode":"url"}', True),
            (BOTH, b"{}", True),
            (BOTH, b'{"mode":"form"}', True),
            (BOTH, b'{"mode":"url"}', True),
            (BOTH, b'{"mode":"telepathy"}', False),
            (EMPTY, b"{}", True),
            (EMPTY, b'{"mode":"form"}', True),
            (EMPTY, b'{"mode":"url"}', False),
            (FORM, b'{"mode":null}', True),
            (URL, b'{"mode":null}', False),
        ],
    )
    def test_an_elicitation_has_a_mode_that_was_declared(self, elicitation, params, allowed):
        capabilities = '{"elicitation":' + elicitation + "}"
        assert asking.declared(capabilities, "elicitation/create", members(params)) is allowed

    @requirement("T25-INP-2")
    @pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
    @pytest.mark.parametrize("name", ["elicitation", "sampling", "roots"])
    def test_each_method_belongs_to_one_capability(self, method, name):
        allowed = method.startswith(name)
        assert asking.declared('{"' + name + '":{}}', method, {}) is allowed
        assert asking.declared('{"' + name + '":{}}', method, {"mode": Raw(b'"url"')}) is (
            allowed and name != "elicitation"
        )

    @requirement("T25-INP-2")
    @pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
    @pytest.mark.parametrize("capabilities", ["{}", "", "[]", '{"tasks":{}}'])
    def test_who_declared_nothing_is_asked_nothing(self, method, capabilities):
        assert asking.declared(capabilities, method, {}) is False

    @pytest.mark.parametrize("method", ["ping", "tasks/get", "elicitation", "elicitation/create/", ""])
    def test_other_methods_are_no_questions(self, method):
        assert asking.declared('{"elicitation":{},"sampling":{},"roots":{}}', method, {}) is False

    @requirement("T25-INP-2")
    def test_what_the_upstream_hears_otherwise(self):
        undeclared, gone = json.loads(asking.UNDECLARED), json.loads(asking.GONE)
        assert (undeclared["code"], undeclared["message"]) == (-32601, "the client declared no such capability")
        assert undeclared["data"] == {"reason": "method", "retryable": False}
        assert (gone["code"], gone["message"]) == (49901, "nobody is there to answer any more")
        assert gone["data"] == {"reason": "cancelled", "retryable": False}


class TestStored:
    @requirement("OWN-BYTES")
    @pytest.mark.parametrize(
        ("params", "kept"),
        [
            (b"{}", "{}"),
            (b'{"message":"\\u00e9","n":{ "a" : 1.0 }}', '{"message":"\\u00e9","n":{ "a" : 1.0 }}'),
            (b'{"_meta":{"x":1.0},"message":"m"}', '{"message":"m","_meta":{"x":1.0}}'),
            (b'{"_meta":{},"message":"m"}', '{"message":"m"}'),
            (b'{"_meta":null,"message":"m"}', '{"message":"m"}'),
            (b'{"_meta":[1],"message":"m"}', '{"message":"m"}'),
            (b'{"_meta":{"progressToken":1}}', "{}"),
            (compact({"_meta": {RELATED: {"taskId": "theirs"}}}), "{}"),
            (compact({"_meta": {RELATED: {}, "a": 1, "progressToken": "p", "b": 2}}), '{"_meta":{"a":1,"b":2}}'),
            (compact({RELATED: 1, "progressToken": 2}), '{"' + RELATED + '":1,"progressToken":2}'),
        ],
    )
    def test_without_what_is_between_the_upstream_and_this_gateway(self, params, kept):
        assert asking.stored(members(params)) == kept


class TestRequestParams:
    @requirement("T25-INP-1", "OWN-BYTES")
    @pytest.mark.parametrize(
        ("params", "head", "kept"),
        [
            ("{}", b"", b""),
            ('{"message":{ "a" : 1.0 }}', b'"message":{ "a" : 1.0 },', b""),
            ('{"message":"m","_meta":{ "x" : 1.0 }}', b'"message":"m",', b'"x":1.0,'),
            ('{"_meta":{"' + RELATED + '":{"taskId":"theirs"}}}', b"", b""),
            ('{"_meta":null}', b"", b""),
            ("[]", b"", b""),
        ],
    )
    def test_a_client_learns_to_which_task_a_question_belongs(self, params, head, kept):
        question = Question("q1", "elicitation/create", params, 1, 2)
        related = b'"' + RELATED.encode() + b'":{"taskId":"t-1"}'
        assert write(asking.request_params(question, "t-1")) == b"{" + head + b'"_meta":{' + kept + related + b"}}"


class TestKept:
    @pytest.mark.parametrize("body", [b"{}", b'{ "n" : 1.0 }', b'{"action":"accept","content":{"a":"\\u00e9"}}'])
    def test_a_result_is_read_as_it_was_written(self, body):
        assert asking.result(body) == asking.result(Raw(body)) == '{"result":' + body.decode() + "}"
        assert asking.answered(asking.result(body)) == (True, body)

    @pytest.mark.parametrize("body", [b"{}", b'{ "code" : -1 , "message":"\xc3\xa9" }', b'{"result":{}}'])
    def test_an_error_is_read_as_it_was_written(self, body):
        assert asking.refusal(body) == '{"error":' + body.decode() + "}"
        assert asking.answered(asking.refusal(body)) == (False, body)

    @requirement("T25-INP-1")
    @pytest.mark.parametrize(
        ("body", "kept"),
        [
            (compact({"_meta": {RELATED: {"taskId": "t"}}}), b"{}"),
            (compact({"a": 1, "_meta": {RELATED: {"taskId": "t"}}}), b'{"a":1}'),
            (compact({"_meta": {RELATED: None, "x": 1}, "a": 1}), b'{"a":1,"_meta":{"x":1}}'),
            (b'{ "_meta" : {"x":1} }', b'{ "_meta" : {"x":1} }'),
            (b'{ "_meta" : {} }', b'{ "_meta" : {} }'),
            (b'{ "_meta" : null }', b'{ "_meta" : null }'),
            (b'{ "_meta" : [ ] }', b'{ "_meta" : [ ] }'),
            (b'{ "a" : {"_meta":{"' + RELATED.encode() + b'":{}}} }', None),
            (b"{ }", b"{ }"),
            (b"[ ]", b"[ ]"),
        ],
    )
    def test_the_upstream_hears_nothing_of_the_task(self, body, kept):
        assert asking.without_related(body) == (body if kept is None else kept)
        assert asking.answered(asking.result(body)) == (True, body if kept is None else kept)


@steady
@given(st.dictionaries(st.text('a"\\é{}_', max_size=4), st.text('a"\\é', max_size=4) | st.integers(0, 9)))
def test_whatever_was_answered_is_read_again(answer):
    body = write(answer)
    assert asking.answered(asking.result(body)) == (True, body)
    assert asking.answered(asking.refusal(body)) == (False, body)
