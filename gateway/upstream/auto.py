"""A server of which only the URL is known: what it speaks is found out when the first session is opened.

Transports are tried in order, each by opening a session that is then used. One that the server does not speak raises
`NotSpoken`, and the next one is tried; any other failure says nothing about what it speaks, and is told as it is.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from gateway.core.model import Owner
from gateway.telemetry import Telemetry
from gateway.upstream.delegating import Delegating
from gateway.upstream.port import (
    NO_CAPABILITIES,
    Link,
    NotSent,
    NotSpoken,
    Upstream,
)

_PROBE_S: Final = 45.0
_Found: TypeAlias = tuple[str, Link]


class AutoUpstream(Delegating):
    """One URL. What it speaks is remembered in this process, until the server says that it does not any more."""

    def __init__(
        self,
        transports: Mapping[str, Upstream],
        ids: Iterator[int],
        telemetry: Telemetry,
        *,
        probe_s: float = _PROBE_S,
    ) -> None:
        """`transports` by name, in the order in which they are tried; all of them draw the ids of requests from `ids`.

        `probe_s` is how long finding out may take in all.
        """
        self._transports = transports
        self._ids = ids
        self._telemetry = telemetry
        self._probe_s = probe_s
        self._probing: asyncio.Task[_Found | NotSent] | None = None
        self.spoken: str | None = None
        """The name of the transport that the server speaks; None as long as that is not known."""

    def next_id(self) -> int:
        """An id for a request, used once."""
        return next(self._ids)

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """A session over what the server speaks; callers that come together share finding that out. Raises NotSent."""
        spoken = self.spoken
        if spoken is not None:
            try:
                return await self._over(spoken, owner, capabilities, client)
            except NotSpoken:
                if self.spoken == spoken:
                    self.spoken = None  # another server answers there now: found out anew, once for this caller
        if self.spoken is None and self._probing is None:
            self._probing = asyncio.ensure_future(self._probe(owner, capabilities, client))
            self._probing.add_done_callback(self._probed)
            return (await _outcome(self._probing))[1]
        found = self.spoken if self._probing is None else (await _outcome(self._probing))[0]
        return await self._over(found or "", owner, capabilities, client)

    def able(self, link: Link) -> Link:
        """See the transports."""
        return replace(self._of(link).able(link), spoken=link.spoken)

    async def close(self) -> None:
        """Ends all sessions."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})
        await asyncio.gather(*(transport.close() for transport in self._transports.values()))

    def _of(self, link: Link) -> Upstream:
        """The transport of a session; records may know sessions of a time before this server had several."""
        return self._transports.get(link.spoken) or next(iter(self._transports.values()))

    async def _over(self, name: str, owner: Owner, capabilities: str, client: str) -> Link:
        return replace(await self._transports[name].open(owner, capabilities, client), spoken=name)

    async def _probe(self, owner: Owner, capabilities: str, client: str) -> _Found | NotSent:
        """The session of the first transport that the server speaks, which is remembered."""
        refusals: list[str] = []
        try:
            async with asyncio.timeout(self._probe_s):
                for name in self._transports:
                    try:
                        link = await self._over(name, owner, capabilities, client)
                    except NotSpoken as error:
                        refusals.append(f"{name}: {error}")
                        continue
                    self.spoken = name
                    self._telemetry.upstream_speaks(upstream=owner.upstream, transport=name)
                    return name, link
        except NotSent as error:
            return error
        except TimeoutError:
            message = f"what the upstream speaks was not found out within {self._probe_s:.0f} s"
            return NotSent("upstream_down", message, again=True)
        message = f"the upstream speaks none of what was tried: {'; '.join(refusals)}"
        return NotSent("upstream_bad", message, again=False)

    def _probed(self, _: object) -> None:
        self._probing = None


async def _outcome(probing: "asyncio.Task[_Found | NotSent]") -> _Found:
    """What a probe found. Who waits for it does not end it by going away. Raises NotSent."""
    await asyncio.wait({probing})
    if probing.cancelled():
        raise NotSent("upstream_down", "the gateway is stopping", again=False)
    outcome = probing.result()
    if isinstance(outcome, NotSent):
        raise outcome.copy()
    return outcome
