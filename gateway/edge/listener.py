"""A listener that repeats nothing of what it could not read.

aiohttp answers a request with an unreadable head by quoting the place, and logs it with a traceback. That place may
be a token.
"""

import sys
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from gateway.edge.streams import written
from gateway.telemetry import Telemetry
from gateway.wire import reply
from gateway.wire.errors import Era, Reject

MOST_FIELD_BYTES: Final = 20_480
"""A name and a value of the head: the largest token with what stands around it. The default of aiohttp is 8,190."""


class Listener(web.AppRunner):
    """Serves an application. A client that goes away ends its handler."""

    def __init__(self, app: web.Application, telemetry: Telemetry, shutdown_s: float) -> None:
        """Handlers that are running when it stops have `shutdown_s` seconds to end."""
        super().__init__(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=shutdown_s,
            max_field_size=MOST_FIELD_BYTES,
        )
        self._telemetry = telemetry

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(made, self._telemetry)


class _Server(web.Server):
    """What aiohttp made, but for the connections."""

    def __init__(self, made: web.Server, telemetry: Telemetry) -> None:
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,  # noqa: SLF001  # there is no other way to them
        )
        self._telemetry = telemetry

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._telemetry, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    def __init__(self, manager: web.Server, telemetry: Telemetry, **options: Any) -> None:
        super().__init__(manager, **options)
        self._telemetry = telemetry

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Our own words instead of the message."""
        del message
        usual = super().handle_error(request, status, exc, "")
        if status != 400:  # noqa: PLR2004  # only an unreadable head
            return usual
        if isinstance(exc, LineTooLong):
            limit = exc.args[1]
            reject = Reject("too_large", f"a line of the head is larger than {limit} bytes", {"limit": limit})
        else:
            reject = Reject("invalid_request", "this is no HTTP request that can be read")
        response = written(reply.refusal(None, reject, Era.LEGACY))
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """The type of the error, and never its text."""
        del args
        given = kw.get("exc_info")
        error = given if isinstance(given, BaseException) else sys.exc_info()[1]
        if isinstance(error, HttpProcessingError):
            self._telemetry.unreadable(error)
        else:
            self._telemetry.fault("http", error or RuntimeError())
