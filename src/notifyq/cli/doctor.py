"""`notifyq doctor`: check the database, the server and the way to them."""

import sys
from collections.abc import Sequence

import typer

from notifyq.cli.arguments import dsn_source
from notifyq.cli.command import actor, resolve_dsn, run
from notifyq.cli.options import DsnOption, JsonOption, flag, repeated
from notifyq.cli.output import out, print_json
from notifyq.config import listen_dsn_from_environment
from notifyq.errors import NotifyqError
from notifyq.operations.doctor import CHECKS, Finding, Level, apply_fixes, examine, steps
from notifyq.printable import printable

_CODES = {Level.OK: 0, Level.SKIPPED: 0, Level.WARN: 1, Level.FAIL: 2}
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def doctor(
    dsn: DsnOption = None,
    only: list[str] | None = repeated("Only this check", "--only", metavar="CHECK"),
    strict: bool = flag("--strict", "Exit code 1 for a warning, too."),
    nagios: bool = flag(
        "--nagios",
        "Be a plugin of Nagios and similar monitors: one line, and exit code 0 for ok, 1 "
        "for a warning, 2 for a failure, 3 where nothing could be checked.",
    ),
    fix: bool = flag("--fix", "Fix what can be fixed safely, and check again."),
    yes: bool = flag("--yes", "Fix without a question."),
    as_json: JsonOption = False,
) -> None:
    """Check the database, the server and the way to them. Exit code 1 if a check fails."""
    names = _names(only or [])
    if fix and nagios:
        raise typer.BadParameter("--nagios and --fix exclude each other")
    if fix and not yes and (as_json or not sys.stdin.isatty()):
        raise typer.BadParameter("--fix needs an answer before it changes something: give --yes")
    if nagios:
        _plugin(dsn, names)
    address = resolve_dsn(dsn)
    findings = _examine(address, names, as_json=as_json)
    if fix and (todo := steps(findings.values())):
        _fix(address, findings, todo, yes=yes, as_json=as_json)
        again = [name for name, it in findings.items() if it.fix is not None]
        findings |= _examine(address, again, as_json=as_json)
    levels = {it.level for it in findings.values()}
    if Level.FAIL in levels or (strict and Level.WARN in levels):
        raise typer.Exit(1)


def _names(only: Sequence[str]) -> list[str]:
    names = [name for given in only for name in given.split(",")]
    if unknown := [name for name in names if name not in CHECKS]:
        raise typer.BadParameter(f"no check {unknown[0]!r}: there are {', '.join(CHECKS)}")
    return names


def _examine(address: str, only: Sequence[str], *, as_json: bool | None) -> dict[str, Finding]:
    """Run checks and print each finding as it comes; as_json None: print nothing."""
    findings: dict[str, Finding] = {}

    async def check() -> None:
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
                        "fix": finding.fix,
                    }
                )
            elif as_json is not None:
                advice = f": {finding.advice}" if finding.advice else ""
                can = " (--fix does it)" if finding.fix is not None else ""
                text = f"{finding.level:<7} {name:<12} {finding.found}{advice}{can}"
                out.print(printable(text))

    run(check())
    return findings


def _fix(
    address: str, findings: dict[str, Finding], todo: list[str], *, yes: bool, as_json: bool
) -> None:
    if not yes:
        out.print("--fix does:")
        for step in todo:
            out.print(printable(f"  {step}"))
        typer.confirm("Continue?", abort=True)

    async def do() -> None:
        async for step in apply_fixes(address, findings.values(), origin=actor()["origin"]):
            if as_json:
                print_json({"fixed": step})
            else:
                out.print(printable(f"fixed   {step}"))

    run(do())


def _plugin(dsn: str | None, only: Sequence[str]) -> None:
    """Print one line and exit, as monitors like Nagios expect it."""
    try:
        findings = _examine(resolve_dsn(dsn), only, as_json=None)
    except NotifyqError as error:
        out.print(printable(f"NOTIFYQ {_WORDS[3]} - {error}"))
        raise typer.Exit(3) from None
    bad = {name: it for name, it in findings.items() if it.level in {Level.WARN, Level.FAIL}}
    code = max((_CODES[it.level] for it in findings.values()), default=0)
    if all(it.level is Level.SKIPPED for it in findings.values()):
        code = 3
    worst_first = sorted(bad.items(), key=lambda pair: -_CODES[pair[1].level])
    text = "; ".join(f"{name}: {it.found}" for name, it in worst_first)
    counts = {level: sum(it.level is level for it in findings.values()) for level in Level}
    # A bar separates the text from the numbers that the monitor keeps.
    text = (text or f"{counts[Level.OK]} checks are well").replace("|", "/")
    numbers = f"failures={counts[Level.FAIL]};;1 warnings={counts[Level.WARN]};1"
    out.print(printable(f"NOTIFYQ {_WORDS[code]} - {text} | {numbers}"))
    raise typer.Exit(code)
