"""Faults of the network and of notifications: cut, held, lost, unread."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.history import Call, waits
from notifyq.chaos.kinds import LOCK, payload
from notifyq.chaos.load import FAILURES, send
from notifyq.chaos.proxy import Proxy
from notifyq.chaos.server import programs, session, until
from notifyq.database import statements as sql
from notifyq.queues.publisher import Publisher
from notifyq.server.binaries import version

if TYPE_CHECKING:
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection


_PING = 1.0
_PING_TIMEOUT = 5.0
"""Seconds that a listener waits for the answer to its ping; see notify/listener.py."""


class NetworkCut(Fault):
    """All connections are cut, and new ones are refused for a moment, repeatedly."""

    name = "network-cut"
    # A message that is not found after reconnecting would wait for the poll.
    worker_settings = {"NOTIFYQ_POLL": "30s"}

    async def strike(self, rig: Rig) -> None:
        with rig.injecting(self.name, outage=True):
            rig.proxy.is_closed = True
            rig.proxy.cut()
            await rig.pause(0, 0.3)
            rig.proxy.is_closed = False

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        rig.figure("longest wait s", max(waits(history, since=0), default=0), most=20)


class HalfOpen(Fault):
    """Open connections carry no traffic, as after a host failure."""

    name = "half-open"
    worker_settings = {"NOTIFYQ_PING": f"{_PING}s", "NOTIFYQ_COMMAND_TIMEOUT": "2s"}

    async def inject(self, rig: Rig) -> None:
        before = set(await rig.server.backends("notifyq worker"))

        async def listen_again() -> bool:
            fresh = set(await rig.server.backends("notifyq worker")) - before
            return len(fresh) >= len(rig.workers)

        async def are_gone() -> bool:
            return not before & set(await rig.server.backends("notifyq worker"))

        began = time.monotonic()
        with rig.injecting(self.name):
            rig.proxy.blackhole()
            await until(listen_again, "all workers listen again")
        # Twice the bound, because the machine is shared.
        rig.figure("detection s", time.monotonic() - began, most=2 * (_PING + _PING_TIMEOUT))
        # Until the server ends the old sessions, their leases suppress notifications.
        await until(are_gone, "the server ended the old sessions")


class Partition(Fault):
    """No traffic either way for up to 1.6 locks."""

    name = "partition"

    async def strike(self, rig: Rig) -> None:
        with rig.injecting(self.name, outage=True):
            rig.proxy.hold()
            await rig.pause(0.6 * LOCK, 1.6 * LOCK)
            rig.proxy.resume()


class AmbiguousPublish(Fault):
    """Answers to publishers are lost after the commit; they retry with the dedup key."""

    name = "ambiguous-publish"

    _CLIENTS = 3
    # Longer than a retry takes: a key is free again once its message is finished.
    _DELAY = timedelta(seconds=2)

    async def inject(self, rig: Rig) -> None:
        self._keys: set[str] = set()
        async with rig.publisher(self._CLIENTS) as publisher:
            with rig.injecting(self.name):
                loser = asyncio.create_task(self._lose(rig))
                try:
                    for _ in rig.rounds():
                        clients = [self._publish(rig, publisher) for _ in range(self._CLIENTS)]
                        await asyncio.gather(*clients)
                        await rig.pause(0.05, 0.1)
                finally:
                    loser.cancel()
                    await asyncio.wait({loser})
                    rig.proxy.lose_nothing()

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        ids: defaultdict[str, set[int]] = defaultdict(set)
        for call in history:
            if call.op == "execute" and call.fields["key"] in self._keys:
                ids[call.fields["key"]].add(call.fields["id"])
        rig.figure("keys", len(self._keys))
        rig.figure("keys twice", sum(len(found) > 1 for found in ids.values()), most=0)
        rig.figure("keys never executed", len(self._keys - ids.keys()), most=0)

    async def _lose(self, rig: Rig) -> None:
        lost = 0
        while True:
            rig.proxy.lose_answer_to(b'"key"')
            await rig.proxy.lost.wait()
            lost += 1
            rig.figure("answers lost", lost)
            await rig.pause(0, 0.05)

    async def _publish(self, rig: Rig, publisher: Publisher) -> None:
        message = payload(rig.random, "quick")
        options = {"dedup_key": message["key"], "delay": self._DELAY}
        self._keys.add(message["key"])
        while True:
            try:
                await send(rig.history, publisher, "quick", [message], **options)
            except FAILURES:
                continue
            return


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
            await until(
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
        found = waits(history, self._since, self._until)
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
            async with rig.connection() as hoarder, rig.connection() as connection:
                # A listener in an open transaction: the queue keeps all notifications.
                await hoarder.execute("listen hoarded")
                await hoarder.execute("begin; select")
                size = 0.25
                while size > 0.005:
                    try:
                        await notify(connection, "hoarded", size)
                    except asyncpg.PostgresError as error:
                        if error.sqlstate != "54000":
                            raise
                        size /= 2
                used = await connection.fetchval("select pg_notification_queue_usage()")
                rig.figure("free share of the queue", 1 - used, most=0.1)
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
                Proxy(rig.server.dsn) as proxy,
                session(proxy.dsn, _BLOCKED) as blocked,
                rig.connection() as observer,
                rig.connection() as notifier,
            ):
                await blocked.execute(f"listen {sql.NEW_MESSAGE}")
                proxy.hold()
                # Without a snapshot of the blocked session the query below proves nothing.
                while next(rounds, None) or not rig.figures.get(f"snapshot of a {_BLOCKED} s"):
                    await notify(notifier, sql.NEW_MESSAGE, 2)
                    now = time.monotonic()
                    rows = await observer.fetch(_SNAPSHOTS, [_WORKER, _BLOCKED])
                    held = {it: held.get(it, now) for it in map(tuple, rows)}
                    for (name, *_), since in held.items():
                        rig.peak(f"snapshot of a {name} s", now - since, most=_LONGEST.get(name))
                    await rig.pause(0.1)
