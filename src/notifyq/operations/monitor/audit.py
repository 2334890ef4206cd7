"""What a person changes, in a transaction that ends with its row in the audit."""

from __future__ import annotations

import getpass
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from notifyq.models.message import readable
from notifyq.operations.masks import Masks, redacted
from notifyq.operations.monitor.statements import AUDIT, AUDIT_LIST, MAY_AUDIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from asyncpg import Record

    from notifyq.database.pool import AnyConnection, Database
    from notifyq.operations.monitor.reading import Source


_NO_MASKS = Masks()
_ERRORS = ("error", "fingerprint")
"""Details that are, or begin, the text of an error, which may hold what was in a payload."""


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
    masks: Masks = _NO_MASKS,
) -> list[AuditEntry]:
    """What people have done, the latest first; `action` is one, or how a kind of them begins.

    Errors by which messages were chosen are shown as far as the masks let them.
    """
    rows = await source.fetch(AUDIT_LIST, before, actor, action, subject, most, since)
    found = [AuditEntry(**{**row, "details": readable(row["details"])}) for row in map(dict, rows)]
    return [replace(it, details=masked_details(it.details, masks)) for it in found]


def masked_details(details: Any, masks: Masks) -> Any:
    """Details without what is hidden of the errors by which messages were chosen."""
    if masks.are_none or not isinstance(details, dict):
        return details
    return {
        name: redacted(it, masks, None) if name in _ERRORS and isinstance(it, str) else it
        for name, it in details.items()
    }


@asynccontextmanager
async def acting(
    database: Database,
    action: str,
    subject: object = "",
    *,
    actor: str,
    origin: str,
    is_required: bool = True,
    **details: Any,
) -> AsyncIterator[Action]:
    """Do something in a transaction that ends with its row in the audit.

    `action` is like `queue.pause`, `subject` the name or id of what is touched, `origin` the
    address or the tool. An error leaves neither the effect nor the row. With `is_required` false
    it is done without a row by who may not write one.
    """
    async with database.connection() as connection, connection.transaction():
        under_way = Action(connection, details)
        yield under_way
        if is_required or await may_note(connection):
            await note(connection, action, subject, actor=actor, origin=origin, **under_way.details)


async def note(
    connection: AnyConnection,
    action: str,
    subject: object,
    *,
    actor: str,
    origin: str,
    **details: Any,
) -> None:
    """Write a row of the audit into the transaction that there is."""
    await connection.execute(
        AUDIT, actor, action, str(subject), json.dumps(details, default=str), origin
    )


async def may_note(connection: AnyConnection) -> bool:
    """Whether this role can write into the audit, and there is one."""
    return bool(await connection.fetchval(MAY_AUDIT))


def login() -> str:
    """Who runs this process, for the audit."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return "unknown"
