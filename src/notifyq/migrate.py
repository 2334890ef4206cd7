"""Install and upgrade: brings the schema in a database to the version of the SQL files, or fails.

A folder of SQL files holds `init/NN_what.sql`, which together install a version, and
`migrations/NNNN_what.sql`, of which each leads from one version to the next. The init files 10–19
hold state and do nothing where it exists; all others are code and are run again at each upgrade.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import asyncpg

from notifyq.errors import (
    AccessDeniedError,
    NotifyqError,
    SchemaError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.database import Connection

# One of the project's advisory keys; _upkeep_key() in 20_internal.sql is the one before.
_LOCK = "pg_advisory_xact_lock(7305427003)"

# A statement that waits for a table makes all later ones wait behind it, so an upgrade beside a long
# transaction would stop the queues: it gives way and tries again.
_PATIENCE = "5s"
_PAUSES = (1.0, 2.0, 4.0)

_SETTINGS = f"""
set local lock_timeout = '{_PATIENCE}';
set local statement_timeout = 0;
set local client_min_messages = notice;
set local check_function_bodies = on;
-- Only the system's own functions: whoever may create some in another schema could lay traps.
set local search_path = pg_catalog, pg_temp;
"""

_RECORD = """
insert into messages.schema_version (version)
values ({})
on conflict on constraint schema_version_version_pk do nothing;
"""

_STATE = """
select
  current_setting('server_version') as server_version,
  current_setting('server_version_num')::integer as server_number,
  coalesce(
    format('%s:%s', host(inet_server_addr()), inet_server_port()), 'a local socket'
  ) as address,
  current_database() as database,
  current_user as role,
  (select r.rolsuper from pg_roles as r where r.rolname = current_user) as is_superuser,
  has_database_privilege(current_database(), 'create') as may_create,
  pg_is_in_recovery() as is_standby,
  current_setting('transaction_read_only')::boolean as is_read_only,
  pg_get_userbyid(n.nspowner) as owner,
  coalesce(pg_has_role(n.nspowner, 'usage'), false) as may_change,
  exists (select from pg_class as c where c.relnamespace = n.oid)
    or exists (select from pg_proc as p where p.pronamespace = n.oid)
    or exists (select from pg_type as t where t.typnamespace = n.oid) as is_used,
  exists (
    select from pg_class as c
    join pg_attribute as a on a.attrelid = c.oid and a.attname = 'installed_at'
    where c.relnamespace = n.oid and c.relname = 'schema_version'
  ) as is_ours
from (select) as once
left join pg_namespace as n on n.nspname = 'messages'
"""

# What says nothing about a file: the session was cut off, or waited in vain.
_NOT_THE_FILE = (
    NotifyqError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
)

# What a definition consists of; equal texts before and after mean that nothing has changed.
_CODE = """
select md5(string_agg(d.definition, e'\\n' order by d.definition))
from (
  select concat(
    pg_get_functiondef(p.oid), p.proowner, p.proacl, obj_description(p.oid, 'pg_proc')
  )
  from pg_proc as p where p.pronamespace = to_regnamespace('messages') and p.prokind in ('f', 'p')
  union all
  select concat(c.oid, pg_get_viewdef(c.oid), c.relacl, obj_description(c.oid, 'pg_class'))
  from pg_class as c where c.relnamespace = to_regnamespace('messages') and c.relkind in ('r','p','v')
  union all
  select pg_get_triggerdef(t.oid) from pg_trigger as t
  join pg_class as c on c.oid = t.tgrelid and c.relnamespace = to_regnamespace('messages')
  where not t.tgisinternal
) as d (definition)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an installation or an upgrade did."""

    database: str
    server: str
    before: int | None
    """The version that was installed before; None where there was none."""
    version: int
    is_changed: bool
    """Whether a definition is another one than before."""
    files: tuple[Path, ...]
    notices: tuple[str, ...]
    """What the server had to say, one line each."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A file that leads from one version of the schema to the next."""

    path: Path
    version: int
    is_breaking: bool
    """Whether clients of the version before can no longer work."""
    needs: Literal["owner", "superuser"]

    @classmethod
    def read(cls, path: Path) -> Migration:
        """Read the header of a file; one that lacks it is an error of the package."""
        text = path.read_text(encoding="utf-8")
        name = re.fullmatch(r"(\d{4})_[a-z0-9_]+\.sql", path.name)
        breaking = re.search(r"^-- breaking: (yes|no)$", text, re.MULTILINE)
        needs = re.search(r"^-- needs: (owner|superuser)$", text, re.MULTILINE)
        if not (name and breaking and needs):
            raise SchemaError(f"{path} has not the name or the header of a migration")
        role: Literal["owner", "superuser"] = (
            "superuser" if needs[1] == "superuser" else "owner"
        )
        return cls(path, int(name[1]), breaking[1] == "yes", role)


@dataclass(frozen=True, slots=True)
class Files:
    """The SQL files of one version of the schema."""

    init: tuple[Path, ...]
    migrations: tuple[Migration, ...]

    @classmethod
    def find(cls, root: Path | None = None) -> Files:
        """Find them below `root`, by default the folder that belongs to this code."""
        root = root or sql_root()
        init = tuple(sorted((root / "init").glob("*.sql")))
        if not init:
            raise SchemaError(f"{root} has no SQL files: install notifyq again")
        steps = sorted((root / "migrations").glob("*.sql"))
        return cls(init, tuple(Migration.read(path) for path in steps))

    @property
    def version(self) -> int:
        """The version that these files install."""
        return self.migrations[-1].version if self.migrations else 1

    @property
    def code(self) -> list[Path]:
        """The init files without those that hold state."""
        return [path for path in self.init if not "10" <= path.name[:2] <= "19"]

    def pending(self, installed: int) -> list[Migration]:
        """The migrations that a database of this version lacks."""
        return [step for step in self.migrations if step.version > installed]


@dataclass(slots=True)
class _Session:
    """A transaction that holds the lock, and what was seen in it."""

    connection: Connection
    state: asyncpg.Record
    installed: int | None
    notices: list[str] = field(default_factory=list)


def sql_root() -> Path:
    """Folder of the SQL files: in the installed package, else in the repository."""
    packaged = Path(__file__).parent / "db"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "db"


async def installed(connection: Connection) -> int | None:
    """Version of the schema in the database, None where there is none; nothing is changed."""
    state = await connection.fetchrow(_STATE)
    ...
