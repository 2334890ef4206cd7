"""The arguments before any command sees them: which database they name, and who can read that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from notifyq.cli.output import err
from notifyq.config import dsn_from_file, has_password

if TYPE_CHECKING:
    from collections.abc import Sequence

_HANDED_DOWN = "_NOTIFYQ_DSN"
"""Variable of the environment with the --dsn of the command that started this process."""
_LISTEN_HANDED_DOWN = "_NOTIFYQ_LISTEN_DSN"


_MAY_BE_EMPTY = {"--alerts"}


def refuse_blanks(args: Sequence[str]) -> None:
    """Refuse an option with nothing as its value, as an unset variable of a shell makes it.

    Most would be the same as not given: another database, all queues, no masks.
    """
    for option, value in zip(("", *args), args, strict=False):
        if value == "--":
            return
        name, equals, text = value.partition("=")
        if value.startswith("--") and equals:
            option, value = name, text  # noqa: PLW2901
        is_option = option.startswith("-") and "=" not in option
        if is_option and not value.strip() and option not in _MAY_BE_EMPTY:
            raise typer.BadParameter(f"{option} is empty")


def with_dsn(args: Sequence[str]) -> list[str]:
    """Put in place of --dsn-file what the file holds, and --listen-dsn into the environment.

    Done here, so that every command that takes --dsn takes these too, and wherever they stand.
    Warns of a password that everybody may read.
    """
    listens = _place(args, {"--listen-dsn"})
    if handed_down := os.environ.pop(_LISTEN_HANDED_DOWN, None):
        os.environ["NOTIFYQ_LISTEN_DSN"] = handed_down
        return _with_dsn(args)
    if listens is None:
        if _dsn_place(args) is not None:
            # It is beside the DSN of the environment, and this one is another.
            for variable in ("NOTIFYQ_LISTEN_DSN", "NOTIFYQ_LISTEN_DSN_FILE"):
                os.environ.pop(variable, None)
        return _with_dsn(args)
    value = "=".join(args[listens]).partition("=")[2]
    if not value:
        raise typer.BadParameter("--listen-dsn is empty")
    warn_of_password("in --listen-dsn", value, "NOTIFYQ_LISTEN_DSN, NOTIFYQ_LISTEN_DSN_FILE")
    os.environ["NOTIFYQ_LISTEN_DSN"] = value
    return _with_dsn([*args[: listens.start], *args[listens.stop :]])


def _with_dsn(args: Sequence[str]) -> list[str]:
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
            raise typer.BadParameter("--dsn-file is empty")
        return _adding_dsn([*args[: place.start], *args[place.stop :]], dsn_from_file(value))
    warn_of_password("in --dsn", value, "--dsn-file, NOTIFYQ_DSN")
    return list(args)


def warn_of_password(place: str, dsn: str, instead: str) -> None:
    """Say that an argument with a password is no secret: no process can hide its arguments."""
    if has_password(dsn):
        err.print(
            f"notifyq: every user of this machine can read the password {place}, in the list of "
            f"processes: use {instead}, a service file or ~/.pgpass"
        )


def handing_down_dsn(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """These arguments for another process of ours, without DSNs: those go by the environment."""
    left, handed_down = list(args), {}
    for option, variable in (("--dsn", _HANDED_DOWN), ("--listen-dsn", _LISTEN_HANDED_DOWN)):
        place = _place(left, {option})
        if place is not None:
            handed_down[variable] = "=".join(left[place]).partition("=")[2]
            left = [*left[: place.start], *left[place.stop :]]
    return left, handed_down


def _adding_dsn(args: Sequence[str], dsn: str) -> list[str]:
    end = args.index("--") if "--" in args else len(args)
    return [*args[:end], "--dsn", dsn, *args[end:]]


def _dsn_place(args: Sequence[str]) -> slice | None:
    return _place(args, {"--dsn", "--dsn-file"})


def _place(args: Sequence[str], options: set[str]) -> slice | None:
    """Where one of the options stands, its value included: in one argument or in two."""
    for place, arg in enumerate(args):
        if arg == "--":
            return None
        name, equals, _ = arg.partition("=")
        if name in options:
            return slice(place, place + (1 if equals else 2))
    return None


def listen_dsn_option(args: Sequence[str]) -> str | None:
    """The --listen-dsn among these arguments, as opposed to what the environment says."""
    place = _place(args, {"--listen-dsn"})
    return None if place is None else "=".join(args[place]).partition("=")[2]


def dsn_source(args: Sequence[str]) -> str:
    """Where the DSN of a command with these arguments is from, in words."""
    place = _dsn_place(args)
    if place is not None:
        return str(args[place.start]).partition("=")[0]
    for variable in ("NOTIFYQ_DSN", "NOTIFYQ_DSN_FILE"):
        if os.environ.get(variable):
            return variable
    return "`notifyq server start`"
