"""Messages that harm their worker, and a role without grants in the same database."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import payload
from notifyq.chaos.load import FAILURES, send
from notifyq.chaos.recovery import waits
from notifyq.chaos.server import session
from notifyq.models.payload import Json
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection


class Poison(Fault):
    """Messages that kill their worker, and messages that no decoder accepts."""

    name = "poison"

    _DEEP = 5000
    _MOST_ATTEMPTS = 2
    """Of the queue `thread`."""

    async def inject(self, rig: Rig) -> None:
        self._planted: set[int] = set()
        async with rig.database() as database, rig.connection() as owner:
            publisher = Publisher(database)
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

    _NAME = "mallory"
    _FLOOD = 5000
    """Notifications a second."""
    _EXTRA_CLAIMS = 120
    """More claims a second of a worker because of the flood; its own limit is 100."""

    async def inject(self, rig: Rig) -> None:
        async with rig.connection() as owner:
            await owner.execute("alter system set track_functions = 'pl'")
            await owner.execute("select pg_reload_conf()")
            try:
                calm, _ = await self._claims_a_second(rig, owner, 1.5)
                async with self._hostile_role(rig, owner) as mallory:
                    with rig.injecting(self.name):
                        flood = asyncio.create_task(self._flood(mallory))
                        flooded, handled = await self._claims_a_second(rig, owner, rig.seconds)
                        flood.cancel()
                        await asyncio.wait({flood})
                        await self._hold_keys(rig, owner, mallory)
            finally:
                await owner.execute("alter system reset track_functions")
                await owner.execute("select pg_reload_conf()")
        rig.figure("claims/s before", calm)
        rig.figure("claims/s in the flood", flooded)
        # Messages that a claim would find together may take a claim each in the flood.
        extra = (flooded - calm - handled) / len(rig.workers)
        rig.figure("empty claims/s of a worker", extra, most=self._EXTRA_CLAIMS)

    @asynccontextmanager
    async def _hostile_role(self, rig: Rig, owner: Connection) -> AsyncIterator[Connection]:
        password = rig.random.randbytes(8).hex()
        await owner.execute(f"create role {self._NAME} login password '{password}'")
        try:
            address = urlsplit(rig.server.dsn)
            netloc = f"{self._NAME}:{password}@{address.netloc.rpartition('@')[2]}"
            async with session(urlunsplit(address._replace(netloc=netloc)), "mallory") as mallory:
                yield mallory
        finally:
            await owner.execute(f"drop role {self._NAME}")

    async def _claims_a_second(
        self, rig: Rig, owner: Connection, seconds: float
    ) -> tuple[float, float]:
        """Return claims and archived messages a second."""
        [before], began = await owner.fetch(_CLAIMS), time.monotonic()
        await rig.pause(seconds)
        [after], lasted = await owner.fetch(_CLAIMS), time.monotonic() - began
        return (after[0] - before[0]) / lasted, (after[1] - before[1]) / lasted

    async def _flood(self, mallory: Connection) -> None:
        portion, number = self._FLOOD // 20, 0
        while True:
            due = time.monotonic() + 1 / 20
            await mallory.execute(
                "select pg_notify('new_message', 'quick:' || n) "
                "from generate_series($1::int, $2) as n",
                number,
                number + portion,
            )
            number += portion
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _hold_keys(self, rig: Rig, owner: Connection, mallory: Connection) -> None:
        """Take every advisory lock of the schema: any role can take any of them."""
        await mallory.execute(_TAKE_KEYS)
        began = time.monotonic()
        await rig.pause(2)
        self._held = (began, time.monotonic())
        # Returns null while a worker runs maintenance.
        await rig.until(
            lambda: owner.fetchval("select messages.maintain() is not null"),
            "maintenance runs while another role holds every advisory lock",
        )

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that messages waited for a poll at most while the role held all locks."""
        rig.figure("wait s without keys", max(waits(history, *self._held), default=0), most=10)


_CLAIMS = """
select coalesce(sum(f.calls), 0)::bigint, (select count(*) from messages.message_archive)
from pg_stat_user_functions as f
where f.schemaname = 'messages'
  and f.funcname = 'claim'
"""
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
