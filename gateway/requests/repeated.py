"""Calls whose idempotency key has been seen: they get the work that is under way, or are told what became of it."""

from gateway.core.model import OperationState
from gateway.requests.records import Existing
from gateway.wire.errors import Reject


def settled(existing: Existing) -> Reject | None:
    """Why there is nothing to wait for; None while the work of the key is under way, and its task is there."""
    task, operation = existing.pair.task, existing.pair.operation
    if task is not None and not task.terminal:
        return None
    if operation is None:
        return Reject("key_settled", "The operation of this idempotency key has just been forgotten")
    shown = {} if task is None or task.hidden else {"taskId": task.id}
    told = {"operation": {"id": operation.id, "outcome": str(operation.outcome), **shown}}
    if operation.state is OperationState.UNKNOWN:
        return Reject("outcome_unknown", "What became of this idempotency key is unknown and has to be resolved", told)
    if operation.settled:
        return Reject("key_settled", "The operation of this idempotency key has ended", told)
    return Reject("key_settled", "The operation of this idempotency key is under way, and its task has ended", told)
