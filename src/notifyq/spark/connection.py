"""Connections of drivers and tasks: psycopg for statements, ADBC for rows in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from adbc_driver_postgresql import dbapi

from notifyq.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    from psycopg import Connection


def connect(dsn: str, *, name: str = "notifyq spark") -> Connection[tuple[Any, ...]]:
    """Open a session for statements; `name` is its application_name.

    Each statement is a transaction unless `transaction()` says otherwise. Raises
    DatabaseUnavailableError, whose text holds no password.
    """
    try:
        return psycopg.connect(dsn, autocommit=True, connect_timeout=10, application_name=name)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


def connect_arrow(dsn: str) -> Any:
    """Open a session of ADBC, which moves Arrow batches by COPY; commit() ends a transaction."""
    try:
        return dbapi.connect(dsn)
    except dbapi.Error as error:
        raise DatabaseUnavailableError(f"no connection: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
