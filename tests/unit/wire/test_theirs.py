"""Tasks that upstreams have of their own: what of them is understood, asked, and handed on."""

import json

import pytest

from gateway.core.model import OutcomeKind
from gateway.wire import theirs, theirs_2025, theirs_ext
from gateway.wire.errors import TASKS_EXTENSION
from gateway.wire.jsonrpc import Response, members
from gateway.wire.taken import DIALECTS, taken, unusable
from gateway.wire.theirs import Ask, Sight
from tests.requirements import requirement
from tests.unit.wire.samples import compact

OLD, NEW = DIALECTS["2025-11-25"], DIALECTS[TASKS_EXTENSION]
ID = "786512e2-9e0d-44bd-8f29-789f320fe840"
OURS = "our-own-id-of-thirty-two-letters"
RELATED = "io.modelcontextprotocol/related-task"
OFFER = {"tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
FLAT = {
    "taskId": ID,
    "status": "working",
    "statusMessage": "half",
    "createdAt": "then",
    "lastUpdatedAt": "now",
    "ttl": 60_000,
    "pollInterval": 5000,
}
EXT = {"taskId": ID, "status": "working", "createdAt": "then", "ttlMs": None, "pollIntervalMs": 250.7}


def result(body):
    return Response(b"1", ok=True, body=body if isinstance(body, bytes) else compact(body))


def asked(ask):
    return ask.method, {name: json.loads(bytes(raw)) for name, raw in ask.params.items()}


class TestRecognised:
    @requirement("BR-3")
    @pytest.mark.parametrize(
        ("body", "dialect", "interval"),
        [
            ({"task": FLAT}, OLD, 5000),
            ({"task": {**FLAT, "pollInterval": 1.5}, "_meta": {}}, OLD, 1),
            ({"task": {"taskId": ID}}, OLD, None),
            ({"task": {**FLAT, "status": "queued", "pollInterval": "soon"}}, OLD, None),
            ({"resultType": "task", **EXT}, NEW, 250),
            ({"resultType": "task", "taskId": ID, "pollIntervalMs": -1}, NEW, None),
            ({"resultType": "task", "content": [], "taskId": ID, "pollIntervalMs": 1e12}, NEW, None),
        ],
    )
    def test_whichever_dialect_it_speaks(self, body, dialect, interval):
        found = taken(result(body))
        assert found is not None
        assert (found[0], found[1].task, found[1].state, found[1].interval_ms) == (dialect, ID, "working", interval)
        assert not unusable(result(body))

    @requirement("BR-3")
    @pytest.mark.parametrize(
        "body",
        [
            {"content": [], "task": FLAT},
            {"content": []},
            {"task": "786512e2"},
            {"task": {"status": "working"}},
            {"task": {"taskId": 7}},
            {"task": {"taskId": ""}},
            {"task": {"taskId": "x" * 1025}},
            {"resultType": "complete", "taskId": ID},
            {"resultType": 7},
            b"[]",
        ],
    )
    def test_as_what_it_is_not(self, body):
        assert taken(result(body)) is None
        assert not unusable(result(body))

    @requirement("BR-3")
    def test_as_unusable_where_it_does_not_say_which(self):
        assert unusable(result({"resultType": "task"}))
        assert not unusable(Response(b"1", ok=False, body=compact({"resultType": "task"})))
        assert taken(Response(b"1", ok=False, body=compact({"task": FLAT}))) is None


class TestSeen:
    @requirement("BR-3")
    def test_in_2025(self):
        assert OLD.seen(ID, compact(FLAT)) == Sight(ID, "working", "half", 5000, "then")

    @requirement("BR-3")
    @pytest.mark.parametrize("word", ["Completed", " FAILED ", "cancelled", "input_required"])
    def test_words_are_forgiven_their_looks(self, word):
        for dialect in (OLD, NEW):
            assert dialect.seen(ID, compact({"taskId": ID, "status": word})).state == word.strip().lower()

    @requirement("BR-3")
    @pytest.mark.parametrize(
        "body",
        [
            {**FLAT, "taskId": "another"},
            {**FLAT, "status": "sleeping"},
            {**FLAT, "status": None},
            {"status": "working"},
        ],
    )
    def test_nothing_that_nobody_knows(self, body):
        for dialect in (OLD, NEW):
            assert dialect.seen(ID, compact(body)) is None
            assert dialect.seen(ID, b"[]") is None

    @requirement("BR-3")
    def test_in_the_extension_with_what_it_came_to(self):
        done = NEW.seen(ID, compact({**EXT, "status": "completed", "result": {"content": []}}))
        assert done.outcome == Response(b"0", ok=True, body=b'{"content":[]}')
        failed = NEW.seen(ID, compact({**EXT, "status": "failed", "error": {"code": 1}, "result": {}}))
        assert failed.outcome == Response(b"0", ok=False, body=b'{"code":1}')
        for more in ({}, {"result": 7}):
            assert NEW.seen(ID, compact({**EXT, "status": "completed", **more})).outcome is None
        assert NEW.seen(ID, compact({**EXT, "result": {}})).outcome is None

    @requirement("BR-3")
    def test_in_the_extension_with_its_questions(self):
        requests = {
            "a": {"method": "elicitation/create", "params": {"message": "Who?"}},
            "b": {"method": "roots/list"},
            "c": {"method": 7},
            "d": {"method": "x", "params": []},
            "e": 5,
        }
        seen = NEW.seen(ID, compact({**EXT, "status": "input_required", "inputRequests": requests}))
        assert seen.questions == {
            "a": Ask("elicitation/create", members(b'{"message":"Who?"}')),
            "b": Ask("roots/list", {}),
        }
        for other in ({"status": "working", "inputRequests": requests}, {"status": "input_required"}):
            assert NEW.seen(ID, compact({**EXT, **other})).questions == {}
        assert NEW.seen(ID, compact({**EXT, "status": "input_required", "inputRequests": []})).questions == {}

    def test_a_long_message_is_cut(self):
        assert OLD.seen(ID, compact({**FLAT, "statusMessage": "x" * 1000})).message == "x" * 500


class TestAsked:
    @requirement("BR-3")
    @pytest.mark.parametrize("dialect", [OLD, NEW])
    def test_by_its_id(self, dialect):
        assert asked(dialect.get(ID)) == ("tasks/get", {"taskId": ID})
        assert asked(dialect.cancel(ID)) == ("tasks/cancel", {"taskId": ID})

    @requirement("BR-3")
    def test_for_its_result_in_2025(self):
        assert OLD.fetches
        assert asked(OLD.result(ID)) == ("tasks/result", {"taskId": ID})
        assert OLD.update(ID, "k", b"{}") is None

    @requirement("BR-3")
    def test_with_an_answer_in_the_extension(self):
        assert not NEW.fetches
        told = {"taskId": ID, "inputResponses": {"k": {"action": "accept"}}}
        assert asked(NEW.update(ID, "k", b'{"action":"accept"}')) == ("tasks/update", told)
        assert NEW.result(ID) is None

    @requirement("BR-3", "OWN-BYTES")
    def test_what_is_answered_names_the_task_in_2025(self):
        told = OLD.answer(ID, b'{"action":"accept","content":{"n":1.0},"_meta":{"k":1e400}}')
        assert told == (
            b'{"action":"accept","content":{"n":1.0},"_meta":{"k":1e400,"%b":{"taskId":"%b"}}}'
            % (RELATED.encode(), ID.encode())
        )
        assert json.loads(OLD.answer(ID, b"{}")) == {"_meta": {RELATED: {"taskId": ID}}}
        assert NEW.answer(ID, b"{}") == b"{}"

    @requirement("BR-3")
    def test_again_when_it_says_that_it_has_changed(self):
        params = members(compact({"taskId": ID}))
        assert OLD.concerns("notifications/tasks/status", params) == ID
        assert NEW.concerns("notifications/tasks", params) == ID
        assert OLD.concerns("notifications/tasks", params) is None
        assert NEW.concerns("notifications/tasks/status", params) is None


class TestOffered:
    @requirement("BR-3")
    @pytest.mark.parametrize(
        ("version", "capabilities", "offered"),
        [
            ("2025-11-25", OFFER, True),
            ("2025-06-18", OFFER, False),
            ("2025-11-25", {"tasks": {"requests": {"tools": {}}}}, False),
            ("2025-11-25", {"tasks": {"requests": {"tools": {"call": True}}}}, False),
            ("2025-11-25", {"tasks": []}, False),
            ("2025-11-25", {}, False),
        ],
    )
    def test_by_the_one_revision_that_has_them(self, version, capabilities, offered):
        assert theirs_2025.offers(version, compact(capabilities)) is offered

    @requirement("BR-3")
    def test_to_be_cancelled(self):
        assert theirs_2025.cancels(compact(OFFER))
        assert not theirs_2025.cancels(compact({"tasks": {}}))
        assert not theirs_2025.cancels(b"7")

    @requirement("BR-3")
    def test_for_each_tool(self):
        tools = [
            {"name": "a", "execution": {"taskSupport": "optional"}},
            {"name": "b", "execution": {"taskSupport": "required"}},
            {"name": "c", "execution": {"taskSupport": "forbidden"}},
            {"name": "d", "execution": {"taskSupport": 7}},
            {"name": "e", "execution": 7},
            {"name": "f"},
            {"execution": {"taskSupport": "required"}},
            5,
        ]
        found = {"a": True, "b": True, "c": False, "d": False, "e": False, "f": False}
        assert theirs_2025.supports(compact({"tools": tools, "nextCursor": "n"})) == (found, "n")
        assert theirs_2025.supports(b"[]") == ({}, None)

    @requirement("BR-3", "OWN-BYTES")
    def test_and_asked_for(self):
        params = members(b'{"name":"x","arguments":{ "n":1.0 }}')
        told = theirs_2025.asking(params, 5000)
        assert {name: bytes(raw) for name, raw in told.items()} == {
            "name": b'"x"',
            "arguments": b'{ "n":1.0 }',
            "task": b'{"ttl":5000}',
        }

    @requirement("BR-3")
    @pytest.mark.parametrize(
        ("params", "task"),
        [
            ({"_meta": {RELATED: {"taskId": ID}}}, ID),
            ({"_meta": {RELATED: {"taskId": 7}}}, None),
            ({"_meta": {RELATED: ID}}, None),
            ({"_meta": {}}, None),
            ({"_meta": 7}, None),
            ({}, None),
        ],
    )
    def test_what_belongs_to_a_task_says_so(self, params, task):
        assert theirs_2025.related(members(compact(params))) == task


class TestEnding:
    def of(self, state, answer=None, message=""):
        kind, body = theirs.ending(Sight(ID, state, message), answer, OURS)
        return kind, json.loads(body)

    @requirement("BR-3", "OWN-BYTES")
    def test_is_what_the_call_would_have_answered(self):
        body = (
            b'{"content":[ 1.0 ],"structuredContent":{"big":9007199254740993},"_meta":{"k":1e400,"%b":{"taskId":"%b"}}}'
        )
        kind, told = theirs.ending(Sight(ID, "completed"), result(body % (RELATED.encode(), ID.encode())), OURS)
        assert kind is OutcomeKind.RESULT
        assert told == b'{"content":[ 1.0 ],"structuredContent":{"big":9007199254740993},"_meta":{"k":1e400}}'

    @requirement("BR-3")
    def test_of_a_result_without_metadata_of_its_own_has_none(self):
        told = self.of("completed", result({"content": [], "_meta": {RELATED: {"taskId": ID}}}))
        assert told == (OutcomeKind.RESULT, {"content": []})

    @requirement("BR-3")
    @pytest.mark.parametrize("state", ["completed", "failed"])
    def test_says_that_it_is_an_error_where_the_result_does(self, state):
        kind, told = self.of(state, result({"content": [], "isError": True}))
        assert (kind, told["isError"]) == (OutcomeKind.TOOL_ERROR, True)

    @requirement("BR-3")
    def test_of_failed_work_is_never_told_as_success(self):
        kind, told = self.of("failed", result({"content": ["x"], "isError": False}))
        assert (kind, told) == (OutcomeKind.TOOL_ERROR, {"content": ["x"], "isError": True})
        kind, told = self.of("failed", result({"_meta": {RELATED: {}}}), f"disk of {ID} full")
        assert kind is OutcomeKind.ERROR
        assert (told["code"], told["message"]) == (50202, f"the upstream's task failed: disk of {OURS} full")
        assert self.of("failed")[1]["message"] == "the upstream's task failed"
        assert self.of("completed")[1]["message"] == "the upstream's task ended without a result"

    @requirement("BR-3")
    def test_of_an_error_is_that_error(self):
        error = {"code": -32042, "message": f"{ID} broke", "data": {"id": ID}}
        for state in ("failed", "completed"):
            kind, told = self.of(state, Response(b"1", ok=False, body=compact(error)))
            assert (kind, told) == (OutcomeKind.ERROR, json.loads(json.dumps(error).replace(ID, OURS)))

    @requirement("BR-3")
    def test_of_a_cancellation_is_an_error_whatever_came_with_it(self):
        kind, told = self.of("cancelled", result({"content": []}))
        assert (kind, told["code"], told["data"]["reason"]) == (OutcomeKind.ERROR, 49901, "cancelled")

    def test_of_the_extension_has_no_result_type(self):
        assert self.of("completed", result({"resultType": "complete", "content": []}))[1] == {"content": []}


UNLUCKY = "36078151-e984-4180-9432-8e3e68e51259"
"""Nothing but the letters of numbers, and yet none."""


class TestHidden:
    @requirement("BR-3")
    @pytest.mark.parametrize("theirs_id", [ID, "task_0001", 'quoted "1" id', "ключ-номер-1", UNLUCKY])
    def test_wherever_it_is_mentioned(self, theirs_id):
        body = compact({"a": theirs_id, "b": [f"see {theirs_id}."], theirs_id: 1})
        assert json.loads(theirs.hidden(body, theirs_id, OURS)) == {"a": OURS, "b": [f"see {OURS}."], OURS: 1}

    @requirement("BR-3", "OWN-BYTES")
    @pytest.mark.parametrize(
        "theirs_id",
        ["1", "12345678", "-1.25e+10", "0000000000", "progress", "a1b2c3d", "e+101234", ".5555555", "+1234567"],
    )
    def test_but_nothing_that_could_be_something_else(self, theirs_id):
        body = b'{"n":12345678,"x":-1.25e+10,"progress":1,"z":"0000000000 a1b2c3d"}'
        assert theirs.hidden(body, theirs_id, OURS) == body
        assert theirs.shown(Sight(theirs_id, "working", f"at {theirs_id}"), OURS) == f"at {theirs_id}"

    @requirement("BR-3")
    def test_in_what_people_read(self):
        assert theirs.shown(Sight(ID, "working", f"at {ID}"), OURS) == f"at {OURS}"


def test_records_keep_the_names_of_the_dialects():
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {name: name for name in DIALECTS}
    assert theirs_ext.is_task(b'{"resultType":"task"}')
    assert not theirs_ext.is_task(b"5")
