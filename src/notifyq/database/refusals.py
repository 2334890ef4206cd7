"""What the server refuses: mostly that concerns one thing, and a process goes on with the rest."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database.retry import is_passing
from notifyq.errors import (
    AccessDeniedError,
    DatabaseUnavailableError,
    NotifyqError,
    QueueDeniedError,
    RestoredDatabaseError,
    SchemaError,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

PAUSE = 1.0
"""Seconds until what was refused is tried again."""


def is_refusal(error: BaseException) -> bool:
    """Whether the server has answered, and the same call for something else may succeed."""
    if isinstance(error, DatabaseUnavailableError | RestoredDatabaseError):
        return False
    if isinstance(error, NotifyqError):
        return True
    return isinstance(error, asyncpg.PostgresError) and not is_passing(error)


def concerns_all(error: BaseException) -> bool:
    """Whether each call of this kind is refused: for want of a right, or of the schema."""
    return isinstance(error, AccessDeniedError | SchemaError) and not isinstance(
        error, QueueDeniedError
    )


class Refusals:
    """Logs a refusal once, and once that it is over."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._refused: dict[str, type[BaseException]] = {}

    def refused(self, what: str, error: BaseException, meanwhile: str) -> None:
        """Record that the server refuses `what`, and log it unless it was refused so before."""
        if self._refused.get(what) is not type(error):
            self._refused[what] = type(error)
            reason = str(error).partition("\n")[0]  # without the hint
            self._log.error("%s: %s; %s", what, reason, meanwhile)

    def works(self, what: str) -> None:
        """Record that the server does not refuse it, or no longer."""
        if self._refused and self._refused.pop(what, None) is not None:
            self._log.info("%s: it works again", what)

    @contextmanager
    def noted(self, what: str, meanwhile: str) -> Iterator[None]:
        """Record whether the server refuses the block, and go on behind it if it does."""
        try:
            yield
        except Exception as error:
            if not is_refusal(error):
                raise
            self.refused(what, error, meanwhile)
        else:
            self.works(what)
