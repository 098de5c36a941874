"""What records say about themselves."""

import pytest

from gateway.core.model import SCHEMA, Effect, OperationState, Owner, Principal, TaskState
from tests.records import CREATED, operation, task
from tests.requirements import requirement


def test_a_task_expires_its_ttl_after_its_creation():
    assert task(ttl_ms=5).expires_ms == CREATED + 5


@pytest.mark.parametrize("state", TaskState)
def test_a_task_knows_when_it_has_ended(state):
    assert task(state=state).terminal is (state in ("done", "cancelled"))


@pytest.mark.parametrize("state", OperationState)
def test_an_operation_knows_when_nothing_is_open(state):
    assert operation(state=state).settled is (state in ("answered", "reconciled", "dropped"))


@pytest.mark.parametrize("effect", Effect)
def test_only_read_only_work_cannot_have_acted(effect):
    assert operation(effect=effect).may_have_acted is (effect != "read_only")


def test_new_records_start_at_the_first_version_of_the_current_schema():
    from gateway.core.model import Operation, Task

    fields = {name: field.default for name, field in Task.__dataclass_fields__.items()}
    assert (fields["version"], fields["schema"], fields["hidden"], fields["questions"]) == (1, 3, False, ())
    assert (fields["capabilities"], fields["session"]) == ("{}", "")
    fields = {name: field.default for name, field in Operation.__dataclass_fields__.items()}
    assert (fields["version"], fields["schema"], fields["attempt"], fields["repeatable"]) == (1, 3, 0, False)
    assert SCHEMA == 3


@requirement("T25-SEC-1", "T25-SEC-6")
def test_records_are_bound_to_the_caller_and_the_upstream():
    assert Principal("https://idp", "ann", "acme").owner_at("reports") == Owner("https://idp", "ann", "acme", "reports")


@requirement("T25-SEC-1")
@pytest.mark.parametrize(
    "token", [{"scopes": frozenset({"a"})}, {"expires_ms": 5}, {"scopes": frozenset({"b"}), "expires_ms": 6}]
)
def test_another_token_of_the_same_caller_changes_nothing(token):
    first, second = Principal("https://idp", "ann", "acme"), Principal("https://idp", "ann", "acme", **token)
    assert first != second
    assert first.owner_at("reports") == second.owner_at("reports")


@requirement("T25-SEC-1", "T25-SEC-6")
@pytest.mark.parametrize(
    ("principal", "upstream"),
    [
        (Principal("https://other", "ann", "acme"), "reports"),
        (Principal("https://idp", "bob", "acme"), "reports"),
        (Principal("https://idp", "ann", "umbrella"), "reports"),
        (Principal("https://idp", "ann", "acme"), "mail"),
        (Principal("https://idp", "acme", "ann"), "reports"),
    ],
)
def test_everybody_else_is_another_owner(principal, upstream):
    assert principal.owner_at(upstream) != Principal("https://idp", "ann", "acme").owner_at("reports")


def test_a_caller_without_a_token_has_no_scopes_and_no_end():
    caller = Principal("https://idp", "ann", "acme")
    assert (caller.scopes, caller.expires_ms) == (frozenset(), None)
