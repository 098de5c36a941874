"""Reads the command line. Exit status 0: done; 1: failed; 2: the command line or the configuration is wrong."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway import __version__
from gateway.cli import check, drain, erase, explain, ledger, serve, stdio, switch, tasks, token
from gateway.cli.remote import spaced

_LISTEN = "127.0.0.1:8080"
_ADMIN = "127.0.0.1:8081"
_CUT_OFF = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command."""
    parsed = parser().parse_args(spaced(sys.argv[1:] if arguments is None else arguments))
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has left, such as `head`. What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CUT_OFF
    return status


def parser() -> argparse.ArgumentParser:
    """Every command with its options."""
    top = argparse.ArgumentParser(
        prog="mcp-task-gateway",
        description="A reverse proxy that gives MCP servers durable tasks, in both dialects, without changing them.",
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _serve(commands)
    _stdio(commands)
    _check(commands)
    _explain(commands)
    _token(commands)
    for module in (tasks, ledger, switch, drain, erase):
        module.add(commands)
    return top


def _serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Runs the gateway from a config file, or in front of one server: with the embedded store, on "
        "loopback addresses only, without authentication.",
        usage="%(prog)s [-h] (--config FILE | [OPTIONS] --upstream URL | [OPTIONS] -- COMMAND [ARG ...])",
        epilog="example: mcp-task-gateway serve --upstream http://127.0.0.1:9000/mcp --policy policies/example.toml; "
        "or: mcp-task-gateway serve --policy policies/example.toml --env API_TOKEN -- npx -y some-mcp-server",
    )
    _source(command)
    command.add_argument("--listen", metavar="HOST:PORT", help=f"without --config: the front door (default {_LISTEN})")
    command.add_argument("--admin", metavar="HOST:PORT", help=f"without --config: health, metrics (default {_ADMIN})")
    command.add_argument(
        "--data", metavar="DIR", help="without --config: where the embedded store keeps its files (./data)"
    )
    command.set_defaults(run=serve.run, name=stdio.NAME)


def _stdio(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "stdio",
        help="run the gateway for the client that starts it, over standard input and output",
        description="Runs the gateway in front of one server and speaks MCP over its standard streams, for clients "
        "that start servers themselves. Ends when its input does. Logs go to standard error.",
        usage="%(prog)s [-h] (--config FILE [OPTIONS] | [OPTIONS] --upstream URL | [OPTIONS] -- COMMAND [ARG ...])",
        epilog="example: mcp-task-gateway stdio --policy policies/example.toml --env API_TOKEN -- npx -y "
        "some-mcp-server",
    )
    _source(command)
    command.add_argument(
        "--name",
        metavar="NAME",
        help="with --config: which upstream (the first one); else what it is called (upstream)",
    )
    command.add_argument("--admin", metavar="HOST:PORT", help="health and metrics on a loopback address (nowhere)")
    command.add_argument(
        "--data",
        metavar="DIR",
        help="without --config: where the embedded store keeps its files (one of its own for each server, below "
        "$XDG_STATE_HOME or ~/.local/state)",
    )
    command.set_defaults(run=stdio.run, listen=None)


def _source(command: argparse.ArgumentParser) -> None:
    """The three ways to say what the gateway stands in front of."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="FILE", help="config.toml with everything in it")
    source.add_argument("--upstream", metavar="URL", help="one MCP server over streamable HTTP or HTTP+SSE")
    source.add_argument(
        "command",
        nargs="*",
        default=(),
        metavar="COMMAND",
        help="a program that serves MCP over its standard streams",
    )
    command.add_argument("--policy", type=Path, metavar="FILE", help="without --config: the server's policy file")
    command.add_argument(
        "--env", action="append", metavar="NAME", help="with COMMAND: a variable that it gets; may be repeated"
    )


def _check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "check",
        help="validate config and policies; reaches nothing",
        description="Prints every problem as file:line: key: message and exits with 2, or says that all is well.",
        epilog="example: mcp-task-gateway check --config config.toml",
    )
    command.add_argument("--config", type=Path, metavar="FILE", required=True)
    command.set_defaults(run=check.run)


def _explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "explain",
        help="show how a tool is served, and which rule says so",
        description="Prints the decision for each kind of caller, the limits that apply, and the rule they come from.",
        epilog="example: mcp-task-gateway explain --config config.toml --upstream reports --tool build_report",
    )
    command.add_argument("--config", type=Path, metavar="FILE", required=True)
    command.add_argument("--upstream", metavar="NAME", required=True)
    command.add_argument("--tool", metavar="NAME", required=True)
    command.set_defaults(run=explain.run)


def _token(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "token",
        help="make a signed token for development",
        description="Prints a token, and on standard error the [auth] section that accepts it. Its key is made once.",
        epilog="example: mcp-task-gateway token --subject ada --tenant lab --scopes reports:run",
    )
    command.add_argument("--subject", metavar="S", required=True, help="who the token names")
    command.add_argument("--tenant", metavar="T", required=True, help="the tenant that it names")
    command.add_argument("--scopes", metavar="A,B", default="", help="what it allows (nothing)")
    command.add_argument("--issuer", metavar="I", default=token.ISSUER, help=f"its issuer ({token.ISSUER})")
    command.add_argument("--audience", metavar="URL", default=token.AUDIENCE, help=f"for whom ({token.AUDIENCE})")
    command.add_argument("--ttl-s", metavar="N", type=int, default=token.TTL_S, help=f"seconds ({token.TTL_S})")
    command.add_argument("--key", metavar="FILE", type=Path, default=token.KEY, help=f"the private key ({token.KEY})")
    command.set_defaults(run=token.run)
