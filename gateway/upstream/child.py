"""One MCP session with a server that runs as a child process: its life, what arrives, the end.

The session's own task starts the process, reads its output, and ends and collects it; nothing else does.
"""

import asyncio
from typing import ClassVar, Final

from gateway.telemetry import Telemetry
from gateway.upstream.dialogue import Waiting
from gateway.upstream.lines import Lines, TooLong
from gateway.upstream.port import TOO_LARGE, Link, NotSent, OutcomeUnknown
from gateway.upstream.process import Command, Process, Watch
from gateway.upstream.session import Hooks, Session
from gateway.upstream.stderr import log_errors
from gateway.wire.jsonrpc import Response

_STATUS_S: Final = 0.5
"""How long the exit status is waited for, where the end of the output came first."""
_CHUNK_BYTES: Final = 2**16


class Child(Session):
    """One process with one session."""

    WHAT: ClassVar[str] = "the upstream's process"

    def __init__(self, link: Link, command: Command, idle_s: float, telemetry: Telemetry, hooks: Hooks) -> None:
        super().__init__(link, idle_s, telemetry, hooks)
        self._upstream = link.owner.upstream
        self._process = Process(command, Watch(self._started, self._exited, self._retire))
        self._pid: int = 0
        self._begun: asyncio.Future[NotSent | None] = self._loop.create_future()
        self._wanted = False
        self._life = self._loop.create_task(self._live(), name=f"upstream-{self._upstream}")

    def end(self) -> None:
        """Ends the process, politely at first. Returns at once; what is under way may still be answered."""
        self._wanted |= not self.ending
        self.ending = True
        self._process.end()

    def kill(self) -> None:
        """Ends the process at once: it is of no use. Returns at once."""
        self.ending = True
        self._process.kill()

    async def collected(self) -> None:
        """Waits until nothing is left of the process."""
        await asyncio.wait({self._life})

    async def _reached(self) -> None:
        await asyncio.wait({self._begun})
        if (failure := self._begun.result()) is not None:
            raise failure

    async def _ask(self, waiting: Waiting, body: bytes) -> Response | OutcomeUnknown:
        if not self._write(body):
            self._retire()
            raise self._gone()
        return await waiting.answer

    def _say(self, body: bytes) -> None:
        if self._process.reads():
            self._write(body)

    def _write(self, body: bytes) -> bool:
        """Whether it may have gone out. In JSON a line break is white space, and here it would end the message."""
        return self._process.write(body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    async def _live(self) -> None:
        """From the start of the process to its collection."""
        errors: asyncio.Task[None] | None = None
        try:
            await self._process.start()
            listening = log_errors(self._process.errors, self._upstream, self._pid, self._telemetry)
            errors = self._loop.create_task(listening)
            self._begun.set_result(None)
            await self._serve()
        except NotSent as error:
            self._begun.set_result(error)
        finally:
            if not self._begun.done():
                self._begun.set_result(self._gone())
            try:
                await self._bury()
                if errors is not None:
                    await asyncio.wait({errors})
            finally:
                self._hooks.ended(self)

    async def _serve(self) -> None:
        """Reads until the end, which is told to every caller, also when it is a fault of ours."""
        try:
            if not self.ending:
                await self._read()
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave a caller without an answer
            self._telemetry.fault("upstream", error)
        finally:
            self._lose(OutcomeUnknown("upstream_down", "the gateway gave up the upstream's process"))

    async def _read(self) -> None:
        """Reads until the process says no more, and tells every caller what that means."""
        lines = Lines()
        try:
            while chunk := await self._process.output.read(_CHUNK_BYTES):
                for line in lines.feed(chunk, self._dialogue.limit):
                    if line.strip():
                        self._dialogue.hear(line)
        except TooLong:
            self._lose(OutcomeUnknown("upstream_bad", TOO_LARGE))
            self.kill()
            return
        self._retired = True
        status = await self._process.status(_STATUS_S)
        self.epitaph = _epitaph(status)
        self._lose(OutcomeUnknown("upstream_down", self.epitaph))

    async def _bury(self) -> None:
        self._stop_timer()
        self.ending = True
        self._process.end()
        await self._process.collect()

    def _started(self, pid: int) -> None:
        self._pid = pid
        self._telemetry.upstream_started(upstream=self._upstream, pid=pid)

    def _exited(self, status: int) -> None:
        seconds = self._loop.time() - self.began
        self._telemetry.upstream_exited(
            upstream=self._upstream, pid=self._pid, status=status, seconds=seconds, wanted=self._wanted
        )


def _epitaph(status: int | None) -> str:
    if status is None:
        return "the upstream's process closed its standard output"
    if status < 0:
        return f"the upstream's process was ended by signal {-status}"
    return f"the upstream's process ended with exit code {status}"
