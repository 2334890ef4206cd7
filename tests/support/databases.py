"""The databases that tests get: clones of one install, emptied and handed on from test to test."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from notifyq.dsn import with_database

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        self.session: Final = psycopg.connect(dsn, autocommit=True)
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


# Only what was written is truncated: all tables take a hundred times as long, in every test.
EMPTY = """
    do $$
    declare
      v_written text;
      v_drop text;
    begin
      -- What streams and tests have made. A cascade may have dropped some of it already.
      foreach v_drop in array
        array(
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
          select format('drop routine if exists %s cascade', p.oid::regprocedure)
          from pg_proc as p
          where p.pronamespace = 'public'::regnamespace
          union all
          select format('drop type if exists %s cascade', t.oid::regtype)
          from pg_type as t
          left join pg_class as c on c.oid = t.typrelid and c.relkind <> 'c'
          where t.typnamespace = 'public'::regnamespace and t.typcategory <> 'A' and c.oid is null
        )
      loop
        execute v_drop;
      end loop;
      select string_agg(c.oid::regclass::text, ', ') into v_written
      from pg_class as c
      where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
        and c.relkind = 'r'
        and c.relname <> 'schema_version' and pg_relation_size(c.oid) > 0;
      execute 'truncate ' || v_written || ' cascade';
      perform setval(s.seqrelid, s.seqstart, false)
      from pg_sequence as s
      where pg_sequence_last_value(s.seqrelid) is not null;
      -- Those that only some queues need.
      perform notifyq.rebuild_access_trigger(), notifyq.rebuild_capacity_trigger(),
        notifyq.rebuild_payload_trigger(), notifyq.rebuild_unlogged_triggers();
    end $$;
    insert into notifyq.origin select (notifyq.current_origin()).*;
    insert into messages.queue (name) values ('default');
"""

_STAMP = """
    select md5(string_agg(x.line, ' ' order by x.line))
    from (
      select format('class %s %s', oid, (relname, relnamespace, relowner,
        case when relkind <> 'i' then (relpages, reltuples) end, relkind, relpersistence,
        relchecks, relhasindex, relhasrules, relhastriggers, relrowsecurity, relispartition,
        relacl, reloptions, relpartbound))
        from pg_class where oid >= 16384
      union all select format('proc %s %s', oid, (proname, proowner, prolang, prosecdef,
        provolatile, proretset, proacl, proconfig, hashtext(prosrc)))
        from pg_proc where oid >= 16384
      union all select format('type %s %s', oid, xmin) from pg_type where oid >= 16384
      union all select format('constraint %s %s', oid, xmin) from pg_constraint where oid >= 16384
      union all select format('trigger %s', (tgrelid, tgname, tgfoid, tgtype, tgenabled, tgqual))
        from pg_trigger where oid >= 16384
      union all select format('enum %s %s', oid, xmin) from pg_enum
      union all select format('extension %s %s', oid, xmin) from pg_extension
      union all select format('namespace %s %s', oid, xmin) from pg_namespace where nspname !~ '_'
      union all select format('column %s %s', attrelid,
        (attnum, attname, atttypid, attnotnull, attstattarget, attstorage, attacl, attoptions))
        from pg_attribute where attrelid >= 16384
      union all select format('default %s %s', oid, xmin) from pg_attrdef
      union all select format('comment %s %s', objoid, xmin) from pg_description
        where objoid >= 16384
      union all select format('statistics %s %s', starelid, staattnum) from pg_statistic
        where starelid >= 16384
      union all select format('setting %s', setconfig) from pg_db_role_setting
        where setdatabase = (select oid from pg_database where datname = current_database())
      union all select format('version %s', version) from notifyq.schema_version
    ) as x (line)
"""
