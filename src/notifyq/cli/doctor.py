"""`notifyq doctor`: what is wrong with the database, the server and the way to them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from notifyq.cli.arguments import dsn_source
from notifyq.cli.audited import who
from notifyq.cli.output import DsnOption, JsonOption, out, print_json, printable, resolve_dsn, run
from notifyq.config import listen_dsn_from_environment
from notifyq.errors import NotifyqError
from notifyq.operations.doctor import CHECKS, Level, examine, mend, steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.operations.doctor import Finding

_CODES = {Level.OK: 0, Level.SKIPPED: 0, Level.WARN: 1, Level.FAIL: 2}
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def doctor(
    dsn: DsnOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", help="Only this check; repeat it for more."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 for a warning, too.")] = (
        False
    ),
    nagios: Annotated[
        bool,
        typer.Option(
            "--nagios",
            help="Be a plugin of Nagios and its like: one line, and exit code 0 for ok, 1 for a "
            "warning, 2 for a failure, 3 where nothing could be seen.",
        ),
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended safely, and look again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --fix.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the database, the server and the way to them; exit code 1 if a check fails."""
    wanted = _wanted(only or [])
    if fix and nagios:
        raise typer.BadParameter("--nagios only looks: leave --fix out")
    if fix and not yes and (as_json or not sys.stdin.isatty()):
        raise typer.BadParameter("--fix asks before it changes something: give --yes, too")
    if nagios:
        _plugin(dsn, wanted)
    address = resolve_dsn(dsn)
    findings = _look(address, wanted, as_json=as_json)
    if fix and (todo := steps(findings.values())):
        _fix(address, findings, todo, yes=yes, as_json=as_json)
        again = [name for name, it in findings.items() if it.fix is not None]
        findings |= _look(address, again, as_json=as_json)
    levels = {it.level for it in findings.values()}
    if Level.FAIL in levels or (strict and Level.WARN in levels):
        raise typer.Exit(1)


def _wanted(only: Sequence[str]) -> list[str]:
    names = [name for given in only for name in given.split(",")]
    if unknown := [name for name in names if name not in CHECKS]:
        raise typer.BadParameter(f"no check {unknown[0]!r}: there are {', '.join(CHECKS)}")
    return names


def _look(address: str, only: Sequence[str], *, as_json: bool | None) -> dict[str, Finding]:
    """Look, and print each finding as it comes; as_json None: don't."""
    findings: dict[str, Finding] = {}

    async def look() -> None:
        source, listens = dsn_source(sys.argv[1:]), listen_dsn_from_environment()
        async for name, finding in examine(address, source, listens, only):
            findings[name] = finding
            if as_json:
                print_json(
                    {
                        "check": name,
                        "level": finding.level,
                        "found": finding.found,
                        "advice": finding.advice or None,
                        "fix": None if finding.fix is None else list(finding.fix.steps),
                    }
                )
            elif as_json is not None:
                _print(name, finding)

    run(look())
    return findings


def _print(name: str, finding: Finding) -> None:
    advice = f": {finding.advice}" if finding.advice else ""
    can = " (--fix does it)" if finding.fix is not None else ""
    out.print(printable(f"{finding.level:<7} {name:<12} {finding.found}{advice}{can}"))


def _fix(
    address: str, findings: dict[str, Finding], todo: list[str], *, yes: bool, as_json: bool
) -> None:
    if not yes:
        out.print("--fix does:")
        for step in todo:
            out.print(printable(f"  {step}"))
        typer.confirm("Go on?", abort=True)

    async def do() -> None:
        async for step in mend(address, findings.values(), origin=who()["origin"]):
            if as_json:
                print_json({"fixed": step})
            else:
                out.print(printable(f"fixed   {step}"))

    run(do())


def _plugin(dsn: str | None, only: Sequence[str]) -> None:
    """Print one line and exit, as Nagios and its like want it."""
    try:
        findings = _look(resolve_dsn(dsn), only, as_json=None)
    except NotifyqError as error:
        out.print(printable(f"NOTIFYQ {_WORDS[3]} - {error}"))
        raise typer.Exit(3) from None
    bad = {name: it for name, it in findings.items() if it.level in {Level.WARN, Level.FAIL}}
    code = max((_CODES[it.level] for it in findings.values()), default=0)
    if all(it.level is Level.SKIPPED for it in findings.values()):
        code = 3
    told = "; ".join(
        f"{name}: {it.found}"
        for name, it in sorted(bad.items(), key=lambda pair: -_CODES[pair[1].level])
    )
    counts = {level: sum(it.level is level for it in findings.values()) for level in Level}
    # A bar begins the numbers that are kept.
    told = (told or f"{counts[Level.OK]} checks are well").replace("|", "/")
    numbers = f"failures={counts[Level.FAIL]};;1 warnings={counts[Level.WARN]};1"
    out.print(printable(f"NOTIFYQ {_WORDS[code]} - {told} | {numbers}"))
    raise typer.Exit(code)
