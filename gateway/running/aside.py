"""A call that is made on the side of a task, of a tool that changes nothing: for so long, and no longer."""

import asyncio
from contextlib import suppress

from gateway.upstream.port import Call, Link, NotSent, OutcomeUnknown, Upstream
from gateway.wire.jsonrpc import Response


async def answered(upstream: Upstream, link: Link, call: Call, timeout_s: float) -> Response | None:
    """The answer; None when the time is over, and then the upstream is told. Raises NotSent or OutcomeUnknown."""
    with upstream.holding(link):
        performing = asyncio.ensure_future(upstream.perform(link, call))
        try:
            await asyncio.wait({performing}, timeout=timeout_s)
            if performing.done():
                return performing.result()
            await upstream.cancel(link, call)
            return None
        finally:
            performing.cancel()
            with suppress(asyncio.CancelledError, NotSent, OutcomeUnknown):
                await performing
