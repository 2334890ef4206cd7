"""What a page says when the database does not answer, or answers no."""

from __future__ import annotations

import asyncpg

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

_FULL = asyncpg.DiskFullError


def explain(error: BaseException) -> tuple[int, str, str]:
    """Status, title and text of the page about an error."""
    text = _sentence(error)
    match error:
        case _ if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
            return 503, "This takes too long", (
                "The database did not answer in time, and what was asked is cancelled. Ask for "
                "less, or look at Health for what keeps it busy; or else it cannot be reached."
            )  # fmt: skip
        case _ if isinstance(error, _MISSING):
            return 404, "There is nothing here", text
        case AccessDeniedError():
            return 403, "The database refuses", text
        # What was sent is no text that the database takes, such as one with a NUL.
        case DatabaseError() | asyncpg.DataError():
            return 400, "The database refuses", text
        # As the cause, too: a server with a full disk refuses sessions, and seems to be away.
        case _ if isinstance(error, _FULL) or isinstance(error.__cause__, _FULL):
            return 503, "The server has no room", (
                f"{text} Its disk is full: make room there, or give it more. Until then it takes "
                "nothing new; what it has taken is safe. This page tries again by itself."
            )  # fmt: skip
        case DatabaseUnavailableError() | asyncpg.PostgresError() | asyncpg.InterfaceError():
            return 503, "The database is away", f"{text} This page tries again by itself."
        case SchemaError():
            return 503, "The schema does not fit", text
        case _:
            return 500, "That did not work", text


def _sentence(error: BaseException) -> str:
    text = reason(error)
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "?")) else ".")
