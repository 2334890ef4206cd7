"""Messages that harm their worker, and a role without grants in the same database."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import payload
from notifyq.chaos.load import FAILURES, send
from notifyq.chaos.recovery import waits
from notifyq.models.payload import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection
    from notifyq.queues.publisher import Publisher


class Poison(Fault):
    """Messages that kill their worker, and messages that no decoder accepts."""

    name = "poison"

    _DEEP = 5000
    _MOST_ATTEMPTS = 2
    """Of the queue `thread`."""

    async def inject(self, rig: Rig) -> None:
        self._planted: set[int] = set()
        async with rig.publisher() as publisher, rig.connection() as owner:
            # The triggers would refuse bombs; an older schema without limits accepted them.
            await owner.execute("set session_replication_role = replica")
            with rig.injecting(self.name):
                rounds = rig.rounds()
                await self._expect_refusals(rig, publisher)
                fatal = payload(rig.random, "thread") | {"milliseconds": 700}
                [self._fatal] = await send(rig.history, publisher, "thread", [fatal])
                for _ in range(self._MOST_ATTEMPTS):
                    await self._plant(rig, publisher, owner)
                    await rig.until(lambda: self._is_running(rig), "the fatal message is executed")
                    name = self._executions(rig.calls())[-1].process
                    rig.kill_worker(next(it for it in rig.workers if it.name == name))
                for _ in rounds:
                    await self._plant(rig, publisher, owner)
                    await rig.pause(0.05, 0.2)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that attempts are bounded and that no handler got a bomb."""
        claimed = [message for call in history for message in call.messages]
        bombs = [it["attempts"] for it in claimed if it["id"] in self._planted]
        rig.figure("bombs", len(self._planted))
        rig.figure("attempts of bombs", max(bombs, default=0))
        fatal = len(self._executions(history))
        rig.figure("attempts of the fatal one", fatal, most=self._MOST_ATTEMPTS)
        executed = {call.fields["id"] for call in history if call.op == "execute"}
        rig.figure("bombs that reached a handler", len(executed & self._planted), most=0)

    def _bombs(self, key: str) -> list[str]:
        deep = "[" * self._DEEP + "]" * self._DEEP
        return [f'{{"key": "{key}", "deep": {deep}}}', f'{{"key": "{key}", "huge": 1e5000}}', deep]

    async def _plant(self, rig: Rig, publisher: Publisher, owner: Connection) -> None:
        key = payload(rig.random, "quick")["key"]
        bomb = rig.random.choice(self._bombs(key))
        call = rig.history.invoke("publish", key=key, queue="quick", digest="of a bomb")
        # With priority, so that it is claimed in one batch with other messages.
        planted = await publisher.publish("quick", Json(bomb), priority=1, connection=owner)
        call.ok(id=planted)
        self._planted.add(planted)

    def _executions(self, history: Sequence[Call]) -> list[Call]:
        return [it for it in history if it.op == "execute" and it.fields["id"] == self._fatal]

    def _is_running(self, rig: Rig) -> bool:
        found = self._executions(rig.calls())
        living = {worker.name for worker in rig.workers}
        return bool(found) and found[-1].ended is None and found[-1].process in living

    async def _expect_refusals(self, rig: Rig, publisher: Publisher) -> None:
        unknown_to_json = ['"\\u0000"', '"\\ud800"', "NaN", "[" * 50_000 + "]" * 50_000]
        for text in unknown_to_json + self._bombs("refused"):
            try:
                await publisher.publish("quick", Json(text))
            except FAILURES:
                continue
            rig.findings.append(f"the payload {text[:40]} was published")


class Hostile(Fault):
    """A role without grants floods notifications and takes every advisory lock."""

    name = "hostile"

    _FLOOD = 5000
    """Notifications a second."""
    _MOST_CLAIMS = 120
    """Claims a second of a worker that find nothing in the flood; its own limit is 100."""

    async def inject(self, rig: Rig) -> None:
        async with rig.connection() as owner:
            await owner.execute("create role mallory")
            try:
                async with rig.connection() as mallory:
                    await mallory.execute("set role mallory")
                    with rig.injecting(self.name):
                        self._flooded = await self._flood(rig, mallory)
                        self._held = await self._hold_keys(rig, owner, mallory)
            finally:
                await owner.execute("drop role mallory")

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that the flood caused few claims, and that messages waited for a poll at most."""
        began, ended = self._flooded
        empty = [c for c in history if c.op == "claim" and c.outcome == "ok" and not c.messages]
        rate = sum(began <= call.began < ended for call in empty) / (ended - began)
        rig.figure("empty claims/s of a worker", rate / len(rig.workers), most=self._MOST_CLAIMS)
        rig.figure("wait s without keys", max(waits(history, *self._held), default=0), most=10)

    async def _flood(self, rig: Rig, mallory: Connection) -> tuple[float, float]:
        began, portion = time.monotonic(), self._FLOOD // 20
        for number in rig.rounds():
            due = time.monotonic() + 1 / 20
            await mallory.execute(
                "select pg_notify('new_message', 'quick:' || n) "
                "from generate_series($1::int, $2) as n",
                number * portion,
                number * portion + portion,
            )
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return began, time.monotonic()

    async def _hold_keys(
        self, rig: Rig, owner: Connection, mallory: Connection
    ) -> tuple[float, float]:
        """Take every advisory lock of the schema: any role can take any of them."""
        await mallory.execute(_TAKE_KEYS)
        began = time.monotonic()
        await rig.pause(2)
        # Returns null while a worker runs maintenance.
        await rig.until(
            lambda: owner.fetchval("select messages.maintain() is not null"),
            "maintenance runs while another role holds every advisory lock",
        )
        return began, time.monotonic()


# The keys of suppression leases and slots, which any role can compute, and those of maintenance.
_TAKE_KEYS = """
select pg_try_advisory_lock(hashtextextended(q, 7305427004)),
  (
    select count(pg_try_advisory_lock(hashtextextended(q, 7305427100 + p)))
    from generate_series(1, 4) as p
  )
from unnest('{quick,slow,flaky,reject}'::text[]) as q;
select count(pg_try_advisory_lock(k)) from generate_series(7305427000, 7305427010) as k;
"""
