"""`check`: says what is wrong with a configuration before it is used."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.config.advice import advice
from gateway.config.load import Loaded, Problem, load_config
from gateway.edge.keys import key_problem

WRONG = 2
"""Exit status when the configuration is wrong."""


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 or 2."""
    loaded = load_or_report(arguments.config)
    if loaded is None:
        return WRONG
    for site in loaded.sites:
        # Of a command only the program: its arguments are nobody's business who reads the output of a check.
        where = site.upstream.url or f"the program {site.upstream.command[0]}"
        print(f"{site.upstream.name}: {where} with {site.policy.source}")
    advise(loaded, arguments.config)
    print(f"{arguments.config}: ok")
    return 0


def load_or_report(path: Path) -> Loaded | None:
    """The configuration, or None after printing every problem."""
    loaded = load_config(path, key_problem)
    if isinstance(loaded, Loaded):
        return loaded
    report(loaded)
    return None


def advise(loaded: Loaded, path: Path) -> None:
    """Prints what is accepted and had better be different, where problems are printed."""
    for line in advice(loaded.config):
        print(f"{path}: warning: {line}", file=sys.stderr)


def report(problems: Sequence[Problem]) -> None:
    """Prints problems where scripts and people look for them."""
    for problem in problems:
        print(problem, file=sys.stderr)
