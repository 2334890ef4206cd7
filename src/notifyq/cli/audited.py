"""Commands that change something: each does so in a transaction that ends with its audit row."""

from __future__ import annotations

import socket
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from notifyq.cli.output import open_database
from notifyq.operations import monitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from notifyq.database.pool import Database
    from notifyq.operations.monitor import Action


class Who(TypedDict):
    """In whose name a row of the audit is written, and where that person was."""

    actor: str
    origin: str


@asynccontextmanager
async def acting(
    dsn: str | None, action: str, subject: object = "", **details: Any
) -> AsyncIterator[Action]:
    """Open the database of a command and act there, as `noting` does."""
    async with (
        open_database(dsn) as database,
        noting(database, action, subject, **details) as under_way,
    ):
        yield under_way


def noting(
    database: Database, action: str, subject: object = "", **details: Any
) -> AbstractAsyncContextManager[Action]:
    """Act in the name of who runs the command; what is not said (None) is not noted."""
    said = {name: value for name, value in details.items() if value is not None}
    return monitor.acting(database, action, subject, **who(), **said)


def who() -> Who:
    """Who runs the command, and where."""
    return {"actor": monitor.login(), "origin": f"notifyq on {socket.gethostname()}"}
