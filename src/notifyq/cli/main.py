"""The command `notifyq`: its subcommands, and how errors leave it."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import traceback
from itertools import chain
from typing import Any

import asyncpg
import typer

from notifyq import __version__
from notifyq.cli import (
    archive,
    audit,
    bench,
    broker,
    chaos,
    dashboard,
    dead,
    demo,
    doctor,
    importing,
    messages,
    metrics,
    publish,
    queues,
    relay,
    report,
    schedules,
    schema,
    server,
    spark,
    stream,
    top,
    worker,
)
from notifyq.cli.arguments import refuse_blanks, with_dsn
from notifyq.cli.command import open_database, sync
from notifyq.cli.hints import advised
from notifyq.cli.logs import mask_logs
from notifyq.cli.options import DsnOption
from notifyq.cli.output import err, out, printable
from notifyq.database.statements import SESSION
from notifyq.errors import DatabaseError, NotifyqError, ServerError
from notifyq.server.signals import unwinding

# Typer uses the click that is installed or a copy of its own: the class comes from the right one.
UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

_INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="notifyq",
    help="A message queue that lives inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_COMMANDS: tuple[tuple[Any, ...], ...] = (
    (schema.init, schema.migrate, server.server, doctor.doctor, demo.demo, chaos.chaos),
    (bench.bench, worker.worker, metrics.metrics, broker.broker, publish.publish),
    (importing.import_, relay.relay, queues.queues, stream.stream, archive.archive),
    (archive.retention, schedules.schedules, spark.spark, dashboard.dashboard, top.top),
    (report.report, audit.audit, messages.ls, messages.show, messages.unblock, messages.cancel),
    (messages.amend, messages.parked, messages.signal, dead.dead),
)
for _command in chain.from_iterable(_COMMANDS):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command)
    else:
        app.command(_command.__name__.rstrip("_"))(_command)


def _print_version(is_given: bool) -> None:
    if is_given:
        out.print(f"notifyq {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
    dsn_file: str | None = typer.Option(
        None,
        metavar="FILE",
        help="File with the DSN, instead of --dsn, for every command that has it.",
    ),
    listen_dsn: str | None = typer.Option(
        None,
        metavar="DSN",
        help="DSN for LISTEN if the other is a pooler's, for every command that waits; "
        "else NOTIFYQ_LISTEN_DSN.",
    ),
) -> None:
    """A message queue that lives inside PostgreSQL."""


@app.command()
@sync
async def ping(
    session: str | None = typer.Option(
        None, "--as", help="Also require a session of this application_name from this host."
    ),
    dsn: DsnOption = None,
) -> None:
    """Exit 0 if the server answers: for health checks."""
    async with open_database(dsn, retry_for=0, check=False) as database:
        found = int(await database.value(SESSION, session or "notifyq"))
    if session and not found:
        err.print(f"notifyq: the server answers, but no session {session!r} comes from here")
        raise typer.Exit(1)
    out.print("ok")


def main() -> None:
    """Run the command line; an error is one line on stderr and an exit code."""
    _prepare_streams()
    mask_logs()
    args = sys.argv[1:]
    # Anywhere among the arguments: people add it to the end of the command that failed.
    debug = "--debug" in args
    with unwinding() as received:
        code = _invoke([arg for arg in args if arg != "--debug"], debug=debug)
    sys.exit(128 + received[0] if received and code == _INTERRUPTED else code)


def _prepare_streams() -> None:
    """Make all three streams usable: a shell may close them, an encoding may lack a character."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  open to the end
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")


def _invoke(args: list[str], *, debug: bool) -> int:
    """Run the command of these arguments and return the exit code of the process."""
    err.arguments = args
    try:
        return _run(args)
    except UsageError as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, typer.Abort, asyncio.CancelledError):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has ended, as `head` does.
        _close_output()
        return 0
    except Exception as error:  # noqa: BLE001  each is printed, and ends the process
        if debug:
            err.print(traceback.format_exc().rstrip())
            return 1
        if isinstance(error, OSError):
            _close_output()  # flushing to a full disk would fail again at exit
        err.print(f"notifyq: {_text(error)}")
        return 1


@functools.cache
def tree() -> Any:
    """Build the commands from their functions, once: it takes a tenth of a second."""
    return typer.main.get_command(app)


def _run(args: list[str]) -> int:
    for arg in args:
        if arg != arg.encode(errors="replace").decode():
            raise typer.BadParameter(f"the argument {arg!r} is not text in UTF-8")
    refuse_blanks(args)
    try:
        with tree().make_context("notifyq", with_dsn(args)) as context:
            context.command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    else:
        return 0
    finally:
        sys.stdout.flush()  # here, where an error can still be printed


def _close_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain_usage(error: Any) -> int:
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        err.print(error.format_message())
        return 2
    command = context.command_path if context else "notifyq"
    # pydantic's prefix
    reason = error.format_message().replace("Value error, ", "")
    err.print(f"notifyq: {printable(reason)} (see `{command} --help`)")
    return 2


def _text(error: Exception) -> str:
    """The text of an error: one line, except for a server that could not start."""
    match error:
        case ServerError():
            # The log of the server follows on more lines.
            return str(error)
        case DatabaseError():
            return _one_line(advised(error))
        case asyncpg.PostgresError(detail=str(detail)):
            return _one_line(f"the server reports: {error.args[0]}: {detail}")
        case asyncpg.PostgresError():
            return _one_line(f"the server reports: {error.args[0]}")
        case OSError(strerror=str(text)):
            return _one_line(": ".join(map(str, filter(None, (error.filename, text)))))
        case NotifyqError() | OSError() | asyncpg.DataError():
            return _one_line(str(error))
        case _:
            return _one_line(
                f"{type(error).__name__}: {error} (this is a bug in notifyq: --debug shows where)"
            )


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
