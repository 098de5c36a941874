"""A thin client for MCP over streamable HTTP, revisions with a handshake (2024-11-05 answers over POST included).

The request is built from scratch: nothing of the client's headers travels, redirects are not followed, and a POST is
never sent twice. A call that may have an effect goes over a connection of its own, because a kept-alive one can die
under it in a way that looks the same whether the server acted or not.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import aiohttp
from msgspec import Raw

from gateway.core.model import Owner
from gateway.upstream.links import Key, Links
from gateway.upstream.port import (
    NO_CAPABILITIES,
    Call,
    Link,
    NotSent,
    OnProgress,
    OnRequest,
    OutcomeUnknown,
)
from gateway.wire import jsonrpc, sse
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import LEGACY_VERSIONS
from gateway.wire.jsonrpc import Notification, Request, Response
from gateway.wire.render import SERVER_INFO

_ACCEPT: Final = "application/json, text/event-stream"
_HANDSHAKE_S: Final = 30.0
_TELL_S: Final = 2.0
_MAX_HANDSHAKE_BYTES: Final = 1_048_576
_MAX_ERROR_BYTES: Final = 65_536
_HTTP_OK: Final = 200
_HTTP_ACCEPTED: Final = 202
_HTTP_NOT_FOUND: Final = 404
_HTTP_TOO_MANY: Final = 429
_HTTP_SERVER_ERROR: Final = 500
_KEEP_ALIVE_S: Final = 4.0
"""Below the five seconds after which common servers close an idle connection."""


class HttpUpstream:
    """One server at one URL. `headers` is asked for each session, so that rotated credentials are found."""

    def __init__(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        connect_timeout_s: float,
        *,
        max_sessions: int,
        session_idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self._pooled: aiohttp.ClientSession | None = None
        self._single: aiohttp.ClientSession | None = None
        self._links = Links(max_sessions, session_idle_s, clock)
        self._opening: dict[Key, asyncio.Task[Link | NotSent]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._ids = itertools.count(1)

    def next_id(self) -> int:
        """An id for a request, used once."""
        return next(self._ids)

    async def open(self, owner: Owner, capabilities: str = NO_CAPABILITIES) -> Link:
        """The principal's session; callers that come together share one handshake. Raises NotSent."""
        key = (owner, capabilities)
        link = self._links.find(key)
        if link is not None:
            return link
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open(key))
            opening.add_done_callback(lambda _: self._opening.pop(key))
        await asyncio.wait({opening})
        outcome = opening.result()
        if isinstance(outcome, NotSent):
            raise NotSent(outcome.reason, str(outcome), again=outcome.again, busy=outcome.busy)
        return outcome

    async def perform(
        self, link: Link, call: Call, on_progress: OnProgress | None = None, on_request: OnRequest | None = None
    ) -> Response:
        """Sends a request and waits for its answer. Raises NotSent or OutcomeUnknown."""
        session = self._session(pooled=call.method != "tools/call")
        body = jsonrpc.request(str(call.id).encode(), call.method, call.params)
        headers = self._request_headers(link)
        try:
            with self._links.using(link):
                async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                    return await self._answer(response, link, call, on_progress, on_request)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSent("upstream_down", "the upstream cannot be reached", again=True) from error
        except aiohttp.InvalidURL as error:
            raise NotSent("upstream_down", "the upstream's URL is not valid", again=False) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise OutcomeUnknown("upstream_down", "the connection to the upstream was lost") from error

    async def cancel(self, link: Link, call: Call) -> None:
        """T25-CAN-3: notifications/cancelled with the id of our own request."""
        params = {"requestId": call.id, "reason": "cancelled by the requestor"}
        await self._tell(link, jsonrpc.notification("notifications/cancelled", params))

    async def close(self) -> None:
        """Ends all sessions."""
        for link in self._links:
            self._let_go(link)
        await asyncio.gather(*self._ending, *self._opening.values())
        for session in (self._pooled, self._single):
            if session is not None:
                await session.close()

    async def _open(self, key: Key) -> Link | NotSent:
        """One handshake for all who wait for it; none of them ends it by going away."""
        leaving = self._links.make_room()
        if leaving is None:
            return NotSent(
                "upstream_down", "all sessions at the upstream are busy: max_sessions", again=True, busy=True
            )
        for link in leaving:
            self._let_go(link)
        try:
            link = await self._handshake(*key)
        except NotSent as error:
            return error
        self._links.add(link)
        return link

    def _let_go(self, link: Link) -> None:
        if link.session_id is not None:
            ending = asyncio.ensure_future(self._end(link))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end(self, link: Link) -> None:
        timeout = aiohttp.ClientTimeout(total=_TELL_S)
        try:
            async with self._session(pooled=True).delete(
                self._url, headers=self._request_headers(link), timeout=timeout
            ):
                pass
        except (aiohttp.ClientError, OSError, TimeoutError, NotSent):
            return

    async def _handshake(self, owner: Owner, capabilities: str) -> Link:
        declared = Raw(capabilities.encode())
        params = {"protocolVersion": LEGACY_VERSIONS[0], "capabilities": declared, "clientInfo": SERVER_INFO}
        call = Call(self.next_id(), "initialize", jsonrpc.members(jsonrpc.write(params)) or {}, _MAX_HANDSHAKE_BYTES)
        body = jsonrpc.request(str(call.id).encode(), call.method, call.params)
        nobody = Link(owner, "", None)
        headers = self._request_headers(nobody)
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                async with self._session(pooled=True).post(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as response:
                    answer = await self._answer(response, nobody, call, None, None)
                    session_id = response.headers.get("Mcp-Session-Id")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotSent("upstream_down", "the upstream cannot be reached", again=True) from error
        except OutcomeUnknown as error:
            raise NotSent(error.reason, str(error), again=False) from error
        version = jsonrpc.text((jsonrpc.members(answer.body) or {}).get("protocolVersion")) if answer.ok else None
        if version not in LEGACY_VERSIONS:
            raise NotSent("upstream_bad", "the upstream did not complete the handshake", again=False)
        link = Link(owner, version, session_id, capabilities)
        await self._tell(link, jsonrpc.notification("notifications/initialized", {}))
        return link

    async def _answer(
        self,
        response: aiohttp.ClientResponse,
        link: Link,
        call: Call,
        on_progress: OnProgress | None,
        on_request: OnRequest | None,
    ) -> Response:
        if response.status != _HTTP_OK:
            return await self._failure(response, link, call)
        kind = response.content_type
        if kind == "application/json":
            return _match(await _read(response, call.max_bytes), call)
        if kind != "text/event-stream":
            raise OutcomeUnknown("upstream_bad", "the upstream's answer is not MCP")
        asked: set[asyncio.Task[None]] = set()
        try:
            async for message in _messages(response, call.max_bytes):
                if isinstance(message, Response) and message.id == str(call.id).encode():
                    return message
                if isinstance(message, Notification) and message.method == "notifications/progress" and on_progress:
                    on_progress(message.params)
                if isinstance(message, Request):
                    asked.add(asyncio.ensure_future(self._heed(link, message, on_request)))
        finally:
            for task in asked:
                task.cancel()
        raise OutcomeUnknown("upstream_bad", "the upstream's stream ended without an answer")

    async def _failure(self, response: aiohttp.ClientResponse, link: Link, call: Call) -> Response:
        """What a status other than 200 means: an error of our request, a refusal, an ended session, or nobody knows."""
        status = response.status
        if status == _HTTP_NOT_FOUND and link.session_id is not None:
            self._links.drop(link)
            raise NotSent("upstream_down", "the upstream ended the session", again=True)
        if status < _HTTP_OK or status == _HTTP_ACCEPTED or status >= _HTTP_SERVER_ERROR:
            raise OutcomeUnknown("upstream_bad", f"the upstream answered with HTTP {status}")
        if response.content_type == "application/json":
            message = jsonrpc.parse(await _read(response, _MAX_ERROR_BYTES) or b"")
            if isinstance(message, Response) and message.id == str(call.id).encode():
                return message
        again = status == _HTTP_TOO_MANY
        raise NotSent("upstream_bad", f"the upstream refused with HTTP {status}", again=again)

    async def _heed(self, link: Link, message: Request, on_request: OnRequest | None) -> None:
        """Answers a question of the upstream, however long that takes; several may be open at once."""
        if on_request is None or message.method == "ping":
            await self._tell(link, _decline(message))
            return
        ok, body = await on_request(message.method, message.params)
        write = jsonrpc.result if ok else jsonrpc.error
        await self._tell(link, write(message.id, body))

    async def _tell(self, link: Link, body: bytes) -> None:
        """Sends what needs no answer; failing to is no error."""
        timeout = aiohttp.ClientTimeout(total=_TELL_S)
        try:
            async with self._session(pooled=True).post(
                self._url, data=body, headers=self._request_headers(link), timeout=timeout, allow_redirects=False
            ):
                pass
        except (aiohttp.ClientError, OSError, TimeoutError, NotSent):
            return

    def _request_headers(self, link: Link) -> dict[str, str]:
        try:
            configured = self._headers()
        except (LookupError, OSError, ValueError) as error:
            raise NotSent("upstream_down", "the credentials for the upstream cannot be read", again=True) from error
        headers = {**configured, "Content-Type": "application/json", "Accept": _ACCEPT}
        if link.version:
            headers["MCP-Protocol-Version"] = link.version
        if link.session_id is not None:
            headers["Mcp-Session-Id"] = link.session_id
        return headers

    def _session(self, *, pooled: bool) -> aiohttp.ClientSession:
        if pooled:
            if self._pooled is None:
                self._pooled = _client(aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S), self._timeout)
            return self._pooled
        if self._single is None:
            self._single = _client(aiohttp.TCPConnector(limit=0, force_close=True), self._timeout)
        return self._single


def _client(connector: aiohttp.TCPConnector, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        requote_redirect_url=False,
        auto_decompress=True,
        read_bufsize=2**18,
    )


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body, or None if it is larger than allowed."""
    chunks, size = [], 0
    async for chunk in response.content.iter_chunked(2**16):
        size += len(chunk)
        if size > limit:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


async def _messages(response: aiohttp.ClientResponse, limit: int) -> AsyncIterator[jsonrpc.Message]:
    reader = sse.Reader(limit + _MAX_ERROR_BYTES)
    try:
        async for chunk in response.content.iter_any():
            for event in reader.feed(chunk):
                message = jsonrpc.parse(event.data) if event.event == "message" else None
                if message is not None and not isinstance(message, Reject):
                    yield message
    except sse.TooLong:
        raise OutcomeUnknown("upstream_bad", "the upstream's answer is larger than max_result_bytes") from None


def _match(body: bytes | None, call: Call) -> Response:
    if body is None:
        raise OutcomeUnknown("upstream_bad", "the upstream's answer is larger than max_result_bytes")
    message = jsonrpc.parse(body)
    if not isinstance(message, Response) or message.id != str(call.id).encode():
        raise OutcomeUnknown("upstream_bad", "the upstream's answer is not MCP")
    return message


def _decline(message: Request) -> bytes:
    """What the upstream hears when it asks something: no capability was declared to it, but a ping is answered."""
    if message.method == "ping":
        return jsonrpc.result(message.id, b"{}")
    reject = Reject("method", "the client declared no such capability")
    return jsonrpc.refusal(message.id, reject, Era.LEGACY)
