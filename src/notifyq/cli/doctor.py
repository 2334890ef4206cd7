"""`notifyq doctor`: what is wrong with the database, the server and the way to them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from notifyq.cli.arguments import dsn_source
from notifyq.cli.common import DsnOption, JsonOption, out, print_json, printable, resolve_dsn, run
from notifyq.doctor import Level, examine

if TYPE_CHECKING:
    from notifyq.doctor import Finding


def doctor(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Check the database, the server and the way to them; exit code 1 if a check fails."""
    failed = False

    async def check_all() -> None:
        nonlocal failed
        address = resolve_dsn(dsn)
        async for name, finding in examine(address, dsn_source(sys.argv[1:])):
            failed = failed or finding.level is Level.FAIL
            if as_json:
                print_json(
                    {
                        "check": name,
                        "level": finding.level,
                        "found": finding.found,
                        "advice": finding.advice or None,
                    }
                )
            else:
                _print(name, finding)

    run(check_all())
    if failed:
        raise typer.Exit(1)


def _print(name: str, finding: Finding) -> None:
    advice = f": {finding.advice}" if finding.advice else ""
    out.print(printable(f"{finding.level:<7} {name:<12} {finding.found}{advice}"))
