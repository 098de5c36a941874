"""What is left of an operation once it must not name its requestor any more. Pure."""

from dataclasses import replace
from typing import Final

from gateway.core.model import Learnt, Operation, OperationState

ERASED: Final = "erased:"
"""What a subject begins with that stands in the place of another."""


def may_be_erased(operation: Operation) -> bool:
    """Whether nobody works on it any more: it is settled, or its outcome is unknown."""
    return operation.settled or operation.state is OperationState.UNKNOWN


def erased(operation: Operation, pseudonym: str) -> Operation:
    """The operation without what names a person or may have been written by one.

    What happened, when, with which tool and for which tenant stays. An unknown outcome keeps the idempotency key, so
    that the same effect is not begun again; nobody but a person can settle it from now on.
    """
    unknown = operation.state is OperationState.UNKNOWN
    return replace(
        operation,
        owner=replace(operation.owner, subject=f"{ERASED}{pseudonym}"),
        arguments_digest="",
        handle=None,
        place=None,
        seen=None,
        correlation="",
        reason="" if operation.learnt is Learnt.RESOLVED else operation.reason,
        idempotency_key=operation.idempotency_key if unknown else "",
        object_version="",
        intended_effect="",
        receipt="",
        inquiry=None,
        approval=None,
        version=operation.version + 1,
    )
