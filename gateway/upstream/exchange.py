"""One exchange with a server over streamable HTTP: a POST and its answer, or a stream that is asked for with GET.

The request is built from scratch: nothing of the client's headers travels, redirects are not followed, and a POST is
never sent twice. A call that may have an effect goes over a connection of its own, because a kept-alive one can die
under it in a way that looks the same whether the server acted or not.
"""

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

import aiohttp

from gateway.upstream.port import TOO_LARGE, Call, Link, NotSent, OnNote, OnRequest, OutcomeUnknown, put
from gateway.wire import asking, jsonrpc, sse
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Notification, Request, Response

HAS_EFFECT: Final = frozenset({"tools/call", "prompts/get"})
"""What may have an effect goes over a connection that is used once."""
TELL_S: Final = 2.0
_PIECE_BYTES: Final = 2**20
_ACCEPT: Final = "application/json, text/event-stream"
MAX_ERROR_BYTES: Final = 65_536
_MAX_LISTENED_BYTES: Final = 4_194_304
_HTTP_OK: Final = 200
_HTTP_ACCEPTED: Final = 202
_HTTP_NOT_FOUND: Final = 404
_HTTP_TOO_MANY: Final = 429
_HTTP_SERVER_ERROR: Final = 500
_AGAIN: Final = frozenset({409, _HTTP_TOO_MANY})
"""A stream that is refused so may be had later: 409 tells that the one before has not ended yet."""
_KEEP_ALIVE_S: Final = 4.0
"""Below the five seconds after which common servers close an idle connection."""
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_RETRY_DIGITS: Final = 5
_EMPTY_ATTEMPTS: Final = 3
"""How often a stream is asked for again that brings nothing new."""


class SessionEnded(NotSent):
    """The server does not know the session any more."""

    def __init__(self) -> None:
        super().__init__("upstream_down", "the upstream ended the session", again=True, ended=True)


class Refused(NotSent):
    """The server refused the request with this HTTP status."""

    def __init__(self, status: int, after_s: float = 0) -> None:
        message, again = f"the upstream refused with HTTP {status}", status == _HTTP_TOO_MANY
        super().__init__("upstream_bad", message, again=again, after_s=after_s)
        self.status = status


class Connections:
    """The connections to one URL. `headers` is asked for each request, so that rotated credentials are found."""

    def __init__(self, url: str, headers: Callable[[], Mapping[str, str]], connect_timeout_s: float) -> None:
        self.url = url
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self._pooled: aiohttp.ClientSession | None = None
        self._single: aiohttp.ClientSession | None = None
        self._closed = False

    def client(self, *, pooled: bool) -> aiohttp.ClientSession:
        """Connections that are kept for later requests, or one that is used once. Raises NotSent after `close`."""
        if self._closed:
            raise NotSent("upstream_down", "the gateway is stopping", again=False)
        if pooled:
            if self._pooled is None:
                self._pooled = _client(aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S), self._timeout)
            return self._pooled
        if self._single is None:
            self._single = _client(aiohttp.TCPConnector(limit=0, force_close=True), self._timeout)
        return self._single

    def headers(self, more: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request. Raises NotSent where a credential cannot be read."""
        try:
            configured = self._headers()
        except (LookupError, OSError, ValueError) as error:
            raise NotSent("upstream_down", "the credentials for the upstream cannot be read", again=True) from error
        return {**configured, "Accept": _ACCEPT, **more}

    async def close(self) -> None:
        """Closes all."""
        self._closed = True
        for client in (self._pooled, self._single):
            if client is not None:
                await client.close()


class Exchange:
    """Speaks in sessions of the revisions with a handshake."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def post(
        self, link: Link, call: Call, on_note: OnNote | None, on_request: OnRequest | None, *, pooled: bool
    ) -> tuple[Response, str | None]:
        """The answer to a request, and the session that came with it. Raises NotSent or OutcomeUnknown."""
        body = jsonrpc.request(str(call.id).encode(), call.method, call.written)
        client = self._connections.client(pooled=pooled)
        url, headers = self._connections.url, self._head(link, {"Content-Type": "application/json"})
        with faults():
            async with client.post(url, data=payload(body), headers=headers, allow_redirects=False) as response:
                answer = await self._answer(response, link, call, on_note, on_request)
                return answer, response.headers.get("Mcp-Session-Id")
        raise AssertionError  # faults are raised

    async def tell(self, link: Link, body: bytes) -> None:
        """Sends what needs no answer; failing to is no error."""
        timeout = aiohttp.ClientTimeout(total=TELL_S)
        try:
            headers = self._head(link, {"Content-Type": "application/json"})
            async with self._connections.client(pooled=True).post(
                self._connections.url, data=payload(body), headers=headers, timeout=timeout, allow_redirects=False
            ):
                pass
        except (aiohttp.ClientError, OSError, TimeoutError, NotSent):
            return

    async def end(self, link: Link) -> None:
        """Tells the server that a session is over; failing to is no error."""
        timeout = aiohttp.ClientTimeout(total=TELL_S)
        try:
            async with self._connections.client(pooled=True).delete(
                self._connections.url, headers=self._head(link, {}), timeout=timeout, allow_redirects=False
            ):
                pass
        except (aiohttp.ClientError, OSError, TimeoutError, NotSent):
            return

    async def listen(self, link: Link, on_note: OnNote, on_request: OnRequest) -> None:
        """The stream of a session; see `Upstream.listen`."""
        last_id, retry_s, failures = None, _RETRY_S, 0
        asked: set[asyncio.Task[None]] = set()
        try:
            while True:
                reader = sse.Reader(_MAX_LISTENED_BYTES)
                try:
                    async with self._get(link, last_id) as response:
                        if response.status == _HTTP_NOT_FOUND:
                            raise SessionEnded
                        if _HTTP_OK < response.status < _HTTP_SERVER_ERROR and response.status not in _AGAIN:
                            return
                        failures = 0 if response.status == _HTTP_OK else failures + 1
                        if response.status == _HTTP_OK:
                            await self._hear(response, reader, link, (on_note, on_request), asked)
                except (aiohttp.ClientError, OSError, TimeoutError):
                    failures += 1  # the connection is made again
                last_id = reader.last_id or last_id
                retry_s = _retry_s(reader, retry_s)
                await asyncio.sleep(min(retry_s * 2.0 ** min(failures, 8), _LONGEST_PAUSE_S))
        except sse.TooLong:
            return
        finally:
            _forget(asked)

    async def _hear(
        self,
        response: aiohttp.ClientResponse,
        reader: sse.Reader,
        link: Link,
        ears: tuple[OnNote, OnRequest],
        asked: "set[asyncio.Task[None]]",
    ) -> None:
        on_note, on_request = ears
        async for chunk in response.content.iter_any():
            for event in reader.feed(chunk):
                message = message_of(event)
                if isinstance(message, Notification):
                    on_note(message)
                elif isinstance(message, Request):
                    self._put(link, message, on_request, asked)

    async def _answer(
        self,
        response: aiohttp.ClientResponse,
        link: Link,
        call: Call,
        on_note: OnNote | None,
        on_request: OnRequest | None,
    ) -> Response:
        single = await single_answer(response, link, call)
        if single is not None:
            return single
        asked: set[asyncio.Task[None]] = set()
        try:
            reader = sse.Reader(call.max_bytes + MAX_ERROR_BYTES)
            answer = await self._read_stream(response, reader, link, call, (on_note, on_request), asked)
            return answer or await self._resumed(reader, link, call, (on_note, on_request), asked)
        except sse.TooLong:
            raise OutcomeUnknown("upstream_bad", TOO_LARGE) from None
        finally:
            _forget(asked)

    async def _read_stream(
        self,
        response: aiohttp.ClientResponse,
        reader: sse.Reader,
        link: Link,
        call: Call,
        ears: tuple[OnNote | None, OnRequest | None],
        asked: "set[asyncio.Task[None]]",
    ) -> Response | None:
        """The answer, or None when the stream ended without it."""
        on_note, on_request = ears
        async for chunk in response.content.iter_any():
            for event in reader.feed(chunk):
                message = message_of(event)
                if isinstance(message, Response) and message.id == str(call.id).encode():
                    return message
                if isinstance(message, Notification) and on_note is not None:
                    on_note(message)
                if isinstance(message, Request):
                    self._put(link, message, on_request, asked)
        return None

    async def _resumed(
        self,
        reader: sse.Reader,
        link: Link,
        call: Call,
        ears: tuple[OnNote | None, OnRequest | None],
        asked: "set[asyncio.Task[None]]",
    ) -> Response:
        """A server may end a stream and let it be asked for again, from the last event that it named."""
        last_id, retry_s, empty = reader.last_id, _retry_s(reader, _RETRY_S), 0
        while last_id is not None and link.session_id is not None and empty < _EMPTY_ATTEMPTS:
            await _pause(call, retry_s)
            again = sse.Reader(call.max_bytes + MAX_ERROR_BYTES)
            try:
                async with self._get(link, last_id) as response:
                    if response.status != _HTTP_OK or response.content_type != "text/event-stream":
                        break
                    answer = await self._read_stream(response, again, link, call, ears, asked)
                    if answer is not None:
                        return answer
            except (aiohttp.ClientError, OSError, TimeoutError, NotSent):
                pass  # asked for again, so often
            empty = empty + 1 if again.last_id in (None, last_id) else 0
            last_id, retry_s = again.last_id or last_id, _retry_s(again, retry_s)
        raise OutcomeUnknown("upstream_bad", "the upstream's stream ended without an answer")

    def _get(self, link: Link, last_id: str | None) -> "aiohttp.client._RequestContextManager":
        more = {} if last_id is None else {"Last-Event-ID": last_id}
        client = self._connections.client(pooled=False)
        return client.get(self._connections.url, headers=self._head(link, more), allow_redirects=False)

    def _put(
        self, link: Link, message: Request, on_request: OnRequest | None, asked: "set[asyncio.Task[None]]"
    ) -> None:
        task = asyncio.ensure_future(self._heed(link, message, on_request))
        asked.add(task)
        task.add_done_callback(asked.discard)

    async def _heed(self, link: Link, message: Request, on_request: OnRequest | None) -> None:
        """Answers a question of the upstream, however long that takes; several may be open at once."""
        if message.method == "ping":
            await self.tell(link, jsonrpc.result(message.id, b"{}"))
            return
        ok, body = (False, asking.UNDECLARED) if on_request is None else await put(on_request, message)
        await self.tell(link, (jsonrpc.result if ok else jsonrpc.error)(message.id, body))

    def _head(self, link: Link, more: Mapping[str, str]) -> dict[str, str]:
        headers = self._connections.headers(more)
        if link.version:
            headers["MCP-Protocol-Version"] = link.version
        if link.session_id is not None:
            headers["Mcp-Session-Id"] = link.session_id
        return headers


def payload(body: bytes) -> bytes | io.BytesIO:
    """A body as it is sent: a large one in pieces, so that it holds up nobody else."""
    return body if len(body) <= _PIECE_BYTES else io.BytesIO(body)


def _client(connector: aiohttp.TCPConnector, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        requote_redirect_url=False,
        auto_decompress=True,
        read_bufsize=2**18,
    )


async def _pause(call: Call, retry_s: float) -> None:
    """As long as the server wants, or until somebody is in a hurry."""
    with suppress(TimeoutError):
        async with asyncio.timeout(retry_s):
            await (asyncio.sleep(retry_s) if call.on_pause is None else call.on_pause())


def _forget(asked: "set[asyncio.Task[None]]") -> None:
    for task in asked:
        task.cancel()


def _retry_s(reader: sse.Reader, before_s: float) -> float:
    return before_s if reader.retry_ms is None else min(reader.retry_ms / 1000, _LONGEST_RETRY_S)


@contextmanager
def faults() -> Iterator[None]:
    """What goes wrong with a connection, as one of the two things that there are. Raises NotSent or OutcomeUnknown."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotSent("upstream_down", "the upstream cannot be reached", again=True) from error
    except aiohttp.InvalidURL as error:
        raise NotSent("upstream_down", "the upstream's URL is not valid", again=False) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise OutcomeUnknown("upstream_down", "the connection to the upstream was lost") from error


def message_of(event: sse.Event) -> jsonrpc.Message | None:
    """The message that an event brings."""
    message = jsonrpc.parse(event.data) if event.event == "message" else None
    return None if isinstance(message, Reject) else message


async def single_answer(response: aiohttp.ClientResponse, link: Link | None, call: Call) -> Response | None:
    """The answer that is not a stream; None for a stream. `link` is None where there are no sessions.

    Raises NotSent or OutcomeUnknown.
    """
    if response.status != _HTTP_OK:
        return await failure(response, link, call)
    if response.content_type == "application/json":
        return _match(await _read(response, call.max_bytes), call)
    if response.content_type != "text/event-stream":
        raise OutcomeUnknown("upstream_bad", "the upstream's answer is not MCP")
    return None


async def failure(response: aiohttp.ClientResponse, link: Link | None, call: Call) -> Response:
    """What a status other than 200 means: an error of our request, a refusal, an ended session, or nobody knows."""
    status = response.status
    if status == _HTTP_NOT_FOUND and link is not None and link.session_id is not None:
        raise SessionEnded
    if status < _HTTP_OK or status == _HTTP_ACCEPTED or status >= _HTTP_SERVER_ERROR:
        after_s = _retry_after_s(response)
        raise OutcomeUnknown("upstream_bad", f"the upstream answered with HTTP {status}", after_s=after_s)
    if (
        link is None or link.version
    ) and response.content_type == "application/json":  # of a handshake the status tells more
        message = jsonrpc.parse(await _read(response, MAX_ERROR_BYTES) or b"")
        if isinstance(message, Response) and message.id == str(call.id).encode():
            return message
    raise Refused(status, _retry_after_s(response))


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    """How long the server wants to be left alone, where it says so in seconds."""
    said = response.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() and len(said) <= _LONGEST_RETRY_DIGITS else 0


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body, or None if it is larger than allowed."""
    chunks, size = [], 0
    async for chunk in response.content.iter_chunked(2**16):
        size += len(chunk)
        if size > limit:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _match(body: bytes | None, call: Call) -> Response:
    if body is None:
        raise OutcomeUnknown("upstream_bad", TOO_LARGE)
    message = jsonrpc.parse(body)
    if not isinstance(message, Response) or message.id != str(call.id).encode():
        raise OutcomeUnknown("upstream_bad", "the upstream's answer is not MCP")
    return message
