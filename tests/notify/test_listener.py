"""The listening session: no notification is lost, no thread is left, nothing runs hot."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from notifyq import DatabaseUnavailableError
from notifyq.chaos.proxy import Proxy
from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database
from notifyq.notify.listener import Listener
from notifyq.notify.session import Session
from notifyq.telemetry import ListenerConnected, ListenerLost
from support.database import Connection, until, until_equal
from support.running import Events


class Received:
    """The notifications so far."""

    def __init__(self) -> None:
        self.notifications: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def __call__(self, channel: str, payload: str) -> None:
        self.notifications.append((channel, payload))
        self._news.set()

    async def wait(self, payload: str) -> None:
        async with asyncio.timeout(10):
            while payload not in {it for _, it in self.notifications}:
                self._news.clear()
                await self._news.wait()


def make(dsn: str, received: Received, events: Events, **options: object) -> Listener:
    settings = DatabaseSettings.load(retry_for=options.pop("retry_for", 20))
    return Listener(
        Database(dsn, settings=settings),
        ["notifications"],
        received,
        name="listener test",
        ping=options.pop("ping", 10),  # type: ignore[arg-type]
        telemetry=events,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    left = [thread for thread in threading.enumerate() if thread.name == "notifyq-listener"]
    for thread in left:
        thread.join(5)
    assert not [thread for thread in left if thread.is_alive()]


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads interrupt each other all the time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
async def test_no_notification_is_lost_between_the_threads(
    received: Received, events: Events
) -> None:
    listener = make("postgresql://nowhere", received, events)
    listener._home = asyncio.get_running_loop()
    quantity = 20_000

    def notify() -> None:
        for number in range(quantity):
            listener._receive(None, 0, "notification", str(number))

    await asyncio.to_thread(notify)
    listener._receive(None, 0, "notification", "last")
    await received.wait("last")


async def test_notifications_for_a_blocked_loop_need_bounded_memory(
    received: Received, events: Events
) -> None:
    listener = make("postgresql://nowhere", received, events)
    listener._home = asyncio.get_running_loop()
    for number in range(50_000):  # the loop does not run meanwhile
        listener._receive(None, 0, "notification", str(number))
    await received.wait("999")
    assert len(received.notifications) <= 1001
    assert ("", "") in received.notifications  # some were missed: poll


async def test_a_first_connection_that_fails_is_an_error_at_once(
    received: Received, events: Events
) -> None:
    with pytest.raises(DatabaseUnavailableError):
        async with make("postgresql://u@127.0.0.1:1/db", received, events):
            raise AssertionError


async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    database: str, received: Received, events: Events, connection: Connection
) -> None:
    async with Proxy(database) as proxy:
        proxy.blackhole()
        listener = make(proxy.dsn, received, events)
        start = asyncio.create_task(listener.__aenter__())
        await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert listener._thread is None

    async def is_gone() -> bool:
        return not await sessions(connection)

    await until(is_gone, "the session is closed")


async def sessions(connection: Connection) -> list[int]:
    found = await connection.fetch(
        "select pid from pg_stat_activity "
        "where application_name = 'listener test' and datname = current_database()"
    )
    return [row[0] for row in found]


async def end_sessions(connection: Connection) -> None:
    for pid in await sessions(connection):
        await connection.execute("select pg_terminate_backend($1)", pid)


async def test_a_session_that_was_ended_listens_again_and_reports_a_notification(
    database: str, received: Received, events: Events, connection: Connection
) -> None:
    async with make(database, received, events):
        await end_sessions(connection)
        await events.wait(ListenerConnected, again=True)
        assert len(events.of(ListenerLost)) == 1
        received.notifications.clear()
        await connection.execute("notify notifications, 'after'")
        await received.wait("after")
    await until_equal(lambda: sessions(connection), [], "its sessions have ended")


async def test_the_ping_detects_a_session_that_no_longer_answers(
    database: str, received: Received, events: Events, connection: Connection
) -> None:
    async with Proxy(database) as proxy, make(proxy.dsn, received, events, ping=0.05):
        proxy.blackhole()
        await events.wait(ListenerLost)
        await events.wait(ListenerConnected, again=True)
        await connection.execute("notify notifications, 'after'")
        await received.wait("after")


async def test_a_session_that_breaks_before_it_listens_is_tried_again(
    database: str, received: Received, events: Events
) -> None:
    async with Proxy(database) as proxy, make(proxy.dsn, received, events):
        proxy.lose_answer_to(b"LISTEN")
        proxy.cut()
        await events.wait(ListenerLost, 2)
        assert proxy.lost.is_set()
        await events.wait(ListenerConnected, again=True)


async def test_a_service_that_always_fails_does_not_make_it_run_hot(
    database: str, received: Received, events: Events
) -> None:
    async def fail(_: Session) -> None:
        raise ConnectionError("not on this server")

    async with make(database, received, events, services=[fail]):
        began = time.monotonic()
        await events.wait(ListenerLost, 4)
        assert time.monotonic() - began > 0.5


async def test_a_stop_while_the_session_breaks_ends_it(
    database: str, received: Received, events: Events
) -> None:
    async def fail_when_cancelled(_: Session) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the server has gone at the same moment")

    async with asyncio.timeout(10):
        async with make(database, received, events, services=[fail_when_cancelled]):
            pass


async def test_it_gives_up_when_the_server_stays_away(
    database: str, received: Received, events: Events
) -> None:
    async with (
        Proxy(database) as proxy,
        make(proxy.dsn, received, events, retry_for=0.3) as listener,
    ):
        proxy.is_closed = True
        proxy.cut()
        with pytest.raises(DatabaseUnavailableError):
            async with asyncio.timeout(20):
                await asyncio.shield(listener.failed)
