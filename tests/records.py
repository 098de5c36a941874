"""Records for tests, with values that no default of the code has."""

from dataclasses import replace
from typing import Any

from gateway.core import engine
from gateway.core.model import Effect, Operation, OperationState, Owner, Task, TaskState

OWNER = Owner("https://idp", "ann", "acme", "reports")
OTHER = Owner("https://idp", "bob", "acme", "reports")
CREATED = 1_000_000
DEADLINE = CREATED + 60_000
ID = "a-task-id-of-thirty-two-letters-"


def task(**changes: Any) -> Task:
    made = Task(
        id=ID,
        owner=OWNER,
        tool="build",
        dialect="2025-11-25",
        state=TaskState.WORKING,
        created_ms=CREATED,
        updated_ms=CREATED,
        ttl_ms=90_000,
        poll_interval_ms=700,
        keep_result_ms=20_000,
        status_message="before",
        version=7,
    )
    return replace(made, **changes)


def operation(**changes: Any) -> Operation:
    made = Operation(
        id=ID,
        owner=OWNER,
        tool="build",
        state=OperationState.PLANNED,
        effect=Effect.CONSEQUENTIAL,
        created_ms=CREATED,
        updated_ms=CREATED,
        deadline_ms=DEADLINE,
        version=5,
    )
    return replace(made, **changes)


def apply_forgetting(before: Task | None, fact: Operation, command: engine.Command, now: int) -> engine.Outcome:
    """What a command makes of the records, without the history that it adds: that has tests of its own."""
    after = engine.apply(before, fact, command, now)
    if isinstance(after, engine.Applied) and after.operation is not fact:
        return replace(after, operation=replace(after.operation, history=fact.history))
    return after
