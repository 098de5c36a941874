"""`serve`: runs the gateway until it is told to stop."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from pydantic import ValidationError

from gateway.app import Gateway, serve
from gateway.cli.check import WRONG, load_or_report, report
from gateway.config.load import Loaded, Site, built_in_policy, load_policy
from gateway.config.models import Admin, Config, Server, Store, Upstream
from gateway.policy.decide import Policy
from gateway.store.embedded import EmbeddedFailed
from gateway.store.port import StoreAway
from gateway.telemetry import Telemetry

_ONLY_WITH_UPSTREAM = ("policy", "listen", "admin", "data")
_FAILED = 1


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 after a clean stop, 1 when it could not start, 2 when the configuration is wrong."""
    loaded = _from_file(arguments) if arguments.config else _from_options(arguments)
    if loaded is None:
        return WRONG
    base = arguments.config.parent if arguments.config else Path()
    return asyncio.run(_serve(Gateway(loaded, base, Telemetry())))


async def _serve(gateway: Gateway) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await serve(gateway, stop)
    except EmbeddedFailed as error:
        print(error, file=sys.stderr)
        return _FAILED
    except StoreAway:
        print("store.url: the store does not answer: is it running, and is the URL right?", file=sys.stderr)
        return _FAILED
    except OSError as error:
        print(f"cannot listen: {error.strerror or error}: choose another --listen or --admin", file=sys.stderr)
        return _FAILED
    return 0


def _from_file(arguments: argparse.Namespace) -> Loaded | None:
    given = [name for name in _ONLY_WITH_UPSTREAM if getattr(arguments, name) is not None]
    if given:
        options = ", ".join(f"--{name}" for name in given)
        print(f"{options}: only with --upstream; with --config these stand in the file", file=sys.stderr)
        return None
    return load_or_report(arguments.config)


def _from_options(arguments: argparse.Namespace) -> Loaded | None:
    policy = load_policy(arguments.policy) if arguments.policy else built_in_policy()
    if not isinstance(policy, Policy):
        report(policy)
        return None
    try:
        upstream = Upstream(name="upstream", url=arguments.upstream)
        config = Config(
            server=Server(listen=arguments.listen) if arguments.listen else Server(),
            admin=Admin(listen=arguments.admin) if arguments.admin else Admin(),
            store=Store(url=f"embedded:{arguments.data or './data'}"),
            upstreams=(upstream,),
        )
    except ValidationError as error:
        for item in error.errors(include_input=False, include_url=False):
            print(f"{'.'.join(map(str, item['loc'])) or 'options'}: {item['msg']}", file=sys.stderr)
        return None
    if not arguments.policy:
        print("built-in policy: every tool may be a task (task_support = optional)", file=sys.stderr)
    return Loaded(config, [Site(upstream, policy)])
