"""`tasks`: looks at the tasks of a running gateway, and cancels one."""

import argparse

from gateway.cli import listing
from gateway.cli.remote import options, place
from gateway.cli.remote import run as ask
from gateway.core.model import TaskState

_ACTIONS = {"ls": listing.ls, "show": listing.show}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its subcommands."""
    command = commands.add_parser(
        "tasks",
        help="list, show or cancel tasks of a running gateway",
        description="Asks the admin listener of a running gateway about tasks, whoever they belong to.",
        epilog="example: mcp-task-gateway tasks ls --state working --older-than 10m; "
        "or: mcp-task-gateway tasks show jGxqvXlZ6xr0Zk3mQf1iUe2b9y7Hc4Ns; "
        "or: mcp-task-gateway tasks cancel jGxqvXlZ6xr0Zk3mQf1iUe2b9y7Hc4Ns --by ada",
    )
    actions = command.add_subparsers(required=True, metavar="ACTION", dest="action")
    listing.add_ls(actions, "tasks", [str(state) for state in TaskState])
    listing.add_show(actions)
    cancel = actions.add_parser("cancel", help="cancel one, as its client would", description="Cancels a task.")
    listing.add_id(cancel)
    options(cancel, acts=True)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status as for all commands that ask a gateway: 0 done, 1 not done, 2 an unusable option."""
    if arguments.action == "cancel":
        path, body = place("tasks", arguments.id, "cancel"), {"by": arguments.by}
        return ask(arguments, lambda remote: listing.tell(arguments, remote.post(path, body)))
    return ask(arguments, lambda remote: _ACTIONS[arguments.action](arguments, remote, "tasks"))
