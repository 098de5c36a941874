"""MCP over streamable HTTP, revision 2026-07-28: no handshake and no session, everything is in each request.

A request that is not waited for any more has its stream closed, which is how this revision cancels.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

import aiohttp
from mcp_types.jsonrpc import HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION
from msgspec import Raw

from gateway.core.model import Owner
from gateway.telemetry import Telemetry
from gateway.upstream import answers
from gateway.upstream.discovery import MAX_BYTES, PROBE_S, discover, hello_of, meant
from gateway.upstream.exchange import Connections, payload
from gateway.upstream.once import Once
from gateway.upstream.port import (
    NO_CAPABILITIES,
    TOO_LARGE,
    Call,
    Link,
    NotSent,
    NotSpoken,
    OnNote,
    OnRequest,
    OutcomeUnknown,
)
from gateway.upstream.rounds import Rounds
from gateway.upstream.schemas import Schemas, next_cursor
from gateway.upstream.unresumed import Unresumed
from gateway.wire import jsonrpc, modern_client, sse
from gateway.wire.intent import MODERN_VERSIONS
from gateway.wire.jsonrpc import Members, Notification, Response, text, write
from gateway.wire.mirrored import mirrored
from gateway.wire.modern_client import Discovered

_MAY_ACT: Final = frozenset({"tools/call", "prompts/get", modern_client.LISTEN})
"""What goes over a connection that is used once."""
_LEARN_S: Final = 5.0
_MOST_PAGES: Final = 50
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 60.0


async def probe(connections: Connections, call_id: int) -> Discovered | None:
    """Whether the URL speaks a modern revision, in one short exchange: what the server said of itself, or None.

    Raises NotSent where the URL cannot be reached, or where the server is modern and of no use.
    """
    try:
        answer = await _discovery(connections, call_id)
    except NotSent as error:
        if error.reason == "upstream_down":
            raise
        return None
    except OutcomeUnknown:
        return None
    return meant(answer)


class ModernUpstream(Unresumed):
    """One server at one URL. `found` is what is known of it, if somebody asked before."""

    def __init__(
        self, connections: Connections, upstream: str, telemetry: Telemetry, next_id: Callable[[], int]
    ) -> None:
        self._connections = connections
        self._telemetry = telemetry
        self._next_id = next_id
        self._rounds = Rounds(next_id)
        self._schemas = Schemas(upstream, telemetry)
        self._discovering: Once[Discovered | NotSent] = Once(self._discover)
        self._learning: Once[None] = Once(self._learn)
        self.found: Discovered | None = None

    def next_id(self) -> int:
        """An id for a request, used once."""
        return self._next_id()

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES, client: str = "") -> Link:
        """What requests of this principal say of it; the server is asked once what it is. Raises NotSent."""
        found = self.found or await self._discovering()
        if isinstance(found, NotSent):
            raise found.copy()
        return Link(owner, found.version, None, capabilities, client, hello_of(found))

    def able(self, link: Link) -> Link:
        """There are no sessions: what can be done can be done everywhere."""
        return link

    async def perform(
        self, link: Link, call: Call, on_note: OnNote | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""

        async def send(one: Call) -> Response:
            return await self._send(link, one, on_note)

        return await self._rounds.perform(call, send, on_request)

    async def cancel(self, link: Link, call: Call) -> None:  # noqa: ARG002  # requests are found by their id
        """TX-HTTP-7: closes the stream of the request."""
        self._rounds.stop(call)

    async def tell(self, link: Link, method: str, params: Members) -> None:
        """Nothing: over HTTP this revision knows no notifications of clients."""

    async def listen(
        self,
        link: Link,
        on_note: OnNote,
        on_request: OnRequest,  # noqa: ARG002  # nothing is asked on such a stream
        resources: Sequence[str] = (),
    ) -> None:
        """Hears of changed lists, and of changes of these resources, as far as the server tells of them."""
        wanted = modern_client.subscription(link.hello.capabilities, resources)
        retry_s = _RETRY_S
        while wanted:
            heard = asyncio.Event()
            call = Call(self.next_id(), modern_client.LISTEN, {"notifications": Raw(write(wanted))}, MAX_BYTES)
            if await self._refuses(link, call, _relay(on_note, heard)):
                return
            retry_s = _RETRY_S if heard.is_set() else min(_LONGEST_RETRY_S, retry_s * 2)
            await asyncio.sleep(retry_s)

    async def follow(self, link: Link, task: str, on_note: OnNote, on_request: OnRequest) -> None:
        """Nothing: what there is to know of a task comes with its state."""

    async def reply(self, link: Link, request_id: str, *, ok: bool, body: bytes) -> None:
        """Nothing: in this revision a server sends no requests."""

    def holding(self, link: Link) -> AbstractContextManager[None]:  # noqa: ARG002  # there is no session to keep
        """Nothing: tasks belong to no session."""
        return nullcontext()

    def spare(self, link: Link) -> bool:  # noqa: ARG002  # likewise
        """Any process can ask about a task."""
        return True

    async def leave(self, link: Link) -> None:
        """Nothing: there is no session to end."""

    async def close(self) -> None:
        """Closes all connections."""
        await self._discovering.over()
        await self._learning.over()
        await self._connections.close()

    async def _refuses(self, link: Link, call: Call, on_note: OnNote) -> bool:
        """Listens once. Whether the server will not let itself be listened to."""
        try:
            return not (await self._exchange(link, call, {}, on_note)).ok
        except NotSent as error:
            return not error.again
        except OutcomeUnknown:
            return False

    async def _send(self, link: Link, call: Call, on_note: OnNote | None) -> Response:
        if call.method != "tools/call":
            answer = await self._exchange(link, call, {}, on_note)
            listed = answer.ok and call.method == "tools/list"
            return replace(answer, body=self._schemas.learn(answer.body)) if listed else answer
        if not self._schemas.complete:
            await self._learning()
        headers = self._mirrored(call)
        answer = await self._exchange(link, call, headers, on_note)
        if modern_client.code_of(answer) != HEADER_MISMATCH:
            return answer
        await self._learning()
        again = self._mirrored(call)
        if again == headers:
            return answer
        return await self._exchange(link, replace(call, id=self.next_id()), again, on_note)

    def _mirrored(self, call: Call) -> Mapping[str, str]:
        return mirrored(self._schemas.of(text(call.params.get("name")) or ""), call.params.get("arguments"))

    async def _exchange(self, link: Link, call: Call, headers: Mapping[str, str], on_note: OnNote | None) -> Response:
        params = modern_client.params(call.params, link.version, link.capabilities)
        one = replace(call, params=params, raw=None)
        pooled = call.method not in _MAY_ACT
        try:
            answer = await _post(self._connections, link.version, one, headers, on_note, pooled=pooled)
        except NotSent as error:
            if error.reason == "upstream_bad":
                self.found = None  # it may be another server by now
            raise
        if modern_client.code_of(answer) == UNSUPPORTED_PROTOCOL_VERSION:
            self.found = None
        return answer

    async def _discover(self) -> Discovered | NotSent:
        try:
            found = meant(await _discovery(self._connections, self.next_id()))
        except NotSent as error:
            return error
        except OutcomeUnknown as error:
            return NotSent(error.reason, f"{error} (of server/discover)", again=True)
        self.found = found
        return found or NotSpoken("upstream_bad", "the upstream does not speak 2026-07-28", again=False)

    async def _learn(self) -> None:
        """Reads the list of tools, as far as it can be had in time; without it the server refuses what it misses."""
        found = self.found
        version = MODERN_VERSIONS[0] if found is None else found.version
        cursor: Raw | None = None
        try:
            async with asyncio.timeout(_LEARN_S):
                for _ in range(_MOST_PAGES):
                    asked: Members = {} if cursor is None else {"cursor": cursor}
                    params = modern_client.params(asked, version, NO_CAPABILITIES)
                    call = Call(self.next_id(), "tools/list", params, MAX_BYTES)
                    answer = await _post(self._connections, version, call, {}, None, pooled=True)
                    cursor = next_cursor(self._schemas.learn(answer.body)) if answer.ok else None
                    if cursor is None:
                        return
        except (NotSent, OutcomeUnknown, TimeoutError):
            return
        finally:
            self._schemas.complete = True  # asked once; a refusal of the server has it asked again


def _relay(on_note: OnNote, heard: asyncio.Event) -> OnNote:
    def relay(note: Notification) -> None:
        heard.set()
        told = modern_client.told(note)
        if told is not None:
            on_note(told)

    return relay


async def _discovery(connections: Connections, call_id: int) -> Response:
    """What the server says to `server/discover`. Raises NotSent or OutcomeUnknown."""
    try:
        async with asyncio.timeout(PROBE_S):
            return await _post(connections, MODERN_VERSIONS[0], discover(call_id), {}, None, pooled=True)
    except TimeoutError as error:
        raise OutcomeUnknown("upstream_down", f"the upstream did not answer within {PROBE_S:.0f} s") from error


async def _post(
    connections: Connections,
    version: str,
    call: Call,
    mirrors: Mapping[str, str],
    on_note: OnNote | None,
    *,
    pooled: bool,
) -> Response:
    """One request and its answer. Leaving it closes the stream. Raises NotSent or OutcomeUnknown."""
    body = jsonrpc.request(str(call.id).encode(), call.method, call.params)
    told = modern_client.headers(call.method, call.params, version, mirrors)
    headers = connections.headers({"Content-Type": "application/json", **told})
    client = connections.client(pooled=pooled)
    with answers.faults():
        async with client.post(connections.url, data=payload(body), headers=headers, allow_redirects=False) as response:
            single = await answers.single_answer(response, None, call)
            return single or await _streamed(response, call, on_note)
    raise AssertionError  # faults are raised


async def _streamed(response: aiohttp.ClientResponse, call: Call, on_note: OnNote | None) -> Response:
    """The answer at the end of a stream. Requests on it are not MCP any more, and nobody may answer them."""
    reader = sse.Reader(call.max_bytes + answers.MAX_ERROR_BYTES)
    try:
        async for chunk in response.content.iter_any():
            for event in reader.feed(chunk):
                message = answers.message_of(event)
                if isinstance(message, Response) and message.id == str(call.id).encode():
                    return message
                if isinstance(message, Notification) and on_note is not None:
                    on_note(message)
    except sse.TooLong:
        raise OutcomeUnknown("upstream_bad", TOO_LARGE) from None
    raise OutcomeUnknown("upstream_bad", "the upstream's stream ended without an answer")
