"""What records say about themselves."""

import pytest

from gateway.core.model import SCHEMA, Effect, OperationState, TaskState
from tests.records import CREATED, operation, task


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
    assert (fields["version"], fields["schema"], fields["hidden"], fields["questions"]) == (1, 1, False, ())
    fields = {name: field.default for name, field in Operation.__dataclass_fields__.items()}
    assert (fields["version"], fields["schema"], fields["attempt"], fields["repeatable"]) == (1, 1, 0, False)
    assert SCHEMA == 1
