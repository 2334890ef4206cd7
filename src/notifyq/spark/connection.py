"""Connections of drivers and tasks: psycopg for statements, ADBC for rows in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from adbc_driver_postgresql import dbapi
from psycopg import conninfo

from notifyq.errors import ConfigurationError, DatabaseUnavailableError

if TYPE_CHECKING:
    from psycopg import Connection


def connect(dsn: str, *, name: str = "notifyq spark") -> Connection[tuple[Any, ...]]:
    """Open a session for statements; `name` is its application_name.

    Each statement is a transaction unless `transaction()` says otherwise. Raises
    DatabaseUnavailableError, whose text holds no password.
    """
    try:
        return psycopg.connect(_complete(dsn, name), autocommit=True)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


def connect_arrow(dsn: str, *, name: str = "notifyq spark") -> Any:
    """Open a session of ADBC, which moves Arrow batches by COPY; commit() ends a transaction."""
    try:
        return dbapi.connect(_complete(dsn, name))
    except dbapi.Error as error:
        raise DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


def _complete(dsn: str, name: str) -> str:
    try:
        given: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # What libpq says of it quotes the part that it stumbles over, which may be the password.
        raise ConfigurationError(
            "the DSN cannot be read: write it as postgresql://user:password@host/database, with "
            "%xx for special characters of the password"
        ) from None
    return conninfo.make_conninfo(**{"connect_timeout": "10", **given, "application_name": name})


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
