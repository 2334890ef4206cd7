"""Move rows: lock them, let the destination receive them, delete them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.pool import explaining
from notifyq.errors import REFUSED, AccessDeniedError, ConfigurationError
from notifyq.importing.systems import SYSTEMS
from notifyq.importing.table import Census
from notifyq.models.message import decode
from notifyq.queues.admin import Admin

if TYPE_CHECKING:
    from notifyq.database.pool import Connection, Database
    from notifyq.importing.table import Item, Table

__all__ = ["SYSTEMS", "Refusal", "Summary", "Transfer"]

_MOST = 1000
"""Most rows of a batch."""
_LARGEST = 4_000_000
"""Characters after which a batch ends."""
_IDENTITY = """
select concat_ws('/', c.system_identifier, d.oid, $1::regclass::oid)
from pg_control_system() as c, pg_database as d
where d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that stays at the source, and the reason."""

    queue: str
    id: int
    reason: str


@dataclass(slots=True)
class Summary:
    """The result of an import."""

    published: int = 0
    merged: int = 0
    """There was a live message with the same dedup_key."""
    known: int = 0
    """An earlier import had received the message."""
    refused: list[Refusal] = field(default_factory=list)


class Transfer:
    """Moves the waiting messages of another queue system into queues of `destination`.

    `names` maps queues of the source to those of the destination; `queues` limits which are moved;
    with `keep` the source is not changed. No other code may use the session of the source.
    """

    def __init__(
        self,
        source: Connection,
        destination: Database,
        tables: Sequence[Table],
        *,
        queues: Collection[str] = (),
        names: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> None:
        self._source = source
        self._destination = destination
        self._tables = tables
        self._queues = queues
        self._names = names or {}
        self._keep = keep
        self.summary = Summary()

    def target(self, queue: str) -> str:
        """The queue at the destination for a queue of the source."""
        return self._names.get(queue, queue)

    async def census(self) -> list[Census]:
        """Count the messages of the queues to move."""
        found: list[Census] = []
        with self._explaining():
            for table in self._tables:
                found += [Census(**row) for row in await self._source.fetch(table.census)]
        return [one for one in found if not self._queues or one.queue in self._queues]

    async def missing(self, census: Sequence[Census]) -> list[str]:
        """The queues that the destination lacks."""
        known = {row["queue"] for row in await Admin(self._destination).queue_info()}
        return sorted({self.target(one.queue) for one in census} - known)

    async def run(
        self, census: Sequence[Census], advance: Callable[[int], None] = lambda _: None
    ) -> Summary:
        """Move the messages of these queues; `advance` receives the row count of each batch."""
        missing = await self.missing(census)
        if missing:
            raise ConfigurationError(
                f"there is no queue {missing[0]!r}: create it with `notifyq queues create`, create "
                "all with --create-queues, or choose another one with --map"
            )
        queues = [one.queue for one in census]
        for table in self._tables:
            passed: list[int] = []
            # Again while rows are moved: others may have been added or released behind it.
            while await self._pass(table, queues, passed, advance) and not self._keep:
                pass
        return self.summary

    async def _pass(
        self,
        table: Table,
        queues: Sequence[str],
        passed: list[int],
        advance: Callable[[int], None],
    ) -> int:
        """Read a table once; return how many rows were moved."""
        with self._explaining():
            name = await self._source.fetchval(_IDENTITY, table.name)
        after, moved = -(2**63), 0
        while True:
            with self._explaining():
                async with self._source.transaction():
                    items = await self._take(table, after, queues, passed)
                    refused = await self._receive(f"{table.system} {name}", items)
                    gone = [item.id for item in items if item.id not in refused]
                    await self._remove(table, gone)
            if not items:
                return moved
            passed += refused
            moved += len(gone)
            after = items[-1].id
            advance(len(items))

    async def _take(
        self, table: Table, after: int, queues: Sequence[str], passed: list[int]
    ) -> list[Item]:
        """Read a batch of limited size; lock its rows unless they stay."""
        await self._source.execute(sql.NO_IDLE_TIMEOUT)
        statement = table.read if self._keep else table.lock
        items: list[Item] = []
        size = 0
        async for row in self._source.cursor(statement, after, queues, passed, prefetch=100):
            columns: dict[str, Any] = decode(row["row"])
            item = table.item(row["id"], row["position"], columns, row["payload"])
            items.append(item)
            size += len(item.message)
            if len(items) >= _MOST or size >= _LARGEST:
                break
        return items

    async def _receive(self, name: str, items: Sequence[Item]) -> set[int]:
        """Send messages to the destination; return the ids of those that it refuses."""
        if not items:
            return set()
        text = ",".join(item.sent(self.target(item.queue)) for item in items)
        try:
            # Safe to repeat: a message is received once, however often it is sent.
            [row] = await self._destination.persist(sql.RECEIVE, name, f"[{text}]")
        except REFUSED as error:
            if len(items) == 1:
                reason = " ".join(str(error.args[0]).split())
                self.summary.refused.append(Refusal(items[0].queue, items[0].id, reason))
                return {items[0].id}
            half = len(items) // 2
            return await self._receive(name, items[:half]) | await self._receive(name, items[half:])
        self.summary.published += row["published"]
        self.summary.merged += row["merged"]
        self.summary.known += row["known"]
        return set()

    async def _remove(self, table: Table, gone: Sequence[int]) -> None:
        if gone and not self._keep:
            await self._source.execute(table.remove, gone)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        with explaining("the source"):
            try:
                yield
            except asyncpg.InsufficientPrivilegeError as error:
                raise AccessDeniedError(
                    f"{error}: to move messages, the user of the source needs the rights to "
                    "select, update and delete there; with --keep only to select"
                ) from error
