"""Install and upgrade: bring the schema in a database to the version of the SQL files, or fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import sql
from notifyq.errors import (
    AccessDeniedError,
    NotifyqError,
    SchemaError,
    SchemaMissingError,
    SchemaTooOldError,
)
from notifyq.schema.files import BEGIN, GIVE_WAY, LOCK, Files, plan, relative, script, sql_root
from notifyq.schema.state import check_rights, look

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from notifyq.database.pool import Connection
    from notifyq.schema.state import State

    _Choose = Callable[[Files, State], list[Path]]
    Note = Callable[[Connection, "Report"], Awaitable[None]]
    """What is done in the same transaction, with what it did."""

__all__ = [
    "Report",
    "adopt",
    "install",
    "installed_version",
    "plan",
    "script",
    "sql_root",
    "upgrade",
]

# Errors that are not the file's: they speak for themselves, or another attempt may succeed.
_NOT_THE_FILE = (
    NotifyqError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
)

_PAUSES = (0.1, 0.2, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0)
"""Seconds between the attempts to lock tables that others use; each keeps them waiting shortly."""

# Equal before and after: every function is what it was.
_CODE = """
select md5(string_agg(
  concat(pg_get_functiondef(p.oid), p.proacl, obj_description(p.oid, 'pg_proc')), '' order by p.oid
))
from pg_proc as p
join pg_namespace as n on n.oid = p.pronamespace and n.nspname in ('messages', 'notifyq')
where p.prokind in ('f', 'p')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an installation or an upgrade did."""

    database: str
    server: str
    """Host and port as the server sees them."""
    before: int | None
    """The version that was installed before; None where there was none."""
    version: int
    is_changed: bool
    """Whether the version or any function is another one than before."""
    files: tuple[Path, ...]
    is_foreign: bool
    """Whether the database came from another server, and positions are refused."""
    notices: tuple[str, ...]
    """What the server said, one line each."""


async def installed_version(connection: Connection) -> int | None:
    """Return the version of the schema in this database; None: it is not installed."""
    version: int | None = (await look(connection))["installed"]
    return version


async def install(
    connection: Connection, root: Path | None = None, *, note: Note | None = None
) -> Report:
    """Install the schema; over the same version, run its files again."""
    return await _persist(connection, Files.find(root), _choose_install, note)


async def upgrade(
    connection: Connection, root: Path | None = None, *, note: Note | None = None
) -> Report:
    """Bring the schema to this version: the migrations that it lacks, then all code again."""
    return await _persist(connection, Files.find(root), _choose_upgrade, note)


async def adopt(connection: Connection) -> bool:
    """Take over a database that came from another server. False: it was not.

    What was archived there counts as seen; positions that were taken there are refused.
    """
    return bool(await connection.fetchval(sql.ADOPT))


def _choose_install(files: Files, state: State) -> list[Path]:
    if (version := state["installed"]) is not None and files.is_newer_than(version):
        raise SchemaTooOldError(
            f"version {version} is installed, this notifyq needs {files.version}: "
            "run `notifyq migrate`"
        )
    return list(files.init)


def _choose_upgrade(files: Files, state: State) -> list[Path]:
    if (version := state["installed"]) is None:
        raise SchemaMissingError(
            f"schema messages is not installed in database {state['database']}: run `notifyq init`"
        )
    for step in files.pending(version):
        if step.needs_superuser and not state["is_superuser"]:
            raise AccessDeniedError(
                f"{step.path.name} needs a superuser, and {state['role']} is none: "
                "let one run what `notifyq migrate --sql` prints"
            )
    return files.plan(version)


async def _persist(
    connection: Connection, files: Files, choose: _Choose, note: Note | None
) -> Report:
    for attempt, pause in enumerate((*_PAUSES, None)):
        try:
            return await _run(connection, files, choose, note, attempt)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if pause is None:
                raise SchemaError(
                    f"{error.args[0]}: a long transaction uses the tables of schema messages, or "
                    "another upgrade goes on, see pg_stat_activity; nothing was changed"
                ) from error
            await asyncio.sleep(pause)
    raise AssertionError  # the last attempt returns or raises; this line tells the type checker


async def _run(
    connection: Connection, files: Files, choose: _Choose, note: Note | None, attempt: int
) -> Report:
    notices: list[str] = []

    def hear(_: object, message: asyncpg.PostgresLogMessage) -> None:
        fields = message.as_dict()
        # A notice with a code says that something is there already; ours have none.
        if fields.get("severity_en") == "WARNING" or fields.get("sqlstate") == "00000":
            notices.append(fields["message"])

    connection.add_log_listener(hear)
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(BEGIN)
            state = await look(connection)
            paths = choose(files, state)
            check_rights(state)
            if attempt % 2 and files.pending(state["installed"] or files.version):
                await connection.execute(LOCK)
            before = await connection.fetchval(_CODE)
            for path in paths:
                await _execute(connection, path, files.text(path))
            after = await connection.fetchval(_CODE)
            is_foreign = await connection.fetchval(sql.IS_FOREIGN)
            report = Report(
                database=state["database"],
                server=state["server"],
                before=state["installed"],
                version=files.version,
                is_changed=before != after or state["installed"] != files.version,
                files=tuple(paths),
                is_foreign=is_foreign,
                notices=tuple(dict.fromkeys(notices)),
            )
            if note is not None:
                await note(connection, report)
            await connection.execute(GIVE_WAY)
    finally:
        connection.remove_log_listener(hear)
    return report


async def _execute(connection: Connection, path: Path, text: str) -> None:
    try:
        await connection.execute(text)
    except _NOT_THE_FILE:
        raise
    except asyncpg.PostgresError as error:
        line = text.count("\n", 0, int(error.position)) + 1 if error.position else None
        name = relative(path)
        where = f"{name}, line {line}" if line else name
        what = f"{where}: {error.args[0]}; nothing was changed"
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            raise AccessDeniedError(
                f"{what}: run as a superuser, or as who installed it"
            ) from error
        raise SchemaError(what) from error
