"""`switch`: blocks new starts on every gateway at a store, and says which are blocked."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cli.printing import age, as_json, table
from gateway.cli.remote import Remote, options, place
from gateway.cli.remote import run as ask

_TITLES = ("SCOPE", "STARTS", "SINCE", "BY", "REASON")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its subcommands."""
    command = commands.add_parser(
        "switch",
        help="block new starts on every gateway, or allow them again",
        description="The kill switch. While one is on, new calls in its scope are refused and planned ones wait, on "
        "every gateway at the store. What runs goes on, and so do calls of tools that are never tasks.",
        epilog="example: mcp-task-gateway switch on --all --reason INC-4711 --by ada; "
        "or: mcp-task-gateway switch on --tool reports/charge --reason INC-4711; "
        "or: mcp-task-gateway switch on --tenant https://idp.example.com/ acme --reason INC-4711; "
        "or: mcp-task-gateway switch off --all --reason over; "
        "or: mcp-task-gateway switch status",
    )
    actions = command.add_subparsers(required=True, metavar="ACTION", dest="action")
    for name, does in (("on", "block new starts"), ("off", "allow them again, as far as no other switch is on")):
        _add_change(actions.add_parser(name, help=does, description=f"{does.capitalize()}."))
    options(actions.add_parser("status", help="show all switches", description="Shows all switches that were set."))
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status as for all commands that ask a gateway: 0 done, 1 not done, 2 an unusable option."""
    return ask(arguments, lambda remote: _told(arguments, _asked(arguments, remote)))


def _add_change(command: argparse.ArgumentParser) -> None:
    scope = command.add_mutually_exclusive_group(required=True)
    scope.add_argument("--all", action="store_true", help="of everything")
    scope.add_argument("--upstream", metavar="NAME", help="at this upstream")
    scope.add_argument("--tool", metavar="UPSTREAM/TOOL", type=_tool, help="of this tool")
    scope.add_argument("--tenant", metavar=("ISSUER", "TENANT"), nargs=2, help="of this tenant, at all upstreams")
    command.add_argument("--reason", metavar="TEXT", required=True, help="why, for the record")
    options(command, acts=True)


def _asked(arguments: argparse.Namespace, remote: Remote) -> Mapping[str, Any]:
    if arguments.action == "status":
        return remote.get(place("switch"))
    body = {"on": arguments.action == "on", "reason": arguments.reason, "by": arguments.by}
    return remote.post(place("switch"), {**body, **_scope(arguments)})


def _scope(arguments: argparse.Namespace) -> Mapping[str, object]:
    if arguments.all:
        return {"all": True}
    if arguments.tenant:
        return {"issuer": arguments.tenant[0], "tenant": arguments.tenant[1]}
    upstream, tool = arguments.tool or (arguments.upstream, None)
    return {"upstream": upstream, **({} if tool is None else {"tool": tool})}


def _told(arguments: argparse.Namespace, said: Mapping[str, Any]) -> int:
    if arguments.json:
        print(as_json({"switches": said["switches"]}))
    else:
        print(table(_TITLES, [_row(one, said["now_ms"]) for one in said["switches"]]))
    return 0


def _row(switch: Mapping[str, Any], now_ms: int) -> Sequence[str]:
    scope = f"tenant:{switch['issuer']} {switch['tenant']}" if switch["tenant"] else switch["scope"]
    state = "blocked" if switch["on"] else "allowed"
    if not switch["readable"]:
        return (scope, state, "-", "-", "the record is not there or cannot be read: set it with on or off")
    return (scope, state, age(switch["at_ms"], now_ms), switch["by"], switch["reason"])


def _tool(text: str) -> tuple[str, str]:
    upstream, _, tool = text.partition("/")
    if not upstream or not tool:
        raise argparse.ArgumentTypeError("must be UPSTREAM/TOOL")
    return upstream, tool
