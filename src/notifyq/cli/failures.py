"""The text of an error that ends a command."""

from __future__ import annotations

import asyncpg

from notifyq.cli.hints import advised
from notifyq.errors import DatabaseError, NotifyqError, ServerError
from notifyq.printable import printable


def text(error: Exception) -> str:
    """The text of an error: one line, except for a server that could not start."""
    match error:
        case ServerError():
            # The log of the server follows on more lines.
            return str(error)
        case DatabaseError():
            return _one_line(advised(error))
        case asyncpg.PostgresError(detail=str(detail)):
            return _one_line(f"the server reports: {error.args[0]}: {detail}")
        case asyncpg.PostgresError():
            return _one_line(f"the server reports: {error.args[0]}")
        case OSError(strerror=str(text)):
            return _one_line(": ".join(map(str, filter(None, (error.filename, text)))))
        case NotifyqError() | OSError() | asyncpg.DataError():
            return _one_line(str(error))
        case _:
            return _one_line(
                f"{type(error).__name__}: {error} (this is a bug in notifyq: --debug shows where)"
            )


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
