"""The metrics of the database, read from one place of a fleet: whoever has the lock."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from notifyq.database import advisory_locks
from notifyq.database.pool import connect
from notifyq.operations import monitor
from notifyq.operations.metrics.families import families
from notifyq.operations.metrics.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterable

    import asyncpg
    from prometheus_client.metrics_core import Metric

    from notifyq.database.pool import Connection

log = logging.getLogger("notifyq.metrics")

_LEADER = "metrics"
_CHOSEN = "metrics of a process of their own"
"""Names of the locks: of who reads, and of who was started for nothing else."""
_TRY_EVERY = 15.0
"""Seconds between two tries for the lock that another process has."""
_CONNECTS_WITHIN = 5.0
_ANSWERS_WITHIN = 20.0
"""Seconds for one statement."""
_SCRAPE_WAITS = 3.0
"""Seconds; after that a scrape gets the figures before, for the worker's own must get through."""
_REST = 10
"""Times as long as reading took, before it is done again: it must not be a load of its own."""


class Readings(NamedTuple):
    """What the database said of itself at one time."""

    at: float
    """In monotonic seconds."""
    took: float
    backlog: list[monitor.Backlog]
    lags: list[monitor.Lag]
    health: monitor.Health


class DatabaseMetrics(Collector):
    """Reads figures of the database when it is scraped, at most every few seconds.

    Of all processes with such a collector one reads, the others export
    `notifyq_database_exporter 0`; when it is gone, another one takes its place. With `chosen` this
    one takes it from a worker. It has a thread and a connection of its own, so neither waits for
    handlers; `dsn` must lead to the server itself, not through a pooler.
    """

    def __init__(
        self, dsn: str, *, every: float = 5.0, chosen: bool = False, most_names: int = 100
    ) -> None:
        self._dsn = dsn
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def describe(self) -> Iterable[Metric]:
        """Say nothing in advance: a registry must not read the database to learn names."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Give what was read, a moment ago at most."""
        self._ask()
        readings = self._readings
        yield _gauge(
            "notifyq_database_exporter",
            "1 in the process that reads the figures of the database.",
            readings is not None,
        )
        if self._is_up is not None:
            yield _gauge(
                "notifyq_database_up", "Whether the database answered when last asked.", self._is_up
            )
        if readings is not None:
            yield _gauge("notifyq_database_read_seconds", "How long reading took.", readings.took)
            yield _gauge(
                "notifyq_database_read_age_seconds",
                "How old these figures are.",
                time.monotonic() - readings.at,
            )
            yield from families(
                readings.backlog, readings.lags, readings.health, self._queues, self._subscriptions
            )

    def close(self) -> None:
        """Read no more, and give the lock to another process."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def _ask(self) -> None:
        """Have it read anew if it is time, and wait a while for that."""
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
            asked = asyncio.run_coroutine_threadsafe(self._refresh(), self._loop)
        with suppress(TimeoutError, asyncio.CancelledError):
            asked.result(_SCRAPE_WAITS)

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._turn = asyncio.Lock()
        ready.set_result(None)
        await self._stop.wait()
        self._drop()

    async def _refresh(self) -> None:
        async with self._turn:
            now = time.monotonic()
            read = self._readings
            if read is not None and now - read.at < max(self._every, _REST * read.took):
                return
            if self._connection is None and now < self._try_at:
                return
            try:
                if await self._leads():
                    self._readings = await self._read()
                self._is_up = True
            except Exception as error:  # noqa: BLE001  whatever it is, other metrics must be seen
                if self._is_up is not False:
                    log.warning(
                        "the figures of the database cannot be read: %s",
                        str(error) or type(error).__name__,
                    )
                self._is_up = False
                self._drop()
                self._try_at = time.monotonic() + 1

    async def _leads(self) -> bool:
        if self._connection is None:
            self._connection = await connect(
                self._dsn, name="notifyq metrics", timeout=_CONNECTS_WITHIN
            )
            wanted = [_LEADER, _CHOSEN] if self._chosen else [_LEADER]
        elif self._readings is not None:
            wanted = [] if self._chosen else [_CHOSEN]
        else:
            wanted = [_LEADER]
        [[granted]] = await self._fetch(advisory_locks.LEAD, wanted)
        if self._chosen:
            return bool(not wanted or granted[0])
        if wanted == [_LEADER] and not granted[0]:
            # No connection is kept for asking now and then.
            self._follow()
            return False
        if wanted == [_LEADER]:
            [[granted]] = await self._fetch(advisory_locks.LEAD, [_CHOSEN])
        if not granted[0]:
            self._follow()
            return False
        await self._fetch(advisory_locks.UNLEAD, [_CHOSEN])
        return True

    def _follow(self) -> None:
        self._drop()
        self._try_at = time.monotonic() + _TRY_EVERY * random.uniform(0.8, 1.2)  # noqa: S311

    async def _read(self) -> Readings:
        if self._connection is None:
            raise OSError("the connection is closed")
        began = time.monotonic()
        async with asyncio.timeout(_ANSWERS_WITHIN):
            backlog = await monitor.backlog(self._connection)
            lags = await monitor.lags(self._connection)
            health = await monitor.health(self._connection)
        now = time.monotonic()
        return Readings(now, now - began, backlog, lags, health)

    async def _fetch(self, statement: str, *args: object) -> list[asyncpg.Record]:
        if self._connection is None:
            raise OSError("the connection is closed")
        return await self._connection.fetch(statement, *args, timeout=_ANSWERS_WITHIN)

    def _drop(self) -> None:
        self._readings = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
