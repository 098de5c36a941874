"""What a server prints to its standard error, into the log and within bounds."""

import asyncio
from typing import Final

from gateway.telemetry import Telemetry
from gateway.upstream.lines import Beginnings, Budget

_CHUNK_BYTES: Final = 2**16
_LINE_BYTES: Final = 1024
_LINES_A_SECOND: Final = 100


async def log_errors(errors: asyncio.StreamReader, upstream: str, pid: int, telemetry: Telemetry) -> None:
    """Reads until the end, whatever the log takes: a server that cannot write its errors stands still."""
    lines, budget = Beginnings(_LINE_BYTES), Budget(_LINES_A_SECOND)

    def left_out() -> None:
        count = budget.take_left_out()
        if count:
            telemetry.upstream_stderr_left_out(upstream=upstream, pid=pid, lines=count)

    def log(line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if text and budget.passes(asyncio.get_running_loop().time()):
            left_out()
            telemetry.upstream_stderr(upstream=upstream, pid=pid, line=text)

    while chunk := await errors.read(_CHUNK_BYTES):
        for line in lines.feed(chunk):
            log(line)
    log(lines.rest())
    left_out()
