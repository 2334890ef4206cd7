"""The command `notifyq`: its subcommands, and how errors leave it."""

from __future__ import annotations

import asyncio
import os
import sys

import typer

from notifyq import __version__
from notifyq.cli import (
    dead,
    demo,
    messages,
    publish,
    queues,
    schema,
    server,
    worker,
)
from notifyq.cli.common import DsnOption, err, open_database, out, run
from notifyq.errors import DatabaseError, NotifyqError, ServerError
from notifyq.sql import SESSION

# Typer brings a copy of click along or uses the one installed; only the class tells which.
UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

app = typer.Typer(
    name="notifyq",
    help="A message queue that lives inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("init")(schema.init)
app.command("migrate")(schema.migrate)
app.add_typer(server.server)
app.command("demo")(demo.demo)
app.command("worker")(worker.worker)
app.command("publish")(publish.publish)
app.add_typer(queues.queues)
app.command("ls")(messages.ls)
app.command("show")(messages.show)
app.command("cancel")(messages.cancel)
app.add_typer(dead.dead)


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
) -> None:
    """A message queue that lives inside PostgreSQL."""


@app.command()
def ping(
    session: str | None = typer.Option(
        None, "--as", help="Also require a session of this application_name from this host."
    ),
    dsn: DsnOption = None,
) -> None:
    """Exit 0 if the server answers: for health checks."""

    async def look() -> int:
        async with open_database(dsn, retry_for=0) as database:
            return int(await database.value(SESSION, session or "notifyq"))

    if session and not run(look()):
        err.print(f"the server answers, but no session {session!r} comes from here")
        raise typer.Exit(1)
    if not session:
        run(look())
    out.print("ok")


def main() -> None:
    """Run the command line; an error is one line on stderr and an exit code."""
    args = sys.argv[1:]
    if args == ["--version"]:
        out.print(f"notifyq {__version__}")
        sys.exit(0)
    # Wherever it stands: people add it to the end of the command that failed.
    debug = "--debug" in args
    sys.exit(_invoke([arg for arg in args if arg != "--debug"], debug=debug))


def _invoke(args: list[str], *, debug: bool) -> int:
    command = typer.main.get_command(app)
    try:
        return int(command.main(args, prog_name="notifyq", standalone_mode=False) or 0)
    except typer.Exit as stop:
        return stop.exit_code
    except UsageError as error:
        err.print(f"notifyq: {_one_line(error)} (`notifyq --help` tells more)", markup=False)
        return 2
    except (KeyboardInterrupt, typer.Abort, asyncio.CancelledError):
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does: nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except NotifyqError as error:
        if debug:
            raise
        # What the server logged when it could not start follows on lines of its own.
        text = str(error) if isinstance(error, ServerError) else _one_line(error)
        err.print(f"notifyq: {text}", markup=False)
        return 1


def _one_line(error: Exception) -> str:
    if isinstance(error, DatabaseError):
        hint = f": {error.hint}" if error.hint else ""
        return f"{error.args[0]}{hint}"
    if isinstance(error, UsageError):
        return str(error.format_message())  # type: ignore[attr-defined]
    return " ".join(str(error).split())
