"""`ledger`: looks at what became of operations, and settles those of which nobody knows."""

import argparse

from gateway.cli import listing
from gateway.cli.remote import options, place
from gateway.cli.remote import run as ask
from gateway.core.model import OperationState

_ACTIONS = {"ls": listing.ls, "show": listing.show}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its subcommands."""
    command = commands.add_parser(
        "ledger",
        help="list or show what became of operations, or settle one of which nobody knows",
        description="Asks the admin listener of a running gateway about its ledger: one entry for each recorded call, "
        "which outlives the task. An entry whose outcome is unknown stays until it is settled.",
        epilog="example: mcp-task-gateway ledger ls --state unknown --older-than 1h; "
        "or: mcp-task-gateway ledger show jGxqvXlZ6xr0Zk3mQf1iUe2b9y7Hc4Ns; "
        "or: mcp-task-gateway ledger resolve jGxqvXlZ6xr0Zk3mQf1iUe2b9y7Hc4Ns --outcome succeeded --reason INC-4711",
    )
    actions = command.add_subparsers(required=True, metavar="ACTION", dest="action")
    listing.add_ls(actions, "entries of the ledger", [str(state) for state in OperationState])
    listing.add_show(actions)
    resolve = actions.add_parser(
        "resolve",
        help="say what became of an unknown one",
        description="Says what became of an operation whose outcome is unknown, for good. Nothing is sent anywhere; "
        "find out first, where the tool acts, what happened.",
    )
    listing.add_id(resolve)
    resolve.add_argument("--outcome", choices=("succeeded", "failed"), required=True, help="what became of it")
    resolve.add_argument("--reason", metavar="TEXT", required=True, help="how that is known, for the record")
    options(resolve, acts=True)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status as for all commands that ask a gateway: 0 done, 1 not done, 2 an unusable option."""
    if arguments.action == "resolve":
        path = place("ledger", arguments.id, "resolve")
        body = {"outcome": arguments.outcome, "reason": arguments.reason, "by": arguments.by}
        return ask(arguments, lambda remote: listing.tell(arguments, remote.post(path, body)))
    return ask(arguments, lambda remote: _ACTIONS[arguments.action](arguments, remote, "ledger"))
