"""Records to bytes and back, and records of another release."""

import json

import pytest

from gateway.core.model import (
    SCHEMA,
    Approval,
    Effect,
    Inquiry,
    OperationState,
    OutcomeKind,
    Place,
    Question,
    Seen,
    Step,
    TaskState,
)
from gateway.store import codec
from gateway.store.port import Session, UnknownSchema
from tests.records import operation, task
from tests.requirements import requirement


def test_a_task_comes_back_as_it_was():
    question = Question("k", "elicitation/create", '{"a":1.0}', 1, 2, "{}", "theirs")
    full = task(
        state=TaskState.DONE,
        outcome_kind=OutcomeKind.TOOL_ERROR,
        questions=(question,),
        cancel_asked_ms=5,
        progress_token='"t"',
        hidden=True,
        status_message="é \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    )
    assert codec.decode_task(codec.encode(full)) == full


def test_an_operation_comes_back_as_it_was():
    known = {"handle": "h", "reason": "r", "arguments_digest": "d", "correlation": "c"}
    place = Place("2025-11-25", "2025-11-25", "s", "{}", cancels=False, created="then", token="1")
    seen = Seen("working", 1, 2, told=True)
    ledger = {
        "idempotency_key": "k",
        "object_version": "1.0",
        "intended_effect": "publish",
        "receipt": '"r"',
        "inquiry": Inquiry("state", "{}", 10, first=True, tries=2, next_ms=3, until_ms=4),
        "approval": Approval("really?", 5, 6),
        "history": (Step(1, OperationState.SENT, "send"), Step(2, OperationState.UNKNOWN, "lost", "ann")),
    }
    full = operation(effect=Effect.IDEMPOTENT, repeatable=True, attempt=3, place=place, seen=seen, **known, **ledger)
    assert codec.decode_operation(codec.encode(full)) == full


@requirement("OWN-SCHEMA", "OWN-LEDGER")
def test_an_operation_of_before_there_was_a_ledger_is_read():
    added = ("idempotency_key", "object_version", "intended_effect", "receipt", "inquiry", "approval", "history")
    written = json.loads(codec.encode(operation()))
    before = {name: value for name, value in written.items() if name not in added}
    assert codec.decode_operation(json.dumps({**before, "schema": 2}).encode()) == operation(schema=2)


def test_a_session_comes_back_as_it_was():
    full = Session("2025-11-25", '{"a":1}', "info", ("x:1", "x:2"))
    assert codec.decode_session(codec.encode(full)) == full


def test_a_session_of_an_earlier_release_is_read():
    written = b'{"version":"2025-11-25","capabilities":"{}"}'
    assert codec.decode_session(written) == Session("2025-11-25", "{}", None, ())


@requirement("OWN-SCHEMA")
def test_a_record_says_which_schema_it_has_and_is_read_with_that_and_the_one_before():
    written = json.loads(codec.encode(task()))
    assert written["schema"] == SCHEMA
    before = json.dumps({**written, "schema": SCHEMA - 1}).encode()
    assert codec.decode_task(before).id == task().id


@requirement("OWN-SCHEMA")
@pytest.mark.parametrize("schema", [SCHEMA + 1, SCHEMA - 2, 99])
def test_a_record_of_an_unknown_schema_is_refused_by_name(schema):
    written = json.dumps({**json.loads(codec.encode(operation())), "schema": schema}).encode()
    with pytest.raises(UnknownSchema, match=f"schema {schema}"):
        codec.decode_operation(written)


def test_members_that_a_later_release_added_are_passed_over():
    written = json.dumps({**json.loads(codec.encode(task())), "later": {"a": 1}}).encode()
    assert codec.decode_task(written) == task()
