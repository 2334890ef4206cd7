"""A listening session in a thread and event loop of its own.

A handler that blocks the main loop must not stop this session from reading its socket: the server
would hold back vacuum for a listener that does not read. What has to go on whatever handlers do,
such as extending locks, runs beside it as a service on the same session.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import asyncpg

from notifyq.database import installs, probes
from notifyq.database import statements as sql
from notifyq.database.connect import Route
from notifyq.database.pool import connect, explained
from notifyq.database.retry import is_passing, retrying
from notifyq.dsn import masked
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.notify.session import Session
from notifyq.notify.wake import call_on
from notifyq.telemetry import (
    ListenerConnected,
    ListenerLost,
    NotificationsLost,
    TelemetryEvent,
    TelemetryHandler,
)

if TYPE_CHECKING:
    from notifyq.database.pool import Connection, Database

    OnNotification = Callable[[str, str], None]
    Service = Callable[[Session], Coroutine[Any, Any, None]]

log = logging.getLogger("notifyq.listener")

T = TypeVar("T")

_MOST_PENDING = 1000
"""Notifications kept until the main loop has time for them: any session may send them."""
_SHORT = 5.0
"""Seconds that a session must last before the next one is opened without a pause."""
_LONGEST_PAUSE = 5.0


class Listener:
    """LISTEN on channels of a database; after a lost connection, connect and listen again.

    `on_notification(channel, payload)` and the telemetry are called on the event loop that opened
    the listener. `on_notification("", "")` means "notifications may have been missed": after every
    connection, and when the listener has ended. `services` run on its loop for each session.
    """

    def __init__(
        self,
        database: Database,
        channels: Sequence[str],
        on_notification: OnNotification,
        *,
        name: str,
        telemetry: TelemetryHandler,
        ping: float = 10,
        services: Sequence[Service] = (),
        reads_only: bool = False,
    ) -> None:
        """Describe the listener; one that `reads_only` goes on without LISTEN at a standby."""
        self._database = database
        self._dsn = database.listen_dsn
        self._channels = channels
        self._on_notification = on_notification
        self._route = Route(
            self._dsn,
            name=name,
            timeout=database.settings.connect_timeout.total_seconds(),
            prepared=database.settings.prepared_statements,
            schema=database.schema,
        )
        self._prefix = installs.channel_prefix(database.schema)
        self._telemetry = telemetry
        self._ping_every = ping
        self._reads_only = reads_only
        self._listens = False
        self._services = [self._check_database, self._check_delivery, *services]
        self._pending: set[tuple[str, str]] = set()
        self._pending_lock = threading.Lock()
        self._opening = asyncio.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected_before = False
        self._has_reported_loss = False
        self.is_closed = False
        self.delivers = False
        """Whether notifications are known to arrive: through some poolers none does."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and listen, unless it does; raises the error after which it has given up.

        A server that is away is an error here; later the connection is retried.
        """
        async with self._opening:
            if self.is_closed:
                return
            if self._thread is None:
                await self._start()
            else:
                self.check()

    async def close(self) -> None:
        """End the session, permanently."""
        self.is_closed = True
        async with self._opening:
            if self._thread is not None:
                await self._stop()

    def check(self) -> None:
        """Raise the error after which the listener has given up, if it has."""
        if self.failed.done():
            self.failed.result()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of its thread; None before it has started."""
        return self._loop

    async def _start(self) -> None:
        self._home = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._home.create_future()
        self.failed: asyncio.Future[None] = self._home.create_future()
        """Set when the listener has given up, with the error."""
        self.failed.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.failed.add_done_callback(lambda _: self._on_notification("", ""))
        self._loop, self._stopping = None, False
        self._thread = threading.Thread(target=self._run, name="notifyq-listener", daemon=True)
        self._thread.start()
        try:
            await self._ready
        except BaseException:
            # Also when cancelled: otherwise the thread would listen until the process ends.
            await self._stop()
            raise

    async def _stop(self) -> None:
        thread, self._thread = self._thread, None
        self._stopping = True
        if self._loop is not None:
            call_on(self._loop, self._stopped.set)
        if thread is not None:
            await self._home.run_in_executor(None, thread.join)
        self.failed.cancel()

    def _run(self) -> None:
        try:
            asyncio.run(self._listen_until_stopped())
        except Exception as error:  # noqa: BLE001  the main loop must learn of any end of this thread
            self._call_home(self._fail, explained(error, self._dsn) or error)

    def _fail(self, error: BaseException) -> None:
        future = self.failed if self._ready.done() else self._ready
        if not future.done():
            future.set_exception(error)

    def _call_home(self, function: Callable[..., None], *args: Any) -> None:
        call_on(self._home, function, *args)

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call on the main loop, where the pool of the database lives."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    def _emit(self, event: TelemetryEvent) -> None:
        self._call_home(self._telemetry, event)

    async def _listen_until_stopped(self) -> None:
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopping:  # set before there was a loop to notify
            return
        listening = asyncio.create_task(self._listen())
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({listening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening

    async def _listen(self) -> None:
        short = 0
        # Not `while True`: a session that breaks while it is cancelled ends with its own error.
        while not self._stopped.is_set():
            connection = await self._connect()
            since = time.monotonic()
            try:
                await self._serve(connection)
            except Exception as error:  # noqa: BLE001  it is examined two lines below
                reason = _first(error)
                if not self._connected_before or not is_passing(reason):
                    raise reason from None
                self._emit(ListenerLost(error=f"{type(reason).__name__}: {reason}"))
            finally:
                self.delivers = False
                # Not close(): that waits for a server that may never answer.
                connection.terminate()
            short = short + 1 if time.monotonic() - since < _SHORT else 0
            await asyncio.sleep(_pause(short))

    async def _connect(self) -> Connection:
        if not self._connected_before:
            return await connect(self._dsn, route=self._route)
        retries = retrying("listening", log, self._database.settings.retry_for)
        return await retries(connect, self._dsn, route=self._route)

    async def _serve(self, connection: Connection) -> None:
        pid = connection.get_server_pid()
        session = Session(
            connection,
            notify=lambda channel: self._at_home(self._notify(channel)),
            on_lost=partial(self._report_loss, pid),
        )
        closed = asyncio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        self._listens = await self._listen_on(connection)
        again, self._connected_before = self._connected_before, True
        self._emit(ListenerConnected(backend_pid=pid, again=again))
        # After LISTEN is in force: the poll that this causes finds what was published before it.
        self._receive(connection, pid, "", "")
        self._call_home(self._report_ready)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ping(session))
            group.create_task(_raise_when(closed))
            for service in self._services:
                group.create_task(service(session))

    async def _listen_on(self, connection: Connection) -> bool:
        try:
            for channel in self._channels:
                await connection.add_listener(channel, self._receive)
        except asyncpg.ReadOnlySQLTransactionError:
            if not self._reads_only:
                raise
            return False
        return True

    def _report_loss(self, backend_pid: int) -> None:
        if not self._has_reported_loss:
            self._has_reported_loss = True
            self._emit(NotificationsLost(backend_pid=backend_pid))

    def _report_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    async def _ping(self, session: Session) -> None:
        # A half-open socket seems alive for two hours: only an answer proves the session. And a
        # primary may become a standby without a restart, which no connection notices.
        is_read_only = bool(await session.fetch(probes.IS_READ_ONLY))
        while True:
            await asyncio.sleep(self._ping_every)
            was, is_read_only = is_read_only, bool(await session.fetch(probes.IS_READ_ONLY))
            if is_read_only and not was:
                raise asyncpg.ReadOnlySQLTransactionError("the server is no longer a primary")
            if not (is_read_only or self._listens):
                raise asyncpg.ReadOnlySQLTransactionError("the server has become a primary")

    async def _check_database(self, session: Session) -> None:
        """Raise where the listen DSN leads to another database than the DSN."""
        if self._dsn == self._database.dsn:
            return
        [there] = await self._at_home(self._database.persist(probes.IDENTITY))
        [here] = await session.fetch(probes.IDENTITY)
        if here != there:
            raise ConfigurationError(
                "the listen DSN leads to another database than the DSN, "
                f"{masked(self._database.dsn)}: it must be the address of the same database "
                "without the pooler"
            )

    async def _check_delivery(self, session: Session) -> None:
        self.delivers = self._listens and await session.delivers()

    async def _notify(self, channel: str) -> bool:
        try:
            return bool(await self._database.value(sql.NOTIFY, channel))
        except (NotifyqError, asyncpg.PostgresError) as error:
            # The server is away, or its notification queue is full.
            log.debug("no notification could be sent: %s", error)
            return False

    def _receive(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        channel = channel.removeprefix(self._prefix)
        # A thousand notifications cost the main loop one call, which delivers them together.
        with self._pending_lock:
            is_first = not self._pending
            is_full = len(self._pending) >= _MOST_PENDING
            self._pending.add(("", "") if is_full else (channel, str(payload)))
        if is_first:
            self._call_home(self._deliver)

    def _deliver(self) -> None:
        # Without the lock a notification could join a set that has just been taken: it would be
        # lost, and each later one would wait for a call that is never made.
        with self._pending_lock:
            pending, self._pending = self._pending, set()
        for channel, payload in pending:
            self._on_notification(channel, payload)


async def _raise_when(closed: asyncio.Event) -> None:
    await closed.wait()
    raise ConnectionError("the server closed the listening session")


def _pause(short: int) -> float:
    """Seconds before the next try after so many short sessions; the first try is immediate."""
    if short < 2:
        return 0
    return min(0.1 * 2.0 ** min(short, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
