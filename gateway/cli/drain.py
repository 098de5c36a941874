"""`drain`: lets one gateway take no new work, and go on with what it has."""

import argparse

from gateway.cli.listing import tell
from gateway.cli.remote import options, place
from gateway.cli.remote import run as ask


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command."""
    command = commands.add_parser(
        "drain",
        help="let one gateway take no new work",
        description="The gateway that is asked gets unready, refuses calls as `draining` and takes up nothing that is "
        "planned. What it runs goes on, and so do streams. Other gateways at the same store are not concerned: to stop "
        "all of them use `switch on`. Ends with --off or with the process.",
        epilog="example: mcp-task-gateway drain --admin http://127.0.0.1:8081; or: mcp-task-gateway drain --off",
    )
    command.add_argument("--off", action="store_true", help="take work again")
    options(command, acts=True)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status as for all commands that ask a gateway: 0 done, 1 not done, 2 an unusable option."""
    body = {"on": not arguments.off, "by": arguments.by}
    return ask(arguments, lambda remote: tell(arguments, remote.post(place("drain"), body)))
