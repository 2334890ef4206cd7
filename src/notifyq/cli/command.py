"""What every command does: find its database, run, and note changes in the audit."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer
from typer.core import TyperGroup

from notifyq.config import DatabaseSettings, dsn_from_environment, listen_dsn_from_environment
from notifyq.database.pool import Database
from notifyq.database.retry import Patience
from notifyq.errors import ConfigurationError, DatabaseError
from notifyq.operations import monitor

if TYPE_CHECKING:
    from notifyq.database.encryption.envelopes import Keys

log = logging.getLogger("notifyq")

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound="Callable[..., Any]")


class Listing(TyperGroup):
    """A group that runs its command `ls` when its arguments begin with no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `ls` where no command is given."""
        if ctx.resilient_parsing:  # a shell that completes `notifyq queues` means the commands
            return super().parse_args(ctx, args)
        named = args and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["ls", *args])


def given_dsn(dsn: str | None) -> str | None:
    """The DSN of the option or the environment."""
    if dsn == "":
        # An unset shell variable must not lead to another database than the intended one.
        raise typer.BadParameter("--dsn is empty")
    return dsn or dsn_from_environment()


def resolve_dsn(dsn: str | None) -> str:
    """The DSN of the option, the environment, or the development server if it runs."""
    given = given_dsn(dsn)
    if given is not None:
        return given
    from notifyq.server import development

    server = development()
    if server.running is not None:
        return server.dsn
    raise ConfigurationError(
        "no database: give --dsn or --dsn-file, set NOTIFYQ_DSN or NOTIFYQ_DSN_FILE, "
        "or run `notifyq server start`"
    )


@asynccontextmanager
async def open_database(
    dsn: str | None,
    *,
    check: bool = True,
    serves: bool = False,
    keys: Keys | None = None,
    **settings: Any,
) -> AsyncIterator[Database]:
    """Open the database of a command; unless `check` is off, its schema must fit this package.

    A command that `serves` waits for an unavailable server until it gets a stop signal. With `keys`
    it encrypts and decrypts.
    """
    if not serves:
        # Somebody waits for the answer: an early error is better than one after five minutes.
        settings.setdefault("retry_for", timedelta(seconds=10))
    database = Database(
        resolve_dsn(dsn),
        listen_dsn=listen_dsn_from_environment(),
        settings=DatabaseSettings.load(**settings),
        keys=keys,
    )

    async def connect() -> None:
        async with database:
            await _check_schema(database)

    if serves:
        await _wait_for(connect, database.settings.retry_for)
    async with database:
        if check and not serves:
            await _check_schema(database)
        try:
            yield database
        except DatabaseError as error:
            from notifyq.cli.hints import add_near_names

            await add_near_names(database, error)
            raise


async def _check_schema(database: Database) -> None:
    # Imported here: `ping` starts often, and does without it.
    from notifyq.queues.admin import Admin

    await Admin(database).check_schema()


async def _wait_for(connect: Callable[[], Awaitable[None]], lasting: timedelta) -> None:
    loop = asyncio.get_running_loop()
    patience = Patience("the start", log, lasting)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, patience.stop)
    try:
        if not await patience.through(connect):
            raise typer.Exit
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def run(command: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end."""
    try:
        import uvloop
    except ImportError:  # pragma: no cover  the tests run where it has a wheel
        return asyncio.run(command)
    return uvloop.run(command)


def sync(command: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a coroutine function a command."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(command(*args, **kwargs))

    return call


class Commands(typer.Typer):
    """A group of commands, which may be coroutine functions."""

    def command(self, *args: Any, **options: Any) -> Callable[[C], C]:
        """Make the function below a command."""
        register = super().command(*args, **options)

        def decorate(function: C) -> C:
            is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
            register(sync(function) if is_async else function)
            return function

        return decorate


def actor() -> dict[str, Any]:
    """The person who runs the command, and that person's host, for a row of the audit."""
    return {"actor": monitor.login(), "origin": f"notifyq on {socket.gethostname()}"}


def noting(
    database: Database, action: str, subject: object = "", **details: Any
) -> AbstractAsyncContextManager[monitor.Action]:
    """Open a transaction that ends with a row of the audit; details that are None are left out."""
    given = {name: value for name, value in details.items() if value is not None}
    return monitor.acting(database, action, subject, **actor(), **given)


@asynccontextmanager
async def acting(
    dsn: str | None, action: str, subject: object = "", **details: Any
) -> AsyncIterator[monitor.Action]:
    """Open the database of a command and act there, as noting() does."""
    async with open_database(dsn) as database, noting(database, action, subject, **details) as act:
        yield act


async def change(
    dsn: str | None,
    action: str,
    statement: str,
    args: Sequence[Any],
    done: str,
    unchanged: str,
) -> None:
    """Run a statement that returns whether it changed something; print `done` or `unchanged`."""
    subject = " ".join(it for it in args if isinstance(it, str))
    async with acting(dsn, action, subject) as act:
        changed = bool(await act.value(statement, *args))
        act.note(changed=changed)
    typer.echo(done if changed else unchanged)
