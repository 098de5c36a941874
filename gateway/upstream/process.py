"""A command that runs as a child process, as the gateway sees it: three pipes, a keeper, and how it ended."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gateway.upstream import keeper
from gateway.upstream.port import NotSent

_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")
"""All that a server gets of the gateway's own environment."""
_BUFFER_BYTES: Final = 2**18
_UNREAD_BYTES: Final = 2**20
_LAST_WORDS_S: Final = 0.5
"""How long the pipes of a server that has ended are read on, where something that it started holds them open."""
_ENDS_WITHIN_S: Final = 10.0
_LOOK_S: Final = 0.005
_MAY_PASS: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY})


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, and where. `variables` is asked for each start, so that rotated secrets are found."""

    arguments: Sequence[str]
    folder: Path
    variables: Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Watch:
    """What is told of a process as it happens: its id, its exit status (negative for a signal), that it is deaf."""

    started: Callable[[int], None]
    exited: Callable[[int], None]
    deaf: Callable[[], None]


class Process:
    """One run of a command."""

    def __init__(self, command: Command, watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        self._command = command
        self._watch = watch
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: asyncio.Transport | None = None
        self._input: asyncio.WriteTransport | None = None
        self._outputs: list[asyncio.BaseTransport] = []
        self._begun: asyncio.Future[NotSent | None] = loop.create_future()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._abandoned = asyncio.Event()
        self.output = asyncio.StreamReader(_BUFFER_BYTES)
        self.errors = asyncio.StreamReader(_BUFFER_BYTES)
        self._pid = 0

    async def start(self) -> None:
        """Returns when the command runs. Raises NotSent."""
        environment = _environment(self._command.variables)
        ours: socket.socket | None = None
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                self._keeper = self._popen(theirs.fileno(), environment)
            await self._connect(self._keeper, ours)
        except (OSError, ValueError) as error:
            if ours is not None:
                ours.close()
            raise _cannot_run(error) from error
        failure = await self._begun
        if failure is not None:
            raise failure

    def write(self, line: bytes) -> bool:
        """Whether the server may get the line; False means that not one byte of it went out."""
        pipe = self._input
        if pipe is None or pipe.is_closing():
            return False
        waiting = pipe.get_write_buffer_size()
        pipe.write(line)
        return waiting > 0 or not pipe.is_closing()

    def reads(self) -> bool:
        """Whether the server reads what it gets; if not, what is only polite is not written any more."""
        return self._input is not None and self._input.get_write_buffer_size() < _UNREAD_BYTES

    async def status(self, timeout_s: float) -> int | None:
        """Its exit status, negative for a signal. None if it still runs after the time, or nobody can tell."""
        await asyncio.wait({self._ended}, timeout=timeout_s)
        return self._ended.result() if self._ended.done() else None

    def end(self) -> None:
        """Closes its standard input; the keeper ends it if that does not. Returns at once."""
        if self._input is not None:
            self._input.close()
        if self._control is not None and not self._control.is_closing():
            self._control.write(b"e")

    def kill(self) -> None:
        """Ends it and all that it started without a further word. Returns at once."""
        if self._control is not None and not self._control.is_closing():
            self._control.write(b"k")

    async def collect(self) -> None:
        """Waits until it has ended with all that it started, and leaves no zombie. Call `end` or `kill` first."""
        if self._keeper is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await self._abandoned.wait()
        if self._keeper.poll() is None and not self._abandoned.is_set():
            self._keeper.kill()
        while self._keeper.poll() is None:  # noqa: ASYNC110  # another process sets no event here
            await asyncio.sleep(_LOOK_S)
        self._hush()
        if self._input is not None and self._input.get_write_buffer_size() > 0:
            self._input.abort()  # nobody will ever read it; closing would wait for that
        elif self._input is not None:
            self._input.close()

    def _popen(self, control: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        locale = "LC_CTYPE" if "LC_CTYPE" in environment else "-"
        return subprocess.Popen(  # noqa: S603  # the operator's command, without a shell
            [sys.executable, "-I", "-S", keeper.__file__, str(control), locale, *self._command.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=self._command.folder,
            env=environment,
            pass_fds=[control],
            start_new_session=True,
        )

    async def _connect(self, process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._control, _ = await loop.create_unix_connection(lambda: _Control(self._told, self._lost), sock=control)
        for reader, pipe in ((self.output, process.stdout), (self.errors, process.stderr)):
            transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            self._outputs.append(transport)
        self._input, _ = await loop.connect_write_pipe(lambda: _Input(self._watch.deaf), process.stdin)

    def _told(self, word: str, number: int) -> None:
        """What the keeper says."""
        if word == "started":
            self._pid = number
            self._watch.started(number)
            self._begun.set_result(None)
        elif word == "failed":
            self._begun.set_result(_cannot_run(OSError(number, os.strerror(number))))
        else:
            self._exited(number)
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._hush)

    def _lost(self) -> None:
        """The keeper has ended: either nothing is left, or it was killed and the server with it."""
        if not self._begun.done():
            self._begun.set_result(NotSent("upstream_down", "the upstream's process could not be started", again=True))
        if self._pid and not self._ended.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            self._exited(-signal.SIGKILL)
        self._abandoned.set()

    def _exited(self, status: int) -> None:
        self._ended.set_result(status)
        self._watch.exited(status)

    def _hush(self) -> None:
        """Reads nothing more: whoever reads sees the end of the stream."""
        for transport in self._outputs:
            transport.close()


class _Control(asyncio.Protocol):
    """What comes from the keeper: lines of a word and a number."""

    def __init__(self, told: Callable[[str, int], None], lost: Callable[[], None]) -> None:
        self._told = told
        self._lost = lost
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, number = line.split()
            self._told(word.decode(), int(number))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it so
        self._lost()


class _Input(asyncio.BaseProtocol):
    """The writing end of a server's standard input."""

    def __init__(self, closed: Callable[[], None]) -> None:
        self._closed = closed

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it so
        self._closed()


def _environment(variables: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """Raises NotSent where a reference cannot be read."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    try:
        return {**inherited, **variables()}
    except (LookupError, OSError, ValueError) as error:
        message = "the variables for the upstream's process cannot be read"
        raise NotSent("upstream_down", message, again=True) from error


def _cannot_run(error: OSError | ValueError) -> NotSent:
    again = isinstance(error, OSError) and error.errno in _MAY_PASS
    why = error.strerror if isinstance(error, OSError) else "a variable or an argument holds a NUL"
    return NotSent("upstream_down", f"the upstream's command cannot be run: {why}", again=again)


def epitaph(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "the upstream's process closed its standard output"
    if status < 0:
        return f"the upstream's process was ended by signal {-status}"
    return f"the upstream's process ended with exit code {status}"
