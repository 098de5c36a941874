"""One exchange with a server over streamable HTTP: a POST and its answer, or a stream that is asked for with GET.

The request is built from scratch: nothing of the client's headers travels, redirects are not followed, and a POST is
never sent twice. A call that may have an effect goes over a connection of its own, because a kept-alive one can die
under it in a way that looks the same whether the server acted or not.
"""

import asyncio
import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from gateway.upstream.answers import (
    HTTP_NOT_FOUND,
    HTTP_OK,
    HTTP_SERVER_ERROR,
    HTTP_TOO_MANY,
    MAX_ERROR_BYTES,
    faults,
    message_of,
    single_answer,
)
from gateway.upstream.port import TOO_LARGE, Call, Link, NotSent, OnNote, OnRequest, OutcomeUnknown, SessionEnded, put
from gateway.wire import asking, jsonrpc, sse
from gateway.wire.jsonrpc import Notification, Request, Response

HAS_EFFECT: Final = frozenset({"tools/call", "prompts/get"})
"""What may have an effect goes over a connection that is used once."""
TELL_S: Final = 2.0
_PIECE_BYTES: Final = 2**20
_ACCEPT: Final = "application/json, text/event-stream"
_MAX_LISTENED_BYTES: Final = 4_194_304
_AGAIN: Final = frozenset({409, HTTP_TOO_MANY})
"""A stream that is refused so may be had later: 409 tells that the one before has not ended yet."""
_KEEP_ALIVE_S: Final = 4.0
"""Below the five seconds after which common servers close an idle connection."""
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 30.0
AGAIN_S: Final = 0.1
"""How long a stream that broke is left alone, at first."""
_RESUME_S: Final = 5.0
"""How long a server may take to begin a stream that is asked for again."""
_MOST_IN_VAIN: Final = 3
"""How often a stream is asked for again that brings nothing new."""
_NO_ANSWER: Final = "the upstream's stream ended without an answer"
_LONGEST_MARK: Final = 512


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


@dataclass(frozen=True, slots=True)
class _Hearing:
    """A call whose answer is a stream, and the questions in it that are still open."""

    link: Link
    call: Call
    on_note: OnNote | None
    on_request: OnRequest | None
    asked: "set[asyncio.Task[None]]" = field(default_factory=set)

    def reader(self) -> sse.Reader:
        """Reads the stream of this call, or the next one."""
        return sse.Reader(self.call.max_bytes + MAX_ERROR_BYTES)

    def mark(self, event: str | None) -> None:
        """Tells where the stream could be taken up. A question that is open must be heard again, so not behind it."""
        on_mark = self.call.on_mark
        if on_mark is None or event is None or self.asked or self.link.session_id is None:
            return
        if len(event) <= _LONGEST_MARK:
            on_mark(event)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A stream that is over before its answer: after which event, how long to wait, and why.

    `clean`: its server has ended it.
    """

    last_id: str | None
    named_s: float | None
    why: str
    clean: bool = False


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
                answer = await self._answer(response, _Hearing(link, call, on_note, on_request))
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
                        if response.status == HTTP_NOT_FOUND:
                            raise SessionEnded
                        if HTTP_OK < response.status < HTTP_SERVER_ERROR and response.status not in _AGAIN:
                            return
                        failures = 0 if response.status == HTTP_OK else failures + 1
                        if response.status == HTTP_OK:
                            await self._hear(response, reader, link, (on_note, on_request), asked)
                except (aiohttp.ClientError, OSError, TimeoutError):
                    failures += 1  # the connection is made again
                last_id = reader.last_id or last_id
                named_s = _named_s(reader)
                retry_s = retry_s if named_s is None else named_s
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

    async def resume(
        self, link: Link, call: Call, event: str, on_note: OnNote | None, on_request: OnRequest | None
    ) -> Response:
        """The answer to a request that was sent before, from what its stream said after this event.

        Raises OutcomeUnknown.
        """
        hearing = _Hearing(link, call, on_note, on_request)
        try:
            return await self._resumed(hearing, _Cut(event, None, "the upstream does not tell of the call any more"))
        except sse.TooLong:
            raise OutcomeUnknown("upstream_bad", TOO_LARGE) from None
        finally:
            _forget(hearing.asked)

    async def _answer(self, response: aiohttp.ClientResponse, hearing: "_Hearing") -> Response:
        single = await single_answer(response, hearing.link, hearing.call)
        if single is not None:
            return single
        reader = hearing.reader()
        try:
            try:
                if (answer := await self._read_stream(response, reader, hearing)) is not None:
                    return answer
                cut = _Cut(reader.last_id, _named_s(reader), _NO_ANSWER, clean=True)
            except (aiohttp.ClientError, OSError, TimeoutError):
                if reader.last_id is None:
                    raise
                cut = _Cut(reader.last_id, _named_s(reader), "the connection to the upstream was lost")
            return await self._resumed(hearing, cut)
        except sse.TooLong:
            raise OutcomeUnknown("upstream_bad", TOO_LARGE) from None
        finally:
            _forget(hearing.asked)

    async def _read_stream(
        self, response: aiohttp.ClientResponse, reader: sse.Reader, hearing: "_Hearing"
    ) -> Response | None:
        """The answer, or None when the stream ended without it."""
        call = hearing.call
        async for chunk in response.content.iter_any():
            for event in reader.feed(chunk):
                message = message_of(event)
                if isinstance(message, Response) and message.id == str(call.id).encode():
                    return message
                if isinstance(message, Notification) and hearing.on_note is not None:
                    hearing.on_note(message)
                if isinstance(message, Request):
                    self._put(hearing.link, message, hearing.on_request, hearing.asked)
            hearing.mark(reader.last_id)
        return None

    async def _resumed(self, hearing: "_Hearing", cut: "_Cut") -> Response:
        """A stream may be asked for again, from the last event that it named, whether its server ended it or it broke.

        Nothing is sent again. Raises OutcomeUnknown.
        """
        link, vain, last_id, named_s, clean = hearing.link, 0, cut.last_id, cut.named_s, cut.clean
        while last_id is not None and link.session_id is not None and vain < _MOST_IN_VAIN:
            await _pause(hearing.call if clean else None, named_s, vain)
            reader, clean = hearing.reader(), False
            try:
                async with asyncio.timeout(_RESUME_S):
                    response = await self._get(link, last_id)
                async with response:
                    if response.status < HTTP_SERVER_ERROR and response.status not in _AGAIN:
                        if response.status != HTTP_OK or response.content_type != "text/event-stream":
                            break
                        answer = await self._read_stream(response, reader, hearing)
                        if answer is not None:
                            return answer
                        clean = True
            except (aiohttp.ClientError, OSError, TimeoutError, NotSent):
                pass  # asked for again, so often
            vain = vain + 1 if reader.last_id in (None, last_id) else 0
            last_id, named_s = reader.last_id or last_id, _named_s(reader) or named_s
        raise OutcomeUnknown("upstream_bad" if cut.clean else "upstream_down", cut.why)

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


async def _pause(call: Call | None, named_s: float | None, vain: int) -> None:
    """As long as the server wants, or until somebody is in a hurry; `call` has its stream ended by the server.

    Where it named no time: a second after it ended a stream that brought something, else a moment and then longer.
    """
    usual_s = _RETRY_S if call is not None and not vain else AGAIN_S * 3.0**vain
    pause_s = usual_s if named_s is None else named_s
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await (asyncio.sleep(pause_s) if call is None or call.on_pause is None else call.on_pause())


def _forget(asked: "set[asyncio.Task[None]]") -> None:
    for task in asked:
        task.cancel()


def _named_s(reader: sse.Reader) -> float | None:
    """How long the server wants to be left alone before its stream is asked for again, if it says so."""
    return None if reader.retry_ms is None else min(reader.retry_ms / 1000, _LONGEST_RETRY_S)
