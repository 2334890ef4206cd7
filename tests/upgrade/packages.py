"""What packages send, argument for argument: of this version, and of those released before."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notifyq.database import statements as sql
from notifyq.queues import admin as queues
from notifyq.streams import admin as streams

if TYPE_CHECKING:
    from support.database import Connection

RELEASED = sorted(Path(__file__).parent.glob("released/[0-9]*"))
"""A folder for each released version that is not this one; see db/migrations/README.md."""
NOT_SENT = {
    *("NEW_MESSAGE", "DEAD_MESSAGE", "FINISHED_MESSAGE", "CANCELLED_MESSAGE"),
    *("MESSAGE_OUTPUT", "NEW_EVENT"),
}
"""Names of channels."""
STATELESS = {
    "NOW",
    "NO_IDLE_TIMEOUT",
    "TRANSACTION",
    "CURRENT_XACT_ID",
    "NOTIFY",
    "KEEP_ALIVE",
    "END_SESSION",
}
LOCK = timedelta(minutes=1)
BEHIND: dict[str, Any] = {
    "dedup_key": None,
    "key": None,
    "max_attempts": None,
    "dedup_scope": None,
    "dedup_window": None,
    "on_duplicate": "keep",
    "after": None,
    "on_failure": "cancel",
    "expires_in": None,
}
ERROR = ("ValueError", "ouch", "Traceback: …", False)
NO_KEYS = [*BEHIND.values()]
UNSAID = (None, None, None, None)
NO_LIMITS = (*[None] * 8, False, False, None, "reject", *UNSAID)


def statements_of(folder: Path | None) -> dict[str, str]:
    """Return the statements of a released version or of this one, by their names."""
    if folder is not None:
        found: dict[str, str] = json.loads((folder / "statements.json").read_text(encoding="ascii"))
        return found
    constants = {**vars(sql), **vars(queues), **vars(streams)}
    return {name: it for name, it in constants.items() if name.isupper() and isinstance(it, str)}


class Package:
    """Sends the statements of a package, and knows which of them were sent."""

    def __init__(self, connection: Connection, statements: dict[str, str], version: int) -> None:
        self._statements = statements
        self._connection = connection
        self.version = version
        """Of the schema that it works on."""
        self.left = set(statements) - NOT_SENT

    async def fetch(self, name: str, *args: Any) -> list[Any]:
        # Where a later one has more parameters than an earlier one, they are the last.
        self.left.discard(name)
        count = next((n for n in range(30) if f"${n + 1}" not in self._statements[name]), 0)
        return await self._connection.fetch(self._statements[name], *args[:count])

    async def value(self, name: str, *args: Any) -> Any:
        [row] = await self.fetch(name, *args)
        return row[0]
