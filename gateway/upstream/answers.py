"""What an HTTP answer of a server comes to: an answer of MCP, a refusal, an ended session, or nobody knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp

from gateway.upstream.port import TOO_LARGE, Call, Link, NotSent, OutcomeUnknown, Refused, SessionEnded
from gateway.wire import jsonrpc, sse
from gateway.wire.errors import Reject
from gateway.wire.jsonrpc import Response

MAX_ERROR_BYTES: Final = 65_536
HTTP_OK: Final = 200
HTTP_NOT_FOUND: Final = 404
HTTP_TOO_MANY: Final = 429
HTTP_SERVER_ERROR: Final = 500
_HTTP_ACCEPTED: Final = 202
_SESSION_UNKNOWN: Final = -32001
_LONGEST_RETRY_DIGITS: Final = 5


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
    if response.status != HTTP_OK:
        return await failure(response, link, call)
    if response.content_type == "application/json":
        return _match(await _read(response, call.max_bytes), call)
    if response.content_type != "text/event-stream":
        raise OutcomeUnknown("upstream_bad", "the upstream's answer is not MCP")
    return None


async def failure(response: aiohttp.ClientResponse, link: Link | None, call: Call) -> Response:
    """What a status other than 200 means: an error of our request, a refusal, an ended session, or nobody knows."""
    status = response.status
    if status == HTTP_NOT_FOUND and link is not None and link.session_id is not None:
        raise SessionEnded
    if status < HTTP_OK or status == _HTTP_ACCEPTED or status >= HTTP_SERVER_ERROR:
        after_s = _retry_after_s(response)
        raise OutcomeUnknown("upstream_bad", f"the upstream answered with HTTP {status}", after_s=after_s)
    if (
        link is None or link.version
    ) and response.content_type == "application/json":  # of a handshake the status tells more
        message = jsonrpc.parse(await _read(response, MAX_ERROR_BYTES) or b"")
        if isinstance(message, Response) and message.id == str(call.id).encode():
            return message
    raise Refused(status, again=status == HTTP_TOO_MANY, after_s=_retry_after_s(response))


def session_unknown(response: Response) -> bool:
    """Whether an error may say that the session is unknown: some servers answer so with HTTP 200."""
    return not response.ok and jsonrpc.integer((jsonrpc.members(response.body) or {}).get("code")) == _SESSION_UNKNOWN


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
