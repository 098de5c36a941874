"""The question for an approval: what is shown, what is asked, and which answers are a yes."""

import json

import pytest

from gateway.wire import approval
from gateway.wire.jsonrpc import write
from gateway.wire.shown import one_line
from tests.requirements import requirement


def result(**members):
    return json.dumps({"content": [], **members}).encode()


def texts(*said):
    return result(content=[{"type": "text", "text": text} for text in said])


@requirement("OWN-APPROVE")
@pytest.mark.parametrize(
    ("answer", "yes"),
    [
        ({"result": {"action": "accept", "content": {"approve": True}}}, True),
        ({"result": {"action": "accept", "content": {"approve": False}}}, False),
        ({"result": {"action": "accept", "content": {"approve": "true"}}}, False),
        ({"result": {"action": "accept", "content": {"approve": 1}}}, False),
        ({"result": {"action": "accept", "content": {}}}, False),
        ({"result": {"action": "accept"}}, False),
        ({"result": {"action": "decline", "content": {"approve": True}}}, False),
        ({"result": {"action": "cancel"}}, False),
        ({"result": {}}, False),
        ({"error": {"code": -1, "message": "accept"}}, False),
    ],
)
def test_only_a_yes_is_a_yes(answer, yes):
    assert approval.agreed(json.dumps(answer)) is yes


@requirement("OWN-APPROVE")
def test_the_question_is_a_form_with_one_box_that_is_not_ticked():
    asked = json.loads(approval.question("Pay 7?", "7 to Bo"))
    assert asked["message"] == "Pay 7? Preview: 7 to Bo"
    (field,) = asked["requestedSchema"]["properties"].items()
    assert field == ("approve", {"type": "boolean", "title": "Approve", "default": False})
    assert asked["requestedSchema"]["required"] == ["approve"]
    assert json.loads(approval.question("Pay 7?", ""))["message"] == "Pay 7?"


@pytest.mark.parametrize(
    ("declared", "yes"),
    [
        ({"elicitation": {}}, True),
        ({"elicitation": {"form": {}}}, True),
        ({"elicitation": {"url": {}}}, False),
        ({"sampling": {}}, False),
        ({}, False),
    ],
)
def test_only_clients_with_forms_can_be_asked(declared, yes):
    assert approval.can_be_asked(json.dumps(declared)) is yes


@requirement("OWN-APPROVE")
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (texts("7 to", "Bo"), "7 to Bo"),
        (texts(" a\nb\x00c\x7f\u202ed\u2028e "), "a b c  d e"),
        (result(structuredContent={"to": "Bo"}), '{"to": "Bo"}'),
        (result(content=[{"type": "image", "data": "x", "text": "hidden"}]), ""),
        (result(content=[7, {"type": "text"}, {"type": "text", "text": 7}]), ""),
        (b"[]", ""),
        (texts("x" * 2000), "x" * 2000),
        (texts("x" * 2001), "x" * 1997 + "..."),
        (texts("x" * 2000, "y"), "x" * 1997 + "..."),
    ],
)
def test_a_preview_is_one_line_of_bounded_length(body, shown):
    assert approval.preview(body) == shown


def test_a_preview_is_asked_for_with_the_same_arguments_and_nothing_else():
    stored = b'{"name":"pay","arguments":{"n":1.0,"big":9007199254740993},"_meta":{"key":"k"},"x":1}'
    params = approval.preview_params(stored, "show")
    assert write(params) == b'{"name":"show","arguments":{"n":1.0,"big":9007199254740993}}'
    assert write(approval.preview_params(b'{"name":"pay"}', "show")) == b'{"name":"show"}'


def test_text_for_people_is_cut_and_holds_nothing_that_controls():
    assert one_line("a\r\n\u2066b\x9b\u061c", 7) == "a   b  "
    assert one_line("to " + "x" * 10, 13) == "to " + "x" * 10
    assert one_line("to " + "x" * 11, 13) == "to xxxxxxx..."
