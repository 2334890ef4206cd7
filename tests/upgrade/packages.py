"""Packages of older versions: what they send, argument for argument."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.database import Connection

OLDER = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
"""Versions whose statements are kept here, as their packages had them in sql.py."""
NOT_SENT = {"NEW_MESSAGE", "DEAD_MESSAGE", "FINISHED_MESSAGE", "NEW_EVENT"}
"""Names of channels."""
STATELESS = {"NOW", "PATIENCE", "TRANSACTION", "NUMBER", "RING", "KEEP_ALIVE", "END_SESSION"}
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
}
"""Options that came later, and so stand last."""
ERROR = ("ValueError", "ouch", "Traceback: …", False)
NO_KEYS = [*BEHIND.values()]
UNSAID = (None, None, None, None)
"""Options of a queue that came after its limits."""
NO_LIMITS = (*[None] * 8, False, False, None, "reject", *UNSAID)


class Package:
    """Sends the statements of an older package, and knows which of them were sent."""

    def __init__(self, connection: Connection, version: int) -> None:
        path = Path(__file__).with_name(f"statements_{version:04}.json")
        self._statements: dict[str, str] = json.loads(path.read_text(encoding="ascii"))
        self._connection = connection
        self.version = version
        self.left = set(self._statements) - NOT_SENT

    def has(self, name: str) -> bool:
        return name in self._statements

    async def fetch(self, name: str, *args: Any) -> list[Any]:
        # Where a later one has more parameters than an earlier one, they are the last.
        self.left.discard(name)
        count = next((n for n in range(30) if f"${n + 1}" not in self._statements[name]), 0)
        return await self._connection.fetch(self._statements[name], *args[:count])

    async def value(self, name: str, *args: Any) -> Any:
        [row] = await self.fetch(name, *args)
        return row[0]
