r"""The SQL files of one version of the schema, and their order.

A chapter, `init/NN_what.sql`, is a table of contents: lines `\ir folder/file.sql`, which psql runs
in that order. Together the files install the version; `migrations/NNNN_what.sql` upgrades from the
version before to NNNN. The files of folder `tables` create missing objects only; all others are
code, which each upgrade runs again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from notifyq.database.installs import DEFAULT, renamed
from notifyq.errors import SchemaError, SchemaTooNewError

# An advisory lock lets one upgrade run at a time. Waiting for it blocks nothing, but must end: any
# role could hold it. Waiting for a table blocks all later statements on it, and can deadlock with a
# publisher: it must end before deadlock_timeout, as the server could cancel the publisher then.
BEGIN = """
set local statement_timeout = 0;
set local lock_timeout = '20s';
set local client_min_messages = notice;
-- Only this schema: functions of other users could shadow those of the system.
set local search_path = pg_catalog, pg_temp;
-- Unknown before 15.8: the files read views.
do $$ begin
  if current_setting('restrict_nonsystem_relation_kind', true) <> '' then
    set local restrict_nonsystem_relation_kind = '';
  end if;
end; $$;
do $$ begin perform pg_advisory_xact_lock(7305427003); end; $$;
do $$ begin perform set_config(
  'lock_timeout',
  (select greatest(s.setting::integer / 2, 1)::text from pg_settings as s
    where s.name = 'deadlock_timeout'),
  true
); end; $$;
"""

# Every second attempt runs it before the migrations. Publishers lock the table of messages before
# that of queues, workers the other way round: under load one of them may block one order of locks,
# but not both.
LOCK = "\nlock table messages.message in access exclusive mode;\n"

# Run last. A claim that waits for a table runs the old function: if messages have new columns, it
# fails with an error that ends a worker of an older package. A cancelled claim is sent again. If
# this role may not cancel it, that worker must be restarted.
GIVE_WAY = """
do $$
declare
  v_pid integer;
begin
  for v_pid in
    select distinct l.pid
    from pg_locks as l
    join pg_stat_activity as a on a.pid = l.pid and a.query ~ '\\mmessages\\.claim\\M'
    join pg_class as c on c.oid = l.relation
      and c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
    where not l.granted
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
  loop
    begin
      perform pg_cancel_backend(v_pid);
    exception
      when insufficient_privilege then
        null;
    end;
  end loop;
end;
$$;
"""

# psql reads the path from the folder of the chapter.
_INCLUDE = re.compile(r"^\\ir (\S+)$", re.MULTILINE)

_RECORD = """
insert into notifyq.schema_version (version) values ({})
on conflict on constraint schema_version_version_pk do nothing;
"""

_GUARD = """
do $$
declare
  v_installed integer;
begin
  if to_regclass('notifyq.schema_version') is not null then
    v_installed := (select max(s.version) from notifyq.schema_version as s);
  elsif exists (
    select from pg_class as c
    where c.relnamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
  ) then
    raise exception 'schemas messages and notifyq in this database are not those of notifyq';
  end if;
  if v_installed is distinct from {installed} then
    raise exception 'this script starts from {start}, but version % is installed',
      coalesce(v_installed::text, 'none');
  end if;
end;
$$;
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """A file that upgrades the schema from the version before."""

    path: Path
    version: int
    is_breaking: bool
    """Whether clients of the version before stop working."""
    needs_superuser: bool

    @classmethod
    def read(cls, path: Path) -> Migration:
        """Read the name and the header of a file."""
        text = path.read_text(encoding="utf-8")
        name = re.fullmatch(r"(\d{4})_[a-z0-9_]+\.sql", path.name)
        breaking = re.search(r"^-- breaking: (yes|no)$", text, re.MULTILINE)
        needs = re.search(r"^-- needs: (superuser|owner)$", text, re.MULTILINE)
        if not (name and breaking and needs):
            raise SchemaError(f"{path} lacks the name or the header of a migration")
        return cls(path, int(name[1]), breaking[1] == "yes", needs[1] == "superuser")


@dataclass(frozen=True, slots=True)
class Files:
    r"""The SQL files of one version of the schema."""

    init: tuple[Path, ...]
    migrations: tuple[Migration, ...]

    @classmethod
    def find(cls, root: Path | None = None) -> Files:
        """Find the files below `root`, by default those of this package."""
        root = root or sql_root()
        init = init_files(root)
        if not init:
            raise SchemaError(f"there are no SQL files in {root}: install notifyq again")
        migrations = sorted((root / "migrations").glob("*.sql"))
        return cls(tuple(init), tuple(Migration.read(path) for path in migrations))

    @property
    def version(self) -> int:
        """The version that they install."""
        return max((step.version for step in self.migrations), default=1)

    def is_newer_than(self, installed: int) -> bool:
        """Whether a database of version `installed` needs an upgrade; raise if it is newer."""
        if installed > self.version:
            raise SchemaTooNewError(
                f"version {installed} is installed, this notifyq knows {self.version}: "
                "use a later notifyq"
            )
        return installed < self.version

    def pending(self, installed: int) -> list[Migration]:
        """Migrations that a database of version `installed` lacks."""
        self.is_newer_than(installed)
        return [step for step in self.migrations if step.version > installed]

    def plan(self, installed: int | None) -> list[Path]:
        """List the files that upgrade version `installed`, in order; None: an installation."""
        if installed is None:
            return list(self.init)
        code = [path for path in self.init if path.parent.name != "tables"]
        return [*(step.path for step in self.pending(installed)), *code]

    def text(self, path: Path) -> str:
        """Return the text of a file; that of a migration also records its version."""
        text = path.read_text(encoding="utf-8")
        return text + "".join(
            _RECORD.format(step.version) for step in self.migrations if step.path == path
        )


def sql_root() -> Path:
    """Return the folder of the SQL files: in the installed package, else in the repository."""
    packaged = Path(__file__).parents[1] / "db"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "db"


def init_files(root: Path | None = None) -> list[Path]:
    """List the init files below `root`, in the order of the chapters."""
    init = (root or sql_root()) / "init"
    files: list[Path] = []
    for chapter in sorted(init.glob("*.sql")):
        named = _INCLUDE.findall(chapter.read_text(encoding="utf-8"))
        files += [init / name for name in named] or [chapter]
    return files


def relative(path: Path) -> str:
    """The path of a file below the folder of all SQL files, such as `init/queue/claim.sql`."""
    parts = path.parts
    start = max(i for i, part in enumerate(parts) if part in {"init", "migrations"})
    return "/".join(parts[start:])


def plan(installed: int | None, root: Path | None = None) -> list[Path]:
    """List the files that upgrade version `installed`; None: an installation."""
    return Files.find(root).plan(installed)


def script(installed: int | None, root: Path | None = None, *, schema: str = DEFAULT) -> str:
    """Return the plan as one SQL script, which does the same as `install` or `upgrade`."""
    files = Files.find(root)
    start = "nothing" if installed is None else f"version {installed}"
    guard = _GUARD.format(installed="null" if installed is None else installed, start=start)
    text = "".join(
        (
            f"-- Schema messages of notifyq: from {start} to version {files.version}.\n"
            "-- Run it as the owner: psql -v ON_ERROR_STOP=1 -f <this file>\n\nbegin;\n"
            f"{BEGIN}{guard}",
            *(f"\n-- {relative(path)}\n\n{files.text(path)}" for path in files.plan(installed)),
            f"{GIVE_WAY}\ncommit;\n",
        )
    )
    return renamed(text, schema)
