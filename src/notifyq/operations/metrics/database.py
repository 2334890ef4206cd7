"""The metrics of the database: of all processes, the one with an advisory lock reads them."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from notifyq.database import advisory_locks
from notifyq.database.pool import connect
from notifyq.operations import monitor
from notifyq.operations.metrics.event_metrics import Names
from notifyq.operations.metrics.families import families

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

log = logging.getLogger("notifyq.metrics")

_LEADER = "metrics"
_CHOSEN = "metrics of a process of their own"
"""Names of the locks: of the process that reads, and of a process started only for that."""
_SCOPE = """
select case when has_function_privilege('notifyq.diagnose()', 'execute') then ''
  else ' of ' || current_user end
"""
"""What the names end with: a viewer reads for itself, beside the process that reads everything."""
_RETRY_EVERY = 15.0
"""Seconds between two attempts to get the lock from another process."""
_CONNECTS_WITHIN = 5.0
_ANSWERS_WITHIN = 20.0
"""Seconds for one statement."""
_SCRAPE_WAITS = 3.0
"""Seconds; then a scrape gets older values, because it also needs the metrics of the worker."""
_REST = 10
"""Pause between two reads, as a multiple of the last one: reading must not become a load."""


class Readings(NamedTuple):
    """What was read, and when."""

    at: float
    """In monotonic seconds."""
    took: float
    backlog: list[monitor.Backlog]
    lags: list[monitor.Lag]
    health: monitor.Health


class DatabaseMetrics(Collector):
    """Reads metrics of the database when it is scraped, at most every few seconds.

    Only one process reads; the others export `notifyq_database_exporter 0`, and one of them takes
    over when it ends. A process with `chosen` takes over from workers. The collector has its own
    thread and connection and does not wait for handlers. `dsn` must not lead through a pooler.
    """

    def __init__(
        self,
        dsn: str,
        *,
        every: float = 5.0,
        chosen: bool = False,
        most_names: int = 100,
        schema: str | None = None,
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._every = every
        self._chosen = chosen
        self._queues = Names(most_names)
        self._subscriptions = Names(most_names)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._readings: Readings | None = None
        self._is_up: bool | None = None
        self._try_at = 0.0
        self._scope = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not read the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the last values, after a new read if it is time."""
        self._request_read()
        readings = self._readings
        gauges: list[tuple[str, str, float]] = [
            (
                "exporter",
                "1 in the process that reads the metrics of the database.",
                readings is not None,
            )
        ]
        if self._is_up is not None:
            gauges.append(("up", "Whether the last read of the database succeeded.", self._is_up))
        if readings is not None:
            age = time.monotonic() - readings.at
            gauges.append(("read_seconds", "How long the last read took.", readings.took))
            gauges.append(("read_age_seconds", "Age of the values of the database.", age))
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"notifyq_database_{name}", text, value=float(value))
        if readings is not None:
            yield from families(
                readings.backlog, readings.lags, readings.health, self._queues, self._subscriptions
            )

    def close(self) -> None:
        """Stop reading, and release the lock for another process."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def _request_read(self) -> None:
        """Start a read if it is time, and wait a while for it."""
        with self._starting:
            if self._thread is None:
                ready: Future[None] = Future()
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._serve(ready)),
                    name="notifyq-database-metrics",
                    daemon=True,
                )
                self._thread.start()
                ready.result()
            read = asyncio.run_coroutine_threadsafe(self._refresh(), self._loop)
        with suppress(TimeoutError, asyncio.CancelledError):
            read.result(_SCRAPE_WAITS)

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._reading = asyncio.Lock()
        ready.set_result(None)
        await self._stop.wait()
        self._drop()

    async def _refresh(self) -> None:
        async with self._reading:
            now = time.monotonic()
            read = self._readings
            if read is not None and now - read.at < max(self._every, _REST * read.took):
                return
            if self._connection is None and now < self._try_at:
                return
            try:
                if connection := await self._lead():
                    self._readings = await _read(connection)
                self._is_up = True
            except Exception as error:  # noqa: BLE001  other metrics must still be exported
                if self._is_up is not False:
                    log.warning(
                        "cannot read the metrics of the database: %s",
                        str(error) or type(error).__name__,
                    )
                self._is_up = False
                self._drop()
                self._try_at = time.monotonic() + 1

    async def _lead(self) -> Connection | None:
        """The connection, if this process is the one that reads."""
        is_new = self._connection is None
        if self._connection is None:
            self._connection = await connect(
                self._dsn, name="notifyq metrics", timeout=_CONNECTS_WITHIN, schema=self._schema
            )
            self._scope = await self._connection.fetchval(_SCOPE, timeout=_ANSWERS_WITHIN)
        leader, chosen = _LEADER + self._scope, _CHOSEN + self._scope
        if is_new:
            wanted = [leader, chosen] if self._chosen else [leader]
        elif self._readings is not None:
            wanted = [] if self._chosen else [chosen]
        else:
            wanted = [leader]
        connection = self._connection
        lock = partial(connection.fetch, timeout=_ANSWERS_WITHIN)
        [[granted]] = await lock(advisory_locks.LEAD, wanted)
        if self._chosen:
            return connection if not wanted or granted[0] else None
        if wanted == [leader] and granted[0]:
            [[granted]] = await lock(advisory_locks.LEAD, [chosen])
        if not granted[0]:
            # A follower keeps no connection.
            self._drop()
            self._try_at = time.monotonic() + _RETRY_EVERY * random.uniform(0.8, 1.2)  # noqa: S311
            return None
        await lock(advisory_locks.UNLEAD, [chosen])
        return connection

    def _drop(self) -> None:
        self._readings = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _read(connection: Connection) -> Readings:
    began = time.monotonic()
    async with asyncio.timeout(_ANSWERS_WITHIN):
        backlog = await monitor.backlog(connection)
        lags = await monitor.lags(connection)
        health = await monitor.health(connection)
    now = time.monotonic()
    return Readings(now, now - began, backlog, lags, health)
