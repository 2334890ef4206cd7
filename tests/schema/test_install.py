"""Installing is idempotent, an incomplete install is reported, and objects are in their schema."""

import pytest

from notifyq.errors import IncompleteInstallError
from support.database import INIT_FILES, Connection, catalog_lines, install, open_session, session

CHECK = [file for file in INIT_FILES if file.name.startswith("99_")]

OUTSIDE = """
    select 'function ' || p.oid::regprocedure from pg_proc as p
    where p.pronamespace not in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and p.oid >= 16384
    union all
    select 'relation ' || c.oid::regclass from pg_class as c
    where c.relnamespace not in (
      'messages'::regnamespace, 'notifyq'::regnamespace, 'pg_toast'::regnamespace
    )
      and c.oid >= 16384
    union all
    select 'type ' || t.oid::regtype from pg_type as t
    where t.typnamespace not in (
      'messages'::regnamespace, 'notifyq'::regnamespace, 'pg_toast'::regnamespace
    )
      and t.oid >= 16384
    union all
    select 'schema ' || n.nspname from pg_namespace as n
    where n.nspname not in ('messages', 'notifyq') and n.nspname !~ '^pg_' and n.oid >= 16384
    union all
    select 'event trigger ' || e.evtname from pg_event_trigger as e
"""


async def test_installing_in_one_transaction_gives_the_same_catalog(
    empty_database: str, connection: Connection
) -> None:
    async with session(empty_database) as other:
        await other.execute(";\n".join(file.read_text() for file in INIT_FILES))
        assert await catalog_lines(other) == await catalog_lines(connection)


async def test_the_lines_of_a_catalog_show_any_difference(connection: Connection) -> None:
    """The comparison that other tests rely on must be able to fail."""
    for change in (
        "alter table messages.queue alter max_attempts set default 2",
        "alter table messages.message set (fillfactor = 71)",
        "alter table messages.message alter details set not null",
        "drop index messages.message_locked_idx",
        "comment on column messages.queue.paused is 'x'",
        "comment on function messages.reap(integer) is null",
        "grant execute on function messages.reap(integer) to public",
        "grant update (details) on messages.message to notifyq_worker",
        "alter function messages.reap(integer) set work_mem = '8MB'",
        "alter function messages.reap(integer) stable",
        "drop trigger process_archived on messages.message_archive",
        "alter table messages.message disable trigger published",
        "create or replace view messages.dead_message as select a.* "
        "from messages.message_archive as a where a.status = 'failed'",
        "create or replace rule publish as on insert to messages.stream_event do instead nothing",
        "alter sequence messages.event_id_seq owned by none",
        "alter type messages.message_state add value 'x'",
        "alter table messages.queue drop constraint queue_notify_ck",
        "alter table messages.message alter id set generated always",
        "alter table messages.message alter id set increment 2",
    ):
        async with connection.transaction():
            before = await catalog_lines(connection)
            savepoint = connection.transaction()
            await savepoint.start()
            await connection.execute(change)
            after = await catalog_lines(connection)
            await savepoint.rollback()
        assert (before != after) == ("generated always" not in change), change


async def test_an_install_touches_nothing_outside_its_schema(
    empty_database: str,
) -> None:
    async with session(empty_database) as other:
        await install(other)
        assert [row[0] for row in await other.fetch(OUTSIDE)] == []


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        ("drop trigger published on messages.message", "trigger published"),
        ("drop trigger schedule on messages.message", "trigger schedule"),
        ("drop trigger process_archived on messages.message_archive", "trigger process_archived"),
        ("alter table messages.message disable trigger published", "trigger published"),
        ("drop index messages.message_waiting_idx", "index messages.message_waiting_idx"),
        ("drop index messages.message_dedup_key_uq", "index messages.message_dedup_key_uq"),
    ],
)
async def test_an_incomplete_install_fails_its_check(
    connection: Connection, damage: str, missing: str
) -> None:
    await connection.execute(damage)
    with pytest.raises(IncompleteInstallError, match=missing):
        await install(connection, CHECK)


async def test_an_archive_without_today_fails_the_check(connection: Connection) -> None:
    await connection.execute(
        "select notifyq.drop_partitions(); "
        "do $$ declare d text; begin for d in select c.relname from pg_class as c "
        "where c.relname ~ '^message_archive_\\d+$' loop "
        "execute format('drop table notifyq.%I', d); end loop; end $$"
    )
    with pytest.raises(IncompleteInstallError, match="partition"):
        await install(connection, CHECK)
    await install(connection)


async def test_two_databases_of_a_server_can_be_installed_at_once(
    empty_database: str, database: str
) -> None:
    """Roles belong to the server, so installs meet there."""
    one, two = await open_session(empty_database), await open_session(database)
    try:
        await install(one)
        await install(two)
        assert await catalog_lines(one) == await catalog_lines(two)
    finally:
        await one.close()
        await two.close()
