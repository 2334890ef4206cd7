"""What happens to workers: they are killed, stopped, paused, and slower than their locks."""

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


class WorkerKill(Fault):
    """A worker dies with all that it holds, again and again."""

    name = "worker-kill"
    title = "SIGKILL of a random worker every 0.5 to 1 s"
    number = "1"

    async def inject(self, rig: Rig) -> None:
        """Kill a worker, and start another one in its place."""
        kills = 0
        lasts = rig.lasting()
        while lasts():
            worker = rig.random.choice(rig.workers)
            with rig.injecting(self.name, victim=worker.name):
                worker.kill()
                worker.start()
            kills += 1
            await rig.pause(0.5, 1.0)
        rig.figure("kills", kills)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Compare the recovery with the lock; more than 2 s past it would be late."""
        slowest = percentile(recoveries(history), 0.99)
        if slowest is not None:
            rig.figure("p99 past the lock s", slowest - LOCK)


class WorkerStop(Fault):
    """Workers are asked to stop, as in a deployment."""

    name = "worker-stop"
    title = "SIGTERM of a busy worker, and the next one in its place"
    number = "2"
    mix = {"slow": 4, "quick": 1}
    rate = 60
    worker_settings = {"NOTIFYQ_GRACE": "200ms"}

    async def inject(self, rig: Rig) -> None:
        """Stop a worker, and start another one in its place."""
        slowest = 0.0
        lasts = rig.lasting()
        while lasts():
            worker = rig.random.choice(rig.workers)
            with rig.injecting(self.name, worker=worker.name):
                slowest = max(slowest, await worker.terminate())
            code = worker.exit_code
            worker.start()
            # One that is not up yet has no handler for the signal, and nothing to lose by it.
            await worker.started()
            rig.require(code == 0, f"a worker that was asked to stop ended with {code}")
            await rig.pause(0.5, 1.0)
        rig.figure("drain s", slowest)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """See that no attempt was burned: what was released is claimed as if for the first time."""
        used: Counter[int] = Counter()
        released = burned = 0
        for call in history:
            if call.op == "claim" and call.outcome == "ok":
                for message in call.fields.get("messages", ()):
                    used[message["id"]] += 1
                    burned += message["attempts"] > used[message["id"]]
            elif call.op == "release" and call.fields.get("held"):
                used[call.fields["id"]] -= 1
                released += 1
        rig.figure("released", released)
        rig.figure("attempts burned", burned)
        rig.require(burned == 0, f"{burned} attempts were used up by workers that stopped")


class WorkerPause(Fault):
    """A worker sleeps past its locks, and wakes up believing that it still has them."""

    name = "worker-pause"
    title = "SIGSTOP of a worker until its locks are over, then SIGCONT"
    number = "3+4"
    mix = {"slow": 4, "quick": 4}

    async def inject(self, rig: Rig) -> None:
        """Pause a worker for longer than its locks last."""
        lasts = rig.lasting()
        while lasts():
            worker = rig.random.choice(rig.workers)
            with rig.injecting(self.name, victim=worker.name):
                worker.pause()
                await rig.pause(LOCK + 1.0, LOCK + 1.5)
                worker.resume()
            await rig.pause(0.2, 0.5)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Count what the sleeper came too late with."""
        refused = sum(call.fields.get("held") is False for call in history)
        rig.figure("stale refused", refused)


class HandlerSlow(Fault):
    """Handlers are slower than their locks, in all ways that a handler can be slow."""

    name = "handler-slow"
    title = "handlers that outlive their lock, block the loop, block a thread"
    number = "99"
    mix = {"quick": 60, "outlive": 3, "blocking": 1, "thread": 3}
    rate = 60

    async def inject(self, rig: Rig) -> None:
        """Let them come."""
        with rig.injecting(self.name):
            await rig.pause(rig.seconds)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Count the locks that expired, and the messages whose loop was blocked that were doubled.

        The lock of a blocked loop is extended by the listening session, so nobody else has it.
        """
        rig.figure(
            "locks expired",
            sum(call.op == "retry" and call.fields["status"] == "lock_expired" for call in history),
        )
