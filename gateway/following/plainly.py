"""A plain call that an upstream answered with a task of its own: its result is what the client gets, never the task.

There is no record, as with every plain call: whoever waits is all there is, and when nobody does the upstream is told.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.core.model import OutcomeKind
from gateway.following.watching import Pace, Trouble, Watch, place_of
from gateway.policy.model import Settings
from gateway.upstream.port import Link, OutcomeUnknown, Upstream, WithId
from gateway.wire import asking, theirs
from gateway.wire.jsonrpc import Members, Notification, Response
from gateway.wire.taken import taken, unusable
from gateway.wire.theirs import Sight

_NAMELESS: Final = "task"
"""What takes the place of an id of the upstream: the client knows of no task."""
_EVENLY: Final = 0.5


async def final(
    upstream: Upstream,
    link: Link,
    response: Response,
    settings: Settings,
    later: Callable[[Coroutine[Any, Any, Any], str], object],
) -> Response:
    """The response, or what the task came to that it stands for. `later` runs what must be said to an upstream.

    Raises OutcomeUnknown.
    """
    if unusable(response):
        raise OutcomeUnknown("upstream_bad", "the upstream made a task and does not say which")
    their = taken(response)
    if their is None:
        return response
    dialect, sight = their
    with Watch(upstream, link, place_of(link, dialect, sight), sight.task, new=True) as watch:
        try:
            ended, answer = await _ended(watch, sight, Pace.of(settings, lambda: _EVENLY), settings.max_result_bytes)
        except asyncio.CancelledError:
            later(watch.cancel(), "cancel-task")
            raise
    kind, body = theirs.ending(ended, answer, _NAMELESS)
    return Response(response.id, kind is not OutcomeKind.ERROR, body)


async def _ended(watch: Watch, sight: Sight, pace: Pace, max_bytes: int) -> tuple[Sight, Response | None]:
    """The task once it has ended, and what it came to."""
    loop = asyncio.get_running_loop()
    well, failures, pause_s = loop.time(), 0, pace.after(sight)
    while True:
        await asyncio.sleep(pause_s)
        seen: Sight | Trouble = await watch.look()
        if isinstance(seen, Sight):
            if seen.state not in theirs.ENDED:
                well, failures, pause_s = loop.time(), 0, pace.after(seen)
                continue
            if seen.state == theirs.CANCELLED or not watch.dialect.fetches:
                return seen, seen.outcome
            fetched = await watch.fetch(max_bytes, _nobody_hears, WithId(_nobody_answers))
            if isinstance(fetched, Response) and (fetched.ok or seen.state == theirs.FAILED):
                return seen, fetched
            seen = fetched if isinstance(fetched, Trouble) else Trouble("the upstream does not hand out the result")
        failures += 1
        if seen.definite or loop.time() - well > pace.budget_s:
            raise OutcomeUnknown(seen.reason, seen.why)
        pause_s = pace.again(failures, seen.after_s)


def _nobody_hears(_: Notification) -> None:
    """A plain call without its stream has nobody to tell."""


async def _nobody_answers(_: str, __: str, ___: Members) -> tuple[bool, bytes]:
    return False, asking.UNDECLARED
