"""`erase`: takes a person's name out of the records."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from gateway.cli.listing import tell
from gateway.cli.remote import Remote, options, place
from gateway.cli.remote import run as ask

_NOT_DONE = 1


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command."""
    command = commands.add_parser(
        "erase",
        help="take a person's name out of the records",
        description="Deletes the tasks of a subject with their results, and leaves ledger entries that name a "
        "pseudonym: what happened, when, with which tool and for which tenant stays. Work under way is cancelled "
        "first; run the command again once it has ended. What was exported to the audit sink before is not touched.",
        epilog="example: mcp-task-gateway erase --subject ada --issuer https://idp.example.com/ --tenant acme",
    )
    command.add_argument("--subject", metavar="S", required=True, help="whose records")
    command.add_argument("--issuer", metavar="I", help="of this issuer only (of all)")
    command.add_argument("--tenant", metavar="T", help="of this tenant only (of all)")
    options(command, acts=True)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status as for all commands that ask a gateway; 1 too while something of it is still under way."""
    return ask(arguments, lambda remote: _erase(arguments, remote))


def _erase(arguments: argparse.Namespace, remote: Remote) -> int:
    given = {"subject": arguments.subject, "issuer": arguments.issuer, "tenant": arguments.tenant, "by": arguments.by}
    body = {name: value for name, value in given.items() if value is not None}
    sums: dict[str, Any] = {"entries": 0, "tasks": 0, "under_way": 0}
    subjects: set[str] = set()
    part: Mapping[str, Any] = remote.post(place("erase"), body)
    while True:
        sums = {name: count + part[name] for name, count in sums.items()}
        subjects |= set(part["subjects"])
        if part["cursor"] is None:
            break
        part = remote.post(place("erase"), {**body, "cursor": part["cursor"]})
    tell(arguments, {**sums, "subjects": sorted(subjects)})
    if sums["under_way"]:
        print(f"{sums['under_way']} calls were told to stop: run this again once they have ended", file=sys.stderr)
        return _NOT_DONE
    return 0
