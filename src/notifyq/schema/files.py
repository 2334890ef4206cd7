r"""The SQL files of one version of the schema, and in which order they run.

A chapter, `init/NN_what.sql`, is a table of contents: lines `\ir folder/file.sql`, which psql runs
in that order. Together the files install the version; `migrations/NNNN_what.sql` leads to version
NNNN from the one before. The files of folder `tables` hold state and leave alone what exists; all
others are code, run again at each upgrade.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from notifyq.errors import SchemaError, SchemaTooNewError

# Upgrades take turns by an advisory key. Waiting for it holds up nobody, but has an end, since any
# role could hold it. Behind a wait for a table all later statements would queue up; and where that
# goes in a circle with a publisher, it has to give way before the server looks for deadlocks: that
# would end whoever looks first.
BEGIN = """
set local statement_timeout = 0;
set local lock_timeout = '20s';
set local client_min_messages = notice;
-- No schema where others may create functions: they could shadow those of the system.
set local search_path = pg_catalog, pg_temp;
do $$ begin perform pg_advisory_xact_lock(7305427003); end; $$;
do $$ begin perform set_config(
  'lock_timeout',
  (select greatest(s.setting::integer / 2, 1)::text from pg_settings as s
    where s.name = 'deadlock_timeout'),
  true
); end; $$;
"""

# Run before the migrations by every second attempt. Publishers that ring use the table of messages
# before that of queues, workers the other way round: under load either can keep one order of locks
# from coming through, but not both.
LOCK = "\nlock table messages.message in access exclusive mode;\n"

# Run last. A claim that waits for a table is inside the function as it was: where messages have new
# columns, it would end in an error that no worker of an older package survives. One that is
# cancelled is sent again. Where this role may not cancel it, that worker has to be started again.
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
    """A file that leads to a version of the schema from the one before."""

    path: Path
    version: int
    is_breaking: bool
    """Whether clients of the version before no longer work with this one."""
    needs_superuser: bool

    @classmethod
    def read(cls, path: Path) -> Migration:
        """Read name and header of the file."""
        text = path.read_text(encoding="utf-8")
        name = re.fullmatch(r"(\d{4})_[a-z0-9_]+\.sql", path.name)
        breaking = re.search(r"^-- breaking: (yes|no)$", text, re.MULTILINE)
        needs = re.search(r"^-- needs: (superuser|owner)$", text, re.MULTILINE)
        if not (name and breaking and needs):
            raise SchemaError(f"{path} has not the name or not the header of a migration")
        return cls(path, int(name[1]), breaking[1] == "yes", needs[1] == "superuser")


@dataclass(frozen=True, slots=True)
class Files:
    r"""The SQL files of one version of the schema."""

    init: tuple[Path, ...]
    migrations: tuple[Migration, ...]

    @classmethod
    def find(cls, root: Path | None = None) -> Files:
        """Find the files below `root`, by default those that belong to this code."""
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
        """Whether a database of version `installed` has to be upgraded; raise if it is newer."""
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
        """List what leads from version `installed` to this one, in its order."""
        if installed is None:
            return list(self.init)
        code = [path for path in self.init if path.parent.name != "tables"]
        return [*(step.path for step in self.pending(installed)), *code]

    def text(self, path: Path) -> str:
        """Return what to run for a file: a migration records its version right after itself."""
        text = path.read_text(encoding="utf-8")
        return text + "".join(
            _RECORD.format(step.version) for step in self.migrations if step.path == path
        )


def sql_root() -> Path:
    """Return the folder of the SQL files: in the installed package, else in the repository."""
    packaged = Path(__file__).parents[1] / "db"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "db"


def init_files(root: Path | None = None) -> list[Path]:
    """List the init files below `root`, in the order in which the chapters name them."""
    init = (root or sql_root()) / "init"
    files: list[Path] = []
    for chapter in sorted(init.glob("*.sql")):
        named = _INCLUDE.findall(chapter.read_text(encoding="utf-8"))
        files += [init / name for name in named] or [chapter]
    return files


def relative(path: Path) -> str:
    """Name a file from the folder of all SQL files, as in `init/queue/claim.sql`."""
    parts = path.parts
    start = max(i for i, part in enumerate(parts) if part in {"init", "migrations"})
    return "/".join(parts[start:])


def plan(installed: int | None, root: Path | None = None) -> list[Path]:
    """List the files that lead from version `installed` (None: nothing) to this one."""
    return Files.find(root).plan(installed)


def script(installed: int | None, root: Path | None = None) -> str:
    """Return the plan as one SQL script, which does what `install` or `upgrade` would do."""
    files = Files.find(root)
    start = "nothing" if installed is None else f"version {installed}"
    guard = _GUARD.format(installed="null" if installed is None else installed, start=start)
    return "".join(
        (
            f"-- Schema messages of notifyq: from {start} to version {files.version}.\n"
            "-- Run it as the owner: psql -v ON_ERROR_STOP=1 -f <this file>\n\nbegin;\n"
            f"{BEGIN}{guard}",
            *(f"\n-- {relative(path)}\n\n{files.text(path)}" for path in files.plan(installed)),
            f"{GIVE_WAY}\ncommit;\n",
        )
    )
