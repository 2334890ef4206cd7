"""What a check returns, and what checks work with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import statements as sql
from notifyq.operations import monitor

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

INIT = "run `notifyq init` as the owner of schemas messages and notifyq"
INSTALL = "notifyq init"
"""A step of a fix, besides statements."""
MOST = 5
"""Names that one line lists."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well or as safely as it could."""
    FAIL = "FAIL"
    """It does not work, or it is open to everybody."""
    SKIPPED = "skipped"
    """The check could not run; the advice names the missing right."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check and, unless it is ok, what to do."""

    level: Level
    found: str
    advice: str = ""
    """Either SQL for psql, or a sentence in which all commands and statements are in backticks."""
    fix: tuple[str, ...] | None = None
    """The steps of `--fix`, statements and `notifyq init`: they lose no message and are idempotent.
    None: a person must decide."""


ok = partial(Finding, Level.OK)
warn = partial(Finding, Level.WARN)
fail = partial(Finding, Level.FAIL)
skipped = partial(Finding, Level.SKIPPED)


@dataclass(slots=True)
class Context:
    """The connection that checks use, and where its DSN comes from."""

    connection: Connection
    dsn: str
    source: str
    """Where the DSN comes from, such as `--dsn` or `NOTIFYQ_DSN`."""
    sees_all: bool
    """Whether the user sees the sessions of others, which requires pg_read_all_stats."""
    listen_dsn: str | None = None
    """Where processes of notifyq listen, unless that is the DSN."""
    _diagnosis: asyncpg.Record | None = field(default=None, init=False)
    _health: monitor.Health | None = field(default=None, init=False)

    async def row(self, query: str, *args: Any) -> asyncpg.Record:
        """The only row of a query."""
        row = await self.connection.fetchrow(query, *args)
        assert row is not None  # noqa: S101  an aggregate, a VALUES list or a lookup of this session
        return row

    async def value(self, query: str, *args: Any) -> Any:
        """The only value of a query."""
        return await self.connection.fetchval(query, *args)

    async def diagnosis(self) -> asyncpg.Record:
        """The row of notifyq.diagnose(), read once for all checks."""
        if self._diagnosis is None:
            self._diagnosis = await self.row(sql.DIAGNOSE)
        return self._diagnosis

    async def health(self) -> monitor.Health:
        """The numbers of messages.health(), read once for all checks."""
        if self._health is None:
            self._health = await monitor.health(self.connection)
        return self._health

    @property
    def blind_spot(self) -> str:
        """A remark for findings that only cover sessions of this user."""
        return "" if self.sees_all else " (of this user only: others need pg_read_all_stats)"


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return separator.join(names[:MOST]) + more


async def change(context: Context, values: Mapping[str, str]) -> str:
    """The advice that gives settings of the server these values for new sessions.

    It depends on where a setting is made: SQL, or a sentence if SQL is not enough.
    """
    statements: list[str] = []
    manual: list[str] = []
    restarts = False
    for name, value in values.items():
        row = await context.row(
            """
            select s.source, s.context, quote_ident(current_user) as role,
              quote_ident(current_database()) as database
            from pg_settings as s
            where s.name = $1
            """,
            name,
        )
        role, database = row["role"], row["database"]
        owners = {
            "database": f"database {database}",
            "user": f"role {role}",
            "database user": f"role {role} in database {database}",
            "global": "role all",
        }
        by_hand = {
            "client": f"remove {name} from the DSN or PGOPTIONS",
            "command line": f"start the server without --{name}",
        }
        if owner := owners.get(row["source"]):
            statements.append(f"alter {owner} reset {name}")
        elif todo := by_hand.get(row["source"]):
            manual.append(todo)
        else:
            statements.append(f"alter system set {name} = {value}")
            if row["context"] == "postmaster":
                restarts = True
            else:
                statements.append("select pg_reload_conf()")
    text = "; ".join(statements)
    if manual:
        return "; ".join([*manual, *([f"`{text}`"] if text else [])])
    return f"{text} -- and restart the server" if restarts else text
