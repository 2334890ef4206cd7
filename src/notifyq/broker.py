"""The broker process: one session that calls the procedures that its role has registered.

messages.run_broker() does the work; the process keeps its session alive and wakes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from notifyq.config import BrokerSettings, DatabaseSettings
from notifyq.database import statements as sql
from notifyq.database.connect import Route
from notifyq.database.pool import Database, connect, explained, explaining
from notifyq.database.refusals import PAUSE, Refusals, concerns_all, is_refusal
from notifyq.database.retry import Patience, is_lost, retrying
from notifyq.errors import NotifyqError
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Wake
from notifyq.queues.admin import Admin
from notifyq.telemetry import (
    BrokerLost,
    BrokerStarted,
    BrokerStopped,
    Guarded,
    ProcedureFailed,
    TelemetryHandler,
    log_events,
)

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

log = logging.getLogger("notifyq.broker")

_NAME = "notifyq broker"
_BROKEN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
_SHORT = 5.0
"""Seconds between two losses of the session after which it reconnects without a pause."""
_LONGEST_PAUSE = 5.0
_CALLS = "the calls of procedures"


class Broker:
    """The broker for the role and the database of a DSN; connect without a pooler.

    A lock of its session makes it the only broker of its role.
    """

    def __init__(
        self,
        dsn: str,
        *,
        settings: BrokerSettings | None = None,
        database: DatabaseSettings | None = None,
        telemetry: TelemetryHandler = log_events,
    ) -> None:
        self._settings = settings or BrokerSettings.load()
        self._database = Database(dsn, settings=database)
        self._telemetry = Guarded(telemetry)
        self._connection: Connection | None = None
        self._identity: tuple[int, Any] | None = None
        self._where = {"role": "", "database": ""}
        self._wake = Wake()
        self._stopping: asyncio.Task[None] | None = None
        self._stops = 0
        self._has_begun = False
        self._refusals = Refusals(log)
        self._patience = Patience("the start", log, self._database.settings.retry_for)

    async def __aenter__(self) -> Self:
        """Connect and become the broker of the role, or raise.

        It waits for a server that is away, unless it is stopped.
        """
        await self._patience.through(self._begin)
        return self

    async def _begin(self) -> None:
        await self._database.__aenter__()
        try:
            await Admin(self._database).check_schema()
            await self._connect()
            with explaining(self._database.dsn):
                # Hold the lock also while there is nothing to do.
                await self._session().fetchval(sql.LOCK_BROKER)
                await self._run()
                await self._session().execute(sql.WANT_BROKER)
        except BaseException:
            await self._end()
            raise
        self._has_begun = True

    async def __aexit__(self, *exc_info: object) -> None:
        if self._has_begun:
            await self._end(*exc_info)

    async def _end(self, *exc_info: object) -> None:
        if self._connection is not None:
            self._connection.terminate()
        if self._stopping is not None:
            self._stopping.cancel()
        await self._database.__aexit__(*exc_info)

    async def serve(self) -> None:
        """Call procedures until the broker is stopped, by `stop()` or messages.stop_broker()."""
        if not self._has_begun:
            return
        listener = Listener(
            self._database,
            [sql.NEW_EVENT],
            lambda *_: self._wake.set(),
            name=f"{_NAME} notification",
            telemetry=self._telemetry,
        )
        async with listener:
            await self._serve(listener)
        self._telemetry(BrokerStopped(**self._where))

    def stop(self) -> None:
        """Stop after the current event, within the grace; called again, at once."""
        self._stops += 1
        self._wake.set()
        self._patience.stop()
        if not self._has_begun:
            return
        grace = self._settings.grace if self._stops == 1 else None
        if self._stopping is not None:
            self._stopping.cancel()
        self._stopping = asyncio.create_task(self._stop(grace))

    async def _stop(self, grace: timedelta | None) -> None:
        # Through another session: that of the broker may be busy with a procedure.
        if grace is None and self._connection is not None:
            self._connection.terminate()
        with suppress(asyncpg.PostgresError, NotifyqError, TimeoutError):
            await self._database.fetch(sql.STOP_BROKER, grace or timedelta(0))

    async def _serve(self, listener: Listener) -> None:
        pause = 0.0
        lost_at = time.monotonic()
        while not self._is_stopping():
            self._wake.clear()
            try:
                is_stopped = await self._run()
            except _BROKEN as error:
                if self._is_stopping():  # the stop may have caused the error
                    return
                ours = explained(error, self._database.dsn) or error
                if concerns_all(ours):
                    raise ours from None
                if is_refusal(ours):
                    self._refusals.refused(_CALLS, ours, "they are tried again each second")
                    await self._wake.rest(PAUSE)
                    continue
                self._telemetry(BrokerLost(**self._where, error=f"{type(error).__name__}: {error}"))
                is_short = time.monotonic() - lost_at < _SHORT
                pause = min(max(pause * 2, 0.1), _LONGEST_PAUSE) if is_short else 0.0
                lost_at = time.monotonic()
                await self._wake.rest(pause)
                if not await self._resume(error):
                    return
                continue
            if is_stopped:
                return
            self._refusals.works(_CALLS)
            listener.check()
            await self._wake.rest(self._settings.poll.total_seconds())

    def _is_stopping(self) -> bool:
        return self._stops > 0

    async def _run(self) -> bool:
        """Handle all waiting events; true if the broker is to stop."""
        [row] = await self._session().fetch(sql.RUN_BROKER)
        return bool(row["stopped"])

    async def _resume(self, error: BaseException) -> bool:
        """Reconnect after this error if the session is lost; false if the broker is to stop."""
        if not is_lost(error) and not self._session().is_closed():
            return True
        async for attempt in retrying("the broker", log, self._database.settings.retry_for):
            with attempt:
                if self._is_stopping():
                    return False
                await self._connect()
                with self._refusals.noted("the status of the broker", "it goes on"):
                    [status] = await self._session().fetch(sql.BROKER_STATUS)
                    if not status["wanted"]:
                        return False
                await self._session().fetchval(sql.LOCK_BROKER)
        return True

    async def _connect(self) -> None:
        timeout = self._database.settings.connect_timeout.total_seconds()
        before, self._connection = self._connection, None
        if before is not None:
            before.terminate()
        schema = self._database.schema
        route = Route(self._database.dsn, name=_NAME, timeout=timeout, schema=schema)
        connection = await connect(self._database.dsn, route=route)
        self._connection = connection
        if route.features is not None and route.features.is_pooled:
            log.warning(
                "the broker needs its own session, and a pooler in transaction mode has none: "
                "give --listen-dsn or NOTIFYQ_LISTEN_DSN, the address of the server itself"
            )
        if self._identity is not None:
            # The server may not have noticed that the old session is gone: it still has the lock.
            await connection.fetch(sql.END_SESSION, *self._identity)
        again = self._identity is not None
        [row] = await connection.fetch(sql.KEEP_ALIVE)
        self._identity = (row["pid"], row["backend_start"])
        [where] = await connection.fetch(sql.BROKER_OF)
        self._where = {"role": where["role"], "database": where["database"]}
        connection.add_log_listener(self._on_log_message)
        connection.add_termination_listener(lambda _: self._wake.set())
        self._telemetry(BrokerStarted(**self._where, backend_pid=row["pid"], again=again))

    def _on_log_message(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        text = str(message.message)
        if message.severity == "WARNING" and text.startswith("notifyq: dead event "):
            self._telemetry(ProcedureFailed(**self._where, warning=text.removeprefix("notifyq: ")))

    def _session(self) -> Connection:
        assert self._connection is not None  # noqa: S101  connected in __aenter__
        return self._connection
