"""Install and upgrade the schema: run the SQL files in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import installs
from notifyq.database import statements as sql
from notifyq.errors import (
    AccessDeniedError,
    NotifyqError,
    SchemaError,
    SchemaMissingError,
    SchemaTooOldError,
)
from notifyq.schema.files import BEGIN, GIVE_WAY, LOCK, Files, plan, relative, script, sql_root
from notifyq.schema.state import check_rights, read_state

if TYPE_CHECKING:
    from notifyq.database.pool import Connection
    from notifyq.schema.state import State

    _Choose = Callable[[Files, State], list[Path]]
    Note = Callable[[Connection, "Report"], Awaitable[None]]
    """Runs in the same transaction, after the files."""

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

# Errors that are not about the text of a file; another attempt may succeed.
_NOT_THE_FILE = (
    NotifyqError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
)

_PAUSES = (0.1, 0.2, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0)
"""Seconds between the attempts to lock tables that others use; each blocks them for a moment."""

# A hash of all functions: equal before and after if none has changed.
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
    """The result of an installation or an upgrade."""

    database: str
    server: str
    """Host and port, from the view of the server."""
    before: int | None
    """The version before; None: it was not installed."""
    version: int
    is_changed: bool
    """Whether the version or any function has changed."""
    files: tuple[Path, ...]
    is_foreign: bool
    """Whether the database is a copy from another server: positions are refused."""
    notices: tuple[str, ...]
    """Messages of the server, one line each."""


async def installed_version(connection: Connection) -> int | None:
    """Return the version of the schema in this database; None: it is not installed."""
    version: int | None = (await read_state(connection))["installed"]
    return version


async def install(
    connection: Connection, root: Path | None = None, *, note: Note | None = None
) -> Report:
    """Install the schema; if this version is installed, run its files again."""
    return await _persist(connection, Files.find(root), _choose_install, note)


async def upgrade(
    connection: Connection, root: Path | None = None, *, note: Note | None = None
) -> Report:
    """Upgrade the schema to this version: run missing migrations, then all code again."""
    return await _persist(connection, Files.find(root), _choose_upgrade, note)


async def adopt(connection: Connection) -> bool:
    """Take over a database that was copied from another server. False: it was not.

    Messages archived there count as seen; positions of that server are refused.
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
            f"schema {state['schema']} is not installed in database {state['database']}: "
            "run `notifyq init`"
        )
    for step in files.pending(version):
        if step.needs_superuser and not state["is_superuser"]:
            raise AccessDeniedError(
                f"{step.path.name} needs a superuser, and {state['role']} is none: "
                "run the output of `notifyq migrate --sql` as a superuser"
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
                    f"{error.args[0]}: a long transaction uses the tables of schema "
                    f"{installs.of(connection)}, or "
                    "another upgrade is running, see pg_stat_activity; nothing was changed"
                ) from error
            await asyncio.sleep(pause)
    raise AssertionError  # unreachable, for the type checker: the last attempt returns or raises


async def _run(
    connection: Connection, files: Files, choose: _Choose, note: Note | None, attempt: int
) -> Report:
    notices: list[str] = []

    def on_log_message(_: object, message: asyncpg.PostgresLogMessage) -> None:
        fields = message.as_dict()
        # Notices with an SQLSTATE are about objects that exist already; ours have none.
        if fields.get("severity_en") == "WARNING" or fields.get("sqlstate") == "00000":
            notices.append(fields["message"])

    connection.add_log_listener(on_log_message)
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(BEGIN)
            state = await read_state(connection)
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
        connection.remove_log_listener(on_log_message)
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
                f"{what}: run as a superuser, or as the user that installed it"
            ) from error
        raise SchemaError(what) from error
