"""The audit: a change by a person and its audit row commit in one transaction."""

from __future__ import annotations

import getpass
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from notifyq.database.installs import ours
from notifyq.database.pool import Database, InTransaction, explaining
from notifyq.database.statements import AUDIT
from notifyq.models.message import readable
from notifyq.operations.masks import Masks, redacted
from notifyq.operations.monitor.statements import AUDIT_LIST, MAY_AUDIT

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection
    from notifyq.operations.monitor.reading import Source


_NO_MASKS = Masks()
_ERRORS = ("error", "fingerprint")
"""Details with the text of an error, which may contain parts of a payload."""


@dataclass
class Action(InTransaction):
    """A running action: its statements on this connection commit together with its audit row."""

    entry: int | None = None
    """The audit row: of the steps before this one, and at the end its own."""
    details: dict[str, Any] = field(default_factory=dict)
    """Noted in addition to action and subject: counts, values; never payloads."""

    def note(self, **details: Any) -> None:
        """Add details to the audit row."""
        self.details.update(details)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One row of the audit."""

    id: int
    acted_at: datetime
    role: str
    """The database role."""
    actor: str
    """The person, as the tool reports it."""
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
    """Audit rows, the latest first; `action` is an action or a prefix such as `queue`.

    The masks hide parts of the errors by which messages were selected.
    """
    rows = await source.fetch(AUDIT_LIST, before, actor, action, subject, most, since)
    found = [AuditEntry(**{**row, "details": readable(row["details"])}) for row in map(dict, rows)]
    return [replace(it, details=_masked_details(it.details, masks)) for it in found]


def _masked_details(details: Any, masks: Masks) -> Any:
    """Details in which the masks hide parts of the errors by which messages were selected."""
    if masks.are_none or not isinstance(details, dict):
        return details
    return {
        name: redacted(it, masks, None) if name in _ERRORS and isinstance(it, str) else it
        for name, it in details.items()
    }


def audited_conditions(given: Mapping[str, Any], masks: Masks) -> dict[str, Any]:
    """What selected messages, as audit rows have it: masked, and never with a part of a payload."""
    kept: dict[str, Any] = _masked_details(dict(given), masks)
    kept.pop("payload", None)
    return kept


@asynccontextmanager
async def acting(
    database: Database,
    action: str,
    subject: object = "",
    *,
    actor: str,
    origin: str,
    is_required: bool = True,
    entry: int | None = None,
    **details: Any,
) -> AsyncIterator[Action]:
    """Run an action in a transaction that ends with its audit row.

    Steps of one action have one row: with `entry`, that of the steps before this one, the details
    `found` and `done` are added to it.

    `action` is a name such as `queue.pause`, `subject` the name or id of the object, `origin` the
    address or the tool. After an error neither the effect nor the row remains. With `is_required`
    false, a role that may not write the audit acts without a row.
    """
    async with database.transaction() as calls:
        connection = calls.connection
        running = Action(connection, database.dsn, entry, details)
        with explaining(database.dsn):
            yield running
            if is_required or await may_note(connection):
                running.entry = await note(
                    connection, action, subject, actor=actor, origin=origin, entry=entry,
                    **running.details,
                )  # fmt: skip


async def note(
    connection: AnyConnection,
    action: str,
    subject: object,
    *,
    actor: str,
    origin: str,
    entry: int | None = None,
    **details: Any,
) -> int:
    """Write an audit row, or add to an earlier one, in the current transaction; return its id."""
    text = json.dumps(details, default=str)
    args = (actor, action, str(subject), text, origin, entry)
    return int(await connection.fetchval(ours(connection, AUDIT), *args))


async def may_note(connection: AnyConnection) -> bool:
    """Whether the audit exists and this role may write to it."""
    return bool(await connection.fetchval(ours(connection, MAY_AUDIT)))


def login() -> str:
    """The operating-system user of this process, for the audit."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return "unknown"
