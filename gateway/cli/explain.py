"""`explain`: how a tool is served, and why."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping

from gateway.cli.check import WRONG, load_or_report
from gateway.policy.decide import Ask

_SHOWN = (
    "task_support",
    "effect",
    "ttl_min_s",
    "ttl_default_s",
    "ttl_max_s",
    "keep_result_s",
    "deadline_s",
    "inline_ms",
    "input_phase",
    "input_timeout_s",
    "assume_elicitation",
    "sync_timeout_s",
    "poll_interval_ms",
    "on_lost",
    "on_switch",
    "resend_on_session_404",
    "max_concurrent_per_principal",
    "max_concurrent_per_tenant",
    "max_concurrent_upstream",
    "max_arguments_bytes",
    "max_result_bytes",
)


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0, or 2 when the configuration is wrong or has no such upstream."""
    loaded = load_or_report(arguments.config)
    if loaded is None:
        return WRONG
    found = [site for site in loaded.sites if site.upstream.name == arguments.upstream]
    if not found:
        names = ", ".join(site.upstream.name for site in loaded.sites)
        print(f"no upstream is named {arguments.upstream}; there are: {names}", file=sys.stderr)
        return WRONG
    policy = found[0].policy
    settings, rule = policy.settings(arguments.tool)
    print(f"{arguments.upstream}/{arguments.tool}: {rule}")
    for ask in Ask:
        decision = policy.decide(arguments.tool, ask)
        print(f"  {ask}: {decision.mode}{f' ({decision.reason})' if decision.reason else ''}")
    for name in _SHOWN:
        print(f"  {name} = {_written(getattr(settings, name))}")
    if settings.operation is not None:
        for name, value in _leaves("operation", settings.operation.model_dump()):
            print(f"  {name} = {_written(value)}")
    return 0


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Each value within, by its dotted name; what is not set has no line."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif value is not None:
        yield name, value


def _written(value: object) -> str:
    """As it would stand in the file, or nearly so."""
    return json.dumps(value, ensure_ascii=False)
