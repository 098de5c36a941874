"""The soak: thousands of tasks over two gateway processes and one store, while processes are killed and paused.

    python -m tests.soak [--tasks N] [--seed N] [--outage SECONDS]

Before it, a store is away for 20 seconds while a hundred calls run at gateways with their defaults. At the end each
task has ended, and each that nobody knows about is listed; no call had two effects, each that was answered had one; and
no key is left that would live for ever. Prints a report, and what is wrong. Exit status 0 if nothing is.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from tests.soak.stage import LEGACY, MODERN, Call, Plan, Soak
from tests.soak.verdict import ending, verdict


async def soak(plan: Plan, folder: Path) -> tuple[dict[str, object], list[str]]:
    """One soak from beginning to end."""
    async with AsyncExitStack() as stack:
        made = Soak(folder, plan)
        await made.start(stack)
        began = time.monotonic()
        await made.run()
        report, wrong = await verdict(made)
        return {**report, "seconds": round(time.monotonic() - began)}, wrong


async def outage(folder: Path, seconds: float = 20, calls: int = 100) -> list[str]:
    """A store that is away while calls run at gateways with their defaults: what must not have become of them."""
    async with AsyncExitStack() as stack:
        made = Soak(folder, Plan(tasks=0, lease_s=None))
        await made.start(stack)
        for number in range(calls):
            call = Call(f"outage-{number}", (LEGACY, MODERN)[number % 2], "plain")
            made.calls.append(call)
            params: dict[str, object] = {"name": "charge", "arguments": {**call.arguments, "gate": "all"}}
            if call.dialect == LEGACY:
                params["task"] = {"ttl": 3_600_000}
            told = (await made.ask(call, "tools/call", params)).result
            call.task = told["task"]["taskId"] if call.dialect == LEGACY else told["taskId"]
        async with asyncio.timeout(30):
            while sum(made.bank.taken.values()) < calls:
                await asyncio.sleep(0.05)
        made.server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        made.server.process.send_signal(signal.SIGCONT)
        made.bank.open("all")
        await asyncio.gather(*(made.follow(call) for call in made.calls))
        effects = made.bank.effects()
        return [f"{call.key}: {ending(call)}" for call in made.calls if call.statuses[-1] != "completed"] + [
            f"{key}: {count} effects" for key, count in effects.items() if count != 1
        ]


def main() -> int:
    """Prints a report; exit status 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outage", type=float, default=20, help="seconds; 0 leaves it out")
    options = parser.parse_args()
    wrong: list[str] = []
    if options.outage:
        with tempfile.TemporaryDirectory(prefix="mtg-soak-") as folder:
            wrong = asyncio.run(outage(Path(folder), options.outage))
        print(f"a store that was away for {options.outage:g} s with 100 calls under way: {wrong or 'all completed'}")
    if options.tasks:
        with tempfile.TemporaryDirectory(prefix="mtg-soak-") as folder:
            report, found = asyncio.run(soak(Plan(options.tasks, seed=options.seed), Path(folder)))
        wrong += found
        print(*(f"{name}: {value}" for name, value in report.items()), sep="\n")
    print(*wrong[:50], f"{len(wrong)} things are wrong", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
