"""Records to bytes and back. The schema number is read first: a reader accepts its own and the one before."""

from typing import Final, TypeVar

import msgspec

from gateway.core.model import SCHEMA, Operation, Owner, Task
from gateway.store.port import Session, UnknownSchema

_R = TypeVar("_R", Task, Operation)


class _Head(msgspec.Struct):
    schema: int


_HEAD: Final = msgspec.json.Decoder(_Head)
_TASK: Final = msgspec.json.Decoder(Task)
_OPERATION: Final = msgspec.json.Decoder(Operation)
_SESSION: Final = msgspec.json.Decoder(Session)
_READABLE: Final = (SCHEMA - 1, SCHEMA)


def encode(record: Task | Operation | Session | Owner) -> bytes:
    """A record as JSON, for people who look into the store as well."""
    return msgspec.json.encode(record)


def switch_record(*, on: bool, reason: str, by: str, at_ms: int, tenant: tuple[str, str] | None = None) -> bytes:
    """A switch as it is stored. Its first character tells whether it blocks; anything but `0` does.

    `tenant`: issuer and tenant, where the scope is one, of which it names a digest only.
    """
    whose = {} if tenant is None else {"issuer": tenant[0], "tenant": tenant[1]}
    return (b"1" if on else b"0") + msgspec.json.encode({"reason": reason, "by": by, "at": at_ms, **whose})


def decode_task(head: bytes) -> Task:
    """A task. Raises UnknownSchema."""
    return _decode(_TASK, head)


def decode_operation(head: bytes) -> Operation:
    """An operation. Raises UnknownSchema."""
    return _decode(_OPERATION, head)


def decode_session(head: bytes) -> Session:
    """A session."""
    return _SESSION.decode(head)


def _decode(decoder: msgspec.json.Decoder[_R], head: bytes) -> _R:
    schema = _HEAD.decode(head).schema
    if schema not in _READABLE:
        message = f"record with schema {schema}: this release reads {_READABLE[0]} and {_READABLE[1]}"
        raise UnknownSchema(message)
    return decoder.decode(head)
