"""Several installs in one database: each has all that the default one has, and nothing of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from notifyq import ConfigurationError, schema
from notifyq.database.installs import renamed, schema_of
from notifyq.database.pool import connect as connect_ours
from notifyq.errors import SchemaError
from support.database import Connect, Connection, catalog_lines, session

OTHER = "zebra"
"""A word that no text of ours has."""
PAIRS = {"messages": ("messages", "notifyq"), OTHER: (OTHER, f"notifyq_{OTHER}")}
ROLES = ("owner", "publisher", "worker", "reader", "admin")

SOURCES = """
  select p.oid::regprocedure::text || ': ' || p.prosrc from pg_proc as p
  where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
"""
# All that depends on something of the other install, as the server knows it.
CROSSING = """
  select pg_describe_object(d.classid, d.objid, d.objsubid)
    || ' on ' || pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
  from pg_depend as d,
    pg_identify_object(d.classid, d.objid, d.objsubid) as a,
    pg_identify_object(d.refclassid, d.refobjid, d.refobjsubid) as b
  where (a.schema = any ($1) and b.schema = any ($2))
    or (a.schema = any ($2) and b.schema = any ($1))
"""
TABLES = """
  select c.oid::regclass::text from pg_class as c
  where c.relnamespace::regnamespace::text = any ($1) and c.relkind in ('r', 'S')
  order by 1
"""
# What stands there is the word, and no name: a command, the product, what a queue has.
WORDS = re.compile(
    r"`notifyq[ `]|'notifyq: |[a-z*] notifyq( itself|,| can| have| that|: )|comment notifyq,"
)
# A name of the default install.
NAMES = re.compile(
    r"\bmessages\.(?=[a-z_%])|(?<!_seq', )'messages'|\bmessages\[|schemas? messages\b"
    rf"|\bnotifyq_(?!{OTHER})|\bnotifyq\."
)


async def open_ours(dsn: str, name: str) -> Connection:
    return await connect_ours(dsn, schema=name)


@pytest.fixture
async def both(database: str) -> AsyncIterator[dict[str, Connection]]:
    """Give a session of each of two installs in one database."""
    found = {name: await open_ours(database, name) for name in PAIRS}
    await schema.install(found[OTHER])
    yield found
    for connection in found.values():
        await connection.close(timeout=10)


def as_default(line: str) -> str:
    """What the default install has in place of this line of the other one."""
    for written in ("7305427", "730542", "1852926059"):
        digits = f"{written}001" if written == "7305427" else written
        own = renamed(digits, OTHER)
        line = line.replace(own[:-3] if written == "7305427" else own, written)
    line = re.sub(rf"\b{OTHER}_(?=(new|dead|finished|cancelled)_|message_output)", "", line)
    return line.replace(f"notifyq_{OTHER}", "notifyq").replace(OTHER, "messages")


async def test_another_install_has_all_that_the_default_one_has(
    both: dict[str, Connection],
) -> None:
    found: dict[str, list[str]] = {}
    for name, connection in both.items():
        lines = [re.sub(r"source \w+", "", it) for it in await catalog_lines(connection)]
        lines += [row[0] for row in await connection.fetch(SOURCES)]
        found[name] = sorted(it for it in lines if not it.startswith("role "))
    wanted = found["messages"]
    # The server writes the key of a lock in its own way.
    assert sorted(map(as_default, found[OTHER])) == wanted
    assert len(wanted) > 6000


async def test_nothing_in_it_names_the_default_one(both: dict[str, Connection]) -> None:
    lines = [line for line in await catalog_lines(both[OTHER]) if not line.startswith("role ")]
    for row in await both[OTHER].fetch(SOURCES):
        lines += row[0].splitlines()
    named = [line for line in lines if NAMES.search(line)]
    assert not named
    left = [WORDS.sub("", line) for line in lines]
    assert not [line for line in left if re.search(rf"\bnotifyq(?!_{OTHER})", line)]
    # The search can fail: the default install has thousands of them.
    assert sum(bool(NAMES.search(it)) for it in await catalog_lines(both["messages"])) > 1000


async def test_no_object_of_one_depends_on_one_of_the_other(both: dict[str, Connection]) -> None:
    connection = both["messages"]
    assert not await connection.fetch(CROSSING, list(PAIRS["messages"]), list(PAIRS[OTHER]))
    # The search can fail.
    await connection.execute(f"create view messages.x as select * from {OTHER}.message")
    assert await connection.fetch(CROSSING, list(PAIRS["messages"]), list(PAIRS[OTHER]))


async def test_a_role_of_one_has_no_right_in_the_other(both: dict[str, Connection]) -> None:
    held = """
      select g.name, x.privilege_type, x.grantee::regrole::text
      from (
        select n.nspname as schema, n.nspname as name, n.nspacl as acl from pg_namespace as n
        union all
        select c.relnamespace::regnamespace::text, c.relname, c.relacl from pg_class as c
        union all
        select c.relnamespace::regnamespace::text, a.attname, a.attacl
        from pg_attribute as a join pg_class as c on c.oid = a.attrelid
        union all
        select p.pronamespace::regnamespace::text, p.proname, p.proacl from pg_proc as p
        union all
        select t.typnamespace::regnamespace::text, t.typname, t.typacl from pg_type as t
      ) as g, aclexplode(g.acl) as x
      where g.schema = any ($1) and x.grantee = any ($2::regrole[])
    """
    connection = both["messages"]
    for own, other in (("messages", OTHER), (OTHER, "messages")):
        theirs = [f"{PAIRS[own][1]}_{role}" for role in ROLES]
        assert await connection.fetch(held, list(PAIRS[own]), theirs)
        assert not await connection.fetch(held, list(PAIRS[other]), theirs)
    members = """
      select a.rolname from pg_auth_members as m
      join pg_roles as a on a.oid = m.roleid join pg_roles as b on b.oid = m.member
      where a.rolname ~ '^notifyq_' and b.rolname ~ '^notifyq_'
    """
    assert not await connection.fetch(members)


async def contents(plain: Connection, name: str) -> dict[str, Any]:
    """All rows and sequences of an install, read by a session that renames nothing."""
    found = {}
    for row in await plain.fetch(TABLES, list(PAIRS[name])):
        rows = f"select row(t.*)::text as row from {row[0]} as t"
        query = f"select md5(string_agg(r.row, ',' order by r.row)) from ({rows}) as r"
        found[row[0]] = await plain.fetchval(query)
    return found


async def use(connection: Connection) -> None:
    """Do all that changes rows, wakes somebody, or takes a lock of an install."""

    async def call(statement: str, *args: Any) -> Any:
        return await connection.fetchval(statement, *args)

    async def finish(status: str, id_: int) -> None:
        [row] = await connection.fetch(
            "select * from messages.claim(array['mail'], 1, '1 minute', 'w')"
        )
        assert row["id"] == id_
        await call(
            "select messages.finish_many(array[$1::bigint], array[$2::bigint], "
            "array[$3::messages.message_status])",
            id_, row["lock_token"], status,
        )  # fmt: skip

    await call("select messages.create_queue('mail')")
    await call("select messages.create_queue('quick', durable => false)")
    await call("select messages.create_queue('limited', rate => 10, key_concurrency => 1)")
    ids = [await call("select messages.publish('mail', '{}')") for _ in range(3)]
    await connection.execute("insert into messages.message (queue, message) values ('mail', '1')")
    await call("select messages.publish('quick', '{}')")
    await call("select messages.publish('limited', '{}', key => 'k')")
    await finish("success", ids[0])
    await finish("failed", ids[1])
    await call("select messages.dead_retry($1)", ids[1])
    await call("select messages.cancel($1)", ids[2])
    await connection.fetch("select * from messages.claim(array['quick', 'limited'], 9, '1s', 'w')")
    await call("select messages.create_stream('orders')")
    await call("select messages.subscribe('orders', 'mailer')")
    await call("select messages.publish('orders', '{\"n\": 1}')")
    await call("select messages.tick('orders')")
    batch = await call("select messages.next_batch('orders', 'mailer')")
    await call("select messages.finish_batch($1)", batch)
    await connection.execute("create table if not exists public.shop (id integer primary key)")
    await connection.execute("select messages.capture('public.shop', 'orders')")
    await connection.execute("insert into public.shop values (1) on conflict do nothing")
    await call("select messages.schedule('tick', '@hourly', 'mail')")
    await connection.execute("update messages.schedule set next_at = clock_timestamp()")
    await connection.fetch("select * from notifyq.fire_schedules()")
    await call("select messages.signal('go', '{}')")
    await connection.fetch("select * from messages.take('mail', 1)")
    await connection.execute("call messages.wait(array['mail'], '0')")
    await call("select notifyq.suppress('mail', eager => false)")
    await connection.fetch("select * from messages.maintain()")
    await connection.fetch("select * from messages.health()")
    await call("select messages.drop_queue('limited', force => true)")


@pytest.mark.parametrize("name", list(PAIRS))
async def test_the_use_of_one_changes_wakes_and_locks_nothing_of_the_other(
    both: dict[str, Connection], connect: Connect, name: str
) -> None:
    other = OTHER if name == "messages" else "messages"
    channels = (
        "new_message", "new_event", "dead_message", "finished_message", "cancelled_message"
    )  # fmt: skip
    own = {it: it if name == "messages" else f"{OTHER}_{it}" for it in channels}
    plain, sent, received = await connect(), set(), asyncio.Event()
    for channel in channels:
        for full in (channel, f"{OTHER}_{channel}"):
            await plain.add_listener(full, lambda *given: sent.add(given[2]))
    await plain.add_listener("fence", lambda *_: received.set())
    before, was = await contents(plain, other), await contents(plain, name)
    await use(both[name])
    assert await contents(plain, other) == before
    now = await contents(plain, name)
    assert len([it for it in now if now[it] != was.get(it)]) > 15
    await plain.execute("select pg_notify('fence', '')")  # earlier ones arrive before it
    await received.wait()
    assert {own["new_message"], own["new_event"], own["dead_message"]} <= sent <= set(own.values())
    # The same calls get the same answers there: no key of a lock is shared.
    await use(both[other])


async def test_locks_of_one_are_no_locks_of_the_other(both: dict[str, Connection]) -> None:
    """A session owns messages, and a worker takes its turn, in their own install."""
    keys = {}
    for name, connection in both.items():
        await connection.execute("select messages.create_queue('mail')")
        await connection.execute("select messages.publish('mail', '1')")
        await connection.execute("call messages.wait(array['mail'], '0')")
        await connection.execute("select notifyq.take_wake_slots(array['mail'])")
        keys[name] = {
            tuple(row)
            for row in await connection.fetch(
                "select classid, objid, objsubid from pg_locks "
                "where locktype = 'advisory' and pid = pg_backend_pid()"
            )
        }
    assert keys["messages"]
    assert len(keys["messages"]) == len(keys[OTHER])
    assert not keys["messages"] & keys[OTHER]


async def test_it_is_installed_once_and_its_script_does_the_same(
    both: dict[str, Connection], empty_database: str
) -> None:
    report = await schema.install(both[OTHER])
    assert (report.before, report.is_changed) == (1, False)
    async with session(empty_database) as connection:
        await connection.execute(schema.script(None, schema=OTHER))
    there = await open_ours(empty_database, OTHER)
    assert await there.fetchval("select to_regnamespace('public') is not null")
    lines = [await catalog_lines(it) for it in (there, both[OTHER])]
    await there.close()
    assert lines[0] == lines[1]


async def test_the_schema_of_others_is_left_alone(database: str, connection: Connection) -> None:
    await connection.execute(f"create schema {OTHER}; create table {OTHER}.animals (id integer)")
    ours = await open_ours(database, OTHER)
    with pytest.raises(SchemaError, match=r"schema zebra in database \S+ is not that of notifyq"):
        await schema.install(ours)
    await ours.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Jobs", "lower-case letters"),
        ("my-jobs", "lower-case letters"),
        ("1st", "lower-case letters"),
        ("jobs\n", "lower-case letters"),
        ("", "lower-case letters"),
        ("x" * 33, "33 characters, at most 32"),
        ("notifyq", "reserved"),
        ("notifyq_jobs", "reserved"),
        ("pg_jobs", "reserved"),
        ("public", "schema of something else"),
        ("select", "reserved word"),
    ],
)
def test_a_bad_name_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        schema_of(name)


async def test_no_allowed_name_needs_quotes(connection: Connection) -> None:
    words = await connection.fetch(
        "select word from pg_get_keywords() where word <> quote_ident(word)"
    )
    assert len(words) > 100
    for row in words:
        with pytest.raises(ConfigurationError):
            schema_of(row["word"])


async def test_the_longest_name_fits(database: str) -> None:
    ours = await open_ours(database, "z" * 32)
    await schema.install(ours)
    await use(ours)
    with pytest.raises(asyncpg.UndefinedTableError):
        await ours.execute("select * from messages.missing")
    await ours.close()


async def test_names_that_are_used_within_functions_are_no_trap(database: str) -> None:
    """A schema may be named as variables, parameters and tables of our functions are."""
    for name in ("queue", "message", "m", "new", "event"):
        ours = await open_ours(database, name)
        await schema.install(ours)
        await use(ours)
        await ours.close()
