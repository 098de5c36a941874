"""Brings along what an earlier release wrote: into the ledger's indexes, and what never ends into today's schema."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.core.model import SCHEMA, Effect, OperationState
from gateway.store import codec
from gateway.store.keys import Keys, Ref
from gateway.store.port import UnknownSchema

_PAGE: Final = 1000


async def enter(keys: Keys, call: Callable[..., Awaitable[Any]]) -> list[Ref]:
    """Looks at every operation, once for each schema. Whoever is new is entered; nothing is taken out.

    Gives those of an earlier schema that never end by themselves. Raises StoreAway; then the next start of a gateway
    begins anew.
    """
    old: list[Ref] = []
    cursor = b"0"
    while True:
        cursor, found = await call("SCAN", cursor, "MATCH", f"{keys.base}o:*", "COUNT", _PAGE)
        for key in found:
            head, ends = await call("HGET", key, "head"), await call("PEXPIRETIME", key)
            member = key.decode().removeprefix(f"{keys.base}o:")
            try:
                operation = None if head is None else codec.decode_operation(head)
            except UnknownSchema:
                operation = None  # a later release has a ledger
            if operation is None:
                continue
            await call("ZADD", keys.ledger, "NX", ends if ends > 0 else "+inf", member)
            if operation.state is OperationState.UNKNOWN and operation.effect is not Effect.READ_ONLY:
                await call("ZADD", keys.unknown(operation.owner.upstream), "NX", operation.updated_ms, member)
                if operation.schema < SCHEMA:
                    old.append(Ref(operation.owner, operation.id, member.partition(":")[0]))
        if int(cursor) == 0:
            return old
