"""The arguments before any command sees them: which database they name, and who can read that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from notifyq.cli.common import err
from notifyq.config import dsn_from_file, has_password

if TYPE_CHECKING:
    from collections.abc import Sequence

_HANDED_DOWN = "_NOTIFYQ_DSN"
"""Variable of the environment with the --dsn of the command that started this process."""


def with_dsn(args: Sequence[str]) -> list[str]:
    """Put in place of --dsn-file what the file holds; warn of a password that everybody may read.

    Done here, so that every command that takes --dsn takes --dsn-file too, and wherever it stands.
    """
    handed_down = os.environ.pop(_HANDED_DOWN, None)
    if handed_down is not None:
        return _adding_dsn(args, handed_down)
    place = _dsn_place(args)
    if place is None:
        return list(args)
    if _dsn_place([*args[: place.start], *args[place.stop :]]) is not None:
        raise typer.BadParameter("--dsn or --dsn-file is given twice")
    name, _, value = "=".join(args[place]).partition("=")
    if name == "--dsn-file":
        if not value:
            raise typer.BadParameter("--dsn-file wants the name of a file")
        return _adding_dsn([*args[: place.start], *args[place.stop :]], dsn_from_file(value))
    if has_password(value):
        err.print(
            "notifyq: every user of this machine can read the password in --dsn, in the list of "
            "processes: use --dsn-file, NOTIFYQ_DSN or ~/.pgpass"
        )
    return list(args)


def handing_down_dsn(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """These arguments for another process of ours, without --dsn: that goes by the environment."""
    place = _dsn_place(args)
    if place is None or args[place.start].partition("=")[0] != "--dsn":
        return list(args), {}
    value = "=".join(args[place]).partition("=")[2]
    return [*args[: place.start], *args[place.stop :]], {_HANDED_DOWN: value}


def _adding_dsn(args: Sequence[str], dsn: str) -> list[str]:
    end = args.index("--") if "--" in args else len(args)
    return [*args[:end], "--dsn", dsn, *args[end:]]


def _dsn_place(args: Sequence[str]) -> slice | None:
    """Where --dsn or --dsn-file stands, its value included: in one argument or in two."""
    for place, arg in enumerate(args):
        if arg == "--":
            return None
        name, equals, _ = arg.partition("=")
        if name in {"--dsn", "--dsn-file"}:
            return slice(place, place + (1 if equals else 2))
    return None


def dsn_source(args: Sequence[str]) -> str:
    """Where the DSN of a command with these arguments is from, in words."""
    place = _dsn_place(args)
    if place is not None:
        return str(args[place.start]).partition("=")[0]
    for variable in ("NOTIFYQ_DSN", "NOTIFYQ_DSN_FILE"):
        if os.environ.get(variable):
            return variable
    return "`notifyq server start`"
