"""The arguments before a command parses them: the DSN among them, and who can read it."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import typer

running: list[str] = []
"""The arguments of the running command: what it prints on stderr hides the DSNs among them."""

_HANDED_DOWN = "_NOTIFYQ_DSN"
"""Environment variable with the --dsn of the command that started this process."""
_LISTEN_HANDED_DOWN = "_NOTIFYQ_LISTEN_DSN"

_DSN = ("--dsn", "--dsn-file")
_MAY_BE_EMPTY = {"--alerts"}
_FILES = ", a service file or ~/.pgpass"


def refuse_blanks(args: Sequence[str]) -> None:
    """Refuse an option with an empty value, as an unset variable of a shell makes it.

    Most such options would act as if not given: another database, all queues, no masks.
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
    """Replace --dsn-file by --dsn, and move --listen-dsn and --schema into the environment.

    Done before parsing: every command with --dsn takes these options, anywhere among its
    arguments. Warns of a password that everybody can read.
    """
    if found := _find(args, "--schema"):
        # For every command, and for the processes that it starts.
        os.environ["NOTIFYQ_SCHEMA"] = found.value
        args = found.others
    listen = _find(args, "--listen-dsn")
    if handed_down := os.environ.pop(_LISTEN_HANDED_DOWN, None):
        os.environ["NOTIFYQ_LISTEN_DSN"] = handed_down
    elif listen is not None:
        if not listen.value:
            raise typer.BadParameter("--listen-dsn is empty")
        instead = "NOTIFYQ_LISTEN_DSN, NOTIFYQ_LISTEN_DSN_FILE"
        warn_of_password("in --listen-dsn", listen.value, instead)
        os.environ["NOTIFYQ_LISTEN_DSN"] = listen.value
        args = listen.others
    elif _find(args, *_DSN) is not None:
        # The variables belong to the DSN of the environment, and this is another one.
        for variable in ("NOTIFYQ_LISTEN_DSN", "NOTIFYQ_LISTEN_DSN_FILE"):
            os.environ.pop(variable, None)
    return _with_dsn(args)


def _with_dsn(args: Sequence[str]) -> list[str]:
    handed_down = os.environ.pop(_HANDED_DOWN, None)
    if handed_down is not None:
        return _adding_dsn(args, handed_down)
    found = _find(args, *_DSN)
    if found is None:
        return list(args)
    if _find(found.others, *_DSN) is not None:
        raise typer.BadParameter("--dsn or --dsn-file is given twice")
    if found.option == "--dsn":
        warn_of_password("in --dsn", found.value, "--dsn-file, NOTIFYQ_DSN")
        return list(args)
    if not found.value:
        raise typer.BadParameter("--dsn-file is empty")
    from notifyq.config import dsn_from_file

    return _adding_dsn(found.others, dsn_from_file(found.value))


def warn_of_password(where: str, dsn: str, instead: str, files: str = _FILES) -> None:
    """Warn of an argument with a password: every user can list the arguments of a process."""
    # Imported here: the help does without asyncpg.
    from notifyq.dsn import has_password

    if has_password(dsn):
        typer.echo(
            f"notifyq: every user of this machine can read the password {where}, in the list of "
            f"processes: use {instead}{files}",
            err=True,
        )


def handing_down_dsn(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments for a child process without DSNs, and the environment that carries those."""
    left, handed_down = list(args), {}
    for option, variable in (("--dsn", _HANDED_DOWN), ("--listen-dsn", _LISTEN_HANDED_DOWN)):
        if found := _find(left, option):
            handed_down[variable], left = found.value, found.others
    return left, handed_down


def listen_dsn_option(args: Sequence[str]) -> str | None:
    """The value of --listen-dsn, without that of the environment."""
    found = _find(args, "--listen-dsn")
    return found and found.value


def schema_option(args: Sequence[str]) -> str | None:
    """The value of --schema, without that of the environment."""
    found = _find(args, "--schema")
    return found and found.value


def dsn_source(args: Sequence[str]) -> str:
    """The option or variable that the DSN of a command with these arguments comes from."""
    if found := _find(args, *_DSN):
        return found.option
    for variable in ("NOTIFYQ_DSN", "NOTIFYQ_DSN_FILE"):
        if os.environ.get(variable):
            return variable
    return "`notifyq server start`"


def _adding_dsn(args: Sequence[str], dsn: str) -> list[str]:
    end = args.index("--") if "--" in args else len(args)
    return [*args[:end], "--dsn", dsn, *args[end:]]


class _Given(NamedTuple):
    option: str
    value: str
    others: list[str]
    """All arguments but this option and its value."""


def _find(args: Sequence[str], *options: str) -> _Given | None:
    """The first of the options that is given, with its value in the same argument or the next."""
    for index, arg in enumerate(args):
        if arg == "--":
            return None
        name, equals, value = arg.partition("=")
        if name in options:
            end = index + (1 if equals else 2)
            value = value if equals else "".join(args[index + 1 : end])
            return _Given(name, value, [*args[:index], *args[end:]])
    return None
