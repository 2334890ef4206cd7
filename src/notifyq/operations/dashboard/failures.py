"""The pages about errors of the database."""

import asyncpg

from notifyq.database.refusals import is_refusal
from notifyq.errors import (
    AccessDeniedError,
    DatabaseError,
    DatabaseUnavailableError,
    MessageNotFoundError,
    QueueNotFoundError,
    ScheduleNotFoundError,
    SchemaError,
    StreamNotFoundError,
    SubscriptionNotFoundError,
    reason,
)

_MISSING = (
    MessageNotFoundError,
    QueueNotFoundError,
    ScheduleNotFoundError,
    StreamNotFoundError,
    SubscriptionNotFoundError,
)


def explain(error: BaseException) -> tuple[int, str, str]:
    """Status, title and text of the page for an error."""
    text, full = sentence(reason(error)), asyncpg.DiskFullError
    match error:
        case _ if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
            return 503, "This takes too long", (
                "The database did not respond in time, and the statement was cancelled. Reduce the "
                "range, or see Health for what keeps the database busy. It may also be unreachable."
            )  # fmt: skip
        case _ if isinstance(error, _MISSING):
            return 404, "Not found", text
        case AccessDeniedError():
            return 403, "Not permitted", text
        # A value that the database does not accept, such as a text with a NUL.
        case DatabaseError() | asyncpg.DataError():
            return 400, "The database refused this", text
        # Also as the cause: a server with a full disk refuses connections.
        case _ if isinstance(error, full) or isinstance(error.__cause__, full):
            return 503, "The disk of the server is full", (
                f"{text} Free or add disk space. Until then the server accepts no writes; existing "
                "messages are safe. This page reloads automatically."
            )  # fmt: skip
        case DatabaseUnavailableError() | asyncpg.PostgresError() | asyncpg.InterfaceError():
            title = "The database refused this" if is_refusal(error) else "The database is away"
            return 503, title, f"{text} This page reloads automatically."
        case SchemaError():
            return 503, "The schema has another version", text
        case _:
            return 500, "Internal error", text


def sentence(text: str) -> str:
    """A text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "?")) else ".")
