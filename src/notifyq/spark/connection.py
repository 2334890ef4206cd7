"""Connections of drivers and tasks: psycopg for statements, ADBC for rows in bulk."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import adbc_driver_manager as adbc
import adbc_driver_postgresql
import psycopg
import pyarrow as pa
from psycopg import conninfo

from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.spark import machines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

# It warns of transactions that a lost connection has ended, besides raising that.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

_last = threading.local()


def connect(dsn: str, *, name: str = "notifyq spark") -> Connection[tuple[Any, ...]]:
    """Open a session for statements; `name` is its application_name.

    Each statement is a transaction unless `transaction()` says otherwise. Raises
    DatabaseUnavailableError, whose text holds no password.
    """
    completed = _complete(dsn, name)
    try:
        return psycopg.connect(completed, autocommit=True)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


def connect_arrow(dsn: str, *, name: str = "notifyq spark") -> Any:
    """Open a session of ADBC, which moves Arrow batches by COPY; commit() ends a transaction."""
    # It imports pandas, where that is installed: for most of what a worker needs to start.
    from adbc_driver_postgresql import dbapi

    try:
        return dbapi.connect(_complete(dsn, name))
    except dbapi.Error as error:
        raise DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


@contextmanager
def arrow_transaction(
    dsn: str, *, name: str = "notifyq spark"
) -> Iterator[Callable[[str], pa.RecordBatchReader]]:
    """Give what runs a statement and gives its rows as they come, all in one transaction.

    Less than a session of connect_arrow(), and there much sooner. It ends with a rollback.
    """
    with ExitStack() as stack:
        try:
            database = _database(_complete(dsn, name))
            connection = stack.enter_context(adbc.AdbcConnection(database))
        except adbc.Error as error:
            raise DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None
        connection.set_autocommit(False)

        def run(query: str) -> pa.RecordBatchReader:
            statement = stack.enter_context(adbc.AdbcStatement(connection))
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
            return pa.RecordBatchReader.from_stream(handle)

        yield run


def _database(dsn: str) -> Any:
    """Give what sessions are opened from, the last one of this thread if it fits.

    A new one asks for all types of the server first, which takes either side longer than a session.
    """
    if getattr(_last, "dsn", None) != dsn:
        _last.database = adbc_driver_postgresql.connect(dsn)
        _last.dsn = dsn
    return _last.database


def _complete(dsn: str, name: str) -> str:
    try:
        given: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # What libpq says of it quotes the part that it stumbles over, which may be the password.
        raise ConfigurationError(
            "the DSN cannot be read: write it as postgresql://user:password@host/database, with "
            "%xx for special characters of the password"
        ) from None
    machines.check(given)
    return conninfo.make_conninfo(**{"connect_timeout": "10", **given, "application_name": name})


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
