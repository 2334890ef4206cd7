"""What a person changes, in a transaction that ends with its row in the audit."""

from __future__ import annotations

import getpass
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from notifyq.monitor.statements import AUDIT, AUDIT_LIST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from asyncpg import Record

    from notifyq.database import AnyConnection, Database
    from notifyq.monitor.reading import Source


@dataclass
class Action:
    """An action under way: what it does on this connection commits together with its row."""

    connection: AnyConnection
    details: dict[str, Any] = field(default_factory=dict)
    """What to note beside action and subject: counts, values; never payloads."""

    async def fetch(self, statement: str, *args: Any) -> list[Record]:
        """Run a call in the transaction and return its rows."""
        return await self.connection.fetch(statement, *args)

    async def value(self, statement: str, *args: Any) -> Any:
        """Run a call in the transaction and return its one value."""
        return await self.connection.fetchval(statement, *args)

    def note(self, **details: Any) -> None:
        """Have this in the row, too."""
        self.details.update(details)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One row of the audit."""

    id: int
    acted_at: datetime
    role: str
    """The role of the database that did it."""
    actor: str
    """Who was logged in, as the tool says."""
    action: str
    subject: str
    origin: str | None
    details: Any


async def audit_entries(
    source: Source,
    *,
    before: int | None = None,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    most: int = 100,
) -> list[AuditEntry]:
    """What people have done, the latest first; `action` is one, or how a kind of them begins."""
    rows = await source.fetch(AUDIT_LIST, before, actor, action, subject, most, since)
    return [
        AuditEntry(**{**row, "details": json.loads(row["details"] or "null")})
        for row in map(dict, rows)
    ]


@asynccontextmanager
async def acting(
    database: Database,
    action: str,
    subject: object = "",
    *,
    actor: str,
    origin: str,
    **details: Any,
) -> AsyncIterator[Action]:
    """Do something in a transaction that ends with its row in the audit.

    `action` is like `queue.pause`, `subject` the name or id of what is touched, `origin` the
    address or the tool. An error leaves neither the effect nor the row.
    """
    async with database.connection() as connection, connection.transaction():
        under_way = Action(connection, details)
        yield under_way
        await connection.execute(
            AUDIT, actor, action, str(subject),
            json.dumps(under_way.details, default=str), origin,
        )  # fmt: skip


def login() -> str:
    """Who runs this process, for the audit."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return "unknown"
