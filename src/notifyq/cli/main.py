"""The command `notifyq`: its subcommands, and how errors leave it."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import traceback
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
    retention,
    schedules,
    schema,
    server,
    spark,
    stream,
    top,
    worker,
)
from notifyq.cli.arguments import refuse_blanks, with_dsn
from notifyq.cli.hints import advised
from notifyq.cli.logs import mask_logs
from notifyq.cli.output import DsnOption, err, open_database, out, printable, run
from notifyq.database.sql import SESSION
from notifyq.errors import DatabaseError, NotifyqError, ServerError
from notifyq.server.signals import unwinding

# Typer brings a copy of click along or uses the one installed; only the class tells which.
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
app.command("init")(schema.init)
app.command("migrate")(schema.migrate)
app.add_typer(server.server)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("chaos")(chaos.chaos)
app.add_typer(bench.bench)
app.command("worker")(worker.worker)
app.command("metrics")(metrics.metrics)
app.command("broker")(broker.broker)
app.command("publish")(publish.publish)
app.command("import")(importing.import_)
app.command("relay")(relay.relay)
app.add_typer(queues.queues)
app.add_typer(stream.stream)
app.add_typer(archive.archive)
app.add_typer(retention.retention)
app.add_typer(schedules.schedules)
app.add_typer(spark.spark)
app.command("dashboard")(dashboard.dashboard)
app.command("top")(top.top)
app.command("report")(report.report)
app.command("audit")(audit.audit)
app.command("ls")(messages.ls)
app.command("show")(messages.show)
app.command("unblock")(messages.unblock)
app.command("cancel")(messages.cancel)
app.add_typer(dead.dead)


def _print_version(asked: bool) -> None:
    if asked:
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
        "--dsn-file",
        metavar="FILE",
        help="File with the DSN in place of --dsn, for every command that takes that.",
    ),
    listen_dsn: str | None = typer.Option(
        None,
        "--listen-dsn",
        metavar="DSN",
        help="Where to listen if the DSN is a pooler's, for every command that waits; "
        "else NOTIFYQ_LISTEN_DSN.",
    ),
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
        async with open_database(dsn, retry_for=0, check=False) as database:
            return int(await database.value(SESSION, session or "notifyq"))

    found = run(look())
    if session and not found:
        err.print(f"notifyq: the server answers, but no session {session!r} comes from here")
        raise typer.Exit(1)
    out.print("ok")


def main() -> None:
    """Run the command line; an error is one line on stderr and an exit code."""
    _prepare_streams()
    mask_logs()
    args = sys.argv[1:]
    # Wherever it stands: people add it to the end of the command that failed.
    debug = "--debug" in args
    with unwinding() as received:
        code = _invoke([arg for arg in args if arg != "--debug"], debug=debug)
    sys.exit(128 + received[0] if received and code == _INTERRUPTED else code)


def _prepare_streams() -> None:
    """Have all three streams: a shell may close them, and an encoding may lack a character."""
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
        # The reader of our output has gone, as `head` does: nobody is left to tell.
        _close_output()
        return 0
    except Exception as error:  # noqa: BLE001  each is told, and ends the process
        if debug:
            err.print(traceback.format_exc().rstrip())
            return 1
        if isinstance(error, OSError):
            _close_output()  # what could not be written to a full disk would fail again at exit
        err.print(f"notifyq: {_text(error)}")
        return 1


@functools.cache
def tree() -> Any:
    """Build the commands from their functions: a tenth of a second, so once for all that run."""
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
        sys.stdout.flush()  # here, where an error can still be told


def _close_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain_usage(error: Any) -> int:
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        err.print(error.format_message())
        return 2
    command = context.command_path if context else "notifyq"
    # Which of its parts found the mistake is pydantic's business.
    reason = error.format_message().replace("Value error, ", "")
    err.print(f"notifyq: {printable(reason)} (`{command} --help` tells more)")
    return 2


def _text(error: Exception) -> str:
    """What to say about an error: one line, except of a server that could not start."""
    match error:
        case ServerError():
            # What it logged follows on lines of its own.
            return str(error)
        case DatabaseError():
            return _one_line(advised(error))
        case asyncpg.PostgresError(detail=str(detail)):
            return _one_line(f"the server says: {error.args[0]}: {detail}")
        case asyncpg.PostgresError():
            return _one_line(f"the server says: {error.args[0]}")
        case OSError(strerror=str(said)):
            return _one_line(": ".join(map(str, filter(None, (error.filename, said)))))
        case NotifyqError() | OSError() | asyncpg.DataError():
            return _one_line(str(error))
        case _:
            return _one_line(
                f"{type(error).__name__}: {error} (this should not happen: --debug tells where)"
            )


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
