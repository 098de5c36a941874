"""`stdio`: the gateway as a program that a client starts, which speaks MCP over its standard streams."""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from gateway.app import Gateway
from gateway.cli.check import WRONG
from gateway.cli.serve import base_of, from_file, from_options, until_stopped
from gateway.config.load import Loaded
from gateway.config.models import check_listen, is_loopback
from gateway.edge.standard import LogWriter, take_standard_streams
from gateway.fronts import StdioFront
from gateway.telemetry import Telemetry

NAME = "upstream"
_NOT_WITH_CONFIG = ("policy", "data", "env")
_FAILED = 1
_LAST_LOG_LINES_S = 1.0


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 after the client has left, 1 when it could not start, 2 when the configuration is wrong."""
    loaded = _from_file(arguments) if arguments.config else _from_options(arguments)
    if loaded is None:
        return WRONG
    try:
        source, sink = take_standard_streams()
    except OSError as error:
        print(f"standard input and output must be open: {error.strerror}", file=sys.stderr)
        return _FAILED
    log = LogWriter(2)
    telemetry = Telemetry(log.text())
    status = asyncio.run(_serve(loaded, base_of(arguments), telemetry, (source, sink), arguments.admin))
    log.finish(_LAST_LOG_LINES_S)
    return status


async def _serve(
    loaded: Loaded, base: Path, telemetry: Telemetry, descriptors: tuple[int, int], admin: str | None
) -> int:
    stop = asyncio.Event()
    gateway = Gateway(loaded, base, telemetry, StdioFront(*descriptors, stop, admin))

    def told() -> None:
        """Clients close our input first, then send a signal, then kill: the second word means that time is short."""
        if stop.is_set():
            gateway.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told)
    return await until_stopped(gateway, stop)


def _from_file(arguments: argparse.Namespace) -> Loaded | None:
    problem = _admin_problem(arguments.admin)
    if problem is not None:
        print(problem, file=sys.stderr)
        return None
    loaded = from_file(arguments, _NOT_WITH_CONFIG)
    if loaded is None:
        return None
    if loaded.config.auth.mode != "none":
        print('--config: auth.mode must be "none": no token comes over standard input', file=sys.stderr)
        return None
    names = [site.upstream.name for site in loaded.sites]
    if arguments.name is not None and arguments.name not in names:
        print(f"--name: the configuration has {', '.join(names)}", file=sys.stderr)
        return None
    # Only this one is worked for: another gateway with the same file and another name has the others.
    return Loaded(loaded.config, [loaded.sites[0 if arguments.name is None else names.index(arguments.name)]])


def _from_options(arguments: argparse.Namespace) -> Loaded | None:
    arguments.name = NAME if arguments.name is None else arguments.name
    if arguments.data is None:
        arguments.data = _data(arguments)
        if arguments.data is None:
            print("--data: is needed, because there is no home directory", file=sys.stderr)
            return None
    return from_options(arguments)


def _admin_problem(listen: str | None) -> str | None:
    """What is wrong with `--admin`, where no configuration is made of it."""
    if listen is None:
        return None
    try:
        check_listen(listen)
    except ValueError as error:
        return f"--admin: {error}"
    return None if is_loopback(listen) else "--admin: must be a loopback address, such as 127.0.0.1:8081"


def _data(arguments: argparse.Namespace) -> Path | None:
    """Where the records of this very server are, and of no other.

    Clients start gateways anywhere. Two with one store and one name do each other's work, so this must be a directory
    that only the same server shares: the same name, URL or command, variables by name, and folder in which it runs.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:
            return None
    server = [arguments.name, arguments.upstream, list(arguments.command), sorted(arguments.env or ())]
    told = json.dumps([*server, None if arguments.upstream else str(Path.cwd())])
    digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return state / "mcp-task-gateway" / f"{arguments.name}-{digest}"
