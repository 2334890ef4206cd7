"""Shared by tests: installs, clones, sessions, notifications, notices, and the catalog as text."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from inspect import isawaitable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import asyncpg

from notifyq.schema.files import init_files

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

ROOT = Path(__file__).parents[2]
INIT_FILES = init_files(ROOT / "db")


class Connect(Protocol):
    """Opens one more session in the database of the test; it is closed with the test."""

    async def __call__(self, **options: Any) -> Connection: ...


async def open_session(dsn: str, **options: Any) -> Connection:
    connection: Connection = await asyncpg.connect(dsn, timeout=20, **options)
    await connection.set_type_codec(
        "jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
    )
    return connection


@asynccontextmanager
async def session(dsn: str, **options: Any) -> AsyncIterator[Connection]:
    connection = await open_session(dsn, **options)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


async def install(connection: Connection, files: Iterable[Path] = INIT_FILES) -> None:
    """Run the init files in their order, each in a transaction of its own."""
    for file in files:
        async with connection.transaction():
            await connection.execute(file.read_text())


_BOUNDS = """
do $$
declare
  v_table text;
begin
  foreach v_table in array array['messages.message', 'notifyq.message_unlogged'] loop
    execute format(
      $checks$
        alter table %s
          add constraint guard_locked_ck check (
            (state = 'locked') = (lock_expires_at is not null and locked_at is not null)
          ),
          add constraint guard_headers_ck check (jsonb_typeof(headers) = 'object'),
          add constraint guard_instants_ck check (
            least(available_at, created_at, lock_expires_at, locked_at, parked_at)
              >= '0001-01-01 00:00:00+00'
            and greatest(
              nullif(available_at, 'infinity'), created_at, nullif(lock_expires_at, 'infinity'),
              locked_at, parked_at
            ) < '10000-01-01 00:00:00+00'
          )
      $checks$,
      v_table
    );
  end loop;
  alter table messages.message_archive
    add constraint guard_instants_ck check (
      least(archived_at, available_at, created_at, locked_at) >= '0001-01-01 00:00:00+00'
      and greatest(archived_at, nullif(available_at, 'infinity'), created_at, locked_at)
        < '10000-01-01 00:00:00+00'
    );
end;
$$
"""


async def guard_bounds(connection: Connection) -> None:
    """Have the tables of messages refuse rows that no function of the schema may write.

    Installs lack these checks: each statement would parse them.
    """
    await connection.execute(_BOUNDS)


async def create_clone(admin: Connection, name: str, template: str) -> None:
    # file_copy, the other way, waits for a checkpoint of the whole server.
    await admin.execute(f'create database "{name}" template "{template}" strategy wal_log')


async def drop_database(admin: Connection, name: str) -> None:
    await admin.execute(f'drop database if exists "{name}" with (force)')


async def end_sessions(admin: Connection, name: str) -> None:
    """End what is connected to a database and wait until it is gone with all that it held."""

    async def all_gone() -> bool:
        left = await admin.fetchval(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = $1", name
        )
        return bool(left == 0)

    await until(all_gone, f"no session is in {name}")


async def until(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Poll until the condition, or what it awaits, is true; for states without an event."""
    deadline = time.monotonic() + seconds
    while not (await answer if isawaitable(answer := condition()) else answer):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s still not: {what}")
        await asyncio.sleep(0.005)


async def until_equal(
    get: Callable[[], Awaitable[object]], wanted: object, what: str, seconds: float = 10.0
) -> None:
    """Poll until what is awaited equals the value; a timeout reports what it was at last."""
    found: list[object] = []

    async def is_equal() -> bool:
        found[:] = [await get()]
        return found == [wanted]

    try:
        await until(is_equal, what, seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}, but {found}") from None


async def until_blocked(observer: Connection, *blocked: Connection, event: str = "Lock") -> None:
    """Wait until each of these sessions waits for a lock, or for another event or its type."""
    pids = [connection.get_server_pid() for connection in blocked]

    async def all_wait() -> bool:
        waiting = await observer.fetchval(
            "select count(*) from pg_stat_activity "
            "where pid = any ($1) and $2 in (wait_event_type, wait_event)",
            pids,
            event,
        )
        return bool(waiting == len(pids))

    await until(all_wait, f"sessions {pids} wait for a lock")


async def terminate(observer: Connection, victim: Connection) -> None:
    """End a session from the server's side and wait until its transaction is rolled back."""
    pid = victim.get_server_pid()
    await observer.fetchval("select pg_terminate_backend($1)", pid)

    async def is_gone() -> bool:
        return bool(
            await observer.fetchval(
                "select not exists (select from pg_stat_activity where pid = $1)", pid
            )
        )

    await until(is_gone, f"session {pid} is gone")


@dataclass(frozen=True)
class Notification:
    channel: str
    queue: str
    spans: str

    @property
    def ids(self) -> list[int]:
        """The ids that the payload names, spans written out."""
        found: list[int] = []
        for span in filter(None, self.spans.split(",")):
            first, _, last = span.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
        return found

    @property
    def payload(self) -> str:
        return f"{self.queue}:{self.spans}"


class Notifications:
    """Listens to channels with a session of its own."""

    _FENCE = "test_fence"

    def __init__(self, listener: Connection, *channels: str) -> None:
        self._listener = listener
        self._channels = channels or ("new_message", "dead_message")
        self._received: list[Notification] = []
        self._fences: asyncio.Queue[str] = asyncio.Queue()
        self._count = 0

    async def listen(self) -> None:
        for channel in self._channels:
            await self._listener.add_listener(channel, self._receive)
        await self._listener.add_listener(self._FENCE, self._pass_fence)

    async def received(self, channel: str = "new_message") -> list[Notification]:
        """Return all notifications of the channel since the last call, and drop the others.

        Notifications arrive in the order of commits: once a notification sent here arrives, all
        earlier ones have arrived, and a test need not wait to see that there was none.
        """
        self._count += 1
        await self._listener.execute("select pg_notify($1, $2)", self._FENCE, str(self._count))
        async with asyncio.timeout(10):
            while await self._fences.get() != str(self._count):
                pass
        received, self._received = self._received, []
        return [notification for notification in received if notification.channel == channel]

    async def payloads(self, channel: str = "new_message") -> list[str]:
        """Return the payloads of what received() would return."""
        return [notification.payload for notification in await self.received(channel)]

    async def ids(self, channel: str = "new_message") -> list[list[int]]:
        """Return the ids of each notification that received() would return."""
        return [notification.ids for notification in await self.received(channel)]

    def _receive(self, _: object, __: int, channel: str, payload: object) -> None:
        queue, _separator, spans = str(payload).partition(":")
        self._received.append(Notification(channel, queue, spans))

    def _pass_fence(self, _: object, __: int, ___: str, payload: object) -> None:
        self._fences.put_nowait(str(payload))


class Notices:
    """Collects the notices and warnings of the server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._texts: list[tuple[str, str]] = []
        connection.add_log_listener(self._receive)

    async def received(self, severity: str | None = None) -> list[str]:
        """Return the texts since the last call, of one severity or of all."""
        # The driver passes them on after the answer.
        await asyncio.sleep(0)
        texts, self._texts = self._texts, []
        return [text for level, text in texts if severity in {None, level}]

    def _receive(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        severity = getattr(message, "severity_en", None) or message.severity
        self._texts.append((str(severity), str(message.message)))


def qualified(function: str) -> str:
    """Return the name of a function with its schema, which is `messages` unless it is given."""
    return function if "." in function else f"messages.{function}"


async def rows(connection: Connection, function: str, **arguments: Any) -> list[asyncpg.Record]:
    """Call a function of the schema with named arguments and return its rows."""
    named = ", ".join(f'"{name}" => ${number}' for number, name in enumerate(arguments, 1))
    return await connection.fetch(
        f"select * from {qualified(function)}({named})", *arguments.values()
    )


async def value(connection: Connection, function: str, **arguments: Any) -> Any:
    """Call a function of the schema with named arguments and return its single value."""
    named = ", ".join(f'"{name}" => ${number}' for number, name in enumerate(arguments, 1))
    return await connection.fetchval(f"select {qualified(function)}({named})", *arguments.values())


async def fire(connection: Connection) -> list[str]:
    """Fire the schedules that are due and return the name of the schedule of each message."""
    fired: list[str] = await connection.fetchval("select fired from notifyq.fire_schedules()")
    return fired


async def one_row(connection: Connection, query: str, *arguments: Any) -> asyncpg.Record:
    """Return the first row of a query that must have one."""
    row = await connection.fetchrow(query, *arguments)
    assert row is not None
    return row


async def publish(connection: Connection, quantity: int, queue: str = "default") -> list[int]:
    """Publish the numbers from 0 on and return the ids of the messages."""
    published = await rows(connection, "publish_many", queue=queue, messages=list(range(quantity)))
    return [row[0] for row in published]


async def claim_one(connection: Connection, worker: str = "worker") -> asyncpg.Record:
    """Claim the one message that there is."""
    (claimed,) = await rows(connection, "claim", worker=worker)
    return claimed


async def finish_all(
    connection: Connection,
    messages: Sequence[asyncpg.Record],
    status: str = "success",
    details: str | None = None,
) -> list[int]:
    """Finish claimed messages in one statement; return the ids of those whose locks were held."""
    finished = await rows(
        connection,
        "finish_many",
        ids=[message["id"] for message in messages],
        lock_tokens=[message["lock_token"] for message in messages],
        statuses=[status] * len(messages),
        details=[details] * len(messages),
    )
    return sorted(row[0] for row in finished)


async def let_fail(
    connection: Connection,
    quantity: int = 1,
    queue: str = "default",
    details: str | None = None,
    *,
    status: str = "failed",
    worker: str | None = None,
) -> list[int]:
    """Publish messages into a queue, archive as many as failed, and return the ids of those."""
    await publish(connection, quantity, queue)
    claimed = await rows(connection, "claim", queues=[queue], quantity=quantity, worker=worker)
    return await finish_all(connection, claimed, status, details)


def lock_of(message: asyncpg.Record) -> dict[str, Any]:
    """Return what ends or extends the lock of a claimed message, as arguments."""
    return {"id": message["id"], "lock_token": message["lock_token"]}


async def live(connection: Connection, id_: int) -> asyncpg.Record | None:
    return await connection.fetchrow("select * from messages.message where id = $1", id_)


async def alive(connection: Connection, id_: int) -> asyncpg.Record:
    """Return a message that must be live."""
    return await one_row(connection, "select * from messages.message where id = $1", id_)


async def archived(connection: Connection, id_: int) -> list[asyncpg.Record]:
    return await connection.fetch("select * from messages.message_archive where id = $1", id_)


async def expire(connection: Connection, *ids: int) -> None:
    """Move locks into the past: the clock is the server's and cannot be moved."""
    await connection.execute(
        "update messages.message set locked_at = locked_at - interval '1 day', "
        "lock_expires_at = clock_timestamp() - interval '1 second' "
        "where id = any ($1) and state = 'locked'",
        ids,
    )


async def make_due(connection: Connection, *ids: int) -> None:
    await connection.execute(
        "update messages.message set available_at = now() - interval '1 second' "
        "where id = any ($1)",
        ids,
    )


async def fingerprint(connection: Connection, queries: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for query in queries:
        lines.extend(row[0] for row in await connection.fetch(query))
    return sorted(lines)


async def catalog_lines(connection: Connection) -> list[str]:
    """Return all that an install leaves in the catalog, one sorted line for each fact.

    Two databases with equal lines behave the same; names and definitions count, oids, row
    contents and the physical position of columns that were dropped do not.
    """
    has_cron = await connection.fetchval("select to_regclass('cron.job') is not null")
    lines = await fingerprint(connection, (*_CATALOG, *([_CRON] if has_cron else [])))
    return _relative([re.sub(r"\s+", " ", line) for line in lines])


def _relative(lines: list[str]) -> list[str]:
    """Name days by their distance: one of two installs may be of the day before."""
    days = [date.fromisoformat(day) for line in lines for day in _PARTITION.findall(line)]

    def distance(found: re.Match[str]) -> str:
        return f"day {(date.fromisoformat(found[0]) - min(days)).days}"

    return [_DAY.sub(distance, line) for line in lines] if days else lines


_PARTITION = re.compile(r"(?<=_)20\d{6}\b")
_DAY = re.compile(r"(?<=_)20\d{6}\b|\b20\d\d-\d\d-\d\d\b")


def _acl(label: str, acl: str, kind: str, owner: str, source: str) -> str:
    """Who may do what, one line for each; a null access list means the default one."""
    return f"""
    select format('grant %s: %s to %s%s', {label}, x.privilege_type,
      case when x.grantee = 0 then 'public' else x.grantee::regrole::text end,
      case when x.is_grantable then ' with grant option' else '' end)
    from {source}
    cross join lateral aclexplode(coalesce({acl}, acldefault('{kind}', {owner}))) as x
    """


_RELATIONS = """pg_class as c join pg_namespace as n
      on n.oid = c.relnamespace and n.nspname in ('messages', 'notifyq')
      and c.relkind in ('r', 'p', 'v', 'S')"""
_FUNCTIONS = (
    "pg_proc as p join pg_namespace as n "
    "on n.oid = p.pronamespace and n.nspname in ('messages', 'notifyq')"
)
_TYPES = """pg_type as t join pg_namespace as n
      on n.oid = t.typnamespace and n.nspname in ('messages', 'notifyq')
      and t.typtype in ('e', 'd', 'c')"""

_CATALOG = (
    """
    select format('schema %s, owner %s, comment %s', n.nspname, n.nspowner::regrole,
      obj_description(n.oid, 'pg_namespace'))
    from pg_namespace as n where n.nspname in ('messages', 'notifyq')
    """,
    f"""
    select format('relation %s: kind %s, persistence %s, owner %s, options %s, part of %s %s, '
      'row security %s, comment %s', c.oid::regclass, c.relkind, c.relpersistence,
        c.relowner::regrole,
      array(select o from unnest(c.reloptions) as o order by o), i.inhparent::regclass,
      pg_get_expr(c.relpartbound, c.oid), c.relrowsecurity, obj_description(c.oid, 'pg_class'))
    from {_RELATIONS} left join pg_inherits as i on i.inhrelid = c.oid
    """,
    f"""
    select format('column %s.%s: %s. %s, not null %s, default %s, identity %s, generated %s, '
      'storage %s, statistics %s, options %s, comment %s', c.oid::regclass, a.attname,
      row_number() over (partition by c.oid order by a.attnum),
      format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
      a.attidentity, a.attgenerated, a.attstorage,
      nullif(a.attstattarget, -1),
      -- pg_attver is a random number that newer servers keep for themselves.
      array(select o from unnest(a.attoptions) as o where o !~ '^pg_attver=' order by o),
      col_description(c.oid, a.attnum))
    from {_RELATIONS}
    join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
    """,
    """
    select format('constraint %s on %s: %s, validated %s, comment %s', k.conname,
      k.conrelid::regclass, pg_get_constraintdef(k.oid), k.convalidated,
      obj_description(k.oid, 'pg_constraint'))
    from pg_constraint as k join pg_namespace as n on n.oid = k.connamespace
    where n.nspname in ('messages', 'notifyq') and k.conname !~ '^guard_'
    """,
    """
    select format('index %s: %s, valid %s, options %s', c.oid::regclass,
      pg_get_indexdef(x.indexrelid),
      x.indisvalid, c.reloptions)
    from pg_index as x join pg_class as c on c.oid = x.indexrelid
    join pg_namespace as n on n.oid = c.relnamespace and n.nspname in ('messages', 'notifyq')
    """,
    f"""
    select format('sequence %s: %s from %s to %s by %s, cycle %s, of %s %s', c.oid::regclass,
      s.seqtypid::regtype, s.seqmin, s.seqmax, s.seqincrement, s.seqcycle, a.attrelid::regclass,
      a.attname)
    from {_RELATIONS} join pg_sequence as s on s.seqrelid = c.oid
    left join pg_depend as d on d.classid = 'pg_class'::regclass and d.objid = c.oid
      and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i')
    left join pg_attribute as a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
    """,
    f"""
    select format('view %s: %s', c.oid::regclass, pg_get_viewdef(c.oid))
    from {_RELATIONS} where c.relkind = 'v'
    """,
    """
    select format('rule %s on %s: %s', r.rulename, r.ev_class::regclass, pg_get_ruledef(r.oid))
    from pg_rewrite as r join pg_class as c on c.oid = r.ev_class
    join pg_namespace as n on n.oid = c.relnamespace and n.nspname in ('messages', 'notifyq')
    """,
    f"""
    select format('function %s: owner %s, source %s, settings %s, definer %s, comment %s',
      p.oid::regprocedure, p.proowner::regrole, md5(pg_get_functiondef(p.oid)),
      array(select s from unnest(p.proconfig) as s order by s), p.prosecdef,
      obj_description(p.oid, 'pg_proc'))
    from {_FUNCTIONS} where p.prokind in ('f', 'p')
    """,
    """
    select format('trigger %s on %s: %s, enabled %s', g.tgname, g.tgrelid::regclass,
      pg_get_triggerdef(g.oid), g.tgenabled)
    from pg_trigger as g join pg_class as c on c.oid = g.tgrelid
    join pg_namespace as n on n.oid = c.relnamespace and n.nspname in ('messages', 'notifyq')
    where not g.tgisinternal
    """,
    f"""
    select format('type %s: kind %s, labels %s, owner %s, comment %s', t.oid::regtype, t.typtype,
      array(
        select e.enumlabel from pg_enum as e where e.enumtypid = t.oid order by e.enumsortorder
      ),
      t.typowner::regrole, obj_description(t.oid, 'pg_type'))
    from {_TYPES}
    """,
    """
    select format('column %s.%s: %s. %s', c.oid::regclass, a.attname, a.attnum,
      format_type(a.atttypid, a.atttypmod))
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where n.nspname in ('messages', 'notifyq') and c.relkind = 'c'
    """,
    _acl("'schema ' || n.nspname", "n.nspacl", "n", "n.nspowner", "pg_namespace as n")
    + "where n.nspname in ('messages', 'notifyq')",
    _acl("c.oid::regclass", "c.relacl", "r", "c.relowner", _RELATIONS),
    _acl("p.oid::regprocedure", "p.proacl", "f", "p.proowner", _FUNCTIONS),
    _acl("t.oid::regtype", "t.typacl", "T", "t.typowner", _TYPES),
    """
    select format('grant %s (%s): %s to %s', c.oid::regclass, a.attname, x.privilege_type,
      x.grantee::regrole)
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace and n.nspname in ('messages', 'notifyq')
    join pg_attribute as a on a.attrelid = c.oid and a.attacl is not null
    cross join lateral aclexplode(a.attacl) as x
    """,
    """
    select format('default grants of %s on %s: %s', a.defaclrole::regrole, a.defaclobjtype,
      a.defaclacl)
    from pg_default_acl as a join pg_namespace as n on n.oid = a.defaclnamespace
    where n.nspname in ('messages', 'notifyq')
    """,
    """
    select format('role %s: login %s, inherits %s, superuser %s, member of %s', r.rolname,
      r.rolcanlogin, r.rolinherit, r.rolsuper,
      array(
        select m.roleid::regrole::text from pg_auth_members as m where m.member = r.oid order by 1
      ))
    -- Other installs have a name in between: notifyq_billing_admin.
    from pg_roles as r where r.rolname ~ '^notifyq_[a-z]+$'
    """,
)

_CRON = """
    select format('cron %s: %s %s in %s, active %s', j.jobname, j.schedule, j.command, j.database,
      j.active)
    from cron.job as j where j.jobname like 'notifyq %'
"""
