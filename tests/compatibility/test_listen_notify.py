"""Guarantees O1 to O23: the conventions of LISTEN/NOTIFY queues (oliverlambson/pgmq)."""

import asyncio
import random
import time
from datetime import timedelta

import pytest
from pydantic import BaseModel

from compatibility.conftest import Mortal
from notifyq import App, Message
from notifyq.server import Server
from notifyq.telemetry import ListenerConnected, ListenerLost, MessageFinished
from sql.maintenance.test_cron import cron_connection  # noqa: F401  a fixture
from support.database import (
    Connect,
    Connection,
    Notices,
    Notifications,
    alive,
    archived,
    catalog_lines,
    claim_one,
    expire,
    fire,
    install,
    lock_of,
    publish,
    rows,
    terminate,
    until,
    value,
)
from support.running import Events, statuses, until_asleep, working

INSERT = "insert into messages.message (message) values ('[\"hello\"]') returning id"


async def archive_size(connection: Connection) -> int:
    size: int = await connection.fetchval("select count(*) from messages.message_archive")
    return size


async def test_o1_an_insert_alone_publishes(app: App, events: Events, connect: Connect) -> None:
    app.handler("default")(lambda words: words)
    psql = await connect()
    async with working(app, events):
        id_ = await psql.fetchval(INSERT)
        await events.wait(MessageFinished, status="success", message_id=id_)
    [row] = await archived(psql, id_)
    assert (row["status"], row["message"], row["result"]) == ("success", ["hello"], ["hello"])


async def test_o2_an_insert_notifies_with_its_id_and_only_after_commit(
    connection: Connection, notifications: Notifications
) -> None:
    async with connection.transaction():
        id_ = await connection.fetchval(INSERT)
        assert await notifications.received() == []
    assert await notifications.ids() == [[id_]]
    await connection.execute(f"begin; {INSERT}; rollback")
    assert await notifications.received() == []
    ids = await publish(connection, 100)
    # One notification that names each, not one for each.
    assert await notifications.ids() == [ids]
    await publish(connection, 50_000)
    assert sum(len(notification.payload) for notification in await notifications.received()) < 8000


async def test_o3_without_workers_nothing_is_lost_and_the_notification_is_repeated(
    connection: Connection, notifications: Notifications, app: App, events: Events
) -> None:
    ids = await publish(connection, 10)
    await notifications.received()
    for _ in range(2):  # pg_cron does it each minute
        await rows(connection, "maintain")
        await connection.execute("select notifyq.renotify()")
        assert {notification.queue for notification in await notifications.received()} == {
            "default"
        }
    app.handler("default")(lambda _: None)
    async with working(app, events):
        await events.wait(MessageFinished, len(ids), status="success")
    assert await statuses(connection) == {"success": len(ids)}
    # Until they are handled, and no longer.
    await notifications.received()
    await rows(connection, "maintain")
    await connection.execute("select notifyq.renotify()")
    assert await notifications.received() == []


async def test_o4_of_sixteen_that_claim_one_message_one_wins(
    connection: Connection, connect: Connect
) -> None:
    [id_] = await publish(connection, 1)
    sessions = [await connect() for _ in range(16)]
    claimed = await asyncio.gather(*(rows(one, "claim_id", id=id_) for one in sessions))
    [winner] = [row for found in claimed for row in found]
    assert winner["lock_expires_at"] > winner["locked_at"]


async def test_o5_the_loser_gets_no_row_and_neither_waits_nor_fails(
    connection: Connection, connect: Connect
) -> None:
    [id_] = await publish(connection, 1)
    loser = await connect()
    await loser.execute("set lock_timeout = '100ms'; set statement_timeout = '2s'")
    took = []
    async with connection.transaction():
        await claim_one(connection)
        for _ in range(5):
            began = time.monotonic()
            assert await rows(loser, "claim") == []
            assert await rows(loser, "claim_id", id=id_) == []
            took.append(time.monotonic() - began)
    assert min(took) < 0.1


async def test_o6_the_row_goes_and_the_archive_comes_in_one_transaction(
    connection: Connection, connect: Connect, app: App, events: Events
) -> None:
    observer = await connect()
    both = """
        select count(*), count(distinct id) from (
          select id from messages.message union all select id from messages.message_archive
        ) as x
    """
    app.handler("default")(lambda _: None)
    await publish(connection, 200)
    reads = 0
    async with working(app, events):
        while len(events.of(MessageFinished)) < 200:
            async with observer.transaction(isolation="repeatable_read"):
                assert tuple(await observer.fetchrow(both) or ()) == (200, 200)
            reads += 1
    assert reads
    assert await statuses(connection) == {"success": 200}


class Order(BaseModel):
    number: int


async def test_o7_what_is_invalid_is_rejected_and_an_error_is_a_failure_with_details(
    connection: Connection, app: App, events: Events
) -> None:
    @app.handler("default")
    def handle(order: Order) -> None:
        raise ValueError(f"order {order.number} is unknown")

    async with working(app, events):
        invalid = await app.publish("default", {"number": "seven"})
        unknown = await app.publish("default", {"number": 7})
        await events.wait(MessageFinished, 2)
    [row] = await archived(connection, invalid)
    assert row["status"] == "rejected"
    assert "number" in row["details"]
    [row] = await archived(connection, unknown)
    assert row["status"] == "failed"
    assert row["details"].startswith("ValueError: order 7 is unknown")


async def test_o8_what_still_runs_after_its_lock_is_lock_expired(
    connection: Connection, app: App, events: Events
) -> None:
    @app.handler("default", lock_duration=0.3, heartbeat=False)
    async def handle() -> None:
        await asyncio.Event().wait()

    async with working(app, events):
        await app.publish("default", None)
        await events.wait(MessageFinished, status="lock_expired")
    assert await statuses(connection) == {"lock_expired": 1}


async def test_o9_messages_of_a_killed_worker_are_lock_expired_by_maintenance(
    connection: Connection, connect: Connect
) -> None:
    [id_] = await publish(connection, 1)
    worker = await connect()
    await claim_one(worker, "dead worker")
    await terminate(connection, worker)
    await rows(connection, "maintain")
    assert await archived(connection, id_) == []
    await expire(connection, id_)
    await rows(connection, "maintain")
    [row] = await archived(connection, id_)
    assert (row["status"], row["handled_by"]) == ("lock_expired", "dead worker")


@pytest.mark.parametrize("status", ["success", "rejected", "failed", "lock_expired"])
async def test_o10_a_dead_message_is_notified_and_a_success_is_not(
    connection: Connection, notifications: Notifications, notices: Notices, status: str
) -> None:
    [id_] = await publish(connection, 1)
    row = await claim_one(connection)
    await notices.received()
    if status == "lock_expired":
        await expire(connection, id_)
        assert await value(connection, "reap") == 1
    else:
        assert await value(
            connection, "finish", id=id_, lock_token=row["lock_token"], status=status, details="why"
        )
    assert [row["status"] for row in await archived(connection, id_)] == [status]
    warnings = await notices.received("WARNING")
    received = await notifications.payloads("dead_message")
    if status == "success":
        assert (received, warnings) == ([], [])
    else:
        assert received == [f"default:{id_}"]
        [warning] = warnings
        why = "lock of worker expired" if status == "lock_expired" else "why"
        assert warning == f"notifyq: dead message {id_} in queue default: {status}: {why}"


async def test_o10_the_warning_is_in_the_log_of_the_server(
    mortal: Mortal, own_server: Server
) -> None:
    connection = await mortal.connect()
    ends = ["success", "rejected", "failed", "lock_expired"]
    ids = await publish(connection, len(ends))
    for id_, end in zip(ids, ends, strict=True):
        row = await claim_one(connection)
        assert row["id"] == id_
        if end == "lock_expired":
            await expire(connection, id_)
            await value(connection, "reap")
        else:
            # The mark finds the lines of this test in a log that others write to as well.
            await value(
                connection, "finish", id=id_, lock_token=row["lock_token"], status=end,
                details=f"of {mortal.dsn.rpartition('/')[2]}",
            )  # fmt: skip
    # The session is over, and what it has logged is written.
    observer = await mortal.connect()
    await terminate(observer, connection)
    log = (own_server.directory / "log").read_text()
    lines = [line for line in log.splitlines() if "notifyq: dead message" in line]
    mark = f"of {mortal.dsn.rpartition('/')[2]}"
    assert [line.partition("WARNING:  ")[2] for line in lines if line.endswith(mark)] == [
        f"notifyq: dead message {id_} in queue default: {end}: {mark}"
        for id_, end in zip(ids[1:3], ends[1:3], strict=True)
    ]
    assert f"WARNING:  notifyq: dead message {ids[3]} in queue default: lock_expired: " in log


class Storm:
    """Workers that die, release and are slow, and reapers beside them, until nothing is left."""

    def __init__(self, counter: Connection, connect: Connect) -> None:
        self._counter = counter
        self._connect = connect
        self._turn = asyncio.Lock()

    async def is_over(self) -> bool:
        async with self._turn:
            return not await self._counter.fetchval("select exists (select from messages.message)")

    async def work(self, number: int) -> None:
        session, dice = await self._connect(), random.Random(number)
        lock = timedelta(milliseconds=dice.randint(1, 30))
        asked = {"queues": ["storm"], "quantity": 5, "lock_duration": lock}
        while not await self.is_over():
            for row in await rows(session, "claim", **asked):
                if dice.random() < 0.2:
                    continue  # it was killed
                await asyncio.sleep(dice.random() / 100)
                name = "release" if dice.random() < 0.3 else "finish"
                await value(session, name, **lock_of(row))

    async def reap(self) -> None:
        session = await self._connect()
        while not await self.is_over():
            await value(session, "reap")
            await asyncio.sleep(0.005)


async def test_o11_each_message_ends_once_whatever_is_interleaved(
    connection: Connection, connect: Connect
) -> None:
    policy = {"max_attempts": 1000, "backoff": timedelta(0)}
    await value(connection, "create_queue", name="storm", **policy)
    sent = await publish(connection, 300, "storm")
    storm = Storm(await connect(), connect)
    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(storm.work(number))
        for _ in range(2):
            group.create_task(storm.reap())
    ended = [row[0] for row in await connection.fetch("select id from messages.message_archive")]
    assert sorted(ended) == sorted(sent)


async def test_o12_no_transaction_is_open_while_a_handler_runs(
    connection: Connection, app: App, events: Events
) -> None:
    running, go_on = asyncio.Event(), asyncio.Event()

    @app.handler("default")
    async def handle() -> None:
        running.set()
        await go_on.wait()

    async with working(app, events):
        await app.publish("default", None)
        await running.wait()

        async def none_is_open() -> bool:
            # The worker's other sessions may be in the middle of a statement: not for long.
            count = await connection.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and xact_start is not null and pid <> pg_backend_pid()"
            )
            return bool(count == 0)

        await until(none_is_open, "no transaction is open")
        [row] = await rows(connection, "message_list", queue="default")
        assert row["state"] == "locked"
        async with connection.transaction():
            await connection.execute(
                "select from messages.message where id = $1 for update nowait", row["id"]
            )
        go_on.set()
        await events.wait(MessageFinished, status="success")


async def test_o13_a_lock_is_an_instant_that_can_be_seen_and_moved(connection: Connection) -> None:
    [id_] = await publish(connection, 1)
    row = await claim_one(connection)
    await expire(connection, id_)
    before = await connection.fetchval("select clock_timestamp()")
    assert await value(connection, "extend", **lock_of(row), lock_duration=timedelta(hours=1))
    seen = await alive(connection, id_)
    left = seen["lock_expires_at"] - await connection.fetchval("select clock_timestamp()")
    assert left <= timedelta(hours=1) <= seen["lock_expires_at"] - before
    assert await value(connection, "reap") == 0
    unchanged = set(row.keys()) - {"lock_expires_at", "locked_at"}
    assert {key: seen[key] for key in unchanged} == {key: row[key] for key in unchanged}


async def test_o14_another_worker_gets_a_released_message_at_once(
    connection: Connection, app: App, events: Events
) -> None:
    handled: asyncio.Queue[float] = asyncio.Queue()
    app.handler("default")(lambda _: handled.put_nowait(time.monotonic()))
    took = []
    async with working(app, events) as worker:
        for _ in range(5):
            # It gets the message by its notification alone, as it sleeps and polls once a minute.
            await until_asleep(worker)
            id_ = await held(connection)
            began = time.monotonic()
            async with connection.transaction():
                row = await alive(connection, id_)
                assert await value(connection, "release", id=id_, lock_token=row["lock_token"])
            async with asyncio.timeout(10):
                took.append(await handled.get() - began)
        await events.wait(MessageFinished, 5, status="success")
    # A message of a machine that has much else to do may be later; not each of them.
    assert min(took) < 0.1
    [attempts] = await connection.fetch("select distinct attempts from messages.message_archive")
    assert attempts["attempts"] == 1


async def held(connection: Connection) -> int:
    """Return a message that this session has claimed before anybody could see it."""
    async with connection.transaction():
        [id_] = await publish(connection, 1)
        [row] = await rows(connection, "claim_id", id=id_, worker="has no time")
        assert row["id"] == id_
    return int(id_)


@pytest.mark.cron
@pytest.mark.timeout(150)
async def test_o15_what_pg_cron_inserts_arrives_like_any_other(
    cron_connection: Connection,  # noqa: F811
    server: str,
) -> None:
    arrived: asyncio.Queue[Message] = asyncio.Queue()
    app, events = App(server, retry_for=30), Events()

    @app.handler("default")
    def handle(message: Message) -> None:
        arrived.put_nowait(message)

    notifications = Notifications(cron_connection)
    await notifications.listen()
    # Without maintenance: only the insert itself may notify.
    await cron_connection.execute("select cron.unschedule(jobid) from cron.job")
    async with working(app, events):
        await cron_connection.execute(
            "select cron.schedule('greet', '* * * * *', "
            """$$insert into messages.message (message) values ('["hello"]')$$)"""
        )
        async with asyncio.timeout(70):
            message = await arrived.get()
        await cron_connection.execute("select cron.unschedule('greet')")
        await events.wait(MessageFinished, status="success", message_id=message.id)
    await app.close()
    assert message.payload() == ["hello"]
    assert [message.id] in await notifications.ids()
    [row] = await archived(cron_connection, message.id)
    assert (row["status"], row["queue"], row["attempts"]) == ("success", "default", 1)


async def test_o15_a_schedule_is_a_publisher_as_any_other(
    connection: Connection, connect: Connect, notifications: Notifications, app: App, events: Events
) -> None:
    # What pg_cron would run of its own, and what a schedule of the schema runs.
    await (await connect()).execute(INSERT)
    await value(connection, "create_queue", name="clock")
    await value(connection, "schedule", name="s", cron="@hourly", queue="clock", message="tick")
    await connection.execute(
        "update messages.schedule set next_at = date_trunc('hour', clock_timestamp())"
    )
    assert len(await fire(connection)) == 1
    assert {notification.queue for notification in await notifications.received()} == {
        "default",
        "clock",
    }
    for queue in ("default", "clock"):
        app.handler(queue)(lambda _: None)
    async with working(app, events):
        await events.wait(MessageFinished, 2, status="success")


async def test_o16_dead_messages_are_put_back_once(connection: Connection) -> None:
    ids = await publish(connection, 5)
    for row in await rows(connection, "claim", quantity=5):
        status = "failed" if row["id"] != ids[0] else "rejected"
        await value(connection, "finish", **lock_of(row), status=status)
    assert await value(connection, "redrive", queue="default", status="failed") == 4
    assert await value(connection, "redrive", queue="default", status="failed") == 0
    # As new messages: an id is in the archive once.
    again = await rows(connection, "claim", quantity=10)
    assert [row["message"] for row in again] == [1, 2, 3, 4]
    assert {row["id"] for row in again}.isdisjoint(ids)


async def test_o17_dead_messages_have_a_view(connection: Connection) -> None:
    await publish(connection, 2)
    for status in ("failed", "success"):
        row = await claimed_key(connection)
        await value(connection, "finish", **row, status=status)
    dead = await connection.fetch("select status::text from messages.dead_message")
    assert [row["status"] for row in dead] == ["failed"]


async def claimed_key(connection: Connection) -> dict[str, int]:
    [row] = await rows(connection, "claim", quantity=1)
    return lock_of(row)


async def test_o18_a_message_can_have_a_schema(
    connection: Connection, app: App, events: Events
) -> None:
    @app.handler("default", max_attempts=5)
    def handle(order: Order) -> int:
        return order.number

    async with working(app, events):
        ids = await app.publish_many("default", [{"number": 7}, {"nr": 7}, [], {"number": 8}])
        await events.wait(MessageFinished, 4)
    ended = [(await archived(connection, id_))[0] for id_ in ids]
    assert [row["result"] for row in ended] == [7, None, None, 8]
    assert await statuses(connection) == {"success": 2, "rejected": 2}


async def test_o19_installing_twice_changes_nothing(connection: Connection) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=9)
    await publish(connection, 2)
    await claim_one(connection)

    async def state() -> list[object]:
        tables = ("messages.message", "messages.queue", "notifyq.schema_version")
        data = [await connection.fetch(f"select * from {table}") for table in tables]
        return [*data, await catalog_lines(connection)]

    before = await state()
    await install(connection)
    assert await state() == before
    assert len(await rows(connection, "claim")) == 1


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", "UTC"])
async def test_o20_a_minute_is_a_minute_in_every_zone(connection: Connection, zone: str) -> None:
    await connection.execute(f"set timezone = '{zone}'")
    await publish(connection, 1)
    await connection.execute("select messages.claim(lock_duration => interval '60 seconds')")
    held = "select lock_expires_at - locked_at from messages.message"
    assert await connection.fetchval(held) == timedelta(seconds=60)
    # As a session elsewhere sees it, too: half a minute later it is held, a minute later it is not.
    for other in ("UTC", "Asia/Kolkata", "America/New_York"):
        await connection.execute(f"set timezone = '{other}'")
        assert await connection.fetchval(held) == timedelta(seconds=60)
    for seconds, reaped in ((59, 0), (2, 1)):
        await connection.execute(
            "update messages.message set locked_at = locked_at - $1::interval, "
            "lock_expires_at = lock_expires_at - $1::interval",
            timedelta(seconds=seconds),
        )
        assert await value(connection, "reap") == reaped


async def test_o20_all_clocks_have_a_time_zone(connection: Connection) -> None:
    without = await connection.fetch(
        "select c.relname, a.attname "
        "from pg_attribute as a join pg_class as c on c.oid = a.attrelid "
        "where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) and "
        "a.attnum > 0 "
        "and a.atttypid in ('timestamp'::regtype, 'time'::regtype)"
    )
    assert without == []


async def test_o21_a_worker_survives_the_loss_of_its_listening_session(
    connection: Connection, app: App, events: Events
) -> None:
    app.handler("default")(lambda _: None)
    async with working(app, events):
        await events.wait(ListenerConnected)
        [connected] = events.of(ListenerConnected)
        assert await connection.fetchval("select pg_terminate_backend($1)", connected.backend_pid)
        await events.wait(ListenerLost)
        await publish(connection, 1)
        await events.wait(MessageFinished, status="success")


async def test_o22_a_backlog_is_drained_at_the_start_without_a_notification(
    connection: Connection, app: App, events: Events
) -> None:
    await publish(connection, 10)
    app.handler("default")(lambda _: None)
    async with working(app, events):  # it polls once a minute
        await events.wait(MessageFinished, 10, status="success")


async def test_o23_a_burst_of_one_transaction_is_handled(
    connection: Connection, app: App, events: Events
) -> None:
    app.handler("default")(lambda _: None)
    async with working(app, events):
        async with connection.transaction():
            for _ in range(10):
                await connection.fetchval(INSERT)
        await events.wait(MessageFinished, 10, status="success")
    assert await archive_size(connection) == 10
