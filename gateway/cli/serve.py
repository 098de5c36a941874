"""`serve`: runs the gateway until it is told to stop."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.app import Gateway, serve
from gateway.cli.check import WRONG, advise, load_or_report, report
from gateway.config.findings import examine
from gateway.config.load import Loaded, Site, built_in_policy, command_problem, load_policy
from gateway.config.models import Config
from gateway.operating.audit import AuditFailed
from gateway.policy.decide import Policy
from gateway.store.embedded import EmbeddedFailed
from gateway.store.port import StoreAway, StoreUnfit
from gateway.telemetry import Telemetry

_NOT_WITH_CONFIG = ("policy", "listen", "admin", "data", "env")
_OPTIONS = {
    ("upstreams", 0, "url"): "--upstream",
    ("upstreams", 0, "command"): "COMMAND",
    ("upstreams", 0, "env"): "--env",
    ("upstreams", 0, "name"): "--name",
    ("server", "listen"): "--listen",
    ("admin", "listen"): "--admin",
    ("store", "url"): "--data",
}
_FAILED = 1


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 after a clean stop, 1 when it could not start, 2 when the configuration is wrong."""
    loaded = from_file(arguments, _NOT_WITH_CONFIG) if arguments.config else from_options(arguments)
    if loaded is None:
        return WRONG
    return asyncio.run(_serve(Gateway(loaded, base_of(arguments), Telemetry())))


async def _serve(gateway: Gateway) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # The default would end the process, and operators send this one to make a service read its files again.
    loop.add_signal_handler(signal.SIGHUP, gateway.cannot_reload)
    return await until_stopped(gateway, stop)


async def until_stopped(gateway: Gateway, stop: asyncio.Event) -> int:
    """Runs until `stop` is set; the exit status, after saying what kept it from starting."""
    try:
        await serve(gateway, stop)
    except (EmbeddedFailed, AuditFailed) as error:
        print(error, file=sys.stderr)
        return _FAILED
    except StoreUnfit as error:
        print(error, file=sys.stderr)
        return _FAILED
    except StoreAway as error:
        print(f"store.url: the store does not answer: is it running, and is the URL right? ({error})", file=sys.stderr)
        return _FAILED
    except OSError as error:
        print(f"cannot listen: {error.strerror or error}: choose another --listen or --admin", file=sys.stderr)
        return _FAILED
    return 0


def base_of(arguments: argparse.Namespace) -> Path:
    """What relative paths are relative to."""
    return arguments.config.parent if arguments.config else Path()


def from_file(arguments: argparse.Namespace, excluded: Sequence[str]) -> Loaded | None:
    """What the file says; None after saying what is wrong, options that do not go with a file included."""
    given = [name for name in excluded if getattr(arguments, name) is not None]
    if given:
        options = ", ".join(f"--{name}" for name in given)
        print(f"{options}: not with --config, where these stand in the file", file=sys.stderr)
        return None
    loaded = load_or_report(arguments.config)
    if loaded is not None:
        advise(loaded, arguments.config)
    return loaded


def from_options(arguments: argparse.Namespace) -> Loaded | None:
    """The configuration that the options stand for; None after saying what is wrong with them."""
    values = {
        "server": {} if arguments.listen is None else {"listen": arguments.listen},
        "admin": {} if arguments.admin is None else {"listen": arguments.admin},
        "store": {} if arguments.data is None else {"url": f"embedded:{arguments.data}"},
        "upstreams": [_server(arguments)],
    }
    policy = load_policy(arguments.policy) if arguments.policy else built_in_policy()
    problems = [f"{_OPTIONS[found.keys[0][:3]]}: {found.message}" for found in examine(Config, values)]
    problems += _not_found(arguments)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not isinstance(policy, Policy):
        report(policy)
        return None
    if problems:
        return None
    if not arguments.policy:
        print("built-in policy: every tool may be a task (task_support = optional)", file=sys.stderr)
    config = Config.model_validate(values)
    return Loaded(config, [Site(config.upstreams[0], policy)])


def _server(arguments: argparse.Namespace) -> dict[str, object]:
    """The entry of `[[upstreams]]` that the options stand for."""
    variables = {} if arguments.env is None else {"env": {name: f"env:{name}" for name in arguments.env}}
    if arguments.command:
        return {"name": arguments.name, "transport": "stdio", "command": arguments.command, **variables}
    return {"name": arguments.name, "transport": "auto", "url": arguments.upstream, **variables}


def _not_found(arguments: argparse.Namespace) -> Iterator[str]:
    """What the options name and is not there."""
    if arguments.command and arguments.command[0]:
        wrong = command_problem(arguments.command[0], Path(), None, Path())
        if wrong is not None:
            yield f"COMMAND: {wrong}"
    for name in arguments.env or ():
        if not os.environ.get(name):
            yield f"--env: environment variable {name} is not set or empty"
