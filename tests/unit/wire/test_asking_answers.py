"""What is an answer to a question, and what is none."""

import json
import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.model import Question, TaskState
from gateway.wire import asking
from gateway.wire.errors import Era, Reject
from tests.records import task
from tests.requirements import requirement
from tests.unit.wire.samples import compact, thorough

LARGE = 10_000
NO_ACTION = "action must be accept, decline or cancel"
NO_CONTENT = "an accepted form has content"
NO_MESSAGE = "a sampled message has role, model and content"
NO_ROOTS = "a list of roots has roots"
NO_OBJECT = "an answer is an object"
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1},
        "who": {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}},
    },
    "required": ["n"],
}
FORM = Question("q1", "elicitation/create", json.dumps({"message": "m", "requestedSchema": SCHEMA}), 1, 2)
URL = replace(FORM, params=json.dumps({"mode": "url", "url": "https://x", "requestedSchema": SCHEMA}))
SAMPLE = Question("q2", "sampling/createMessage", "{}", 1, 2)
ROOTS = Question("q3", "roots/list", "{}", 1, 2)
ACCEPTED = b'{"action":"accept","content":{"n":1}}'
MESSAGE = b'{"role":"assistant","model":"m","content":{}}'


def unfit(question, body, limit=LARGE):
    """The same of bytes and of a member."""
    found = asking.unfit(question, body, limit)
    assert asking.unfit(question, Raw(body), limit) == found
    return found


def against(schema, content):
    """Why a form with this schema is not answered by this content; both JSON text."""
    question = Question("q1", "elicitation/create", '{"requestedSchema":' + schema + "}", 1, 2)
    return unfit(question, b'{"action":"accept","content":' + content.encode() + b"}")


@requirement("TX-UPD-4")
@pytest.mark.parametrize(
    ("question", "body", "why"),
    [
        (FORM, ACCEPTED, None),
        (FORM, b'{"action":"accept","content":{"n":1,"more":true},"_meta":{}}', None),
        (FORM, b'{"action":"decline"}', None),
        (FORM, b'{"action":"cancel"}', None),
        (FORM, b'{"action":"decline","content":{"n":"no"}}', None),
        (FORM, b'{"action":"cancel","content":null}', None),
        (FORM, b"{}", NO_ACTION),
        (FORM, b'{"action":null,"content":{"n":1}}', NO_ACTION),
        (FORM, b'{"action":"Accept","content":{"n":1}}', NO_ACTION),
        (FORM, b'{"action":true}', NO_ACTION),
        (FORM, b'{"action":"accept"}', NO_CONTENT),
        (FORM, b'{"action":"accept","content":null}', NO_CONTENT),
        (FORM, b'{"action":"accept","content":[]}', NO_CONTENT),
        (FORM, b'{"action":"accept","content":"{}"}', NO_CONTENT),
        (URL, b'{"action":"accept"}', None),
        (URL, b'{"action":"accept","content":{"n":"not looked at"}}', None),
        (URL, b'{"action":"decline"}', None),
        (URL, b'{"action":"visit"}', NO_ACTION),
        (replace(FORM, params="{}"), b'{"action":"accept","content":{"any":1}}', None),
        (replace(FORM, params="{}"), b'{"action":"accept"}', NO_CONTENT),
        (replace(FORM, params="[]"), b'{"action":"accept","content":{}}', None),
        (replace(FORM, params='{"mode":"form"}'), b'{"action":"accept"}', NO_CONTENT),
        (SAMPLE, MESSAGE, None),
        (SAMPLE, b'{"role":"user","model":"","content":[],"stopReason":"endTurn"}', None),
        (SAMPLE, b'{"model":"m","content":{}}', NO_MESSAGE),
        (SAMPLE, b'{"role":5,"model":"m","content":{}}', NO_MESSAGE),
        (SAMPLE, b'{"role":"user","content":{}}', NO_MESSAGE),
        (SAMPLE, b'{"role":"user","model":null,"content":{}}', NO_MESSAGE),
        (SAMPLE, b'{"role":"user","model":"m"}', NO_MESSAGE),
        (SAMPLE, ACCEPTED, NO_MESSAGE),
        (ROOTS, b'{"roots":[]}', None),
        (ROOTS, b'{"roots":[{"uri":"file:///x"}],"_meta":{}}', None),
        (ROOTS, b"{}", NO_ROOTS),
        (ROOTS, MESSAGE, NO_ROOTS),
    ],
)
def test_an_answer_fits_its_question(question, body, why):
    assert unfit(question, body) == why


@requirement("TX-UPD-4")
@pytest.mark.parametrize("question", [FORM, URL, SAMPLE, ROOTS])
@pytest.mark.parametrize("body", [b"null", b"[]", b"5", b'"accept"', b"{", b""])
def test_an_answer_is_an_object(question, body):
    assert unfit(question, body) == NO_OBJECT


@requirement("TX-UPD-4", "OWN-LIMITS")
@pytest.mark.parametrize(
    ("question", "body"),
    [(FORM, ACCEPTED), (FORM, b'{"action":"decline"}'), (URL, b'{"action":"accept"}'), (SAMPLE, MESSAGE)],
)
def test_an_answer_of_just_the_limit_fits_and_one_byte_less_is_too_little(question, body):
    assert unfit(question, body, len(body)) is None
    assert unfit(question, body, len(body) - 1) == f"the answer is larger than {len(body) - 1} bytes"


def test_what_is_too_large_is_told_so_whatever_it_is():
    assert unfit(ROOTS, b"[1,2]", 4) == "the answer is larger than 4 bytes"


@requirement("TX-UPD-4")
@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{}", "/: required"),
        ('{"n":"1"}', "/n: type"),
        ('{"n":1.5}', "/n: type"),
        ('{"n":0}', "/n: minimum"),
        ('{"n":1,"who":[]}', "/who: type"),
        ('{"n":1,"who":{"names":["a",5]}}', "/who/names/1: type"),
    ],
)
def test_what_does_not_fit_is_told_by_place_and_keyword_and_not_by_value(content, place):
    why = f"content does not fit the requested schema at {place}"
    assert against(json.dumps(SCHEMA), content) == why


@pytest.mark.parametrize("content", ['{"n":1}', '{"n":1.0}', '{"n":9007199254740993,"who":{"names":["é"]}}'])
def test_what_fits_fits(content):
    assert against(json.dumps(SCHEMA), content) is None


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    ("schema", "content"),
    [
        ("null", "{}"),
        ("5", "{}"),
        ('"object"', "{}"),
        ("[]", "{}"),
        ("true", "{}"),
        ('{"type":"nonsense"}', "{}"),
        ('{"type":5}', "{}"),
        ('{"properties":[]}', "{}"),
        ('{"required":5}', "{}"),
        ('{"$id":5}', "{}"),
        ('{"$ref":5}', "{}"),
        ('{"$ref":"#"}', "{}"),
        ('{"$ref":"#/nowhere"}', "{}"),
        ('{"$dynamicRef":"#nowhere"}', "{}"),
        ('{"$id":"http://[","$ref":"x"}', "{}"),
        ('{"properties":{"a":{"pattern":"("}}}', '{"a":"x"}'),
        ('{"properties":{"a":{"minLength":"x"}}}', '{"a":"x"}'),
        ('{"properties":{"a":{"multipleOf":0}}}', '{"a":1}'),
        ('{"properties":{"a":{"multipleOf":0.5}}}', '{"a":1' + "0" * 390 + "}"),
        ('{"minProperties":1e400}', "{}"),
    ],
)
def test_a_schema_that_is_none_asks_for_nothing(schema, content):
    assert against(schema, content) is None


def test_what_a_schema_asks_for_before_it_breaks_counts():
    schema = '{"required":["a"],"type":"nonsense"}'
    assert against(schema, "{}") == "content does not fit the requested schema at /: required"


@requirement("OWN-LIMITS", "TX-UPD-4")
@pytest.mark.parametrize("content", ['{"n":1e400}', '{"n":[{"m":-1e400}]}'])
@pytest.mark.parametrize("schema", ["{}", "true", "null", '{"type":"nonsense"}'])
def test_a_number_that_nothing_can_hold_is_no_answer_to_a_form(schema, content):
    assert against(schema, content) == "content holds a number that is out of range"


def test_without_a_schema_no_number_is_looked_at():
    assert unfit(replace(FORM, params="{}"), b'{"action":"accept","content":{"n":1e400}}') is None


@requirement("OWN-PURE")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_schema_refers_to_is_never_fetched():
    before = socket.getdefaulttimeout()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        host, port = server.getsockname()
        socket.setdefaulttimeout(0.5)
        try:
            assert against(f'{{"$ref":"http://{host}:{port}/schema.json"}}', "{}") is None
        finally:
            socket.setdefaulttimeout(before)
        with pytest.raises(BlockingIOError):
            server.accept()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
keywords = st.sampled_from(
    [
        *("type", "properties", "required", "enum", "const", "items", "pattern", "multipleOf", "minimum", "maxLength"),
        *("$ref", "$id", "$defs", "$schema", "allOf", "if", "then", "format", "additionalProperties", "minProperties"),
    ]
)
words = st.sampled_from(["object", "string", "integer", "#", "#/$defs/a", "(", "a", "email", 0, 1, True])
schemas = st.recursive(
    words | json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords | st.just("a"), inner, max_size=4),
    max_leaves=10,
)


@requirement("OWN-LIMITS")
@thorough
@given(schemas, st.dictionaries(st.sampled_from(["a", "b"]), json_values, max_size=2))
def test_no_schema_and_no_content_break_anything(schema, content):
    found = unfit(
        replace(FORM, params=json.dumps({"requestedSchema": schema})),
        compact({"action": "accept", "content": content}),
        10**6,
    )
    assert found is None or found.startswith("content ")


class TestRespond:
    ASKING = task(
        state=TaskState.INPUT_REQUIRED,
        questions=(FORM, replace(SAMPLE, answer='{"result":{}}'), ROOTS),
    )

    def respond(self, answers, max_bytes=LARGE):
        return asking.respond(self.ASKING, {key: Raw(body) for key, body in answers.items()}, max_bytes)

    def test_answers_are_kept_as_they_were_written(self):
        answers = {"q3": b'{"roots": [ ]}', "q1": b'{ "action" : "decline" }'}
        kept = {"q3": '{"result":{"roots": [ ]}}', "q1": '{"result":{ "action" : "decline" }}'}
        assert self.respond(answers) == kept

    def test_answers_are_kept_without_the_task(self):
        body = compact({"roots": [], "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}})
        assert self.respond({"q3": body}) == {"q3": '{"result":{"roots":[]}}'}

    @requirement("TX-UPD-2")
    @pytest.mark.parametrize("body", [MESSAGE, b"{}", b"null", b'"' + b"x" * LARGE + b'"'])
    @pytest.mark.parametrize("key", ["q2", "q9", "", "Q1"])
    def test_what_is_not_outstanding_is_ignored_whatever_it_is(self, key, body):
        assert self.respond({key: body}) == {}
        assert self.respond({key: body, "q1": ACCEPTED}) == {"q1": '{"result":' + ACCEPTED.decode() + "}"}

    @requirement("TX-UPD-2")
    def test_a_task_that_asks_nothing_ignores_everything(self):
        assert asking.respond(task(), {"q1": Raw(ACCEPTED)}, LARGE) == {}
        assert self.respond({}) == {}

    @requirement("TX-UPD-4")
    @pytest.mark.parametrize(
        ("answers", "key", "why"),
        [
            ({"q1": b"{}"}, "q1", NO_ACTION),
            ({"q1": ACCEPTED, "q3": b"{}"}, "q3", NO_ROOTS),
            ({"q3": b'{"roots":[]}', "q1": b"[]"}, "q1", NO_OBJECT),
            ({"q1": b'{"action":"accept"}', "q3": b"{}"}, "q1", NO_CONTENT),
            ({"q3": b"{}", "q1": b"{}"}, "q3", NO_ROOTS),
        ],
    )
    def test_one_that_does_not_fit_refuses_all(self, answers, key, why):
        refused = self.respond(answers)
        assert refused == Reject("arguments", f"inputResponses.{key}: {why}", {"key": key})
        assert (refused.code(Era.MODERN), refused.http(Era.MODERN)) == (-32602, 200)

    @requirement("TX-UPD-4", "OWN-LIMITS")
    def test_the_limit_is_for_each_answer(self):
        answers = {"q1": b'{"action":"cancel"}', "q3": b'{"roots":[],"n":12}'}
        assert {len(body) for body in answers.values()} == {19}
        assert list(self.respond(answers, 19)) == ["q1", "q3"]
        refused = Reject("arguments", "inputResponses.q1: the answer is larger than 18 bytes", {"key": "q1"})
        assert self.respond(answers, 18) == refused
