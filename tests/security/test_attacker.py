"""An attacker: a login without grants, one that may publish, one that may work."""

from __future__ import annotations

import asyncpg
import pytest

from notifyq import App
from notifyq.errors import InvalidArgumentError, QueueNotFoundError
from notifyq.telemetry import MessageFinished
from security.conftest import Enter, role_name
from support.database import Connection, publish, value
from support.running import Events, working

READ = [
    "select * from messages.message",
    "select count(*) from messages.message_archive",
    "select * from notifyq.message_archive_default",
    "select message from messages.dead_message",
    "select * from messages.queue_grant",
    "table notifyq.schema_version",
    "prepare mine as select message from messages.message; execute mine",
    "copy messages.message to stdout",
    "copy (select message from messages.message) to stdout",
    "declare c cursor with hold for select message from messages.message",
    "explain analyze select message from messages.message",
    "create temporary table mine as select * from messages.message",
    "create temporary view mine as select * from messages.message; select * from mine",
    "select messages.message_list()",
    "select messages.archive_find(1)",
    "table notifyq.attempt_log",
    "select messages.dead_list()",
    "select last_value from messages.message_id_seq",
    "select currval('messages.message_id_seq')",
]
PUBLISH = [
    "select messages.publish('default', '1')",
    "select messages.publish_many('default', array['1']::jsonb[])",
    "insert into messages.message (message) values ('1')",
    "copy messages.message (message) from stdin",
    "select notifyq.check_inserted(1, 'default', true)",
]
WORK = [
    "select messages.claim()",
    "select messages.claim_id(1)",
    "select messages.take('default')",
    "select messages.finish(1, 1)",
    "select messages.retry(1, 1)",
    "select messages.retry_many(array[1], array[1])",
    "select notifyq.keep_logs(array[1], array[1], array[1], array['[]'::json])",
    "select notifyq.release_orphans('w', '{}')",
    "select notifyq.suppress('default')",
    "select messages.maintain()",
    "select messages.queue_info()",
]
RULE = [
    "select messages.create_queue('mine')",
    "select messages.drop_queue('default', true)",
    "select messages.grant_queue('default', 'pg_monitor')",
    "select messages.cancel(1)",
    "select messages.redrive()",
    "delete from messages.message",
    "update messages.message set message = '0'",
    "insert into messages.message_archive select * from messages.message_archive",
    "insert into messages.message (message, state, lock_token) values ('1', 'waiting', 9)",
    "insert into messages.message (message) values ('1') returning id",
    "select from messages.message for update",
    "lock table messages.message in access exclusive mode",
    "truncate messages.message",
    "alter table messages.message disable trigger bound",
    "drop schema messages cascade",
    "drop schema notifyq cascade",
    "create table notifyq.mine ()",
    "create function notifyq.mine() returns void language sql as 'select'",
    "delete from notifyq.dedup",
    "select notifyq.archive('{1}', '{1}', '{success}')",
    "create function messages.mine() returns void language sql as 'select'",
    "create table messages.mine ()",
    "create trigger mine before insert on messages.message for each row "
    "execute function suppress_redundant_updates_trigger()",
    "create or replace function notifyq.check_message_limits() returns trigger language plpgsql "
    "as 'begin return new; end'",
    "alter function messages.finish(bigint, bigint, messages.message_status, text, jsonb) "
    "set search_path = pg_temp",
    "comment on schema messages is 'mine'",
    "set session_replication_role = replica",
    "set role notifyq_owner",
    "set role notifyq_admin",
    "set session authorization postgres",
    "grant notifyq_admin to current_user",
    "alter role current_user superuser",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'",
    "select notifyq.archive('{1}', '{0}', '{success}', state => 'waiting')",
    "select notifyq.send_notification('new_message', 'default', '1')",
    "select notifyq.hide_barred('{1}')",
    "select notifyq.rebuild_access_trigger()",
    "select notifyq.drop_partitions()",
    "do $$ begin perform notifyq.calling_role(); end $$",
]
MAY = {
    "mallory": [],
    "publisher": PUBLISH,
    "worker": [*WORK, "select messages.archive_find(1)"],
    # They show what was granted, see test_reading.py.
    "viewer": [
        "select messages.message_list()",
        "select messages.archive_find(1)",
        "select messages.dead_list()",
        "select messages.queue_info()",
    ],
}


async def is_denied(session: Connection, statement: str) -> bool:
    try:
        await session.execute(statement)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError):
        return True
    return False


@pytest.mark.parametrize("who", MAY)
async def test_statements_without_a_grant_are_denied(
    connection: Connection, enter: Enter, who: str
) -> None:
    await publish(connection, 2)
    session = await enter(who)
    tried = 0
    for statement in (*READ, *PUBLISH, *WORK, *RULE):
        if statement in MAY[who]:
            continue
        await session.execute("begin")
        assert await is_denied(session, statement), f"{who} may {statement}"
        await session.execute("rollback")
        tried += 1
    assert tried > 50
    messages = await connection.fetch("select message, state::text from messages.message")
    assert [tuple(row) for row in messages] == [(0, "waiting"), (1, "waiting")]


async def test_objects_of_the_caller_do_not_replace_those_of_a_function(
    connection: Connection, enter: Enter
) -> None:
    await publish(connection, 1)
    worker = await enter("worker")
    await worker.execute("""
        create temporary table message (id bigint);
        create temporary table queue (name text, paused boolean);
        create temporary table schema_version (version integer);
        create function pg_temp.trap(text, text) returns boolean language plpgsql
          as 'begin raise exception ''trapped as %'', current_user; end';
        create function pg_temp.clock_timestamp() returns timestamptz language plpgsql
          as 'begin raise exception ''trapped as %'', current_user; end';
        create function pg_temp.trap(text) returns jsonpath language plpgsql
          as 'begin raise exception ''trapped as %'', current_user; end';
        create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.trap);
        create domain pg_temp.jsonb as text check (value = 'trapped');
        set search_path = pg_temp, messages, pg_catalog;
    """)
    (message,) = await worker.fetch("select * from messages.claim('{default}')")
    assert await worker.fetchval("select messages.finish($1, 1)", message["id"])
    assert await worker.fetchval("select messages.maintain() is not null")
    publisher = await enter("publisher")
    await publisher.execute("""
        create function pg_temp.trap(bigint, bigint) returns boolean language plpgsql
          as 'begin raise exception ''trapped as %'', current_user; end';
        create operator pg_temp.> (leftarg = bigint, rightarg = bigint, function = pg_temp.trap);
        set search_path = pg_temp, messages, pg_catalog;
    """)
    await publisher.execute("insert into messages.message (message) values ('1')")


async def test_arguments_are_never_code(connection: Connection, enter: Enter) -> None:
    publisher, worker = await enter("publisher"), await enter("worker")
    evil = "default'); drop table messages.message; --"
    with pytest.raises(QueueNotFoundError):
        await publisher.fetchval("select messages.publish($1, '1')", evil)
    with pytest.raises(QueueNotFoundError):
        await worker.fetch("select * from messages.claim(array[$1::text])", evil)
    await publisher.fetchval(
        "select messages.publish('default', '1', type => $1, dedup_key => $1)", evil
    )
    for filter_ in ("$ ? (@ == pg_sleep(9))", "$.* ? (exec())", evil, "$.a.datetime().b()"):
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await worker.fetch(
                "select * from messages.claim(filter => $1::text::jsonpath)", filter_
            )
    for quantity in (-1, 0, 10_001, 2**31 - 1):
        with pytest.raises(InvalidArgumentError, match="quantity must be"):
            await worker.fetch("select * from messages.claim(quantity => $1)", quantity)
    with pytest.raises(InvalidArgumentError, match="lock_duration must be longer"):
        await worker.fetch("select * from messages.claim(lock_duration => '-1 s')")
    (message,) = await worker.fetch("select * from messages.claim(worker => $1)", evil)
    assert (message["type"], message["locked_by"]) == (evil, evil)


async def test_a_worker_handles_messages_in_a_flood_of_forged_notifications(
    database: str, enter: Enter, claims: list[list[str]]
) -> None:
    events, handled = Events(), 0
    mallory = await enter("mallory")
    flood = """
        select count(pg_notify(c.channel, (array[
          'q:' || g, 'q:', '1; drop table messages.message', 'other:1-9', ':', '', 'q:9-1',
          'q:' || repeat('9', 7000), 'q:1-99999999999999999999', E'q:\\u2028-\\x01', $1 || g
        ])[1 + g % 11]))
        from generate_series(1, 50) as g,
          (values ('new_message'), ('dead_message')) as c (channel)
    """
    async with App(database) as app:

        @app.handler("q")
        async def handle() -> None:
            nonlocal handled
            handled += 1

        async with working(app, events):
            for number in range(50):
                await mallory.execute(flood.replace("$1", f"'{number}'"))
                if number % 10 == 0:
                    await app.publish("q", None)
            # A notification from among them, after all of them.
            await app.publish("q", None)
            await events.wait(MessageFinished, 6)
    assert handled == 6
    # 5,000 notifications: one claim for each, or for each 50, would be far more.
    assert len(claims) < 250


async def test_a_forged_notification_changes_no_message(
    connection: Connection, enter: Enter
) -> None:
    await value(connection, "publish", queue="default", message=1)
    before = await connection.fetch("select m::text from messages.message as m")
    mallory = await enter("mallory")
    await mallory.execute("listen new_message; listen dead_message; unlisten *")
    await mallory.execute("select pg_notify('dead_message', 'default:1')")
    assert await connection.fetch("select m::text from messages.message as m") == before


INTO_NO_QUEUE = [
    "set notifyq.announced = '9223372036854775806'; "
    "insert into messages.message (queue, message) values ('nope', '1')",
    "set notifyq.announced = 'yes'; select messages.publish('nope', '1')",
    "set notifyq.announced = 'yes'; select messages.publish_many('nope', array['1', '2']::jsonb[])",
    # It has announced others, before, after, or in between.
    "begin; select messages.publish_many('default', array['1', '2']::jsonb[]); "
    "insert into messages.message (queue, message) values ('nope', '1'); commit",
    "insert into messages.message (queue, message) select q, (set_config('notifyq.announced', "
    "'9223372036854775806', false) is not null)::text::jsonb from unnest('{nope,nope}'::text[]) "
    "as q",
    "insert into messages.message (queue, message) select q, case q when 'nope' then '1'::jsonb "
    "else (cardinality(array(select messages.publish_many('default', array['1', '2']::jsonb[]))) "
    "> 0)::text::jsonb end from unnest('{nope,default}'::text[]) as q",
    "insert into messages.message (queue, message) select q.name, case q.position when 4 then "
    "coalesce(to_jsonb(notifyq.check_inserted(currval_of(2), 'default', true)::text), '1') else "
    "'1' end "
    "from unnest('{nope,default,default,default}'::text[]) with ordinality as q (name, position)",
]


async def test_no_setting_publishes_into_a_queue_that_does_not_exist(
    connection: Connection, enter: Enter
) -> None:
    for statement in INTO_NO_QUEUE:
        publisher = await enter("publisher")
        first = await connection.fetchval("select nextval('messages.message_id_seq')")
        with pytest.raises((QueueNotFoundError, asyncpg.ObjectNotInPrerequisiteStateError)):
            await publisher.execute(statement.replace("currval_of(2)", str(first + 2)))
        await publisher.execute("rollback")
        assert await connection.fetchval("select count(*) from messages.message") == 0, statement


async def test_no_function_takes_a_callback(connection: Connection) -> None:
    """No function takes one: a name of a procedure that others register would run as the owner.

    Types and tables that are named are those of what is typed and captured, see the tests of both.
    """
    found = await connection.fetch("""
        select p.oid::regprocedure::text from pg_proc as p
        where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
          and p.proargtypes::oid[] && array[
            'regproc', 'regprocedure', 'regclass', 'regoper', 'regtype', 'regnamespace'
          ]::regtype[]::oid[]
    """)
    named = {name.partition(".")[2].partition("(")[0] for (name,) in found}
    assert named == {
        *("create_queue", "alter_queue"),
        # Helpers: only their owner may call them, with tables and types that are known.
        *("type_name", "common_values"),
        *("create_stream", "alter_stream", "capture", "capture_sql", "uncapture"),
    }


async def test_the_hostile_role_is_a_member_of_no_other_role(enter: Enter) -> None:
    session = await enter("mallory")
    assert await session.fetchval("select session_user::text") == role_name("mallory")
    assert not await session.fetchval(
        "select bool_or(pg_has_role(oid, 'member')) from pg_roles where rolname ~ '^notifyq_'"
    )
