"""A small process between the gateway and one server: whatever becomes of the gateway, nothing of the server is left.

It is run by its path and isolated (`python -I -S keeper.py FD LOCALE COMMAND ARG...`), so it imports nothing but the
standard library, and of that only what is small: there is one keeper for each server. FD is one end of a socket pair
whose other end only the gateway holds. The keeper says there, a line each: `started PID`, or `failed ERRNO`; then
`exited STATUS`, where a negative status is a signal. It hears `k` (end everything now) or `e` (end it), and takes the
end of the stream for the same: it comes when the gateway was killed. By then nobody holds the server's standard input
any more, which is what ends a well-behaved one.

The server is started in a session and a process group of its own. On Linux what loses its parent is inherited by the
keeper, also what left the group, so that it can be ended and collected; and the server is killed with its keeper.
"""

import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

_POLITE_S = 2.0
"""How long a server may take to end after its standard input was closed, and again after SIGTERM."""
_INSIST_S = 0.1
_INSISTENCES = 20
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_CANNOT_RUN = 127
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP)
"""Signals that Python or this program ignores, which a command would inherit."""

Step = Callable[[int], None]


def main() -> int:
    """Runs the command and stays until nothing is left of it."""
    descriptor, locale, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if locale == "-":  # Python sets this for itself where the locale is C; the server gets what it was given
        os.environ.pop("LC_CTYPE", None)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    alarm = _listen_to_signals()
    _prctl(_SET_CHILD_SUBREAPER, 1)
    try:
        server = start(command)
    except OSError as error:
        _say(control, f"failed {error.errno}")
        return 0
    _let_go_of_pipes()
    _say(control, f"started {server}")
    keep(control, server, alarm)
    return 0


def start(command: list[str]) -> int:
    """The process id of the running command. Raises OSError where it cannot be run."""
    keeper = os.getpid()
    broken, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, keeper)
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        finally:
            os._exit(_CANNOT_RUN)
    os.close(tell)  # the other copy closes when the command runs
    failure = os.read(broken, 16)
    os.close(broken)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return pid


def keep(control: socket.socket, server: int, alarm: int) -> None:
    """Waits for the end of the server or for the wish to end it, then ends what is left, ever less politely."""
    ending = _Ending(server)
    sources: list[socket.socket | int] = [control, alarm]
    while True:
        left, status = _collect(server)
        if status is not None:
            _say(control, f"exited {status}")
            ending.begin()  # what the server started is of no use without it
        if not left or not ending.proceed():
            return
        ready, _, _ = select.select(sources, [], [], ending.timeout())
        if alarm in ready and signal.SIGTERM in os.read(alarm, 512):
            ending.begin()
        if control in ready:
            heard = _hear(control)
            if not heard:
                sources.remove(control)
            ending.begin(_POLITE_S, politely=b"k" not in heard)


class _Ending:
    """SIGTERM to the group, some time later SIGKILL to all that is left, and that again until nothing is."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._steps: deque[tuple[Step, float]] = deque([(_terminate, _POLITE_S), *[(_kill, _INSIST_S)] * _INSISTENCES])
        self._due = float("inf")

    def begin(self, in_s: float = 0.0, *, politely: bool = True) -> None:
        """Takes the first step in so many seconds, unless it was taken before; the second one now if not politely."""
        if self._steps[0][0] is not _terminate:
            return
        if not politely:
            self._steps.popleft()
        self._due = min(self._due, time.monotonic() + (in_s if politely else 0))

    def proceed(self) -> bool:
        """Takes the step that is due. False when there is none left: there are processes that no signal ends."""
        if time.monotonic() >= self._due:
            step, wait_s = self._steps.popleft()
            step(self._server)
            self._due = time.monotonic() + wait_s
        return bool(self._steps)

    def timeout(self) -> float | None:
        """Seconds until the next step; None as long as there is no reason for one."""
        return None if self._due == float("inf") else max(0.0, self._due - time.monotonic())


def _become(command: list[str], keeper: int) -> None:
    os.setsid()
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:  # it died before it could be tied to this process
        os._exit(_CANNOT_RUN)
    signal.set_wakeup_fd(-1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606  # the operator's command, without a shell


def _listen_to_signals() -> int:
    """A descriptor that can be read when a child ended or somebody wants this process to end."""
    alarm, ring = os.pipe()
    os.set_blocking(alarm, False)
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return alarm


def _let_go_of_pipes() -> None:
    """Only the server holds its pipes, so that the gateway sees when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _collect(server: int) -> tuple[bool, int | None]:
    """Whether anything is left, and the server's status if it has just ended."""
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return _group_lives(server), status
        if pid == 0:
            return True, status
        if pid == server:
            status = os.waitstatus_to_exitcode(ended)


def _group_lives(server: int) -> bool:
    """Where orphans are inherited by somebody else, the group tells whether there are any."""
    try:
        os.killpg(server, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _terminate(server: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server, signal.SIGTERM)


def _kill(server: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server, signal.SIGKILL)
    for pid in _children():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """What this process has inherited, whatever its group; known on Linux only."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:  # noqa: PTH123  # pathlib is left out
            return [int(pid) for pid in children.read().split()]
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    """Asks Linux for something; elsewhere, and in a Python built without ctypes, nothing happens."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415  # not every build has it

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _say(control: socket.socket, line: str) -> None:
    with suppress(OSError):  # nobody is left who could hear it
        control.sendall(line.encode() + b"\n")


def _hear(control: socket.socket) -> bytes:
    try:
        return control.recv(64)
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
