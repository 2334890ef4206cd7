"""Processes that start before their server: they wait for it, and a signal ends the wait."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import asyncpg
import pytest

from cli.programs import Running
from notifyq import AccessDeniedError, App, DatabaseUnavailableError, Policy
from notifyq.database.pool import Database, explained
from notifyq.database.retry import is_passing
from notifyq.dsn import with_user
from notifyq.relay import Relay
from notifyq.server import Server
from notifyq.telemetry import WorkerStarted
from support.database import Connect, Connection, session, until
from support.running import Events

APP = """
import notifyq
app = notifyq.App()
@app.handler("q")
async def handle(n: int) -> int:
    return n + 1
@app.subscriber("s", "r")
async def read(n: int) -> None: ...
"""
SERVING = [
    ("worker", "theirs:app"),
    ("broker",),
    ("relay", "-q", "q"),
    ("dead", "watch"),
    ("metrics", "--port", "0"),
    ("dashboard", "--port", "0"),
    ("stream", "tail", "s"),
]


def command(args: tuple[str, ...], dsn: str) -> tuple[str, ...]:
    return (args[0], dsn, dsn, *args[1:]) if args[0] == "relay" else args


@pytest.mark.parametrize("args", SERVING, ids=lambda args: args[0])
async def test_a_signal_ends_the_wait_for_a_server(tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "theirs.py").write_text(APP)
    dsn = "postgresql://nobody@127.0.0.1:1/nowhere"
    with Running(dsn, *command(args, dsn), cwd=tmp_path) as waiting:
        waiting.logged("the start failed")
        waiting.process.send_signal(signal.SIGTERM)
        assert waiting.process.wait(10) == 0


async def test_a_worker_and_a_relay_that_start_before_their_server_handle_what_comes(
    tmp_path: Path, mortal_server: Server
) -> None:
    (tmp_path / "theirs.py").write_text(APP)
    dsn = mortal_server.dsn
    await asyncio.to_thread(mortal_server.stop, force=True)
    relay = Relay(Database(dsn), Database(dsn), {"a": "b"})
    moving = asyncio.create_task(relay.run())
    with Running(dsn, "worker", "theirs:app", cwd=tmp_path) as worker:
        await asyncio.to_thread(worker.logged, "the start failed")
        await asyncio.to_thread(mortal_server.start)
        async with session(dsn) as connection:
            for queue in ("a", "b"):
                await connection.fetchval("select messages.create_queue($1)", queue)
            await connection.fetchval("select messages.publish('a', '1')")
            await until(lambda: relay.counts["moved"] > 0, "the message is moved")
            await asyncio.to_thread(worker.logged, " has started")
            id_ = await connection.fetchval("select messages.publish('q', '1')")
            await until(
                lambda: connection.fetchval("select id from messages.archive_find($1)", id_),
                "the message is handled",
            )
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(10) == 0
    relay.stop()
    await moving
    assert relay.counts["moved"] == 1


async def test_a_stop_ends_the_wait_in_a_thread_of_nobodys(events: Events) -> None:
    app = App("postgresql://nobody@127.0.0.1:1/nowhere")
    app.handler("q")(lambda: None)
    worker = app.worker(telemetry=events)
    working = asyncio.create_task(app.work(worker))
    await asyncio.sleep(0)
    await asyncio.to_thread(worker.stop)
    async with asyncio.timeout(5):
        await working
    assert not events.of(WorkerStarted)


@pytest.mark.parametrize("missing", ["role", "database"])
async def test_what_cannot_pass_ends_a_worker_at_once(database: str, missing: str) -> None:
    name = database.rpartition("/")[2].partition("?")[0]
    user = "no_such_role" if missing == "role" else "postgres"
    app = App(with_user(database, user, "no_such_database" if missing == "database" else name))
    app.handler("q")(lambda: None)
    async with asyncio.timeout(10):
        with pytest.raises((AccessDeniedError, DatabaseUnavailableError), match="no_such_"):
            await app.work()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (asyncpg.CannotConnectNowError("the database system is starting up"), True),
        (asyncpg.AdminShutdownError("bye"), True),
        (asyncpg.CrashShutdownError("recovery"), True),
        (asyncpg.TooManyConnectionsError("full"), True),
        (asyncpg.ReadOnlySQLTransactionError("a standby"), True),
        (ConnectionRefusedError("refused"), True),
        (FileNotFoundError("no socket"), True),
        (asyncpg.InvalidPasswordError("wrong"), False),
        (asyncpg.InvalidCatalogNameError("no database"), False),
        (asyncpg.InvalidAuthorizationSpecificationError("no role"), False),
    ],
    ids=lambda it: type(it).__name__,
)
def test_what_a_start_waits_for(error: Exception, passes: bool) -> None:
    ours = explained(error, "postgresql://u@h/d")
    assert ours is not None
    ours.__cause__ = error
    assert is_passing(ours) is passes


async def test_a_start_that_waits_for_a_transaction_does_not_stop_publishers(
    database: str, connection: Connection, connect: Connect, events: Events
) -> None:
    app = App(database)
    app.handler("a", policy=Policy(capacity=10))(lambda: None)
    app.handler("b")(lambda: None)
    worker = app.worker(telemetry=events)
    other = await connect()
    async with other.transaction():
        await other.fetchval("select messages.create_queue('b')")
        starting = asyncio.create_task(app.work(worker))
        await until(
            lambda: connection.fetchval(
                "select exists (select from pg_stat_activity "
                "where datname = current_database() and wait_event_type = 'Lock')"
            ),
            "the start waits for the other transaction",
        )
        assert await connection.fetchval("select messages.publish('default', '1')", timeout=10)
    await events.wait(WorkerStarted)
    worker.stop()
    await starting


async def test_apps_with_common_queues_and_streams_start_together(
    database: str, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    starting: list[asyncio.Task[None]] = []
    workers = []
    for queues, streams in [("abc", "st"), ("bd", "t"), ("ce", "tu"), ("ad", "s"), ("e", "u")]:
        app = App(database)
        for queue in queues:
            app.handler(queue, policy=Policy(capacity=10, durable=False))(lambda: None)
        for stream in streams:
            app.subscriber(f"stream {stream}", queues)(lambda: None)
        workers.append(app.worker(telemetry=events))
        starting.append(asyncio.create_task(app.work(workers[-1])))
    await events.wait(WorkerStarted, len(workers), seconds=30)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*starting)
    assert "the start failed" not in caplog.text
