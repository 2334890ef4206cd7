"""Connections of drivers and tasks: psycopg for statements, ADBC for rows in bulk; their errors."""

from __future__ import annotations

import logging
import re
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import adbc_driver_manager as adbc
import adbc_driver_postgresql
import psycopg
import pyarrow as pa
from psycopg import conninfo
from psycopg.rows import class_row

from notifyq import errors
from notifyq.database.installs import require_default
from notifyq.dsn import options_of, without_driver
from notifyq.spark import machines, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from psycopg import Connection

    Session = Connection[tuple[Any, ...]]

T = TypeVar("T")

_BY_STATE: dict[str, type[errors.DatabaseError]] = {
    kind.sqlstate: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DatabaseError) and kind.sqlstate
}
_ADBC_PREFIX = re.compile(r"\A[^\n]*\bPGRES_\w+ (?:ERROR|FATAL): +")

# psycopg warns of transactions that a lost connection has ended; it raises an error for them too.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

_last = threading.local()


def connect(dsn: str, *, name: str = "notifyq spark") -> Session:
    """Open a session for statements; `name` is its application_name.

    Each statement is a transaction unless `transaction()` begins one. Raises
    DatabaseUnavailableError, whose text holds no password.
    """
    target = completed(dsn, name)
    try:
        return psycopg.connect(target, autocommit=True)
    except psycopg.OperationalError as error:
        raise errors.DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


@contextmanager
def opened(dsn: str, *, name: str = "notifyq spark") -> Iterator[Session]:
    """Open a session for a block, and translate the errors of drivers in it."""
    with translated(), connect(dsn, name=name) as session:
        yield session


def fetch(
    dsn: str, kind: type[T], statement: str, values: Sequence[Any] | Mapping[str, Any]
) -> list[T]:
    """Run a statement in a session of its own; return its rows as objects of a class."""
    with opened(dsn) as session, session.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(statement.encode(), values).fetchall()


def connect_arrow(dsn: str, *, name: str = "notifyq spark") -> Any:
    """Open a session of ADBC, which moves Arrow batches by COPY; commit() ends a transaction."""
    # Imported here: it imports pandas where that is installed, which slows the start of a worker.
    from adbc_driver_postgresql import dbapi

    try:
        return dbapi.connect(completed(dsn, name))
    except dbapi.Error as error:
        raise errors.DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


@contextmanager
def arrow_transaction(
    dsn: str, *, name: str = "notifyq spark"
) -> Iterator[Callable[[str], pa.RecordBatchReader]]:
    """Give a function that runs a statement and streams its rows, all in one transaction.

    It opens faster than a session of connect_arrow(), and ends with a rollback.
    """
    with ExitStack() as stack:
        try:
            database = _database(completed(dsn, name))
            connection = stack.enter_context(adbc.AdbcConnection(database))
        except adbc.Error as error:
            raise errors.DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None
        connection.set_autocommit(False)

        def run(query: str) -> pa.RecordBatchReader:
            statement = stack.enter_context(adbc.AdbcStatement(connection))
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
            return pa.RecordBatchReader.from_stream(handle)

        yield run


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of drivers as errors of notifyq: one line with what to do, without passwords."""
    try:
        yield
    except (psycopg.Error, adbc.Error) as error:
        raise _error(error) from None


def demand(session: Session, function: str) -> None:
    """Raise AccessDeniedError unless the role of a session may call a function."""
    with translated():
        [[is_allowed]] = session.execute(statements.MAY_CALL, (function,)).fetchall()
    if not is_allowed:
        name = function.partition("(")[0].removeprefix("messages.")
        raise errors.AccessDeniedError(
            f"permission denied for function {name}: an admin must grant the role that it needs"
        )


def _database(dsn: str) -> Any:
    """Return the ADBC database of this thread, a new one only for another DSN.

    A new one fetches all types of the server, which costs more than a session.
    """
    if getattr(_last, "dsn", None) != dsn:
        _last.database = adbc_driver_postgresql.connect(dsn)
        _last.dsn = dsn
    return _last.database


def completed(dsn: str, name: str) -> str:
    """Return the DSN in the form of libpq with an application_name; check it."""
    try:
        given: dict[str, Any] = conninfo.conninfo_to_dict(without_driver(dsn))
    except psycopg.ProgrammingError:
        try:
            options_of(dsn)  # names an option that libpq does not know
        except errors.ConfigurationError as error:
            raise error from None
        # libpq's message quotes the part that it cannot parse, which may be the password.
        raise errors.ConfigurationError(
            "the DSN cannot be read: write it as postgresql://user:password@host/database, with "
            "%xx for special characters of the password"
        ) from None
    require_default("notifyq on Spark")
    machines.check(given)
    return conninfo.make_conninfo(**{"connect_timeout": "10", **given, "application_name": name})


def _error(error: Any) -> errors.NotifyqError:
    state = str(getattr(error, "sqlstate", None) or "")
    text, hint = _text(error)
    if state in _BY_STATE:
        raised = _BY_STATE[state](text)
        raised.hint = hint
        return raised
    match state[:2], state:
        case _, "42501":
            return errors.AccessDeniedError(f"{text}: an admin must grant the role that it needs")
        case _, "3F000" | "42P01" | "42883":
            return errors.SchemaMissingError(f"{text}: run `notifyq init` or `notifyq migrate`")
        case ("08" | "57") | ("" | "00"), _:
            return errors.DatabaseUnavailableError(f"the connection was lost: {text}")
        case _:
            return errors.NotifyqError(f"error of the server: {text}")


def _text(error: Any) -> tuple[str, str | None]:
    diagnosis = getattr(error, "diag", None)
    if diagnosis is not None and diagnosis.message_primary:
        return diagnosis.message_primary, diagnosis.message_hint
    # ADBC puts the name of its own call before the message of the server.
    text = _first_line(_ADBC_PREFIX.sub("", str(error).strip()))
    return text or type(error).__name__, None


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
