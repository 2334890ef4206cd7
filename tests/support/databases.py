"""The databases that tests get: clones of one install, emptied and handed on from test to test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import sql

from notifyq.dsn import with_database


class Databases:
    """Clones of a template, for the tests of one process.

    Sessions of its own stay open from test to test, with warm catalog caches. They are synchronous,
    because each test has an event loop of its own.
    """

    def __init__(self, server: str, template: str, prefix: str) -> None:
        self._server = server
        self._template = template
        self._prefix = prefix
        self._made = 0
        self._admin: Final = psycopg.connect(server, autocommit=True)
        self._spare: list[_Clone] = []

    @contextmanager
    def lend(self) -> Iterator[str]:
        """Give the address of a database as a fresh install leaves it.

        A test that only filled tables hands its database on; one that changed anything else does
        not.
        """
        clone = self._spare.pop() if self._spare else self._clone()
        yield clone.dsn
        self._end_sessions(clone)
        if clone.is_as_new():
            self._spare.append(clone)
        else:
            clone.session.close()
            self._drop(clone.name)

    def close(self) -> None:
        for clone in self._spare:
            clone.session.close()
            self._drop(clone.name)
        self._admin.close()

    def _clone(self) -> _Clone:
        self._made += 1
        name = f"{self._prefix}_{self._made}"
        # file_copy, the other way, waits for a checkpoint of the whole server.
        self._admin.execute(
            sql.SQL("create database {} template {} strategy wal_log").format(
                sql.Identifier(name), sql.Identifier(self._template)
            )
        )
        return _Clone(name, with_database(self._server, name))

    def _drop(self, name: str) -> None:
        self._admin.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )

    def _end_sessions(self, clone: _Clone) -> None:
        """End what a test has left connected and wait until it is gone with all that it held."""
        deadline = time.monotonic() + 30
        while self._admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = %s and pid <> %s",
            (clone.name, clone.session.info.backend_pid),
        ).rowcount:
            if time.monotonic() > deadline:
                raise TimeoutError(f"sessions do not leave {clone.name}")
            time.sleep(0.002)


class _Clone:
    """One database with the session that empties it."""

    def __init__(self, name: str, dsn: str) -> None:
        self.name = name
        self.dsn = dsn
        # Compiling these statements takes longer than they do.
        self.session: Final = psycopg.connect(dsn, autocommit=True, options="-c jit=off")
        self._stamp = self._empty()

    def is_as_new(self) -> bool:
        """Empty the tables and return whether that leaves the database as it was made."""
        try:
            return self._empty() == self._stamp
        except psycopg.Error:
            # The schema has gone, or the test has ended this session.
            return False

    def _empty(self) -> str:
        """Return a value that changes with any definition, setting or statistics."""
        self.session.execute(EMPTY)
        (stamp,) = self.session.execute(_STAMP).fetchone() or ("",)
        return str(stamp)


# Only what was written is emptied. Truncation makes new files for a table and its indexes, so a
# table of few pages is deleted from; session_replication_role keeps its triggers out. Readers split
# the days of the archive by their sizes: those are truncated.
EMPTY = """
    do $$
    declare
      v_statement text;
    begin
      perform set_config('session_replication_role', 'replica', true);
      foreach v_statement in array
        array(
          -- What streams and tests have made. A cascade may have dropped some of it already.
          select format('drop schema if exists %I cascade', n.nspname)
          from pg_namespace as n
          where n.nspname !~ '^pg_'
            and n.nspname not in ('messages', 'notifyq', 'public', 'information_schema')
          union all
          select format('drop table if exists %s', i.inhrelid::regclass)
          from pg_inherits as i
          where i.inhparent = 'messages.event'::regclass
          union all
          select format(
            'drop %s if exists %s cascade',
            case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end,
            c.oid::regclass
          )
          from pg_class as c
          where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
          union all
          select format('drop type if exists %s cascade', t.oid::regtype)
          from pg_type as t
          left join pg_class as c on c.oid = t.typrelid and c.relkind <> 'c'
          where t.typnamespace = 'public'::regnamespace and t.typcategory <> 'A'
            and t.typtype <> 'm' and c.oid is null
          union all
          select format('drop routine if exists %s cascade', p.oid::regprocedure)
          from pg_proc as p
          where p.pronamespace = 'public'::regnamespace
        )
      loop
        execute v_statement;
      end loop;
      foreach v_statement in array
        array(
          select format(
            case
              when not c.relispartition and pg_relation_size(c.oid) <= 16384
                and (c.reltoastrelid = 0 or pg_relation_size(c.reltoastrelid) = 0)
                then 'delete from %s'
              else 'truncate %s cascade'
            end,
            c.oid::regclass
          )
          from pg_class as c
          where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
            and c.relkind = 'r'
            and c.relname <> 'schema_version' and pg_relation_size(c.oid) > 0
        )
      loop
        execute v_statement;
      end loop;
      perform set_config('session_replication_role', 'origin', true);
      perform setval(s.seqrelid, s.seqstart, false)
      from pg_sequence as s
      where pg_sequence_last_value(s.seqrelid) is not null;
      -- Those that only some queues need.
      perform notifyq.rebuild_access_trigger(), notifyq.rebuild_queue_triggers();
    end $$;
    delete from pg_statistic where starelid >= 16384;
    update pg_class set relpages = 0, reltuples = -1, relallvisible = 0
    where oid >= 16384 and relkind in ('r', 'p', 't') and (relpages, reltuples) <> (0, -1);
    insert into notifyq.origin select (notifyq.current_origin()).*;
    insert into messages.queue (name) values ('default');
"""

_STAMP = """
    select sum(hash_record_extended(x.line, 0))
    from (
      select (oid, relname, relnamespace, relowner,
        case when relkind <> 'i' then (relpages, reltuples)::text end, relkind, relpersistence,
        relchecks, relhasindex, relhasrules, relhastriggers, relrowsecurity, relispartition,
        relacl::text, reloptions, relpartbound::text)
        from pg_class where oid >= 16384
      union all select (oid, proname, proowner, prolang, prosecdef, provolatile, proretset,
        proacl::text, proconfig, prosrc)
        from pg_proc where oid >= 16384
      union all select (oid, xmin) from pg_type where oid >= 16384
      union all select (oid, conname, conrelid, conkey, convalidated, conislocal, conbin::text)
        from pg_constraint where oid >= 16384
      union all select (tgrelid, tgname, tgfoid, tgtype, tgenabled, tgqual::text)
        from pg_trigger where oid >= 16384
      union all select (oid, xmin) from pg_enum
      union all select (oid, xmin) from pg_extension
      union all select (oid, xmin) from pg_namespace where nspname !~ '_'
      union all select (attrelid, attnum, attname, atttypid, attnotnull, attstattarget, attstorage,
        attacl::text, attoptions)
        from pg_attribute where attrelid >= 16384
      union all select (oid, xmin) from pg_attrdef
      union all select (objoid, classoid, objsubid, description) from pg_description
        where objoid >= 16384
      union all select (starelid, staattnum) from pg_statistic where starelid >= 16384
      union all select row(setconfig) from pg_db_role_setting
        where setdatabase = (select oid from pg_database where datname = current_database())
      union all select row(version) from notifyq.schema_version
    ) as x (line)
"""
