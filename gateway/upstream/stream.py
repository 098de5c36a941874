"""One MCP session over HTTP+SSE: the stream that a GET opens, and POSTs whose answers arrive in it.

The session's own task opens the stream, reads it and ends it. A POST is never sent twice; what it was answered with
and what the stream says are looked at together, because a server may use either to say that nothing will come.
"""

import asyncio
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeAlias

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from gateway.telemetry import Telemetry
from gateway.upstream import endpoint
from gateway.upstream.answers import failure
from gateway.upstream.dialogue import Waiting
from gateway.upstream.exchange import HAS_EFFECT, TELL_S, Connections
from gateway.upstream.greeting import Greet
from gateway.upstream.port import TOO_LARGE, Call, Link, NotSent, NotSpoken, OutcomeUnknown, SessionEnded
from gateway.upstream.session import Hooks, Session
from gateway.wire import sse
from gateway.wire.jsonrpc import Response

_MAX_ENDPOINT_BYTES: Final = 65_536
_MOST_UNSAID: Final = 256
"""What needs no answer is not said any more while so much of it has not arrived."""
_HTTP_OK: Final = 200
_HTTP_REDIRECT: Final = 300
_HTTP_REFUSED: Final = 400
_HTTP_TOO_MANY: Final = 429
_HTTP_SERVER_ERROR: Final = 500
_WHO_ASKS: Final = frozenset({401, 403})
_Said: TypeAlias = Response | NotSent | OutcomeUnknown | None
"""What the answer to a POST says of its call. None: it was taken, and its answer is to come in the stream."""


class Stream(Session):
    """One connection with one session. `link.session_id` is ours: the server has put its own into its endpoint."""

    WHAT: ClassVar[str] = "the upstream's stream"

    def __init__(
        self, link: Link, connections: Connections, endpoint_s: float, idle_s: float, telemetry: Telemetry, hooks: Hooks
    ) -> None:
        """`endpoint_s` is how long the server may take to say where messages are to be posted."""
        super().__init__(link, idle_s, telemetry, hooks)
        self._connections = connections
        self._endpoint_s = endpoint_s
        self._url = ""
        self._opened = False
        self._begun: asyncio.Future[NotSent | None] = self._loop.create_future()
        self._stop: asyncio.Future[None] = self._loop.create_future()
        self._saying: set[asyncio.Task[None]] = set()
        self._posting: set[asyncio.Task[_Said]] = set()
        self._life = self._loop.create_task(self._live(), name=f"upstream-{link.owner.upstream}")

    @contextmanager
    def listened(self) -> Iterator[None]:
        """Somebody listens, which is use."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            self._touch()

    async def begin(self, greet: Greet) -> None:
        """Returns when the session is there. Raises NotSent, and then the session ends."""
        try:
            await super().begin(greet)
        except NotSent:
            self.kill()
            raise

    def end(self) -> None:
        """Closes the stream as soon as what is being said has been said. Returns at once."""
        self.ending = True
        if not self._stop.done():
            self._stop.set_result(None)

    def kill(self) -> None:
        """Closes the stream. Returns at once."""
        self.end()
        for saying in self._saying:
            saying.cancel()

    async def collected(self) -> None:
        """Waits until nothing is left of it."""
        await asyncio.wait({self._life})

    async def _reached(self) -> None:
        await asyncio.wait({self._begun}, timeout=self._endpoint_s)
        if not self._begun.done():
            message = f"the upstream named no endpoint within {self._endpoint_s:.0f} s"
            raise (NotSpoken if self._opened else NotSent)("upstream_down", message, again=True)
        if (failed := self._begun.result()) is not None:
            raise failed

    async def _ask(self, waiting: Waiting, body: bytes) -> Response | OutcomeUnknown:
        sent = _Body(body)
        post = self._loop.create_task(self._post(sent, waiting.call))
        self._posting.add(post)
        post.add_done_callback(self._posting.discard)
        try:
            either: set[asyncio.Future[Any]] = {post, waiting.answer}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.answer.done() and post.result() is None:
                await asyncio.wait({waiting.answer})
        except asyncio.CancelledError:
            post.cancel()
            if not sent.left:
                self._dialogue.withdraw(waiting.call.id)
            raise
        if not waiting.answer.done():
            return self._refused(post.result(), waiting)
        answer = waiting.answer.result()
        if isinstance(answer, Response):
            if not post.done():  # many servers answer it afterwards
                self._loop.call_later(TELL_S, post.cancel)
            return answer
        post.cancel()
        await asyncio.wait({post})
        said = NotSent(answer.reason, str(answer), again=True) if not sent.left else _result(post)
        return answer if said is None else self._refused(said, waiting)

    def _refused(self, said: _Said, waiting: Waiting) -> Response | OutcomeUnknown:
        """What becomes of a call whose POST was answered so. Raises NotSent."""
        if isinstance(said, SessionEnded):
            self._retire()
        if isinstance(said, NotSent):
            if not waiting.concerned:
                raise said
            return OutcomeUnknown(said.reason, str(said))
        return said or OutcomeUnknown("upstream_down", self.epitaph)

    async def _post(self, body: "_Body", call: Call) -> _Said:
        try:
            async with self._request(body, pooled=call.method not in HAS_EFFECT) as response:
                if _HTTP_OK <= response.status < _HTTP_REDIRECT:
                    return None
                return await failure(response, self.link, call)
        except (NotSent, OutcomeUnknown) as error:
            return error
        except (aiohttp.ClientError, OSError, TimeoutError):
            if not body.left:
                return NotSent("upstream_down", "the upstream cannot be reached", again=True)
            return OutcomeUnknown("upstream_down", "the connection to the upstream was lost")

    def _say(self, body: bytes) -> "asyncio.Task[None] | None":
        if not self._url or len(self._saying) >= _MOST_UNSAID:
            return None
        saying = self._loop.create_task(self._tell(_Body(body)))
        self._saying.add(saying)
        saying.add_done_callback(self._saying.discard)
        return saying

    async def _tell(self, body: "_Body") -> None:
        try:
            async with self._request(body, pooled=True, timeout=aiohttp.ClientTimeout(total=TELL_S)):
                pass
        except (aiohttp.ClientError, OSError, TimeoutError, NotSent):
            return

    def _request(self, body: "_Body", *, pooled: bool, **options: Any) -> "aiohttp.client._RequestContextManager":
        """Raises NotSent where a credential cannot be read."""
        headers = self._connections.headers({"Content-Type": "application/json"})
        if self.link.version:
            headers["MCP-Protocol-Version"] = self.link.version
        client = self._connections.client(pooled=pooled)
        return client.post(self._url, data=body, headers=headers, allow_redirects=False, **options)

    async def _live(self) -> None:
        """From the request for the stream to its end."""
        reading = self._loop.create_task(self._read())
        try:
            await asyncio.wait({reading, self._stop}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and self._saying:
                await asyncio.wait(self._saying)
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            self._bury(OutcomeUnknown("upstream_down", "the gateway closed the upstream's stream"))
            self._stop_timer()
            left: set[asyncio.Task[Any]] = {*self._saying, *self._posting}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            self._hooks.ended(self)

    async def _read(self) -> None:
        """Reads until the stream ends, and tells everybody who waits what that means."""
        why = OutcomeUnknown("upstream_down", "the upstream's stream ended")
        try:
            await self._hear_all()
        except NotSent as error:
            self._begun.set_result(error)
        except sse.TooLong:
            why = OutcomeUnknown("upstream_bad", TOO_LARGE)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            why = OutcomeUnknown("upstream_down", "the upstream cannot be reached")
        except (aiohttp.ClientError, OSError, TimeoutError):
            why = OutcomeUnknown("upstream_down", "the connection to the upstream was lost")
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave a caller without an answer
            self._telemetry.fault("upstream", error)
        self._bury(why)

    def _bury(self, why: OutcomeUnknown) -> None:
        self.epitaph = self.epitaph or str(why)
        if not self._begun.done():
            self._begun.set_result(NotSent(why.reason, str(why), again=why.reason == "upstream_down"))
        self._lose(why)

    async def _hear_all(self) -> None:
        """Raises NotSent where there is no such stream, TooLong, and what aiohttp raises."""
        headers = self._connections.headers({"Accept": "text/event-stream"})
        client = self._connections.client(pooled=False)
        async with client.get(self._connections.url, headers=headers, allow_redirects=False) as response:
            _check(response)
            self._opened = True
            reader = sse.Reader(_MAX_ENDPOINT_BYTES)
            async for chunk in response.content.iter_any():
                for event in reader.feed(chunk):
                    self._hear(event)
                reader.limit = self._dialogue.limit if self._url else _MAX_ENDPOINT_BYTES

    def _hear(self, event: sse.Event) -> None:
        """Nothing counts before the endpoint, and only the first one does."""
        if event.event == "endpoint" and not self._begun.done():
            url = endpoint.resolved(self._connections.url, event.data)
            if url is None:
                raise NotSent("upstream_bad", "the upstream's endpoint is at another origin or no URL", again=False)
            self._url = url
            self._begun.set_result(None)
        elif event.event == "message" and self._url:
            self._dialogue.hear(event.data)


class _Body(aiohttp.BytesIOPayload):
    """A body that knows whether any of it may have left: before that, a server cannot have acted on it."""

    def __init__(self, body: bytes) -> None:
        super().__init__(io.BytesIO(body), content_type="application/json")
        self.left = False

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Called by aiohttp with a connection that is there."""
        self.left = True
        await super().write(writer)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Likewise."""
        self.left = True
        await super().write_with_length(writer, content_length)


def _result(post: "asyncio.Task[_Said]") -> _Said:
    return None if post.cancelled() else post.result()


def _check(response: aiohttp.ClientResponse) -> None:
    """Raises NotSent, or NotSpoken, for what is no event stream."""
    status = response.status
    if status == _HTTP_OK and response.content_type == "text/event-stream":
        return
    if status >= _HTTP_SERVER_ERROR:
        raise NotSent("upstream_bad", f"the upstream answered with HTTP {status}", again=True)
    if status in _WHO_ASKS or status == _HTTP_TOO_MANY or _HTTP_REDIRECT <= status < _HTTP_REFUSED:
        raise NotSent("upstream_bad", f"the upstream refused with HTTP {status}", again=status == _HTTP_TOO_MANY)
    what = f"refused with HTTP {status}" if status >= _HTTP_REFUSED else "answered a GET with no event stream"
    raise NotSpoken("upstream_bad", f"the upstream {what}", again=False)
