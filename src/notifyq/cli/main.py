"""The command `notifyq`: its subcommands, and how errors leave it."""

import functools
import importlib
import inspect
import keyword
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from notifyq import __version__
from notifyq.cli.arguments import refuse_blanks, running, with_dsn
from notifyq.printable import printable, printable_lines
from notifyq.signals import unwinding

# Typer uses the click that is installed or a copy of its own: the class comes from the right one.
UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

_INTERRUPTED = 128 + signal.SIGINT

COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Run": {
        "worker": ("worker", "Handle messages until SIGTERM or SIGINT."),
        "publish": ("publish", "Publish a message, or each line of standard input."),
        "broker": ("broker", "Call the registered procedures of the database."),
        "relay": ("relay", "Move messages between databases and message brokers."),
        "signal": ("messages", "Send a signal to the handlers that wait for it."),
    },
    "Look": {
        "top": ("top", "Watch queues, workers, dead messages and streams live."),
        "ls": ("messages", "List live or finished messages."),
        "show": ("messages", "Show one message, its steps, attempts and logs."),
        "parked": ("messages", "List messages that wait for a sleep or a signal."),
        "dashboard": ("dashboard", "Serve queues, messages and workers as web pages."),
        "metrics": ("metrics", "Serve the metrics of the database for Prometheus."),
        "report": ("report", "Write a report on throughput, times and failures."),
        "audit": ("audit", "List changes and the people who made them."),
        "mcp": ("mcp", "Serve queues and messages to an agent, over stdio."),
        "ping": ("ping", "Exit 0 if the server answers: for health checks."),
    },
    "Fix": {
        "doctor": ("doctor", "Check the database, the server and the way to them."),
        "dead": ("dead", "List (ls), show, retry and delete dead messages."),
        "cancel": ("messages", "Reject messages that no worker handles yet."),
        "run-now": ("messages", "Make scheduled messages due."),
        "move": ("messages", "Move messages that no worker handles to another queue."),
        "amend": ("messages", "Change messages that no worker handles."),
        "forget": ("forget", "Delete what messages of a key have left anywhere."),
        "unblock": ("messages", "Hand out messages without those they wait for."),
    },
    "Set up": {
        "init": ("schema", "Install the schema in a database."),
        "migrate": ("schema", "Upgrade the schema to the version of this notifyq."),
        "roles": ("roles", "List (ls) and create logins, one for each duty."),
        "queues": ("queues", "List (ls), create, change, pause and drop queues."),
        "rekey": ("rekey", "Encrypt again what older keys have encrypted."),
        "stream": ("stream", "List (ls), create, change and drop streams; subscribe."),
        "schedules": ("schedules", "List (ls) and change what is published by the clock."),
        "retention": ("archive", "List (ls) and change how long the archive keeps what."),
        "server": ("server", "Start and stop a private PostgreSQL for development."),
    },
    "Move": {
        "archive": ("archive", "Export finished messages into files."),
        "import": ("importing", "Move the messages of another PostgreSQL queue here."),
        "spark": ("spark", "Move the archive to a lake and back."),
    },
    "Try": {
        "demo": ("demo", "Index Python's standard library with messages."),
        "bench": ("bench", "Measure notifyq and other queues on one server."),
        "chaos": ("chaos", "Inject faults and prove that no message is lost."),
    },
}
"""The commands by their purpose: the module of each in this package, and its line in the help."""

_MODULES = {name: it[0] for group in COMMANDS.values() for name, it in group.items()}


class _Commands(Mapping[str, Any]):
    """The commands by name: the module of a command is imported when the command is used."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, _MODULES[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


def _console() -> Any:
    """Return the console for errors; the help and the version do without what this imports."""
    from notifyq.cli.output import err

    return err


def _load(name: str, module: str) -> Any:
    from notifyq.cli.logs import mask_logs

    mask_logs()
    attribute = f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")
    function = getattr(importlib.import_module(f"notifyq.cli.{module}"), attribute)
    parent = typer.Typer(rich_markup_mode=None, add_completion=False)
    if inspect.iscoroutinefunction(function):
        from notifyq.cli.command import sync

        function = sync(function)
    if isinstance(function, typer.Typer):
        parent.add_typer(function)
    else:
        parent.command(name)(function)
    group: Any = typer.main.get_group(parent)
    return group.commands[name]


class _Root(TyperGroup):
    """The command `notifyq`; its help lists the commands without importing them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the help."""
        return list(self.commands)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the name of a command; none of them is imported for its line of help."""
        whole, lines = self.commands, [it for group in COMMANDS.values() for it in group.items()]
        self.commands = {name: TyperCommand(name, help=text) for name, (_, text) in lines}
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = whole

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by their purpose."""
        for purpose, commands in COMMANDS.items():
            with formatter.section(purpose):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


app = typer.Typer(
    name="notifyq",
    cls=_Root,
    help="A message queue that lives inside PostgreSQL.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"notifyq {__version__}")
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
    schema: str | None = typer.Option(
        None,
        metavar="NAME",
        help="Schema of the install, for every command; else NOTIFYQ_SCHEMA, else messages.",
    ),
) -> None:
    """A message queue that lives inside PostgreSQL."""


def main() -> None:
    """Run the command line; an error is one line on stderr and an exit code."""
    _prepare_streams()
    if "_NOTIFYQ_COMPLETE" in os.environ:  # a shell, after its Tab
        tree().main(prog_name="notifyq")
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
    running[:] = args
    try:
        return _run(args)
    except UsageError as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, typer.Abort, _cancelled()):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has ended, as `head` does.
        _close_output()
        return 0
    except Exception as error:  # noqa: BLE001  each is printed, and ends the process
        if debug:
            _console().print(printable_lines(traceback.format_exc().rstrip()))
            return 1
        if isinstance(error, OSError):
            _close_output()  # flushing to a full disk would fail again at exit
        from notifyq.cli.hints import text_of

        _console().print(f"notifyq: {text_of(error)}")
        return 1


def _cancelled() -> type[BaseException]:
    """Return asyncio.CancelledError; called only once an error is there."""
    import asyncio

    return asyncio.CancelledError


@functools.cache
def tree() -> Any:
    """Build the command `notifyq`, once."""
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
        _console().print(error.format_message())
        return 2
    command = context.command_path if context else "notifyq"
    # pydantic's prefix
    reason = error.format_message().replace("Value error, ", "")
    option = getattr(error, "option_name", None)
    if option in {"--dsn", "--json"} and context is not None and context.parent is None:
        reason = f"{option} stands behind the command, as in `notifyq ls {option}`"
    elif "unexpected extra argument" in reason and any(
        "--queue" in parameter.opts for parameter in context.command.params
    ):
        reason += ": a queue is named by --queue"
    _console().print(f"notifyq: {printable(reason)} (see `{command} --help`)")
    return 2
