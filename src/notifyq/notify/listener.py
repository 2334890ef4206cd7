"""The one listening session of a process, in a thread and event loop of its own.

A handler that blocks the main loop must not keep this session from reading its socket: the server
would hold back vacuum for a listener that is deaf. What has to go on whatever handlers do, like
extending locks, runs beside it as a service on the same session.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from notifyq.database import probes
from notifyq.database.connect import Route
from notifyq.database.pool import connect, explained
from notifyq.database.retry import is_passing, retrying
from notifyq.notify.session import Session
from notifyq.telemetry import Event, ListenerConnected, ListenerDeaf, ListenerLost, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from notifyq.config import DatabaseSettings
    from notifyq.database.pool import Connection

    Bell = Callable[[str, str], None]
    Service = Callable[["Session"], Coroutine[Any, Any, None]]

log = logging.getLogger("notifyq.listener")

_MOST_HEARD = 1000
"""Bells kept until the main loop has time for them. Anybody may ring, also while it is blocked."""
_SHORT = 5.0
"""Seconds that a session must last to count as a good one."""
_LONGEST_PAUSE = 5.0


class Listener:
    """LISTEN on channels, for ever: after a lost connection listen again, then report a bell.

    `on_bell(channel, payload)` and the sink are called on the event loop that started the listener.
    `on_bell("", "")` means "something may have been missed": after every (re)connection.
    """

    def __init__(
        self,
        dsn: str,
        channels: Sequence[str],
        on_bell: Bell,
        *,
        settings: DatabaseSettings,
        name: str,
        ping: float,
        services: Sequence[Service] = (),
        sink: Sink,
    ) -> None:
        self._dsn = dsn
        self._channels = channels
        self._on_bell = on_bell
        self._settings = settings
        self._route = Route(
            dsn,
            name=name,
            timeout=settings.connect_timeout.total_seconds(),
            prepared=settings.prepared_statements,
        )
        self._ping_every = ping
        self._services = services
        self._sink = sink
        self._heard: set[tuple[str, str]] = set()
        self._hearing = threading.Lock()
        self._connected_before = False
        self._is_deaf = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    async def __aenter__(self) -> Self:
        """Connect and listen; a server that is not there is an error here, later it is retried."""
        self._home = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._home.create_future()
        self.failed: asyncio.Future[None] = self._home.create_future()
        """Set when the listener has given up: its exception says why."""
        self.failed.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._thread = threading.Thread(target=self._run, name="notifyq-listener", daemon=True)
        self._thread.start()
        try:
            await self._ready
        except BaseException:
            # Also when cancelled: a thread that nobody stops would listen for ever.
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        await self._home.run_in_executor(None, self._thread.join)
        self.failed.cancel()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of its thread, once it is there."""
        return self._loop

    def _run(self) -> None:
        try:
            asyncio.run(self._listen_until_stopped())
        except Exception as error:  # noqa: BLE001  any end of this thread must be heard of
            self._call_home(self._fail, explained(error, self._dsn) or error)

    def _fail(self, error: BaseException) -> None:
        future = self.failed if self._ready.done() else self._ready
        if not future.done():
            future.set_exception(error)

    def _call_home(self, function: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the main loop has gone: nobody is left to tell
            self._home.call_soon_threadsafe(function, *args)

    def _emit(self, event: Event) -> None:
        self._call_home(self._sink, event)

    async def _listen_until_stopped(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopping:  # set before it could be told to the loop
            return
        listening = asyncio.create_task(self._listen())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({listening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening

    async def _listen(self) -> None:
        short = 0
        # Not for ever: a session that breaks while it is being cancelled ends with its own error.
        while not self._stop.is_set():
            connection = await self._connect()
            since = time.monotonic()
            try:
                await self._serve(connection)
            except Exception as error:  # noqa: BLE001  it is judged two lines below
                reason = _first(error)
                if not self._connected_before or not is_passing(reason):
                    raise reason from None
                self._emit(ListenerLost(error=f"{type(reason).__name__}: {reason}"))
            finally:
                # Not close(): that asks a server that may never answer.
                connection.terminate()
            short = short + 1 if time.monotonic() - since < _SHORT else 0
            await asyncio.sleep(_pause(short))

    async def _connect(self) -> Connection:
        if not self._connected_before:
            return await connect(self._dsn, route=self._route)
        async for attempt in retrying("listening", log, self._settings.retry_for):
            with attempt:
                return await connect(self._dsn, route=self._route)
        raise AssertionError  # tenacity returns or raises; this line tells the type checker

    async def _serve(self, connection: Connection) -> None:
        session = Session(connection, 5, partial(self._report_deaf, connection.get_server_pid()))
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        for channel in self._channels:
            await connection.add_listener(channel, self._hear)
        again, self._connected_before = self._connected_before, True
        self._emit(ListenerConnected(backend_pid=connection.get_server_pid(), again=again))
        # After LISTEN is in force: what was published before is found by the look this causes, what
        # comes later rings.
        self._hear(connection, 0, "", "")
        self._call_home(self._report_ready)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ping(session))
            group.create_task(_raise_when(gone))
            for service in self._services:
                group.create_task(service(session))

    def _report_deaf(self, backend_pid: int) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            self._emit(ListenerDeaf(backend_pid=backend_pid))

    def _report_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    async def _ping(self, session: Session) -> None:
        # A half-open socket looks alive for two hours; only an answer proves the session.
        # Nor does a primary that became a standby without a restart say so by itself.
        is_read_only = bool(await session.fetch(probes.IS_READ_ONLY))
        while True:
            await asyncio.sleep(self._ping_every)
            if bool(await session.fetch(probes.IS_READ_ONLY)) and not is_read_only:
                raise asyncpg.ReadOnlySQLTransactionError("the server is no primary any more")

    def _hear(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        # A thousand bells cost the main loop one call, which gives them their turn in a bunch.
        with self._hearing:
            is_first = not self._heard
            is_full = len(self._heard) >= _MOST_HEARD
            self._heard.add(("", "") if is_full else (channel, str(payload)))
        if is_first:
            self._call_home(self._deliver)

    def _deliver(self) -> None:
        # Without the lock a bell could join a bunch that has just been handed out: it would be
        # lost, and each later one would wait for a call that nobody makes.
        with self._hearing:
            heard, self._heard = self._heard, set()
        for channel, payload in heard:
            self._on_bell(channel, payload)


async def _raise_when(gone: asyncio.Event) -> None:
    await gone.wait()
    raise ConnectionError("the server closed the listening session")


def _pause(short: int) -> float:
    """Seconds before the next try after so many short sessions; the first one is tried at once."""
    if short < 2:
        return 0
    return min(0.1 * 2.0 ** min(short, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
