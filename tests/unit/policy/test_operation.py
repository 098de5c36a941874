"""The domain side of a tool: what a policy may say, and what it is told when it may not."""

from datetime import date

import pytest
from pydantic import ValidationError

from gateway.policy.model import Settings
from gateway.policy.operation import OperationRule
from gateway.policy.template import Place, Template
from tests.requirements import requirement

RECONCILE = {"tool": "state", "arguments": {"id": "{arguments.id}"}, "outcome": "result:/state", "succeeded": ["done"]}
FULL = {
    "idempotency_key": "argument:/requestId",
    "derived_window_s": 10,
    "missing_key": "accept",
    "object_version": "argument:/version",
    "intended_effect": "publish {arguments.reportId}",
    "receipt": "result:/structuredContent/receiptId",
    "approval": {"message": "Publish {arguments.reportId}?", "preview_tool": "preview", "timeout_s": 60},
    "reconcile": RECONCILE,
}


def refused(**changes):
    with pytest.raises(ValidationError) as caught:
        OperationRule.model_validate({**FULL, **changes})
    return str(caught.value)


def test_everything_may_be_said_and_nothing_has_to_be():
    assert OperationRule.model_validate(FULL).approval.timeout_s == 60
    bare = OperationRule.model_validate({})
    assert (bare.idempotency_key, bare.missing_key, bare.derived_window_s) == (None, "refuse", 300)


@pytest.mark.parametrize("key", ["argument:/a", "argument:/a/0/b", "meta:com.example/key", "derived"])
def test_an_idempotency_key_stands_in_the_call_or_is_derived(key):
    assert OperationRule(idempotency_key=key).idempotency_key == key


@pytest.mark.parametrize(
    "key", ["", "argument", "argument:", "argument:a", "meta:", "result:/a", "Derived", "header:x"]
)
def test_nothing_else_is_an_idempotency_key(key):
    assert "must be argument:/POINTER or meta:NAME" in refused(idempotency_key=key)


@pytest.mark.parametrize(("name", "value"), [("object_version", "result:/a"), ("receipt", "argument:/a")])
def test_versions_come_from_the_call_and_receipts_from_the_answer(name, value):
    assert "must be " in refused(**{name: value})


@pytest.mark.parametrize("text", ["{", "}", "{reportId}", "{arguments}", "{arguments.}", "{arguments.a b}", "a {x.y}"])
def test_a_template_that_names_no_argument_is_refused(text):
    assert "brace" in refused(intended_effect=text)
    assert "brace" in refused(reconcile={**RECONCILE, "arguments": {"deep": [{"in": text}]}})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"succeeded": []}, "at least one word"),
        ({"failed": ["done"]}, "done cannot mean both"),
        ({"outcome": "argument:/x"}, "must be result:/POINTER"),
        ({"tool": ""}, "at least 1 character"),
        ({"budget_s": 0}, "greater than or equal to 1"),
        ({"later": 1}, "Extra inputs"),
        ({"arguments": {"x": float("nan")}}, "cannot be written in JSON"),
        ({"arguments": {"x": [{"y": float("inf")}]}}, "cannot be written in JSON"),
        ({"arguments": {"x": date(2026, 1, 1)}}, "cannot be written in JSON"),
    ],
)
def test_an_authority_that_could_tell_nothing_is_refused(changes, why):
    assert why in refused(reconcile={**RECONCILE, **changes})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"effect": "read_only", "operation": {}}, "changes nothing"),
        ({"on_lost": "reconcile"}, "nobody could be asked"),
        ({"deadline_s": 5, "operation": {"approval": {"message": "x", "timeout_s": 6}}}, "longer than deadline_s, 5"),
        ({"on_lost": "reconcile", "operation": {}}, "nobody could be asked"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, why):
    with pytest.raises(ValidationError, match=why):
        Settings.model_validate(settings)


def test_whoever_can_be_asked_may_be_asked_first():
    assert Settings(on_lost="reconcile", operation={"reconcile": RECONCILE}).on_lost == "reconcile"


class TestTemplate:
    def test_fills_in_places_and_keeps_the_rest(self):
        made = Template.parse("{{x}} {arguments.a.b} and {arguments.c}")
        assert made.render(lambda place: "/".join(place.path)) == "{x} a/b and c"

    def test_knows_when_it_is_a_place_alone(self):
        assert Template.parse("{arguments.a}").alone == Place(("a",))
        assert Template.parse(" {arguments.a}").alone is None
        assert Template.parse("a").alone is None
        assert Template.parse("").alone is None

    @requirement("OWN-CONFIG")
    def test_says_what_is_wrong_with_it(self):
        with pytest.raises(ValueError, match="names no argument"):
            Template.parse("{tool}")
        with pytest.raises(ValueError, match="without its partner"):
            Template.parse("a } b")
