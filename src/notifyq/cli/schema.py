"""`notifyq init` and `notifyq migrate`: install the schema in a database, and upgrade it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq import schema as runner
from notifyq.cli.command import actor, resolve_dsn, sync
from notifyq.cli.options import DsnOption, JsonOption
from notifyq.cli.output import err, out, print_json
from notifyq.config import DatabaseSettings
from notifyq.database.installs import of, schema_of
from notifyq.database.pool import connect, explaining
from notifyq.errors import SchemaMissingError
from notifyq.operations import monitor

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

# Not flag(): tests and programs call these functions, too.
SqlOption = Annotated[
    bool, typer.Option("--sql", help="Change nothing: print a script for psql that does it.")
]

_FOREIGN = (
    "this database came from another server: run `notifyq migrate --adopt` to make it one of this "
    "server; until then `notifyq dead watch` is refused"
)


@sync
async def init(dsn: DsnOption = None, sql: SqlOption = False, as_json: JsonOption = False) -> None:
    """Install the schema in a database. If it is installed, nothing changes."""
    if sql and as_json:
        raise typer.BadParameter("--sql and --json exclude each other")
    if sql:
        # Without a connection: for people who have none.
        sys.stdout.write(runner.script(None, schema=schema_of(None)))
        return
    async with _connected(dsn) as connection:
        report = await runner.install(connection, note=_noting("schema.init"))
    if report.before is None:
        done = f"schema {schema_of(None)} version {report.version} installed in {_database(report)}"
    else:
        done = _unchanged(report)
    _report(report, done, as_json=as_json)


@sync
async def migrate(
    dsn: DsnOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: list the files that would be run.")
    ] = False,
    sql: SqlOption = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Make a restored database one of this server.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upgrade the schema to the version of this notifyq.

    A database that was restored from the backup of another server has positions that mean nothing
    here: a warning reports it, and --adopt makes it one of this server.
    """
    if sql and (as_json or dry_run):
        raise typer.BadParameter("--sql excludes --json and --dry-run")
    if adopt and (sql or dry_run):
        raise typer.BadParameter("--adopt excludes --sql and --dry-run")
    async with _connected(dsn) as connection:
        if sql or dry_run:
            await _preview(connection, sql=sql, as_json=as_json)
            return
        report = await runner.upgrade(connection, note=_noting("schema.migrate"))
        is_adopted = adopt and await _adopt(connection, report)
    report = dataclasses.replace(report, is_foreign=report.is_foreign and not adopt)
    if report.before != report.version:
        done = (
            f"schema {schema_of(None)} upgraded from version {report.before} to {report.version} "
            f"in {_database(report)}"
        )
    else:
        done = _unchanged(report)
    if adopt:
        done += ", and adopted" if is_adopted else ", and adopted before"
    _report(report, done, as_json=as_json)


@asynccontextmanager
async def _connected(dsn: str | None) -> AsyncIterator[Connection]:
    address = resolve_dsn(dsn)
    timeout = DatabaseSettings.load().connect_timeout.total_seconds()
    connection = await connect(address, name="notifyq schema", timeout=timeout)
    try:
        with explaining(address):
            yield connection
    finally:
        await connection.close(timeout=5)


async def _adopt(connection: Connection, report: runner.Report) -> bool:
    async with connection.transaction():
        is_adopted = await runner.adopt(connection)
        if is_adopted:
            await monitor.note(connection, "schema.adopt", report.database, **actor())
    return is_adopted


def _noting(action: str) -> runner.Note:
    async def note(connection: Connection, report: runner.Report) -> None:
        if report.is_changed and await monitor.may_note(connection):
            versions: dict[str, Any] = {"before": report.before, "version": report.version}
            await monitor.note(connection, action, report.database, **actor(), **versions)

    return note


async def _preview(connection: Connection, *, sql: bool, as_json: bool) -> None:
    installed = await runner.installed_version(connection)
    if installed is None:
        raise SchemaMissingError(f"schema {of(connection)} is not installed: run `notifyq init`")
    files = [str(path) for path in runner.plan(installed)]
    if sql:
        sys.stdout.write(runner.script(installed, schema=of(connection)))
    elif as_json:
        print_json({"before": installed, "files": files})
    else:
        sys.stdout.writelines(f"{file}\n" for file in files)


def _report(report: runner.Report, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    for notice in report.notices:
        err.print(f"notifyq: {notice}", markup=False)
    if report.is_foreign:
        err.print(f"notifyq: {_FOREIGN}", markup=False)
    out.print(done, markup=False)


def _unchanged(report: runner.Report) -> str:
    what = "its functions were renewed" if report.is_changed else "nothing changed"
    return f"version {report.version} already installed in {_database(report)}, {what}"


def _database(report: runner.Report) -> str:
    return f"{report.database} on {report.server}"
