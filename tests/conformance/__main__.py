"""Judges a worker in any language: `python -m tests.conformance [OPTION]... -- COMMAND...`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from .client import BrokenRuleError
from .rules import RULES, judge


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Judge a worker by docs/guides/other-languages.md, one line for each rule.",
        epilog="exit code 0: all rules are kept; 1: at least one is broken; 2: wrong usage.",
    )
    parser.add_argument(
        "--dsn",
        default=os.environ.get("NOTIFYQ_DSN"),
        help="a database with the schema that nothing else uses, as its owner or an administrator "
        "who may end sessions (default: NOTIFYQ_DSN)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(RULES),
        metavar="RULE",
        help="judge this rule; may be repeated (default: all)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for what a rule requires (default: 30)",
    )
    parser.add_argument("--list", action="store_true", help="list the rules")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the client, after --")
    arguments = parser.parse_args()
    if not arguments.list and not (arguments.dsn and arguments.command):
        parser.error("give --dsn or set NOTIFYQ_DSN, and give the command of the client after --")
    return arguments


async def _main(arguments: argparse.Namespace) -> int:
    names = arguments.only or list(RULES)
    kept = 0
    for name in names:
        try:
            await judge(name, arguments.dsn, arguments.command, patience=arguments.patience)
        except BrokenRuleError as error:
            print(f"BROKEN  {name:<10} {error}", flush=True)
        else:
            kept += 1
            print(f"ok      {name:<10} {RULES[name].__doc__}", flush=True)
    print(f"{kept} of {len(names)} rules are kept")
    return int(kept < len(names))


def main() -> int:
    """Judge the client of the command line, and return the exit code."""
    arguments = _arguments()
    if arguments.list:
        for name, rule in RULES.items():
            print(f"{name:<10} {rule.__doc__}")
        return 0
    return asyncio.run(_main(arguments))


if __name__ == "__main__":
    sys.exit(main())
