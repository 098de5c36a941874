"""The one implementation of the store: Redis 7 or Valkey, through scripts that are loaded by their digest."""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.asyncio import Redis

from gateway.core.engine import Applied
from gateway.core.model import SCHEMA, Owner
from gateway.core.moves import touch
from gateway.store import codec
from gateway.store.codec import switch_record
from gateway.store.keys import Ref, scope_of, tenant_digest
from gateway.store.ledgerless import enter
from gateway.store.line import Line, connect
from gateway.store.placement import TOMBSTONE_MS, is_news, operation_expiry, place
from gateway.store.port import (
    Change,
    Claim,
    ClaimAsk,
    ClaimKind,
    Created,
    Creation,
    NewWork,
    Pair,
    Polled,
    Session,
    StoreAway,
    Verdict,
)

_LATE: Final = "late"
_BATCH: Final = 64
"""How many entries one claim looks at: bounds how long the script blocks the store."""


__all__ = ["RedisStore", "connect"]


class RedisStore(Line):
    """Records, indexes, claims and sessions.

    `exports`: what becomes known of an operation is queued for an audit sink.
    """

    def __init__(
        self,
        client: "Redis",
        prefix: str,
        *,
        timeout_s: float,
        lease_ms: int,
        session_idle_ms: int,
        exports: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, prefix, timeout_s=timeout_s, clock=clock)
        self._lease_ms = lease_ms
        self._idle_ms = session_idle_ms
        self._exports = exports
        self._secret: bytes | None = None
        self._leased_until_s = 0.0

    async def create(self, work: NewWork) -> Creation:
        """One script, all or nothing."""
        self.demand_fit()
        task, operation = work.task, work.operation
        ref, keys = Ref(task.owner, task.id), self.keys
        upstream, tenant = task.owner.upstream, tenant_digest(task.owner)
        expiry = operation_expiry(task, operation, task.created_ms, work.retention_ms)
        reply = await self.run(
            "create",
            [
                keys.task(ref),
                keys.operation(ref),
                keys.arguments(ref),
                keys.tombstone(ref),
                keys.active_of_owner(task.owner),
                keys.active_of_tenant(task.owner),
                keys.index(task.owner),
                keys.due(upstream),
                keys.watch(upstream),
                keys.listed(task.owner),
                keys.switches,
                keys.ledger,
                keys.named(operation),
                keys.marker,
            ],
            [
                ref.member,
                codec.encode(task),
                task.state,
                int(task.hidden),
                codec.encode(operation),
                work.arguments,
                task.expires_ms,
                expiry,
                max(task.expires_ms, operation.deadline_ms),
                task.expires_ms + TOMBSTONE_MS,
                _tombstone(task.state, task.expires_ms),
                operation.deadline_ms,
                work.max_per_principal,
                work.max_per_tenant,
                SCHEMA,
                self._not_after(),
                task.created_ms,
                expiry,
                task.id,
                operation.arguments_digest,
                "" if work.key_for_ms is None else work.key_for_ms,
                int(work.exempt),
                operation.tool,
                tenant,
                scope_of(upstream=upstream),
                scope_of(upstream=upstream, tool=operation.tool),
                scope_of(tenant=tenant),
                int(operation.once),
            ],
        )
        return Creation(Created(_in_time(reply)), reply[2].decode())

    async def poll(self, ref: Ref, session: str | None, *, want_body: bool) -> Polled:
        """One script: session, ownership by the key, record, and the body only if it is wanted and there."""
        keys = self.keys
        session_key = keys.task(ref) if session is None else keys.session(ref.owner, session)
        names = [keys.task(ref), keys.result(ref), keys.tombstone(ref), session_key, keys.operation(ref)]
        idle = 0 if session is None else self._idle_ms
        now, known, found, head, body, outcome = await self.run("poll", names, [idle, int(want_body)])
        task = codec.decode_task(head) if found == 1 else None
        heard = codec.decode_session(known) if known else None
        return Polled(heard, task, body or None, found == -1, now, outcome.decode())

    async def load(self, ref: Ref) -> Pair:
        """Both records in one round trip; the versions tell a commit whether they belong together."""
        head = await self.call("HGET", self.keys.task(ref), "head")
        operation = await self.call("HMGET", self.keys.operation(ref), "head", "fn")
        return _pair(head, operation[0], int(operation[1] or 0), self.now())

    async def body(self, ref: Ref) -> bytes | None:
        """The body of a finished task."""
        found = await self.call("GET", self.keys.result(ref))
        return None if found is None else bytes(found)

    async def commit(self, change: Change) -> Verdict:
        """One script: compare both versions and the fence, then write everything."""
        ref, keys = change.ref, self.keys
        names = [
            keys.task(ref),
            keys.operation(ref),
            keys.result(ref),
            keys.arguments(ref),
            keys.tombstone(ref),
            keys.active_of_owner(ref.owner),
            keys.active_of_tenant(ref.owner),
            keys.running(ref.owner.upstream),
            keys.index(ref.owner),
            keys.due(ref.owner.upstream),
            keys.watch(ref.owner.upstream),
            keys.listed(ref.owner),
            keys.awaiting(ref.owner),
            keys.ledger,
            keys.unknown(ref.owner.upstream),
            keys.operation(ref) if change.after.operation.derived else keys.named(change.after.operation, ref.at),
            keys.exports,
            keys.marker,
        ]
        if not change.durable:
            return Verdict(_in_time(await self.run("commit", names, self._commit_arguments(change))))
        reply, safe = await self.run_surely("commit", names, self._commit_arguments(change))
        verdict = Verdict(_in_time(reply))
        return Verdict.UNSURE if verdict is Verdict.OK and not safe else verdict

    async def claim(self, ask: ClaimAsk) -> Sequence[Claim]:
        """One script: takes work, renews the lease."""
        keys, look = self.keys, self._looks()
        names = [
            keys.due(ask.upstream),
            keys.watch(ask.upstream),
            keys.running(ask.upstream),
            keys.heartbeat(ask.process),
            keys.switches,
        ]
        arguments = [
            keys.base,
            ask.process,
            ask.lease_ms,
            ask.grace_ms,
            ask.connected_since,
            ask.slots,
            ask.max_running,
            _BATCH,
            SCHEMA,
            self._not_after(),
            ask.upstream,
            int(look),
        ]
        asked_s = self._clock()
        now, epoch, evicts, *entries = await self.run("claim", names, arguments)
        if epoch:
            self._leased_until_s = asked_s + ask.lease_ms / 1000
            self.learn(epoch, evicts=bool(evicts) if look else None)
        return [_claim(entry, now) for entry in entries]

    async def open_session(self, owner: Owner, session_id: str, session: Session) -> None:
        """Remembers a session until it has been idle for too long."""
        await self.call("SET", self.keys.session(owner, session_id), codec.encode(session), "PX", self._idle_ms)

    async def read_session(self, owner: Owner, session_id: str) -> Session | None:
        """Finds a session and keeps it alive."""
        found = await self.call("GETEX", self.keys.session(owner, session_id), "PX", self._idle_ms)
        return None if found is None else codec.decode_session(found)

    async def change_session(
        self, owner: Owner, session_id: str, change: Callable[[Session], Session]
    ) -> Session | None:
        """Changes a session, whoever else changes it at the same time; what became of it, None if it has ended."""
        key = self.keys.session(owner, session_id)
        while (found := await self.call("GET", key)) is not None:
            changed = change(codec.decode_session(found))
            _, written = await self.run("swap", [key], [found, codec.encode(changed), self._idle_ms])
            if written:
                return changed
        return None

    async def end_session(self, owner: Owner, session_id: str) -> bool:
        """Forgets a session; whether there was one."""
        return bool(await self.call("DEL", self.keys.session(owner, session_id)))

    async def secret(self) -> bytes:
        """Made once in the store, kept in this process from then on."""
        if self._secret is None:
            await self.call("SET", self.keys.secret, secrets.token_bytes(32), "NX")
            self._secret = bytes(await self.call("GET", self.keys.secret))
        return self._secret

    async def bootstrap(self) -> int:
        """One script: nothing of a store that was set up is touched. Records of a release before are brought along."""
        first = switch_record(on=False, reason="the store was set up", by="gateway", at_ms=self.now())
        names = [self.keys.marker, self.keys.switches]
        _, shards, brought = await self.run("bootstrap", names, [secrets.token_urlsafe(16), SCHEMA, 1, first])
        if brought < SCHEMA:
            for ref in await enter(self.keys, self.call):
                await self._bring(ref)
            await self.call("HSET", self.keys.marker, "entered", SCHEMA)
        return int(shards)

    async def _bring(self, ref: Ref) -> None:
        """Writes an entry that never ends as this release does: the next one does not read what the last one wrote."""
        pair = await self.load(ref)
        if pair.operation is not None and pair.operation.schema < SCHEMA:
            after = Applied(pair.task, touch(pair.operation, pair.operation.updated_ms))
            await self.commit(Change(ref, pair, after, 0))  # whoever was faster has done the same

    def _commit_arguments(self, change: Change) -> list[Any]:
        ref, before, after = change.ref, change.before, change.after
        task, operation = after.task, after.operation
        times = (before.now, change.retention_ms, self._lease_ms, change.restart_in_ms)
        spot = place(task, operation, *times, give_back=change.give_back)
        same_task, same_operation = task is before.task, operation is before.operation
        expiry = 0 if task is None else task.expires_ms
        return [
            ref.member,
            "" if before.task is None else before.task.version,
            "" if before.operation is None else before.operation.version,
            "" if change.fence is None else change.fence,
            "" if task is None or same_task else codec.encode(task),
            0 if task is None else task.version,
            "" if task is None else task.state,
            int(task is not None and task.hidden),
            "" if same_operation else codec.encode(operation),
            operation.version,
            operation.state,
            change.body or b"",
            expiry,
            spot.operation_expiry,
            "" if task is None else _tombstone(task.state, expiry),
            expiry + TOMBSTONE_MS,
            int(not change.keep and (change.give_back or not same_operation)),
            int(spot.active),
            "" if spot.due is None else spot.due,
            "" if spot.watch is None else spot.watch,
            int(not spot.released),
            self.keys.channel,
            wake_message(change),
            SCHEMA,
            self._not_after(),
            0 if task is None else task.created_ms,
            spot.operation_expiry or "+inf",
            operation.outcome,
            int(self._exports and is_news(change.before.operation, operation)),
            change.holder,
            int(self._clock() < self._leased_until_s),
        ]


def wake_message(change: Change) -> str:
    """What is published with a change: whose it is, and whether the upstream must be told to stop."""
    if change.after.task is change.before.task:
        return ""
    return f"{change.ref.member} {'stop' if change.after.tell_upstream else 'look'}"


def _in_time(reply: Sequence[Any]) -> str:
    """The verdict of a script. Raises StoreAway when the script ran too late to do anything."""
    verdict = str(reply[1].decode())
    if verdict == _LATE:
        raise StoreAway("the store ran the script too late", waited=True)
    return verdict


def _tombstone(state: str, expiry: int) -> str:
    return f"{state} {expiry}"


def _pair(task: bytes | None, operation: bytes | None, fence: int, now: int) -> Pair:
    decoded = None if not operation else codec.decode_operation(operation)
    return Pair(codec.decode_task(task) if task else None, decoded, fence, now)


def _claim(entry: Sequence[Any], now: int) -> Claim:
    kind, _, task, operation, fence, arguments = entry
    pair = _pair(task, operation, int(fence), now)
    assert pair.operation is not None  # noqa: S101  # the script hands out what it has just read
    return Claim(ClaimKind(kind.decode()), Ref(pair.operation.owner, pair.operation.id), pair, arguments)
