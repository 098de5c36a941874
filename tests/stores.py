"""Real store servers for tests, and the search for keys that would live for ever."""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.store.keys import may_live_for_ever

LEASE_MS = 1000
SESSION_IDLE_MS = 60_000
PREFIX = "mtg"


class Server:
    """A store server as a child process behind a unix socket."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self.folder = folder
        self._socket = Path(tempfile.mkdtemp(prefix="mtg-test-")) / "s"
        self.url = f"unix://{self._socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._socket.unlink(missing_ok=True)
        self._socket.parent.rmdir()

    def start(self, *options: str) -> None:
        """Starts the server and waits until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(self._program, "--port", "0", "--unixsocket", str(self._socket), "--save", ""),
                    *("--dir", str(self.folder), "--appendonly", "no", "--enable-debug-command", "yes"),
                    *options,
                ],
                stdout=log,
                stderr=log,
            )
        client = SyncRedis.from_url(self.url)
        try:
            wait_until(lambda: _answers(client), 10)
        finally:
            client.close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """The server hangs: connections stand and nothing is answered. What was asked meanwhile is done afterwards."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def _answers(client: "SyncRedis") -> bool:
    try:
        return bool(client.ping())
    except (RedisConnectionError, OSError):
        return False


def wait_until(condition, timeout_s: float) -> None:
    """Waits for something that another process does. Fails when it does not."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.005)


async def leaks(client: "Redis") -> list[str]:
    """Keys without a time to live that are not on the permanent list. An operation may stay while it is unknown,
    and so may the idempotency key that names it.
    """
    found = []
    async for raw in client.scan_iter(count=1000):
        key = raw.decode()
        if await client.pttl(key) != -1 or may_live_for_ever(key, PREFIX):
            continue
        names = await client.hget(key, "op") if key.startswith(f"{PREFIX}:{{s0}}:i:") else raw
        if names.startswith(f"{PREFIX}:{{s0}}:o:".encode()):
            operation = json.loads(await client.hget(names, "head"))
            if operation["state"] == "unknown" and operation["effect"] != "read_only":
                continue
        found.append(key)
    return found
