"""Faults of notifications: lost, a full queue, unread, slow commits, many listeners."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from notifyq.chaos import neighbour, notifications
from notifyq.chaos.faults.base import Fault
from notifyq.chaos.proxy import Proxy
from notifyq.chaos.recovery import waits
from notifyq.chaos.server import programs, session
from notifyq.database import statements as sql
from notifyq.server.binaries import version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

_POLL = 1.0


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
                lambda: self._warnings(rig) == len(rig.workers), "all workers report the loss"
            )
            self._since = time.monotonic()
            rig.figure("self-test s", self._since - began)
            await rig.pause(rig.seconds)
            self._until = time.monotonic()
            rig.require(
                self._warnings(rig) == len(rig.workers), "a worker reported the loss more than once"
            )
            rig.proxy.drops_notifications = False
            rig.proxy.cut()

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that messages waited for the poll and no longer."""
        found = waits(history, self._since, self._until)
        rig.figure("wait p99 s", neighbour.p99(found))
        rig.require(max(found) < 10 * _POLL, f"a message waited {max(found):.1f} s for the poll")

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
            async with notifications.hoarder(rig.server.dsn), rig.connection() as connection:
                await _fill(connection)
                rig.figure("queue", await notifications.usage(connection))
                await rig.pause(rig.seconds)
        failed = rig.load.failed - failed
        rig.figure("refused publishers", failed)
        rig.require(not failed, f"{failed} messages could not be published")


async def _fill(connection: Connection) -> None:
    size = 0.25
    while size > 0.005:
        try:
            await notifications.notify(connection, "hoarded", size)
        except Exception as error:
            if getattr(error, "sqlstate", None) != "54000":
                raise
            size /= 2


class BlockedListener(Fault):
    """Handlers block the event loops of workers; megabytes of notifications arrive."""

    name = "blocked-listener"
    mix = {"blocking": 1}
    rate = 2

    async def inject(self, rig: Rig) -> None:
        held: dict[tuple[str, int, str], float] = {}
        longest = dict.fromkeys((_WORKER, _BLOCKED), 0.0)
        rounds = rig.rounds()
        with rig.injecting(self.name):
            async with (
                _blocked_listener(rig.server.dsn),
                rig.connection() as observer,
                rig.connection() as notifier,
            ):
                # Without a snapshot of the blocked session the query below proves nothing.
                while next(rounds, None) or not longest[_BLOCKED]:
                    await notifications.notify(notifier, sql.NEW_MESSAGE, 2)
                    now = time.monotonic()
                    rows = await observer.fetch(_SNAPSHOTS, [_WORKER, _BLOCKED])
                    held = {it: held.get(it, now) for it in map(tuple, rows)}
                    for (name, _, _), since in held.items():
                        longest[name] = max(longest[name], now - since)
                    await rig.pause(0.1)
        rig.figure("longest snapshot s", longest[_WORKER])
        rig.figure("of a blocked session", longest[_BLOCKED])
        rig.require(
            longest[_WORKER] < 5, f"a listener held a snapshot for {longest[_WORKER]:.1f} s"
        )


_WORKER, _BLOCKED = "notifyq worker", "blocked listener"


@asynccontextmanager
async def _blocked_listener(dsn: str) -> AsyncIterator[None]:
    """Hold a session that listens and never reads."""
    async with Proxy(dsn) as proxy, session(proxy.dsn, _BLOCKED) as connection:
        await connection.execute(f"listen {sql.NEW_MESSAGE}")
        proxy.hold()
        yield


_SNAPSHOTS = """
select a.application_name, a.pid, a.backend_xmin::text
from pg_stat_activity as a
where a.application_name = any ($1)
  and a.backend_xmin is not null
"""


class NotifyContention(Fault):
    """32 publishers of single messages, and commits that take 2 ms."""

    name = "notify-contention"
    settings = {
        "fsync": "on",
        "commit_delay": "2000",
        "commit_siblings": "0",
    }
    rate = 20

    async def inject(self, rig: Rig) -> None:
        rates: dict[str, float] = {}
        with rig.injecting(self.name):
            async with neighbour.neighbour(rig.server.dsn) as dsn:
                for notify in ("off", "always", "auto", "off"):
                    await neighbour.set_notify(dsn, notify)
                    async with neighbour.suppressed(dsn):  # only affects `auto`
                        rate = await neighbour.publish_rate(dsn, 32, rig.seconds / 4)
                    # The first run is on a cold server, so `off` is measured twice.
                    rates[notify] = (rates.get(notify, rate) + rate) / 2
        suppressed, always = rates["auto"] / rates["off"], rates["always"] / rates["off"]
        rig.figure("published/s notification off", rates["off"])
        rig.figure("share suppressed", suppressed)
        rig.figure("share always", always)
        rig.require(
            suppressed > 0.35,
            f"suppressed notifications: {suppressed:.0%} of the rate without notifications",
        )


class ManyListeners(Fault):
    """200 idle listeners: each notification wakes them all."""

    name = "many-listeners"
    settings = {"max_connections": "330"}

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            async with neighbour.neighbour(rig.server.dsn) as dsn:
                for count in (0, 50, 200):
                    async with notifications.listeners(dsn, count):
                        rate = await neighbour.publish_rate(dsn, 4, rig.seconds / 4)
                        rig.figure(f"published/s at {count}", rate)
                        if count == 200:
                            async with neighbour.suppressed(dsn):
                                rate = await neighbour.publish_rate(dsn, 4, rig.seconds / 4)
                            rig.figure(f"suppressed/s at {count}", rate)
            own = len(await rig.server.backends("notifyq worker"))
        rig.require(
            own <= len(rig.workers), f"{len(rig.workers)} workers have {own} listening sessions"
        )
