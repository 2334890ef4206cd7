"""Grants: a queue that has any is for the roles that they name, on every way there is."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import pytest

from notifyq import App
from notifyq.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    QueueBusyError,
    QueueDeniedError,
    QueueNotFoundError,
)
from security.conftest import Enter, dsn_of, role_name
from support.database import (
    INIT_FILES,
    Connect,
    Connection,
    Notifications,
    expire,
    install,
    one_row,
    until_blocked,
    value,
)

PUBLISH = [
    "select messages.publish('bills', '1')",
    "select messages.publish('bills', '1', dedup_key => 'there')",
    "select messages.publish_many('bills', array['1', '2']::jsonb[])",
    "select messages.publish_many('bills', array['1']::jsonb[], dedup_keys => array['there'])",
    "insert into messages.message (queue, message) values ('bills', '1')",
    "insert into messages.message (queue, message) values ('default', '1'), ('bills', '1')",
    "insert into messages.message (queue, message, dedup_key) values ('bills', '1', 'there') "
    "on conflict do nothing",
]
NAMED = [
    "select messages.claim(array['bills'])",
    "select messages.claim(array['default', 'bills'])",
    "select messages.take('bills')",
    "select notifyq.suppress('bills')",
    "select notifyq.take_wake_slots(array['default', 'bills'])",
]
ENABLED = (
    "select tgenabled = 'O' from pg_trigger "
    "where tgname = 'admit' and tgrelid = 'messages.message'::regclass"
)


@pytest.fixture
async def bills(connection: Connection) -> int:
    """Give the id of a message in a queue that only the role billing may use."""
    await value(connection, "create_queue", name="bills", max_attempts=3)
    await value(connection, "grant_queue", queue="bills", role=role_name("billing"))
    id_ = await value(connection, "publish", queue="bills", message="secret", dedup_key="there")
    return int(id_)


async def state(connection: Connection) -> list[Any]:
    return await connection.fetch("select m::text from messages.message as m order by id")


async def test_other_roles_cannot_publish(bills: int, enter: Enter, connection: Connection) -> None:
    for who in ("publisher", "worker"):
        session = await enter(who)
        if who == "worker":
            await connection.execute(f"grant notifyq_publisher to {role_name(who)}")
        for statement in PUBLISH:
            with pytest.raises(QueueDeniedError, match="may not publish into queue 'bills'"):
                await session.execute(statement)
        with pytest.raises(QueueDeniedError):
            await session.copy_to_table(
                "message",
                schema_name="messages",
                columns=["queue", "message"],
                source=BytesIO(b"bills\t1\n"),
            )
        await session.execute("select messages.publish('default', '1')")
    await connection.execute(f"revoke notifyq_publisher from {role_name('worker')}")
    assert await connection.fetchval("select count(*) from messages.message") == 3


async def test_other_roles_cannot_consume(bills: int, enter: Enter, connection: Connection) -> None:
    worker = await enter("worker")
    open_one = await value(connection, "publish", queue="default", message=1)
    for statement in NAMED:
        with pytest.raises(QueueDeniedError, match="may not consume from queue 'bills'") as caught:
            await worker.execute(statement)
        assert "grant_queue" in (caught.value.hint or "")
    assert await worker.fetch("select * from messages.claim_id($1)", bills) == []
    claimed = await worker.fetch("select id from messages.claim(quantity => 10)")
    assert [row["id"] for row in claimed] == [open_one]
    # Who may publish need not be who may consume.
    await value(connection, "grant_queue", queue="bills", role=role_name("worker"), consume=False)
    assert await worker.fetch("select * from messages.claim(quantity => 10)") == []


async def test_the_id_of_a_message_gives_no_access(
    bills: int, enter: Enter, connection: Connection
) -> None:
    """Neither by an error that only a message of a queue with limits raises, nor once owned."""
    worker = await enter("worker")
    id_ = await value(connection, "publish", queue="default", message=1)
    await worker.fetch("call messages.wait(array['default'], '0')")
    assert [row["id"] for row in await worker.fetch("select id from messages.owned()")] == [id_]
    await value(connection, "grant_queue", queue="default", role=role_name("billing"))
    assert await worker.fetch("select id from messages.owned()") == []
    await value(connection, "alter_queue", name="bills", concurrency=1)
    assert await worker.fetch("select * from messages.claim_id($1)", bills) == []


async def test_guessed_tokens_settle_nothing(
    bills: int, enter: Enter, connection: Connection
) -> None:
    owner, worker = await enter("billing"), await enter("worker")
    (message,) = await owner.fetch("select * from messages.claim(worker => 'w')")
    before = await state(connection)
    ids, tokens = [message["id"]] * 5, list(range(5))
    for token in tokens:
        for call in (
            "finish($1, $2)",
            "finish($1, $2, 'rejected')",
            "retry($1, $2)",
            "release($1, $2)",
            "extend($1, $2, interval '1 day')",
        ):
            assert await worker.fetchval(f"select messages.{call}", message["id"], token) is False
    for call in (
        "finish_many($1, $2, array_fill('failed'::messages.message_status, array[5]))",
        "retry_many($1, $2)",
        "release_many($1, $2)",
        "extend_many($1, $2)",
    ):
        assert await worker.fetch(f"select messages.{call}", ids, tokens) == []
    assert await worker.fetchval("select notifyq.release_orphans('w', '{}')") == 0
    assert await state(connection) == before
    # The very same call of who may.
    assert await owner.fetchval(
        "select messages.finish($1, $2)", message["id"], message["lock_token"]
    )
    # And what was archived is as closed.
    find = "select count(*) from messages.archive_find($1)"
    assert await worker.fetchval(find, bills) == 0
    for who in ("billing", "reader", "admin"):
        assert await (await enter(who)).fetchval(find, bills) == 1


async def test_a_granted_role_can_publish_and_consume(bills: int, enter: Enter) -> None:
    for who in ("billing", "biller", "admin"):
        session = await enter(who)
        for statement in PUBLISH:
            await session.execute(statement)
        claimed = await session.fetch("select * from messages.claim(array['bills'], 2)")
        assert len(claimed) == 2
        for row in claimed:
            assert await session.fetchval(
                "select messages.finish($1, $2)", row["id"], row["lock_token"]
            )
        assert await session.fetch("select * from messages.take('bills')")
        assert await session.fetchval("select notifyq.suppress('bills')")
        await session.execute("select notifyq.unsuppress(array['bills'])")


async def test_grants_apply_to_the_role_of_set_role(
    bills: int, enter: Enter, connection: Connection
) -> None:
    await connection.execute(f"grant notifyq_publisher to {role_name('biller')}")
    session = await enter("biller")
    await session.execute(PUBLISH[0])
    await session.execute("set role notifyq_publisher")
    with pytest.raises(QueueDeniedError, match="role notifyq_publisher may not"):
        await session.execute(PUBLISH[0])
    await session.execute("reset role")
    await session.execute(PUBLISH[0])
    # A member that does not inherit has the right once it has put the role on.
    # Since version 16 of PostgreSQL that is a matter of the membership, as it was made.
    again = (
        f"revoke {role_name('billing')} from {role_name('biller')}; "
        f"grant {role_name('billing')} to {role_name('biller')}"
    )
    await connection.execute(f"alter role {role_name('biller')} noinherit; {again}")
    await connection.execute(f"revoke notifyq_publisher from {role_name('biller')}")
    try:
        with pytest.raises(Exception, match="permission denied"):
            await session.execute(PUBLISH[0])
        await session.execute(f"set role {role_name('billing')}")
        await session.execute(PUBLISH[0])
    finally:
        await connection.execute(f"alter role {role_name('biller')} inherit; {again}")


async def test_a_grant_to_a_role_counts_for_members_that_have_its_privileges(
    bills: int, enter: Enter, connection: Connection
) -> None:
    """Membership without the privileges is not enough, though the function may be called."""
    biller, billing = role_name("biller"), role_name("billing")
    session = await enter("biller")
    member = f"revoke {billing} from {biller}; grant {billing} to {biller}"
    rights = f"usage on schema messages, notifyq {{}} {biller}"
    publish = f"execute on all functions in schema messages {{}} {biller}"
    await connection.execute(f"alter role {biller} noinherit; {member}")
    await connection.execute(f"grant {rights.format('to')}; grant {publish.format('to')}")
    try:
        assert await connection.fetchval("select pg_has_role($1, $2, 'member')", biller, billing)
        with pytest.raises(QueueDeniedError, match="may not publish into queue 'bills'"):
            await session.execute(PUBLISH[0])
        await session.execute("select messages.publish('default', '1')")
    finally:
        await connection.execute(f"revoke {rights.format('from')}; revoke {publish.format('from')}")
        await connection.execute(f"alter role {biller} inherit; {member}")


async def test_objects_of_the_caller_grant_nothing(bills: int, enter: Enter) -> None:
    for who, statement in (("publisher", PUBLISH[4]), ("worker", NAMED[0])):
        session = await enter(who)
        await session.execute("""
            create temporary table queue_grant (
              queue text, role text, granted_at timestamptz, may_publish bool, may_consume bool);
            create temporary table pg_namespace (nspname text, nspowner oid);
            create function pg_temp.pg_has_role(name, oid, text) returns boolean
              language sql as 'select true';
            create function pg_temp._may(text, text) returns boolean
              language sql as 'select true';
            create function pg_temp.same(text, text) returns boolean
              language sql as 'select false';
            create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.same);
            set search_path = pg_temp, messages, pg_catalog;
        """)
        with pytest.raises(QueueDeniedError):
            await session.execute(statement)


async def test_maintenance_covers_all_queues_for_any_role(
    bills: int, enter: Enter, connection: Connection, notifications: Notifications
) -> None:
    worker = await enter("worker")
    await connection.execute("select messages.claim()")
    await expire(connection, bills)
    report = await one_row(worker, "select * from messages.maintain()")
    assert report["reaped"] == 1
    await notifications.received()
    assert await worker.fetchval("select notifyq.wake_all('{bills}', true)") == 0
    assert await notifications.received() == []


async def test_the_grants_are_shown_and_taken_back(
    enter: Enter, connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="bills")
    assert not await connection.fetchval(ENABLED)
    admin, publisher, reader = await enter("admin"), await enter("publisher"), await enter("reader")
    billing = role_name("billing")
    grant = "select messages.grant_queue('bills', $1, consume => false)"
    assert await admin.fetchval(grant, billing)
    assert not await admin.fetchval(grant, billing)
    assert await connection.fetchval(ENABLED)
    (row,) = await reader.fetch("select * from messages.queue_grants()")
    assert (row["queue"], row["role"], row["may_publish"], row["may_consume"]) == (
        "bills",
        billing,
        True,
        False,
    )
    assert await reader.fetch("select * from messages.queue_grants('default')") == []
    with pytest.raises(QueueDeniedError):
        await publisher.execute(PUBLISH[0])
    revoke = "select messages.revoke_queue('bills', $1)"
    assert await admin.fetchval(revoke, billing)
    assert not await admin.fetchval(revoke, billing)
    await publisher.execute(PUBLISH[0])
    # Nobody pays for the trigger any longer.
    await install(connection, [file for file in INIT_FILES if file.match("common/access.sql")])
    assert not await connection.fetchval(ENABLED)
    with pytest.raises(QueueNotFoundError):
        await admin.fetchval("select messages.grant_queue('nope', $1)", billing)
    with pytest.raises(InvalidArgumentError, match="no role"):
        await admin.fetchval("select messages.grant_queue('bills', 'nobody')")
    with pytest.raises(InvalidArgumentError, match="a grant must allow"):
        await admin.fetchval("select messages.grant_queue('bills', $1, false, null)", billing)
    for who in (publisher, reader):
        with pytest.raises(Exception, match="permission denied"):
            await who.fetchval("select messages.grant_queue('bills', $1)", billing)


async def test_a_grant_to_a_role_that_is_gone_keeps_the_queue_closed(
    bills: int, enter: Enter, connection: Connection
) -> None:
    """As after a restore into a server that has other roles."""
    await connection.execute("update messages.queue_grant set role = 'nobody there'")
    for who in ("publisher", "billing"):
        with pytest.raises(QueueDeniedError):
            await (await enter(who)).execute(PUBLISH[0])
    await (await enter("admin")).execute(PUBLISH[0])


async def test_a_queue_that_is_dropped_takes_its_grants_along(
    bills: int, connection: Connection
) -> None:
    await value(connection, "drop_queue", name="bills", force=True)
    assert await connection.fetch("select * from messages.queue_grant") == []


@pytest.mark.parametrize("first", ["revoke", "grant"])
async def test_a_stream_stays_closed_by_one_of_two_changes_at_once(
    connection: Connection, connect: Connect, first: str
) -> None:
    await value(connection, "create_stream", name="s")
    await value(connection, "grant_queue", queue="s", role="notifyq_admin")
    guarded = "select is_guarded from messages.stream where name = 's'"
    calls = {
        "revoke": {"queue": "s", "role": "notifyq_admin"},
        "grant": {"queue": "s", "role": "notifyq_worker"},
    }
    (second,) = calls.keys() - {first}
    other, observer = await connect(), await connect()
    async with connection.transaction():
        await value(connection, f"{first}_queue", **calls[first])
        changing = asyncio.create_task(value(other, f"{second}_queue", **calls[second]))
        await until_blocked(observer, other)
    assert await changing
    assert await observer.fetchval(guarded) is True
    await value(connection, "revoke_queue", **calls["grant"])
    assert await observer.fetchval(guarded) is False


async def test_a_grant_does_not_wait_long_for_open_transactions(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    async with other.transaction():
        await value(other, "publish", queue="default", message=1)
        with pytest.raises(QueueBusyError, match="transactions that publish or claim stay open"):
            await value(connection, "grant_queue", queue="default", role="notifyq_worker")
        assert await connection.fetch("select * from messages.queue_grant") == []


async def test_an_app_gets_a_one_line_error(bills: int, roles: None, database: str) -> None:
    async with App(dsn_of(database, "publisher")) as app:
        with pytest.raises(AccessDeniedError, match="may not publish into queue 'bills'") as caught:
            await app.publish("bills", 1)
        assert isinstance(caught.value, QueueDeniedError)
    async with App(database) as app:
        assert await app.admin.grant_queue("default", role_name("billing"), consume=False)
        assert len(await app.admin.queue_grants("default")) == 1
        assert await app.admin.revoke_queue("default", role_name("billing"))


@pytest.mark.parametrize(
    ("who", "names"),
    [
        ("billing", "the role notifyq_admin"),
        ("reader", "the role notifyq_admin"),
        ("mallory", "one of the roles notifyq_publisher, notifyq_worker, notifyq_reader, "),
    ],
)
async def test_an_error_names_the_roles_that_have_the_right(
    roles: None, database: str, who: str, names: str
) -> None:
    async with App(dsn_of(database, who)) as app:
        with pytest.raises(AccessDeniedError, match=f"ask the owner for {names}"):
            await app.admin.create_queue("q")
        if who == "reader":
            with pytest.raises(AccessDeniedError, match="notifyq_publisher, notifyq_admin"):
                await app.publish("default", 1)


@pytest.mark.parametrize("function", ["result", "await_result"])
async def test_results_are_for_roles_that_publish_or_consume(
    connection: Connection, bills: int, enter: Enter, function: str
) -> None:
    call = f"select state from messages.{function}($1)"
    for may in ({"consume": False}, {"publish": False}):
        await value(connection, "revoke_queue", queue="bills", role=role_name("billing"))
        await value(connection, "grant_queue", queue="bills", role=role_name("billing"), **may)
        assert await (await enter("billing")).fetchval(call, bills)
    with pytest.raises(QueueDeniedError):
        await (await enter("worker")).fetchval(call, bills)
