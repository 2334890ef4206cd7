"""Faults of processes: killed, stopped, paused and slow workers, backends and servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.history import Call, recoveries
from notifyq.chaos.kinds import LOCK, payload
from notifyq.chaos.load import send
from notifyq.chaos.server import programs, until

if TYPE_CHECKING:
    from notifyq.chaos.rig import Rig


class WorkerKill(Fault):
    """SIGKILL of a random worker every 0.5 to 1 s."""

    name = "worker-kill"

    async def strike(self, rig: Rig) -> None:
        rig.kill_worker()

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        if found := recoveries(history):
            rig.figure("slowest past the lock s", max(found) - LOCK, most=20)


_EFFECTS = """
select count(*) as effects, count(*) - count(distinct e.key) as doubled,
  (
    select count(*)
    from messages.message_archive as a
    where a.queue = 'steps' and a.status = 'success'
      and not exists (
        select from public.chaos_effect as c where c.key = a.message ->> 'key'
      )
  ) as missing,
  (select count(*) from messages.parked()) as parked
from public.chaos_effect as e
"""


class StepsKill(WorkerKill):
    """SIGKILL of workers whose handlers record steps, sleep, and wait for signals and children."""

    name = "steps-kill"
    mix = {"steps": 4, "quick": 1}
    rate = 20

    async def inject(self, rig: Rig) -> None:
        async with rig.connection() as connection:
            # Handlers fail until it is there, and try again.
            await connection.execute("create table if not exists public.chaos_effect (key text)")
        await super().inject(rig)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        async with rig.connection() as connection:
            [row] = await connection.fetch(_EFFECTS)
        rig.figure("steps", row["effects"])
        rig.figure("parked", sum(call.op == "release" and call.outcome == "ok" for call in history))
        rig.figure("effects beyond the first of a step", row["doubled"], most=0)
        rig.figure("successes without their step", row["missing"], most=0)
        rig.figure("messages still parked", row["parked"], most=0)


class NoCron(WorkerKill):
    """pg_cron is not loaded, and workers are killed."""

    name = "no-cron"
    settings = {"shared_preload_libraries": ""}
    mix = {"slow": 1, "quick": 1}


class WorkerStop(Fault):
    """SIGTERM of a busy worker, and start of the next one, as in a deployment."""

    name = "worker-stop"
    mix = {"slow": 4, "quick": 1}
    rate = 60
    worker_settings = {"NOTIFYQ_GRACE": "200ms"}

    async def strike(self, rig: Rig) -> None:
        worker = rig.random.choice(rig.workers)
        with rig.injecting(self.name, worker=worker.name):
            rig.peak("drain s", await worker.terminate())
        rig.peak("exit code", abs(worker.process.returncode), most=0)
        worker.start()
        # A worker that still starts has no signal handler yet.
        await worker.started()

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        used: Counter[int] = Counter()
        released = burned = 0
        for call in history:
            for message in call.messages:
                used[message["id"]] += 1
                burned += message["attempts"] > used[message["id"]]
            if call.op == "release" and call.fields.get("held"):
                used[call.fields["id"]] -= 1
                released += 1
        rig.figure("released", released)
        rig.figure("attempts counted for released messages", burned, most=0)


class WorkerPause(Fault):
    """SIGSTOP of a worker until its locks expired, then SIGCONT."""

    name = "worker-pause"
    mix = {"slow": 4, "quick": 4}
    between = (0.2, 0.5)

    async def strike(self, rig: Rig) -> None:
        worker = rig.random.choice(rig.workers)
        with rig.injecting(self.name, victim=worker.name):
            worker.pause()
            await rig.pause(LOCK + 1.0, LOCK + 1.5)
            worker.resume()


class HandlerSlow(Fault):
    """Handlers outlive their lock, block the event loop, block a thread."""

    name = "handler-slow"
    mix = {"quick": 60, "outlive": 3, "blocking": 1, "thread": 3}
    rate = 60

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        expired = (
            call.op == "retry" and call.fields["status"] == "lock_expired" for call in history
        )
        rig.figure("locks expired", sum(expired))


_SPARE = 4.0
"""Megabytes that a size may grow in addition to 25 %."""
_LEAST = 480.0
"""Shortest run, in seconds, whose sizes are checked: autovacuum runs once a minute."""
_SIZE = "select pg_total_relation_size('messages.message') / 1e6::float"
_COUNTS = """
select c.archived - c.ids as doubled, c.beyond, l.live, l.both, c.ids + l.live - l.both as messages
from (
  select count(*) as archived, count(distinct a.id) as ids,
    count(*) filter (
      where a.attempts > coalesce(a.max_attempts, q.max_attempts)
    ) as beyond
  from messages.message_archive as a
  join messages.queue as q on q.name = a.queue
) as c,
(
  select count(*) as live, count(*) filter (
    where exists (select from messages.message_archive as a where a.id = m.id)
  ) as both
  from messages.message as m
) as l
"""


class Soak(Fault):
    """500 messages a second and a kill every 10 s; memory and tables must not grow."""

    name = "soak"
    mix = {"quick": 60, "slow": 1, "flaky": 1}
    is_brief = True
    batches = (1, 10, 100)
    rate = 500

    async def inject(self, rig: Rig) -> None:
        # The last worker is never killed: it shows how much memory a worker uses.
        *victims, witness = rig.workers
        sizes: list[dict[str, float]] = []
        for _ in rig.rounds():
            rig.kill_worker(rig.random.choice(victims))
            await rig.pause(min(10.0, rig.seconds / 8))
            async with rig.connection() as connection:
                table = await connection.fetchval(_SIZE)
            sizes.append({"worker": _resident(witness.process.pid), "table": table})
        quarter = len(sizes) // 4
        for name in sizes[0]:
            before = max(size[name] for size in sizes[quarter : 2 * quarter])
            rig.figure(f"{name} MB in the second quarter", before)
            rig.figure(
                f"{name} MB in the last quarter",
                max(size[name] for size in sizes[-quarter:]),
                most=1.25 * before + _SPARE if rig.seconds >= _LEAST else None,
            )
        if rig.seconds < _LEAST:
            rig.notes.append(f"sizes are only checked from {_LEAST / 60:.0f} minutes on")

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        async with rig.connection() as connection:
            [row] = await connection.fetch(_COUNTS)
        beyond = row["messages"] - rig.load.published
        rig.figure("messages", row["messages"])
        # A run without an acknowledged message proves nothing.
        rig.figure("nothing acknowledged", rig.load.published == 0, most=0)
        rig.figure("lost", -min(beyond, 0), most=0)
        rig.figure("unexpected", max(beyond - rig.load.failed, 0), most=0)
        for name in ("doubled", "beyond", "live", "both"):
            rig.figure(name, row[name], most=0)


def _resident(pid: int) -> float:
    """Return the resident megabytes of a process; 0 where there is no /proc."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS:"))


class Poison(Fault):
    """A message that kills its worker each time it is handled."""

    name = "poison"

    _MOST_ATTEMPTS = 2
    """Of the queue `thread`."""

    async def inject(self, rig: Rig) -> None:
        async with rig.publisher() as publisher:
            with rig.injecting(self.name):
                fatal = payload(rig.random, "thread") | {"milliseconds": 700}
                [self._fatal] = await send(rig.history, publisher, "thread", [fatal])
                for _ in range(self._MOST_ATTEMPTS):
                    await until(lambda: self._is_running(rig), "the fatal message is executed")
                    name = self._executions(rig.calls())[-1].process
                    rig.kill_worker(next(it for it in rig.workers if it.name == name))
                await rig.pause(rig.seconds)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        rig.figure("attempts", len(self._executions(history)), most=self._MOST_ATTEMPTS)

    def _executions(self, history: Sequence[Call]) -> list[Call]:
        return [it for it in history if it.op == "execute" and it.fields["id"] == self._fatal]

    def _is_running(self, rig: Rig) -> bool:
        found = self._executions(rig.calls())
        living = {worker.name for worker in rig.workers}
        return bool(found) and found[-1].ended is None and found[-1].process in living


class BackendKill(Fault):
    """SIGKILL of a random backend every 2 s; the server restarts all backends."""

    name = "backend-kill"
    between = (1.5, 2.5)

    async def strike(self, rig: Rig) -> None:
        if victims := await rig.server.backends():
            with rig.injecting(self.name, outage=True), suppress(ProcessLookupError):
                os.kill(rig.random.choice(victims), signal.SIGKILL)
                # The server may answer until it notices; such an answer must not count.
                await asyncio.sleep(0.1)
                await rig.server.until_ready()


class ServerImmediate(BackendKill):
    """pg_ctl stop -m immediate and start, repeatedly."""

    name = "server-immediate"

    async def strike(self, rig: Rig) -> None:
        with rig.injecting(self.name, outage=True):
            await rig.server.stop(immediate=True)
            await rig.pause(0.0, 0.5)
            await rig.server.start()


class StepsCrash(StepsKill):
    """The handlers of steps-kill; each time a worker, a backend and the server are killed."""

    name = "steps-crash"
    between = BackendKill.between

    async def strike(self, rig: Rig) -> None:
        for kind in rig.random.sample([WorkerKill, BackendKill, ServerImmediate], 3):
            await kind().strike(rig)


class Failover(Fault):
    """Crash of the primary, promotion of its synchronous standby; the old one read-only."""

    name = "failover"
    synchronous = True

    def lacking(self) -> str | None:
        return None if (programs() / "pg_basebackup").exists() else "needs pg_basebackup"

    async def inject(self, rig: Rig) -> None:
        old, new = rig.server, rig.server.standby
        if new is None:
            return
        await rig.pause(rig.seconds / 3)
        with rig.injecting(self.name, outage=True):
            await old.stop(immediate=True)
            await new.promote()
            rig.server = new
            rig.proxy.redirect(new.dsn, cut=True)
        await rig.pause(rig.seconds / 3)
        old.demote()
        await old.start()
        with rig.injecting("read-only", outage=True):
            rig.proxy.redirect(old.dsn, cut=True)
            await rig.pause(rig.seconds / 3)
            rig.proxy.redirect(new.dsn, cut=True)
        await rig.pause(0.5)
