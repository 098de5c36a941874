"""Takes a person's name out of the records: what happened stays, whom it happened for does not."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gateway.core.erasure import erased, may_be_erased
from gateway.core.model import Operation, Owner
from gateway.store.keys import digest
from gateway.store.ledger import Entry, Erasure, LedgerStore, Sought

_MOST_PAGES: Final = 10
_PAGE: Final = 100
_TRIES: Final = 3

Cancel: TypeAlias = Callable[[Entry], Awaitable[None]]
"""Asks that an entry's work be stopped, if there is anything to stop."""


@dataclass(frozen=True, slots=True)
class Person:
    """Whose records: a subject, of one issuer and tenant or of all."""

    subject: str
    issuer: str | None = None
    tenant: str | None = None

    def owns(self, owner: Owner) -> bool:
        """Whether these records are the person's."""
        return (
            owner.subject == self.subject
            and self.issuer in (None, owner.issuer)
            and self.tenant in (None, owner.tenant)
        )


@dataclass(slots=True)
class Done:
    """What was done so far, and what stands for the person now. `under_way`: told to stop, and not at its end."""

    entries: int = 0
    tasks: int = 0
    under_way: int = 0
    subjects: set[str] = field(default_factory=set)
    cursor: str | None = None


class Erasing:
    """Goes through the ledger, a bounded part of it at a time."""

    def __init__(self, ledger: LedgerStore, secret: Callable[[], Awaitable[bytes]], cancel: Cancel) -> None:
        self._ledger = ledger
        self._secret = secret
        self._cancel = cancel

    async def erase(self, person: Person, cursor: str | None) -> Done:
        """Erases what is found from the cursor on; the next part begins at the cursor of the result.

        Raises StoreAway, and ValueError if this is no cursor.
        """
        done = Done(cursor=cursor)
        secret = await self._secret()
        for _ in range(_MOST_PAGES):
            page = await self._ledger.page(done.cursor, Sought(), _PAGE)
            for entry in page.entries:
                if entry.operation is not None and person.owns(entry.operation.owner):
                    await self._one(entry, secret, done)
            done.cursor = page.cursor
            if page.cursor is None:
                break
        return done

    async def _one(self, entry: Entry, secret: bytes, done: Done) -> None:
        """What is under way is told to stop. What was only planned has ended with that."""
        if not _is_over(entry):
            await self._cancel(entry)
        for _ in range(_TRIES):
            found = await self._ledger.entry(entry.member)
            if found is None or found.operation is None:
                return
            if not _is_over(found):
                break
            after = erased(found.operation, pseudonym(secret, found.operation))
            verdict = await self._ledger.erase(found, after)
            if verdict is Erasure.OK:
                done.entries += 1
                done.subjects.add(after.owner.subject)
                done.tasks += found.task is not None
                return
            if verdict is Erasure.BUSY:
                break
        done.under_way += 1


def pseudonym(secret: bytes, operation: Operation) -> str:
    """The same for all records of a person, and nothing by which anybody without the secret could tell who it was."""
    owner = operation.owner
    told = digest("erased", owner.issuer, owner.subject, owner.tenant)
    return urlsafe_b64encode(hmac.digest(secret, told.encode(), "sha256")[:16]).decode().rstrip("=")


def _is_over(entry: Entry) -> bool:
    operation, task = entry.operation, entry.task
    return operation is not None and may_be_erased(operation) and (task is None or task.terminal)
