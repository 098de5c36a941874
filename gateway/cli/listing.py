"""`ls` of tasks and of the ledger, and `show`."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.cli.printing import age, as_json, facts, table
from gateway.cli.remote import Remote, name, options, place

_PAGE: Final = 500
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TITLES: Final = ("ID", "UPSTREAM/TOOL", "TASK", "OPERATION", "OUTCOME", "AGE", "CHANGED", "TENANT", "SUBJECT")


def add_ls(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", what: str, states: Sequence[str]) -> None:
    """The subcommand `ls`."""
    command = commands.add_parser("ls", help=f"list {what}", description=f"Lists {what}, task and outcome in a row.")
    command.add_argument("--state", choices=states, help="only those in this state")
    command.add_argument("--upstream", metavar="NAME", help="only those at this upstream")
    command.add_argument("--older-than", metavar="AGE", type=_age, help="last changed so long ago: 90s, 10m, 2h, 7d")
    command.add_argument("--limit", metavar="N", type=_limit, default=100, help="about so many (100)")
    command.add_argument("--cursor", metavar="C", help="go on where an earlier list ended")
    options(command)


def add_show(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommand `show`."""
    command = commands.add_parser("show", help="show one in full", description="Shows one in full, arguments excepted.")
    add_id(command)
    options(command)


def add_id(command: argparse.ArgumentParser) -> None:
    """The argument that names an entry."""
    command.add_argument("id", metavar="ID", type=name, help="as `ls` shows it, or the task id alone")


def ls(arguments: argparse.Namespace, remote: Remote, path: str) -> int:
    """Prints the list. A gateway looks through a bounded part at a time, so it is asked until there is enough."""
    query = {"state": arguments.state, "upstream": arguments.upstream, "older_than_s": arguments.older_than}
    entries: list[Mapping[str, Any]] = []
    cursor, now_ms = arguments.cursor, 0
    while len(entries) < arguments.limit:
        left = min(_PAGE, arguments.limit - len(entries))
        page = remote.get(place(path), {**query, "limit": left, "cursor": cursor})
        entries += page["entries"]
        cursor, now_ms = page["cursor"], page["now_ms"]
        if cursor is None:
            break
    if arguments.json:
        print(as_json({"entries": entries, "cursor": cursor}))
        return 0
    print(table(_TITLES, [_row(entry, now_ms) for entry in entries]))
    if cursor is not None:
        print(f"there may be more: --cursor {cursor}", file=sys.stderr)
    return 0


def show(arguments: argparse.Namespace, remote: Remote, path: str) -> int:
    """Prints one entry."""
    return tell(arguments, remote.get(place(path, arguments.id)))


def tell(arguments: argparse.Namespace, said: Mapping[str, Any]) -> int:
    """Prints what was said."""
    print(as_json(said) if arguments.json else facts(said))
    return 0


def _row(entry: Mapping[str, Any], now_ms: int) -> Sequence[str]:
    if "unreadable" in entry:
        return (entry["id"], entry["unreadable"], *[""] * 7)
    return (
        entry["id"],
        f"{entry['upstream']}/{entry['tool']}",
        entry["task"] or "expired",
        entry["operation"],
        entry["outcome"] or "-",
        age(entry["created_ms"], now_ms),
        age(entry["updated_ms"], now_ms),
        entry["owner"]["tenant"] or "-",
        entry["owner"]["subject"] or "-",
    )


def _age(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError("must be a number with s, m, h or d, such as 90s or 7d")
    return int(found[1]) * _SECONDS[found[2]]


def _limit(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a number of 1 or more")
    return int(text)
