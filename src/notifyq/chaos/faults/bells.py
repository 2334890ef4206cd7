"""What happens to notifications: lost, dammed up, unread, waited for, heard by a crowd."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from notifyq.chaos import neighbour, notifications
from notifyq.chaos.faults.base import Fault
from notifyq.chaos.proxy import Proxy
from notifyq.chaos.sending import waits
from notifyq.chaos.server import programs
from notifyq.database import sql
from notifyq.database.pool import connect
from notifyq.server.binaries import version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection
    from notifyq.queues.admin import Bell

_POLL = 1.0


class NoBells(Fault):
    """No notification arrives, as behind a pooler that gives each transaction another session."""

    name = "no-bells"
    title = "no notification arrives"
    number = "14"
    worker_settings: ClassVar[Mapping[str, str]] = {"NOTIFYQ_POLL": f"{_POLL}s"}
    rate = 20

    async def inject(self, rig: Rig) -> None:
        """Mute the network, have all listen again, and wait until they know that they are deaf."""
        with rig.injecting(self.name):
            rig.proxy.is_mute = True
            began = time.monotonic()
            rig.proxy.cut()
            await rig.until(lambda: self._deaf(rig) == len(rig.workers), "all know they are deaf")
            self._since = time.monotonic()
            rig.figure("self-test s", self._since - began)
            await rig.pause(rig.seconds)
            self._until = time.monotonic()
            rig.require(
                self._deaf(rig) == len(rig.workers),
                "a worker has said more than once that it is deaf",
            )
            rig.proxy.is_mute = False
            rig.proxy.cut()

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Messages waited for the poll, and not longer."""
        found = waits(history, self._since, self._until)
        rig.figure("wait p99 s", neighbour.p99(found))
        rig.require(max(found) < 10 * _POLL, f"a message waited {max(found):.1f} s for the poll")

    def _deaf(self, rig: Rig) -> int:
        said = "ListenerDeaf"
        logs = [rig.folder / f"{worker.name}.log" for worker in rig.workers]
        return sum(log.read_text(errors="replace").count(said) for log in logs)


class NotifyFull(Fault):
    """The server's notification queue fills up, and everybody who notifies is refused."""

    name = "notify-full"
    title = "the notification queue is full"
    number = "15"
    settings: ClassVar[Mapping[str, str]] = {"max_notify_queue_pages": "64"}

    def lacking(self) -> str | None:
        """Say whether the queue can be small: one of 8 GB takes a minute to fill."""
        if int(version(programs()).split(".")[0]) < 17:
            return "needs PostgreSQL 17, whose notification queue can be small"
        return None

    async def inject(self, rig: Rig) -> None:
        """Have a session hoard notifications, and send until the queue takes no more."""
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


class DeafListener(Fault):
    """Handlers block the event loops of all workers while megabytes of notifications come in."""

    name = "deaf-listener"
    title = "blocked workers, and megabytes of notifications"
    number = "16"
    mix: ClassVar[Mapping[str, int]] = {"blocking": 1}
    rate = 2

    async def inject(self, rig: Rig) -> None:
        """Send megabytes, and look whose snapshot stands still: that of a deaf session only."""
        standing: dict[tuple[str, int, str], float] = {}
        longest = dict.fromkeys((_OURS, _DEAF), 0.0)
        lasts = rig.lasting()
        with rig.injecting(self.name):
            async with (
                _deaf(rig.server.dsn),
                rig.connection() as observer,
                rig.connection() as bell,
            ):
                # A deaf one must have been seen, else nothing is proven.
                while lasts() or not longest[_DEAF]:
                    await notifications.notify(bell, sql.NEW_MESSAGE, 2)
                    now = time.monotonic()
                    found = [tuple(row) for row in await observer.fetch(_SNAPSHOTS, [_OURS, _DEAF])]
                    standing = {it: standing.get(it, now) for it in found}
                    for (name, _, _), since in standing.items():
                        longest[name] = max(longest[name], now - since)
                    await rig.pause(0.1)
        rig.figure("longest snapshot s", longest[_OURS])
        rig.figure("of a deaf session", longest[_DEAF])
        rig.require(
            longest[_OURS] < 5, f"a listener has held a snapshot for {longest[_OURS]:.1f} s"
        )


_OURS, _DEAF = "notifyq worker", "deaf listener"


@asynccontextmanager
async def _deaf(dsn: str) -> AsyncIterator[None]:
    """Hold a session that listens and never reads."""
    async with Proxy(dsn) as proxy:
        connection = await connect(proxy.dsn, name=_DEAF)
        try:
            await connection.execute(f"listen {sql.NEW_MESSAGE}")
            proxy.hold()
            yield
        finally:
            connection.terminate()


_SNAPSHOTS = """
select a.application_name, a.pid, a.backend_xmin::text
from pg_stat_activity as a
where a.application_name = any ($1)
  and a.backend_xmin is not null
"""


class NotifyContention(Fault):
    """Many publish one by one, while each commit takes as long as on a disk far away."""

    name = "notify-contention"
    title = "32 publishers, and commits that take 2 ms"
    number = "17"
    settings: ClassVar[Mapping[str, str]] = {
        "fsync": "on",
        "commit_delay": "2000",
        "commit_siblings": "0",
    }
    rate = 20

    async def inject(self, rig: Rig) -> None:
        """Measure a queue without a bell, one that is attended, and one that always rings."""
        rates: dict[str, float] = {}
        bell: Bell
        with rig.injecting(self.name):
            async with neighbour.neighbour(rig.server.dsn) as dsn:
                for bell in ("off", "always", "auto", "off"):
                    await neighbour.set_bell(dsn, bell)
                    async with neighbour.attended(dsn):  # only one that is auto can be
                        rate = await neighbour.publish_rate(dsn, 32, rig.seconds / 4)
                    # What is measured first, on a cold server, counts only half.
                    rates[bell] = (rates.get(bell, rate) + rate) / 2
        attended, always = rates["auto"] / rates["off"], rates["always"] / rates["off"]
        rig.figure("published/s bell off", rates["off"])
        rig.figure("share attended", attended)
        rig.figure("share always", always)
        rig.require(
            attended > 0.35,
            f"publishers to an attended queue are at {attended:.0%} of those without a bell",
        )


class ManyListeners(Fault):
    """Two hundred sessions listen to something else; the server wakes them all for each bell."""

    name = "many-listeners"
    title = "200 idle listeners"
    number = "18"
    settings: ClassVar[Mapping[str, str]] = {"max_connections": "330"}

    async def inject(self, rig: Rig) -> None:
        """Have more and more of them, and measure publishers that ring and such that need not."""
        with rig.injecting(self.name):
            async with neighbour.neighbour(rig.server.dsn) as dsn:
                for count in (0, 50, 200):
                    async with notifications.listeners(dsn, count):
                        rate = await neighbour.publish_rate(dsn, 4, rig.seconds / 4)
                        rig.figure(f"published/s at {count}", rate)
                        if count == 200:
                            async with neighbour.attended(dsn):
                                rate = await neighbour.publish_rate(dsn, 4, rig.seconds / 4)
                            rig.figure(f"attended/s at {count}", rate)
            own = len(await rig.server.backends("notifyq worker"))
        rig.require(
            own <= len(rig.workers), f"{len(rig.workers)} workers have {own} listening sessions"
        )
