"""Faults of workers: killed, stopped, paused, and slower than their locks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import LOCK
from notifyq.chaos.recovery import percentile, recoveries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig


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


class WorkerKill(Fault):
    """SIGKILL of a random worker every 0.5 to 1 s."""

    name = "worker-kill"

    async def inject(self, rig: Rig) -> None:
        for kills in rig.rounds():
            worker = rig.random.choice(rig.workers)
            with rig.injecting(self.name, victim=worker.name):
                worker.kill()
                worker.start()
            rig.figure("kills", kills)
            await rig.pause(0.5, 1.0)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Compare the recovery with the lock duration."""
        slowest = percentile(recoveries(history), 0.99)
        if slowest is not None:
            rig.figure("p99 past the lock s", slowest - LOCK)


class StepsKill(WorkerKill):
    """SIGKILL of workers whose handlers record steps, sleep, and wait for signals."""

    name = "steps-kill"
    mix = {"steps": 4, "quick": 1}
    rate = 40

    async def inject(self, rig: Rig) -> None:
        async with rig.connection() as connection:
            # Handlers fail until it is there, and try again.
            await connection.execute("create table if not exists public.chaos_effect (key text)")
        await super().inject(rig)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that each step has had its effect once."""
        async with rig.connection() as connection:
            [row] = await connection.fetch(_EFFECTS)
        rig.figure("steps", row["effects"])
        rig.figure("parked", sum(call.op == "release" and call.outcome == "ok" for call in history))
        rig.require(row["doubled"] == 0, f"{row['doubled']} steps had their effect twice")
        rig.require(row["missing"] == 0, f"{row['missing']} messages succeeded without their step")
        rig.require(row["parked"] == 0, f"{row['parked']} messages are still parked")


class WorkerStop(Fault):
    """SIGTERM of a busy worker, and start of the next one, as in a deployment."""

    name = "worker-stop"
    mix = {"slow": 4, "quick": 1}
    rate = 60
    worker_settings = {"NOTIFYQ_GRACE": "200ms"}

    async def inject(self, rig: Rig) -> None:
        slowest = 0.0
        for _ in rig.rounds():
            worker = rig.random.choice(rig.workers)
            with rig.injecting(self.name, worker=worker.name):
                slowest = max(slowest, await worker.terminate())
            code = worker.exit_code
            worker.start()
            # A worker that still starts has no signal handler yet.
            await worker.started()
            rig.require(code == 0, f"a worker ended with {code} after a SIGTERM")
            await rig.pause(0.5, 1.0)
        rig.figure("drain s", slowest)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that a released message does not count an attempt."""
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
        rig.figure("attempts burned", burned)
        rig.require(burned == 0, f"{burned} attempts were counted for released messages")


class WorkerPause(Fault):
    """SIGSTOP of a worker until its locks expired, then SIGCONT."""

    name = "worker-pause"
    mix = {"slow": 4, "quick": 4}

    async def inject(self, rig: Rig) -> None:
        for _ in rig.rounds():
            worker = rig.random.choice(rig.workers)
            with rig.injecting(self.name, victim=worker.name):
                worker.pause()
                await rig.pause(LOCK + 1.0, LOCK + 1.5)
                worker.resume()
            await rig.pause(0.2, 0.5)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Count the calls under expired locks."""
        refused = sum(call.fields.get("held") is False for call in history)
        rig.figure("stale refused", refused)


class HandlerSlow(Fault):
    """Handlers outlive their lock, block the event loop, block a thread."""

    name = "handler-slow"
    mix = {"quick": 60, "outlive": 3, "blocking": 1, "thread": 3}
    rate = 60

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            await rig.pause(rig.seconds)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Count the locks that expired.

        The listening session extends the locks of a blocked event loop.
        """
        rig.figure(
            "locks expired",
            sum(call.op == "retry" and call.fields["status"] == "lock_expired" for call in history),
        )
