"""What streams of clients need of the store: who may speak, what was said, what was waited for, and lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.model import Owner, Task
from gateway.store import codec
from gateway.store.keys import Ref, owner_digest
from gateway.store.redis import RedisStore

HOLD_MS: Final = 30_000
"""How long a claim of a stream lasts that is not renewed."""
_TOLD_MS: Final = 120_000
_MOST_NOTES: Final = 1000
"""Notes of one call that nobody has been told yet; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of tasks, newest first; `more` tells whether another follows the last one."""

    tasks: Sequence[Task]
    more: bool


class StreamStore:
    """Claims, event ids, progress and lists. Every method raises StoreAway."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._keys = store.keys

    async def hold(self, ref: Ref, stream: str) -> bool:
        """Takes or renews the right to bring a task's questions and progress: one stream at a time has it."""
        _, mine = await self._store.run("hold", [self._keys.delivery(ref)], [stream, HOLD_MS, "", ""])
        return bool(mine)

    async def release(self, ref: Ref, stream: str) -> None:
        """Lets another stream have it."""
        wake = [self._keys.channel, f"{ref.member} look"]
        await self._store.run("hold", [self._keys.delivery(ref)], [stream, 0, *wake])

    async def first_to_tell(self, ref: Ref, version: int, stream: str) -> bool:
        """Whether this stream is the one that tells this version of a task."""
        told = await self._store.call("SET", self._keys.told(ref, version), stream, "NX", "PX", _TOLD_MS)
        return told is not None

    async def be_present(self, owner: Owner, session: str, stream: str) -> None:
        """A session has a stream of its own open."""
        await self._store.call("SET", self._keys.presence(owner, session), stream, "PX", HOLD_MS)

    async def leave(self, owner: Owner, session: str, stream: str) -> None:
        """The stream has ended."""
        await self._store.run("hold", [self._keys.presence(owner, session)], [stream, 0, "", ""])

    async def announce(self, owner: Owner) -> None:
        """Lets the streams of an owner look at everything, their own session included."""
        await self._store.call("PUBLISH", self._keys.channel, f"{owner_digest(owner)}: look")

    async def is_present(self, owner: Owner, session: str) -> bool:
        """Whether a session has a stream of its own open, on any replica."""
        return bool(await self._store.call("EXISTS", self._keys.presence(owner, session)))

    async def awaiting_input(self, owner: Owner) -> list[str]:
        """The ids of the owner's tasks that wait for input."""
        members = await self._store.call("ZRANGE", self._keys.awaiting(owner), 0, -1)
        return [member.decode().partition(":")[2] for member in members]

    async def unfinished(self, owner: Owner) -> int:
        """How many calls of the owner are under way or planned."""
        now = self._store.now()
        return int(await self._store.call("ZCOUNT", self._keys.active_of_owner(owner), now, "+inf"))

    async def remember_event(self, owner: Owner, event: str, value: bytes, ttl_ms: int) -> None:
        """What a stream waits for, so that it can be waited for again under this event id."""
        await self._store.call("SET", self._keys.event(owner, event), value, "PX", max(1, ttl_ms))

    async def recall_event(self, owner: Owner, event: str) -> bytes | None:
        """What the stream with this event id waited for."""
        found = await self._store.call("GET", self._keys.event(owner, event))
        return None if found is None else bytes(found)

    async def note_progress(self, ref: Ref, progress: bytes) -> bool:
        """Notes the latest progress of a task that is under way, and wakes its streams."""
        keys = self._keys
        _, noted = await self._store.run("progress", [keys.task(ref)], [progress, keys.channel, f"{ref.member} look"])
        return bool(noted)

    async def progress(self, ref: Ref) -> bytes | None:
        """The latest progress of a task."""
        found = await self._store.call("HGET", self._keys.task(ref), "pg")
        return None if found is None else bytes(found)

    async def append_replay(self, owner: Owner, stream: str, item: bytes, ttl_ms: int) -> None:
        """Keeps the next thing that a stream brought, and wakes whoever took the stream up."""
        keys = self._keys
        key, member = keys.replay(owner, stream), f"{owner_digest(owner)}:{stream}"
        await self._store.run("append", [key], [item, ttl_ms, keys.channel, f"{member} look"])

    async def wake(self, member: str) -> None:
        """Lets whoever waits for this member look."""
        await self._store.call("PUBLISH", self._keys.channel, f"{member} look")

    async def drop_replay(self, owner: Owner, stream: str) -> None:
        """Forgets what a stream brought."""
        await self._store.call("DEL", self._keys.replay(owner, stream))

    async def replay(self, owner: Owner, stream: str, start: int) -> list[bytes]:
        """What a stream brought, from this event on. The first of all is the session that it belongs to."""
        found = await self._store.call("LRANGE", self._keys.replay(owner, stream), start, -1)
        return [bytes(item) for item in found]

    async def note(self, ref: Ref, message: bytes, ttl_ms: int) -> None:
        """Keeps what an upstream said during a call whose client waits for it, and wakes whoever tells the client."""
        keys = self._keys
        wake = [keys.channel, f"{ref.member} look"]
        await self._store.run("note", [keys.notes(ref)], [message, _MOST_NOTES, ttl_ms, *wake])

    async def take_notes(self, ref: Ref) -> list[bytes]:
        """What was kept, in order; it is told once."""
        found = await self._store.call("LPOP", self._keys.notes(ref), _MOST_NOTES)
        return [bytes(one) for one in found or ()]

    async def attach(self, ref: Ref, fence: int, value: bytes, ttl_ms: int) -> bool:
        """Keeps where the answer to a call that was sent can be had, unless somebody else holds it by now."""
        keys = self._keys
        _, kept = await self._store.run("attach", [keys.operation(ref), keys.attachment(ref)], [fence, value, ttl_ms])
        return bool(kept)

    async def attachment(self, ref: Ref) -> bytes | None:
        """Where the answer to a call that was sent can be had."""
        found = await self._store.call("GET", self._keys.attachment(ref))
        return None if found is None else bytes(found)

    async def detach(self, ref: Ref) -> None:
        """The answer was had."""
        await self._store.call("DEL", self._keys.attachment(ref))

    async def expect_answer(self, owner: Owner, token: str, ttl_ms: int) -> None:
        """Somebody waits for a client's answer to the question with this token."""
        await self._store.call("SET", self._keys.asked(owner, token), b"", "PX", ttl_ms)

    async def give_answer(self, owner: Owner, token: str, answer: bytes) -> None:
        """An answer of a client, for whoever waits for it; nothing happens if nobody does."""
        await self._store.call("SET", self._keys.asked(owner, token), answer, "XX", "KEEPTTL")
        await self._store.call("PUBLISH", self._keys.channel, f"{owner_digest(owner)}:{token} look")

    async def take_answer(self, owner: Owner, token: str) -> bytes | None:
        """The answer, once it is there."""
        found = await self._store.call("GET", self._keys.asked(owner, token))
        return bytes(found) if found else None

    async def forget_question(self, owner: Owner, token: str) -> None:
        """Nobody waits any more."""
        await self._store.call("DEL", self._keys.asked(owner, token))

    async def cancel_request(self, owner: Owner, session: str, request_id: bytes) -> None:
        """Tells whichever replica serves this request that nobody waits for it."""
        told = f"{owner_digest(owner)}:{session} cancel {request_id.decode()}"
        await self._store.call("PUBLISH", self._keys.channel, told)

    async def pin(self, owner: Owner, client: str, idle_ms: int) -> bytes | None:
        """The upstream session of a client session, which counts as a use of it."""
        found = await self._store.call("GETEX", self._keys.pin(owner, client), "PX", idle_ms)
        return None if found is None else bytes(found)

    async def pin_left_ms(self, owner: Owner, client: str) -> int | None:
        """How long the upstream session of a client session is still remembered; None if it is not."""
        left = int(await self._store.call("PTTL", self._keys.pin(owner, client)))
        return None if left < 0 else left

    async def keep_pin(self, owner: Owner, client: str, pin: bytes, idle_ms: int) -> bytes:
        """Keeps the upstream session of a client session, unless there is one; the one that counts."""
        while await self._store.call("SET", self._keys.pin(owner, client), pin, "NX", "PX", idle_ms) is None:
            found = await self.pin(owner, client, idle_ms)
            if found is not None:
                return found
        return pin

    async def drop_pin(self, owner: Owner, client: str, pin: bytes) -> None:
        """Forgets the upstream session of a client session, unless another one has taken its place."""
        await self._store.run("hold", [self._keys.pin(owner, client)], [pin, 0, "", ""])

    async def page(self, owner: Owner, after: tuple[int, str] | None, size: int) -> Page:
        """A page of the owner's tasks, from the newest or from after a creation time and id."""
        keys = self._keys
        start = ["", ""] if after is None else [after[0], Ref(owner, after[1]).member]
        names = [keys.index(owner), keys.listed(owner)]
        _, more, *rows = await self._store.run("list", names, [keys.base, *start, size])
        return Page([codec.decode_task(head) for _, _, head in rows], bool(more))
