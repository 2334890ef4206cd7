"""Faults of notifications: lost, a full queue, unread."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.proxy import Proxy
from notifyq.chaos.recovery import percentile, waits
from notifyq.chaos.server import programs, session
from notifyq.database import statements as sql
from notifyq.server.binaries import version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

_POLL = 1.0
_PAYLOAD = 7900
"""Bytes of a payload that fills a page of the notification queue; 8000 are refused."""
_PAGES_OF_A_MEGABYTE = 128


async def notify(connection: Connection, channel: str, megabytes: float) -> None:
    """Send so many megabytes of notifications in one transaction."""
    # Each payload has a number, because a transaction sends equal payloads only once.
    await connection.execute(
        "select pg_notify($1, rpad(n::text, $2, '.')) from generate_series(1, $3::int) as n",
        channel,
        _PAYLOAD,
        max(1, round(megabytes * _PAGES_OF_A_MEGABYTE)),
    )


async def usage(connection: Connection) -> float:
    """Return the share of the notification queue that is used."""
    share: float = await connection.fetchval("select pg_notification_queue_usage()")
    return share


@asynccontextmanager
async def hoarder(dsn: str) -> AsyncIterator[None]:
    """Hold a session that listens in an open transaction: the queue keeps all notifications."""
    async with session(dsn, "hoarder") as connection:
        await connection.execute("listen hoarded")
        await connection.execute("begin; select")
        yield


class NoNotifications(Fault):
    """No notification arrives, as behind a pooler in transaction mode."""

    name = "no-notifications"
    worker_settings = {"NOTIFYQ_POLL": f"{_POLL}s"}
    rate = 20

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            rig.proxy.drops_notifications = True
            began = time.monotonic()
            rig.proxy.cut()
            await rig.until(
                lambda: self._warnings(rig) >= len(rig.workers), "all workers report the loss"
            )
            self._since = time.monotonic()
            rig.figure("self-test s", self._since - began)
            await rig.pause(rig.seconds)
            self._until = time.monotonic()
            rig.figure("reports of the loss", self._warnings(rig), most=len(rig.workers))
            rig.proxy.drops_notifications = False
            rig.proxy.cut()

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that messages waited for the poll and no longer."""
        found = waits(history, self._since, self._until)
        rig.figure("wait p99 s", percentile(found, 0.99) or 0)
        rig.figure("longest wait s", max(found), most=10 * _POLL)

    def _warnings(self, rig: Rig) -> int:
        logs = [rig.folder / f"{worker.name}.log" for worker in rig.workers]
        warning = "no notification reaches session"
        return sum(log.read_text(errors="replace").count(warning) for log in logs)


class NotifyFull(Fault):
    """The server's notification queue is full, and every NOTIFY fails."""

    name = "notify-full"
    settings = {"max_notify_queue_pages": "64"}

    def lacking(self) -> str | None:
        if int(version(programs()).split(".")[0]) < 17:
            return "needs PostgreSQL 17, whose notification queue can be small"
        return None

    async def inject(self, rig: Rig) -> None:
        failed = rig.load.failed
        with rig.injecting(self.name):
            async with hoarder(rig.server.dsn), rig.connection() as connection:
                size = 0.25
                while size > 0.005:
                    try:
                        await notify(connection, "hoarded", size)
                    except asyncpg.PostgresError as error:
                        if error.sqlstate != "54000":
                            raise
                        size /= 2
                rig.figure("queue", await usage(connection))
                await rig.pause(rig.seconds)
        rig.figure("refused publishers", rig.load.failed - failed, most=0)


_WORKER, _BLOCKED = "notifyq worker", "blocked listener"
_LONGEST = {_WORKER: 5.0}
"""Seconds that a session of this name may hold a snapshot."""
_SNAPSHOTS = """
select a.application_name, a.pid, a.backend_xmin::text
from pg_stat_activity as a
where a.application_name = any ($1)
  and a.backend_xmin is not null
"""


class BlockedListener(Fault):
    """Handlers block the event loops of workers; megabytes of notifications arrive."""

    name = "blocked-listener"
    mix = {"blocking": 1}
    rate = 2

    async def inject(self, rig: Rig) -> None:
        held: dict[tuple[str, int, str], float] = {}
        rounds = rig.rounds()
        with rig.injecting(self.name):
            async with (
                _blocked_listener(rig.server.dsn),
                rig.connection() as observer,
                rig.connection() as notifier,
            ):
                # Without a snapshot of the blocked session the query below proves nothing.
                while next(rounds, None) or not rig.figures.get(f"snapshot of a {_BLOCKED} s"):
                    await notify(notifier, sql.NEW_MESSAGE, 2)
                    now = time.monotonic()
                    rows = await observer.fetch(_SNAPSHOTS, [_WORKER, _BLOCKED])
                    held = {it: held.get(it, now) for it in map(tuple, rows)}
                    for (name, *_), since in held.items():
                        rig.peak(f"snapshot of a {name} s", now - since, most=_LONGEST.get(name))
                    await rig.pause(0.1)


@asynccontextmanager
async def _blocked_listener(dsn: str) -> AsyncIterator[None]:
    """Hold a session that listens and never reads."""
    async with Proxy(dsn) as proxy, session(proxy.dsn, _BLOCKED) as connection:
        await connection.execute(f"listen {sql.NEW_MESSAGE}")
        proxy.hold()
        yield
