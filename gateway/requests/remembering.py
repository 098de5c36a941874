"""What a legacy client sets for its session, at an upstream that knows no sessions (BR-4): kept in the client's own.

A log level goes with every later request; resources are listened to on the session's stream, wherever that is open.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from gateway.requests.callers import Caller
from gateway.store.port import Session, Store
from gateway.store.streams import StreamStore
from gateway.wire import passing, reply
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import Forward
from gateway.wire.jsonrpc import text
from gateway.wire.reply import Reply

_LEVEL: Final = "logging/setLevel"
_SUBSCRIBE: Final = "resources/subscribe"
_UNSUBSCRIBE: Final = "resources/unsubscribe"
SET: Final = frozenset({_LEVEL, _SUBSCRIBE, _UNSUBSCRIBE})
"""Requests of revisions with a handshake that change something in a session."""
_MOST: Final = 100
"""Resources of one session."""
_Change: TypeAlias = Callable[[Session], Session]


class Remembering:
    """Keeps it, for every replica."""

    def __init__(self, store: Store, streams: StreamStore) -> None:
        self._store = store
        self._streams = streams

    async def serve(self, caller: Caller, intent: Forward) -> Reply:
        """Answers as an upstream with sessions would. Raises StoreAway."""
        change = _change(intent)
        if isinstance(change, Reject):
            return reply.refusal(intent.id, change, Era.LEGACY)
        changed = await self._store.change_session(caller.owner, caller.session, change)
        if changed is None:
            return reply.refusal(intent.id, Reject("session", "The session has ended"), Era.LEGACY)
        if len(changed.resources) > _MOST:
            await self._store.change_session(caller.owner, caller.session, _without(changed.resources[-1]))
            return reply.refusal(intent.id, Reject("arguments", f"at most {_MOST} resources in a session"), Era.LEGACY)
        if intent.method != _LEVEL:
            await self._streams.announce(caller.owner)
        return reply.result(intent.id, b"{}")


def _change(intent: Forward) -> _Change | Reject:
    if intent.method == _LEVEL:
        level = text(intent.params.get("level"))
        if level not in passing.LEVELS:
            return Reject("arguments", f"level must be one of {', '.join(sorted(passing.LEVELS))}")
        return lambda session: replace(session, log_level=level)
    uri = text(intent.params.get("uri"))
    if uri is None:
        return Reject("arguments", "uri must be a string")
    return _without(uri) if intent.method == _UNSUBSCRIBE else _with(uri)


def _with(uri: str) -> _Change:
    return lambda session: replace(session, resources=tuple(dict.fromkeys((*session.resources, uri))))


def _without(uri: str) -> _Change:
    return lambda session: replace(session, resources=tuple(one for one in session.resources if one != uri))
