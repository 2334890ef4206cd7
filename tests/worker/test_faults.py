"""Lost answers, cut connections, restarts, odd settings: every message ends once, and once only."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from notifyq import App, DatabaseUnavailableError, Message
from notifyq.chaos.proxy import Proxy
from notifyq.models.outcome import Failed, Outcome, Success
from notifyq.models.payload import Json
from notifyq.notify.wake import TokenBucket
from notifyq.queues.publisher import Publisher
from notifyq.server import Server
from notifyq.telemetry import (
    ListenerConnected,
    ListenerLost,
    LockLost,
    MessageFinished,
    OrphansReleased,
    WorkerStarted,
    WorkerStopped,
)
from notifyq.worker.fetch import Claims
from support.database import Connection, publish, rows, session, until, until_equal, value
from support.refusing import refusing
from support.running import Events, doubles, statuses, until_asleep, working


async def end_sessions(connection: Connection, name: str = "notifyq%") -> int:
    """Terminate the sessions of workers, as an administrator would."""
    ended: int = await connection.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where application_name like $1 and datname = current_database() "
        "and pid <> pg_backend_pid()",
        name,
    )
    return ended


async def test_a_message_published_while_the_listener_is_away_is_handled_when_it_is_back(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    async with working(app, events):
        async with connection.transaction():
            # Both in one transaction: the message exists when the session is gone.
            await publish(connection, 1, "q")
            assert await end_sessions(connection, "notifyq worker") == 1
        await events.wait(MessageFinished)  # and polling comes after 60 s
        await events.wait(ListenerConnected, again=True)
        await publish(connection, 1, "q")
        await events.wait(MessageFinished, 2)
    assert len(events.of(ListenerLost)) == 1


async def test_all_sessions_may_be_ended_at_any_time(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("q", max_attempts=20)
    async def handle(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    async with working(app, events, concurrency=10, poll=0.2):
        for _ in range(5):
            await publish(connection, 100, "q")
            await events.wait(MessageFinished, len(events.of(MessageFinished)) + 20)
            assert await end_sessions(connection) >= 1
        await until_equal(
            lambda: statuses(connection), {"success": 500}, "all are archived as success", 20
        )
    assert await doubles(connection) == 0


async def test_an_answer_to_a_claim_that_is_lost_leaves_no_orphans(
    database: str, events: Events, connection: Connection
) -> None:
    async with Proxy(database) as proxy:
        app = App(proxy.dsn, retry_for=20)
        app.handler("q", lock_duration=600)(lambda text: text)
        async with working(app, events, concurrency=5):
            proxy.lose_answer_with(b"the marked message")
            await value(
                connection, "publish_many", queue="q", messages=["a", "the marked message", "b"]
            )
            await events.wait(OrphansReleased, quantity=3)
            await events.wait(MessageFinished, 3, status="success")
            assert proxy.lost.is_set()
        # The lost claim has cost no attempt.
        attempts = await connection.fetch("select attempts from messages.message_archive")
        assert [row[0] for row in attempts] == [1, 1, 1]


async def test_a_claim_that_is_carried_out_late_leaves_no_orphans_either(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.handler("q", lock_duration=600)(lambda: None)
    send, late = Claims.claim, asyncio.Event()

    async def claim(self: Claims, *args: Any, **options: Any) -> list[Message]:
        if late.is_set():
            return await send(self, *args, **options)
        late.set()
        raise DatabaseUnavailableError("no answer")

    monkeypatch.setattr(Claims, "claim", claim)
    async with working(app, events, poll=0.1) as worker:
        await late.wait()
        await publish(connection, 2, "q")
        # The server does it only now, after the worker has released orphans.
        await rows(connection, "claim", queues=["q"], quantity=2, worker=worker.name)
        await events.wait(MessageFinished, 2, status="success")


async def test_a_stop_after_a_failed_search_for_orphans_is_no_error(
    app: App,
    events: Events,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app.handler("q")(lambda: None)
    claims = [DatabaseUnavailableError("no answer")]
    send = Claims.claim

    async def claim(self: Claims, *args: Any, **options: Any) -> list[Message]:
        if claims:
            raise claims.pop()
        return await send(self, *args, **options)

    monkeypatch.setattr(Claims, "claim", claim)
    async with refusing(connection, "notifyq.release_orphans", "XX000"), working(app, events):
        await until(
            lambda: "what a claim may have locked: refused for a test" in caplog.text,
            "the search has failed",
        )
    # An error of the stop would reach the event loop, where it fails each test.


async def test_a_worker_that_is_cancelled_in_a_claim_leaves_no_orphans(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.handler("q", lock_duration=600)(lambda: None)
    await app.create_queues()
    await publish(connection, 3, "q")
    claimed = asyncio.Event()
    send = Claims.claim

    async def claim(self: Claims, *args: Any, **options: Any) -> list[Message]:
        await send(self, *args, **options)
        claimed.set()
        await asyncio.Event().wait()  # the answer is on its way
        raise AssertionError

    monkeypatch.setattr(Claims, "claim", claim)
    task = asyncio.create_task(app.work(app.worker(telemetry=events)))
    await claimed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    locked = await connection.fetchval(
        "select count(*) from messages.message where state = 'locked'"
    )
    assert locked == 0


async def test_an_answer_to_a_finish_that_is_lost_counts_as_held(
    database: str, events: Events, connection: Connection
) -> None:
    async with Proxy(database) as proxy:
        app = App(proxy.dsn, retry_for=20)
        app.handler("q")(lambda: "the marked result")
        async with working(app, events) as worker:
            proxy.lose_answer_to(b"the marked result")
            await publish(connection, 1, "q")
            await events.wait(MessageFinished, status="success")
            assert proxy.lost.is_set()
        assert dict(worker.counts) == {"success": 1}
    assert events.of(LockLost) == []
    assert await statuses(connection) == {"success": 1}
    assert await doubles(connection) == 0


async def claimed(inbox: Claims, connection: Connection, quantity: int = 1) -> list[Message]:
    await publish(connection, quantity)
    return await inbox.claim(["default"], quantity)


@pytest.mark.parametrize(
    ("outcome", "is_held", "ends"),
    [
        (Failed("the marked answer"), True, {"failed": 1}),
        (Success('"the marked answer"'), False, {}),
    ],
)
async def test_what_has_lost_its_answer_counts_as_held_if_the_lock_is(
    database: str, connection: Connection, outcome: Outcome, is_held: bool, ends: dict[str, int]
) -> None:
    async with Proxy(database) as proxy, App(proxy.dsn, retry_for=20) as app:
        inbox = Claims(app.database, "me")
        (message,) = await claimed(inbox, connection)
        if not is_held:
            await value(connection, "release", id=message.id, lock_token=message.lock_token)
        proxy.lose_answer_to(b"the marked answer")
        assert await inbox.settler.add(message, outcome) is is_held
        assert proxy.lost.is_set()
    assert await statuses(connection) == ends


async def test_a_login_of_the_worker_role_survives_a_lost_answer(
    database: str, events: Events, connection: Connection
) -> None:
    await value(connection, "create_queue", name="q")
    async with Proxy(database) as proxy, login(connection, proxy.dsn, "notifyq_worker") as dsn:
        app = App(dsn, retry_for=20)
        app.handler("q")(lambda: "the marked result")
        async with working(app, events):
            proxy.lose_answer_to(b"the marked result")
            await publish(connection, 1, "q")
            await events.wait(MessageFinished, status="success")
            await publish(connection, 1, "q")
            await events.wait(MessageFinished, 2, status="success")
    assert events.of(LockLost) == []


class login:  # noqa: N801  used like a function
    """A user of its own that is a member of a role."""

    def __init__(self, connection: Connection, dsn: str, role: str, settings: str = "") -> None:
        self._connection, self._dsn, self._role, self._settings = connection, dsn, role, settings

    async def __aenter__(self) -> str:
        pid = self._connection.get_server_pid()
        self._name = f"test_{self._role}_{pid}"
        await self._connection.execute(
            f"create role {self._name} login password 'pw' in role {self._role}"
        )
        if self._settings:
            await self._connection.execute(f"alter role {self._name} {self._settings}")
        return f"postgresql://{self._name}:pw@{self._dsn.rpartition('@')[2]}"

    async def __aexit__(self, *_: object) -> None:
        await self._connection.execute(f"drop role {self._name}")


async def test_connections_that_no_longer_answer_are_replaced(
    database: str, events: Events, connection: Connection
) -> None:
    async with Proxy(database) as proxy:
        app = App(proxy.dsn, retry_for=30, command_timeout=0.5, connect_timeout=2)

        @app.handler("q", lock_duration=600, max_attempts=5)
        async def handle(n: int) -> int:
            return n

        async with working(app, events, poll=0.1, ping=0.1):
            await publish(connection, 5, "q")
            await events.wait(MessageFinished, 5)
            proxy.blackhole()
            await publish(connection, 5, "q")
            await events.wait(MessageFinished, 10, seconds=30)
            await events.wait(ListenerConnected, again=True)
    assert await doubles(connection) == 0


async def test_a_worker_that_finds_no_server_for_too_long_ends_with_the_reason(
    database: str, events: Events
) -> None:
    async with Proxy(database) as proxy:
        app = App(proxy.dsn, retry_for=0.5)
        running = asyncio.Event()

        @app.handler("q")
        async def handle() -> None:
            running.set()

        await app.create_queues()
        work = asyncio.create_task(app.work(app.worker(telemetry=events, poll=0.05, grace=1)))
        await app.publish("q", None)
        await running.wait()
        proxy.is_closed = True
        proxy.cut()
        with pytest.raises(DatabaseUnavailableError, match="is the server running"):
            async with asyncio.timeout(20):
                await work
        assert len(events.of(WorkerStopped)) == 1


async def test_a_stop_is_not_kept_waiting_by_a_server_that_is_gone(
    database: str, events: Events
) -> None:
    async with Proxy(database) as proxy:
        app = App(proxy.dsn, retry_for=60)
        app.handler("q")(lambda: None)
        worker = app.worker(telemetry=events, poll=0.05, grace=1)
        work = asyncio.create_task(app.work(worker))
        await events.wait(WorkerStarted)
        proxy.is_closed = True
        proxy.cut()
        await events.wait(ListenerLost)
        worker.stop()
        async with asyncio.timeout(30):
            await work
        assert len(events.of(WorkerStopped)) == 1


@pytest.mark.timeout(120)
async def test_a_restart_of_the_server_loses_nothing_and_repeats_nothing(
    mortal_server: Server, events: Events
) -> None:
    app = App(mortal_server.dsn, retry_for=60)
    started: list[int] = []

    @app.handler("q", max_attempts=5, lock_duration=30)
    async def handle(message: Message) -> int:
        started.append(message.id)
        await asyncio.sleep(0.05)
        return message.id

    published: list[int] = []

    async def publish_more() -> None:
        """Publish, and again until it is acknowledged, as a client would."""

        async def is_acknowledged() -> bool:
            with suppress(DatabaseUnavailableError):
                published.extend(await app.publish_many("q", range(50)))
                return True
            return False

        async with asyncio.timeout(30):
            await until(is_acknowledged, "fifty more are published", 30)

    async with working(app, events, concurrency=20, poll=0.5, seconds=60):
        await publish_more()
        await events.wait(MessageFinished, 10)
        stopping = asyncio.create_task(asyncio.to_thread(mortal_server.stop, force=True))
        during = asyncio.create_task(publish_more())
        await stopping
        await events.wait(ListenerLost)
        await asyncio.to_thread(mortal_server.start)
        await during
        await events.wait(ListenerConnected, again=True, seconds=30)
        await publish_more()
        async with session(mortal_server.dsn) as connection:

            async def is_done() -> bool:
                left = await connection.fetchval("select count(*) from messages.message")
                return bool(left == 0)

            await until(is_done, "nothing is left", 40)
            ids = await connection.fetch("select id from messages.message_archive")
            # More than these, where the answer to a publish was lost.
            assert {row[0] for row in ids} >= set(published)
            assert await doubles(connection) == 0
            assert list(await statuses(connection)) == ["success"]
    await app.close()


async def test_a_database_that_is_serializable_by_default_changes_nothing(
    database: str, connection: Connection
) -> None:
    name = database.rpartition("/")[2]
    await connection.execute(
        f"alter database \"{name}\" set default_transaction_isolation = 'serializable'"
    )
    app = App(database)

    @app.handler("q")
    async def handle() -> None: ...

    await app.create_queues()
    await app.publish_many("q", range(500))
    first, second = Events(), Events()
    async with working(app, first), working(app, second):
        await until_equal(lambda: statuses(connection), {"success": 500}, "all are archived")
        level = await app.database.value("show transaction_isolation")
        assert level == "read committed"
    await app.close()


async def test_a_statement_timeout_of_the_role_does_not_cut_off_the_worker(
    database: str, events: Events, connection: Connection
) -> None:
    await value(connection, "create_queue", name="q")
    settings = "set statement_timeout = '1ms'"
    async with login(connection, database, "notifyq_worker", settings) as dsn:
        app = App(dsn, retry_for=5)
        app.handler("q")(lambda n: n)
        async with working(app, events, concurrency=200, ping=0.05):
            await publish(connection, 2000, "q")
            await events.wait(MessageFinished, 2000)
        assert events.of(ListenerLost) == []


async def test_a_flood_of_empty_notifications_causes_few_claims(
    app: App, events: Events, connection: Connection, claims: list[list[str]]
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()

    async def flood(payload: str) -> float:
        """How many claims a flood causes each second."""
        before, began = len(claims), time.monotonic()
        while time.monotonic() - began < 1:
            await connection.execute(
                "select pg_notify('new_message', $1 || n) from generate_series(1, 50) as n", payload
            )
        return (len(claims) - before) / (time.monotonic() - began)

    async with working(app, events) as worker:
        await until_asleep(worker)  # the polls of its start are over
        assert await flood("foreign:1; drop table x --") == 0
        assert await flood("q:") < 150
        assert await flood("garbage") < 150
        await publish(connection, 1, "q")
        await events.wait(MessageFinished)


async def test_notifications_of_messages_are_not_slowed_down(
    app: App, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class OfEmptyPolls(TokenBucket):
        def spend(self) -> float:
            pauses.append(super().spend())
            return pauses[-1]

    monkeypatch.setattr("notifyq.worker.worker.TokenBucket", OfEmptyPolls)
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        for number in range(1, 101):
            await app.publish("q", None)
            await events.wait(MessageFinished, number)
    # Those alone may be followed by a pause.
    assert len(pauses) < 50


@pytest.mark.parametrize("result", ["[" * 20_000 + "]" * 20_000, "1e200000", "NaN", r'"\ud800"'])
async def test_what_postgresql_cannot_store_fails_alone_in_its_batch(
    app: App, connection: Connection, result: str
) -> None:
    async with app:
        inbox = Claims(app.database, "me")
        messages = await claimed(inbox, connection, 20)
        held = await asyncio.gather(
            *(inbox.settler.add(m, Success(result if m is messages[7] else "1")) for m in messages)
        )
    assert all(held)
    assert await statuses(connection) == {"success": 19, "failed": 1}
    details = await connection.fetchval(
        "select details from messages.message_archive where id = $1", messages[7].id
    )
    assert details.startswith("the result cannot be stored: ")


async def test_an_inbox_that_is_closed_leaves_nobody_waiting(
    app: App, connection: Connection
) -> None:
    async with app:
        inbox = Claims(app.database, "me")
        messages = await claimed(inbox, connection, 3)
        async with connection.transaction():
            await connection.execute("lock table messages.message in share mode")
            waiting = [inbox.settler.add(messages[0], Success())]
            # Not pg_stat_activity, of which a transaction sees what it saw first.
            await until(
                lambda: connection.fetchval(
                    "select exists (select from pg_locks as l where not l.granted "
                    "and l.relation = 'messages.message'::regclass)"
                ),
                "the first finish waits for the lock",
            )
            waiting += [inbox.settler.add(m, Success()) for m in messages[1:]]
            await asyncio.sleep(0)
            await inbox.close()
            done, _ = await asyncio.wait(waiting, timeout=5)
            assert [task.cancelled() for task in done] == [True] * 3


async def test_a_slow_stream_is_published_however_long_it_takes(
    database: str, connection: Connection
) -> None:
    app = App(database, command_timeout=0.2)

    async def drip() -> Any:
        for number in range(4):
            await asyncio.sleep(0.15)
            yield Json(number)

    async with app:
        publisher = Publisher(app.database)
        async with publisher.transaction() as held:
            stream = publisher.publish_stream("default", drip(), connection=held)
            assert [ids async for ids in stream] == [[1, 2, 3, 4]]
    assert await connection.fetchval("select count(*) from messages.message") == 4


async def test_a_database_is_closed_by_the_last_of_its_users(database: str) -> None:
    shared = App(database).database
    async with shared:
        async with shared:
            pass
        held = shared._pools.get()
        assert held.pool is not None
        assert not held.pool.is_closing()
    assert held.pool is None


async def test_a_call_goes_on_over_a_new_pool_when_its_own_was_closed(
    database: str, connection: Connection
) -> None:
    app = App(database, retry_for=3)
    async with app:
        await connection.execute("select pg_advisory_lock(1)")
        call = asyncio.create_task(app.database.persist("select 1, pg_advisory_xact_lock(1)"))
        await until(
            lambda: connection.fetchval(
                "select count(*) from pg_stat_activity "
                "where wait_event = 'advisory' and datname = current_database()"
            ),
            "the call is under way",
        )
        held = app.database._pools.get()
        pool, held.pool = held.pool, None
        assert pool is not None
        pool.terminate()
        await connection.execute("select pg_advisory_unlock(1)")
        ((one, _),) = await call
        assert one == 1
