"""What an operation is created with, from the call and the policy."""

import asyncio
import json

import pytest

from gateway.core.model import Approval, Inquiry
from gateway.policy.model import Settings
from gateway.requests.intended import Intended, intended, shown, weighed
from gateway.wire.canonical import meaning
from gateway.wire.errors import Reject
from gateway.wire.intent import CallTool
from gateway.wire.jsonrpc import members
from tests.requirements import requirement

RECONCILE = {"tool": "state", "outcome": "result:/state", "succeeded": ["done"]}


def of(arguments="{}", meta="{}", on_lost="unknown", **rule):
    body = arguments.encode()
    params = members(b'{"name":"publish","arguments":%s,"_meta":%s}' % (body, meta.encode()))
    settings = Settings.model_validate({"operation": rule, "on_lost": on_lost})
    return intended(CallTool(b"1", "publish", body, params), settings)


def test_without_a_rule_there_is_the_digest_of_the_arguments_only():
    assert intended(CallTool(b"1", "t", b'{"a":1}', {}), Settings()) == Intended(meaning(b'{"a": 1}').digest)


async def test_large_arguments_do_not_stop_everybody_else():
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    large = b'{"a":[' + b"1.5e3," * 20_000 + b"1]}"
    call = CallTool(b"1", "t", large, {})
    assert await weighed(call, Settings()) == intended(call, Settings())
    beside.cancel()
    assert turns > 1


@requirement("OWN-ONE-MEANING")
@pytest.mark.parametrize(
    "rule",
    [
        {"approval": {"message": "Pay {arguments.n}?"}},
        {"idempotency_key": "argument:/k"},
        {"idempotency_key": "derived"},
    ],
)
def test_arguments_that_can_be_read_in_two_ways_are_refused(rule):
    refused = of('{"k":1,"n":1000000,"n":1}', **rule)
    assert isinstance(refused, Reject)
    assert (refused.reason, "named twice" in refused.message) == ("arguments", True)


@requirement("OWN-KEY-ONCE")
class TestKey:
    @pytest.mark.parametrize(
        ("arguments", "key"), [('{"k":"order 7"}', "order 7"), ('{"k":7}', "7"), ('{"k":7.50}', "7.50")]
    )
    def test_stands_in_the_arguments(self, arguments, key):
        made = of(arguments, idempotency_key="argument:/k")
        assert (made.key, made.derived, made.key_for_ms) == (key, False, None)

    def test_stands_in_the_meta(self):
        assert of(meta='{"com.example/k":"x"}', idempotency_key="meta:com.example/k").key == "x"

    def test_is_derived_from_the_arguments(self):
        first, second = (
            of(text, idempotency_key="derived", derived_window_s=5) for text in ('{"a":1}', '{ "a": 1.0 }')
        )
        assert first == second
        assert (first.key, first.derived, first.key_for_ms) == (first.arguments_digest, True, 5_000)

    @pytest.mark.parametrize("arguments", ["{}", '{"x":{"k":1}}'])
    def test_that_is_missing_is_refused_or_done_without(self, arguments):
        refused = of(arguments, idempotency_key="argument:/k")
        assert (refused.reason, "argument:/k" in refused.message) == ("arguments", True)
        assert of(arguments, idempotency_key="argument:/k", missing_key="accept").key == ""

    @pytest.mark.parametrize("value", ['""', "null", "true", "[]", "{}", json.dumps("x" * 257)])
    @pytest.mark.parametrize("missing", ["refuse", "accept"])
    def test_that_is_none_is_refused_in_any_case(self, value, missing):
        refused = of(f'{{"k":{value}}}', idempotency_key="argument:/k", missing_key=missing)
        assert isinstance(refused, Reject)
        assert "1 to 256" in refused.message

    def test_of_the_longest_allowed_length_is_one(self):
        assert len(of(json.dumps({"k": "x" * 256}), idempotency_key="argument:/k").key) == 256


@requirement("OWN-LEDGER")
class TestLedger:
    def test_keeps_the_version_of_the_object_as_written(self):
        assert of('{"v":1.0}', object_version="argument:/v").object_version == "1.0"
        assert of("{}", object_version="argument:/v").object_version == ""

    def test_says_in_words_what_is_intended(self):
        made = of('{"a":{"id":"R-1"},"n":1.50}', intended_effect="publish {arguments.a.id} for {arguments.n}")
        assert made.effect == "publish R-1 for 1.50"

    def test_what_people_read_is_one_line_of_bounded_length_and_deceives_nobody(self):
        text = json.dumps({"a": "x\ny\u202ez\x1b[31m" + "w" * 2000})
        made = shown("say {arguments.a}", text.encode())
        assert made.startswith("say x y z [31mw")
        assert len(made) == 1000

    def test_what_is_not_there_is_left_out(self):
        assert shown("a{arguments.x}b{arguments.y}c", b'{"y":""}') == "abc"


@requirement("OWN-RECONCILE")
class TestInquiry:
    def test_its_arguments_are_resolved_with_the_call(self):
        wanted = {"id": "{arguments.id}", "n": ["{arguments.n}"], "as": "r-{arguments.id}", "fixed": 1, "no": False}
        made = of('{"id":"7","n":1e400}', reconcile={**RECONCILE, "arguments": wanted, "budget_s": 60})
        told = '{"id":"7","n":[1e400],"as":"r-7","fixed":1,"no":false}'
        assert made.inquiry == Inquiry("state", told, 60_000, first=False)

    def test_is_made_first_where_the_policy_says_so(self):
        assert of(on_lost="reconcile", reconcile=RECONCILE).inquiry.first

    def test_a_call_is_refused_of_which_nobody_could_be_asked(self):
        refused = of("{}", reconcile={**RECONCILE, "arguments": {"id": "{arguments.order.id}"}})
        assert (refused.reason, "order.id" in refused.message) == ("arguments", True)


@requirement("OWN-APPROVE")
def test_what_is_to_be_approved_is_said_with_the_arguments():
    made = of('{"id":"R-1"}', approval={"message": "Publish {arguments.id}?", "timeout_s": 9})
    assert made.approval == Approval("Publish R-1?", 9_000)


@requirement("OWN-APPROVE")
def test_what_cannot_be_shown_whole_is_not_put_to_anybody():
    for length, refused in ((991, False), (992, True)):
        made = of(json.dumps({"id": "x" * length}), approval={"message": "Publish {arguments.id}?"})
        assert isinstance(made, Reject) is refused
