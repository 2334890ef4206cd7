"""The loop that moves rows: lock, receive, remove; and what came of them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import sql
from notifyq.database.pool import explaining
from notifyq.errors import (
    AccessDeniedError,
    ConfigurationError,
    InvalidArgumentError,
    MessageLimitError,
)
from notifyq.importing import pgmq, pgqueuer, procrastinate
from notifyq.importing.table import Census
from notifyq.models.message import decode
from notifyq.queues.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from notifyq.database.pool import Connection, Database
    from notifyq.importing.table import Item, Table

    Finder = Callable[[Connection, str | None], Awaitable[list[Table]]]

SYSTEMS: dict[str, Finder] = {
    "pgmq": pgmq.tables,
    "pgqueuer": pgqueuer.tables,
    "procrastinate": procrastinate.tables,
}

_MOST = 1000
"""Rows of a batch."""
_LARGEST = 4_000_000
"""Characters of a batch, but for the last of its rows."""
_REFUSED = (MessageLimitError, InvalidArgumentError, asyncpg.DataError)
"""The message is at fault: the others go on without it."""
_IDENTITY = """
select concat_ws('/', c.system_identifier, d.oid, $1::regclass::oid)
from pg_control_system() as c, pg_database as d
where d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that stays where it is, and why."""

    queue: str
    id: int
    reason: str


@dataclass(slots=True)
class Summary:
    """What an import did."""

    published: int = 0
    merged: int = 0
    """A live message with the same dedup_key was there."""
    known: int = 0
    """An earlier import has received it."""
    refused: list[Refusal] = field(default_factory=list)


class Transfer:
    """Moves what waits in another queue, found on `source`, into queues of `destination`.

    `names` says which queue becomes which other one; `queues` are the only ones to move, or all;
    with `keep` the source stays as it is. The source is one session, and of nobody else.
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
        """The queue that a queue of the source becomes."""
        return self._names.get(queue, queue)

    async def census(self) -> list[Census]:
        """Count what there is in the queues that are asked for."""
        found: list[Census] = []
        with self._explaining():
            for table in self._tables:
                found += [Census(**row) for row in await self._source.fetch(table.census)]
        return [one for one in found if not self._queues or one.queue in self._queues]

    async def missing(self, census: Sequence[Census]) -> list[str]:
        """The queues that the destination lacks."""
        there = {row["queue"] for row in await Admin(self._destination).queue_info()}
        return sorted({self.target(one.queue) for one in census} - there)

    async def run(
        self, census: Sequence[Census], advance: Callable[[int], None] = lambda _: None
    ) -> Summary:
        """Move the messages of these queues; `advance` is told how many, batch by batch."""
        missing = await self.missing(census)
        if missing:
            raise ConfigurationError(
                f"there is no queue {missing[0]!r}: create it with `notifyq queues create`, have "
                "all of them created with --create-queues, or choose another one with --map"
            )
        queues = [one.queue for one in census]
        for table in self._tables:
            passed: list[int] = []
            # Once more while it had something: others have come, or been released, behind it.
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
        """Go through a table once; return how many rows were moved."""
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
        """Take a batch of bounded size, locked unless it stays."""
        await self._source.execute(sql.PATIENCE)
        statement = table.look if self._keep else table.lock
        items: list[Item] = []
        size = 0
        async for row in self._source.cursor(statement, after, queues, passed, prefetch=100):
            columns: dict[str, Any] = decode(row["row"])
            item = table.item(row["id"], row["place"], columns, row["payload"])
            items.append(item)
            size += len(item.message)
            if len(items) >= _MOST or size >= _LARGEST:
                break
        return items

    async def _receive(self, name: str, items: Sequence[Item]) -> set[int]:
        """Have messages received; return the ids of those that are refused."""
        if not items:
            return set()
        text = ",".join(item.sent(self.target(item.queue)) for item in items)
        try:
            # Received once, however often it is sent: safe to repeat.
            [row] = await self._destination.persist(sql.RECEIVE, name, f"[{text}]")
        except _REFUSED as error:
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
