"""The gateway as its users run it: a process of its own, with the embedded store."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from tests.stores import wait_until

CHARGE = """
version = 1
[defaults]
task_support = "optional"
effect = "consequential"
[[tools]]
match = "lookup"
effect = "read_only"
on_lost = "retry"
"""
CONFIG = """
[server]
listen = "127.0.0.1:0"
drain_deadline_s = 5
[admin]
listen = "127.0.0.1:0"
[store]
url = "embedded:data"
[runner]
lease_s = 1
takeover_grace_s = 0.5
[[upstreams]]
name = "money"
url = "{url}"
policy = "policy.toml"
"""


class GatewayProcess:
    """One process. `folder` holds its configuration, its data and its log."""

    def __init__(self, folder: Path, upstream_url: str = "", *, config: str = CONFIG, policy: str = CHARGE) -> None:
        self.folder = folder
        folder.joinpath("policy.toml").write_text(policy)
        folder.joinpath("config.toml").write_text(config.format(url=upstream_url))
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "gateway.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", str(self.folder / "config.toml")],
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self.said("started") or self.process.poll() is not None, 20)
        assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def said(self, event: str) -> list[dict]:
        """The log lines of this event so far."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"event":"{event}"' in line]

    @property
    def url(self) -> str:
        return self.said("started")[0]["listen"] + "/mcp"

    @property
    def admin(self) -> str:
        return self.said("started")[0]["admin"]

    @property
    def store_pid(self) -> int:
        return int((self.folder / "data" / "server.pid").read_text())

    def ready(self) -> bool:
        try:
            with urlopen(f"{self.admin}/readyz") as answer:  # noqa: S310  # our own listener
                return answer.status == 200
        except (URLError, OSError):
            return False


def alive(pid: int) -> bool:
    """Whether the process runs. One that has ended may still be listed where nobody collects orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
