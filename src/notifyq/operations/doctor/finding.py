"""What a check finds, what would mend it, and what checks look through."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from notifyq.database import sql
from notifyq.operations import monitor

if TYPE_CHECKING:
    from datetime import timedelta

    import asyncpg

    from notifyq.database.pool import Connection


class Level(StrEnum):
    """How bad it is; nobody should wait with a FAIL."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Fix:
    """What `--fix` does about a finding: it loses no message, and can be done again."""

    statements: tuple[str, ...] = ()
    """Sent first, one after the other."""
    installs: bool = False
    """Whether the files of the schema are then run again, as `notifyq init` does."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The same as texts, for who decides on it."""
        return (*self.statements, *(["notifyq init"] if self.installs else []))


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found, and, unless that is ok, what to do about it."""

    level: Level
    found: str
    advice: str = ""
    """SQL to paste into psql as it is; or a sentence, with each command and each statement in
    backticks, which works when it is pasted."""
    fix: Fix | None = None
    """What mends it safely; None: a person must decide."""


def ok(found: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, found)


def warn(found: str, advice: str, fix: Fix | None = None) -> Finding:
    """It works, but not as well or as safely as it could."""
    return Finding(Level.WARN, found, advice, fix)


def fail(found: str, advice: str, fix: Fix | None = None) -> Finding:
    """It does not work, or everybody may do what only some should."""
    return Finding(Level.FAIL, found, advice, fix)


def skipped(found: str, advice: str) -> Finding:
    """It could not be seen; `advice` names the right that this needs."""
    return Finding(Level.SKIPPED, found, advice)


@dataclass(slots=True)
class Look:
    """One connection through the DSN, and how that was given."""

    connection: Connection
    dsn: str
    source: str
    """Where the DSN is from, as `--dsn` or `NOTIFYQ_DSN`."""
    sees_all: bool
    """Whether sessions of other users show what they do: that takes pg_read_all_stats."""
    listen_dsn: str | None = None
    """Where sessions of ours listen, if that is not the DSN."""
    _diagnosis: asyncpg.Record | None = field(default=None, init=False)
    _health: monitor.Health | None = field(default=None, init=False)

    async def row(self, query: str, *args: Any) -> asyncpg.Record:
        """The one row of a query that has one."""
        row = await self.connection.fetchrow(query, *args)
        assert row is not None  # noqa: S101  an aggregate, a VALUES list or a lookup of this session
        return row

    async def value(self, query: str, *args: Any) -> Any:
        """The one value of a query."""
        return await self.connection.fetchval(query, *args)

    async def diagnosis(self) -> asyncpg.Record:
        """What notifyq.diagnose() says, asked once for all checks that want some of it."""
        if self._diagnosis is None:
            self._diagnosis = await self.row(sql.DIAGNOSE)
        return self._diagnosis

    async def health(self) -> monitor.Health:
        """What messages.health() says, asked once for all checks that want some of it."""
        if self._health is None:
            self._health = await monitor.health(self.connection)
        return self._health

    def forget(self) -> None:
        """Ask anew: something was changed."""
        self._diagnosis = self._health = None

    @property
    def blind_spot(self) -> str:
        """What to add where only sessions of this user were seen."""
        return "" if self.sees_all else " (of this user only: others need pg_read_all_stats)"


def lasting(value: timedelta) -> str:
    """A duration in whole seconds, minutes or hours."""
    seconds = value.total_seconds()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def size(value: float) -> str:
    """A number of bytes."""
    for power, unit in ((40, "TB"), (30, "GB"), (20, "MB"), (10, "kB")):
        if value >= 2 * 2**power:
            return f"{value / 2**power:.0f} {unit}"
    return f"{value:.0f} bytes"
