"""Messages that harm their worker, and a role without grants in the same database."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

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

_STATEMENTS = Path(__file__).parents[1] / "hostile.sql"


class Poison(Fault):
    """Messages that kill their worker, and messages that no decoder accepts."""

    name = "poison"

    _DEEP = 5000
    _HUGE = "1e5000"
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
                    await self._kill_executing_worker(rig)
                for _ in rounds:
                    await self._plant(rig, publisher, owner)
                    await rig.pause(0.05, 0.2)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that attempts are bounded and that no handler got a bomb."""
        attempts = [
            message["attempts"]
            for call in history
            for message in call.messages
            if message["id"] in self._planted
        ]
        kills = sum(call.op == "execute" and call.fields["id"] == self._fatal for call in history)
        rig.figure("bombs", len(self._planted))
        rig.figure("attempts of bombs", max(attempts, default=0))
        rig.figure("attempts of the fatal one", kills)
        rig.require(
            kills <= self._MOST_ATTEMPTS, f"a message that kills its worker ran {kills} times"
        )
        executed = {call.fields["id"] for call in history if call.op == "execute"}
        rig.require(not executed & self._planted, "a bomb reached a handler")

    def _bombs(self, key: str) -> list[str]:
        return [
            f'{{"key": "{key}", "deep": {"[" * self._DEEP}{"]" * self._DEEP}}}',
            f'{{"key": "{key}", "huge": {self._HUGE}}}',
            "[" * self._DEEP + "]" * self._DEEP,
        ]

    async def _plant(self, rig: Rig, publisher: Publisher, owner: Connection) -> None:
        key = payload(rig.random, "quick")["key"]
        bomb = rig.random.choice(self._bombs(key))
        call = rig.history.invoke("publish", key=key, queue="quick", digest="of a bomb")
        # With priority, so that it is claimed in one batch with other messages.
        planted = await publisher.publish("quick", Json(bomb), priority=1, connection=owner)
        call.ok(id=planted)
        self._planted.add(planted)

    async def _kill_executing_worker(self, rig: Rig) -> None:
        await rig.until(lambda: self._is_running(rig), "the fatal message is executed")
        name = self._executions(rig)[-1].process
        victim = next(worker for worker in rig.workers if worker.name == name)
        with rig.injecting("worker-kill", victim=name):
            victim.kill()
        victim.start()

    def _executions(self, rig: Rig) -> list[Call]:
        return [c for c in rig.calls() if c.op == "execute" and c.fields["id"] == self._fatal]

    def _is_running(self, rig: Rig) -> bool:
        found = self._executions(rig)
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
    """A role without grants tries all statements, notifications and advisory locks."""

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
                calm, _ = await self._claims_a_second(owner, 1.5, asyncio.sleep(1.5))
                async with self._hostile_role(rig, owner) as mallory:
                    with rig.injecting(self.name):
                        await self._try_everything(rig, owner, mallory)
                        flooded, handled = await self._claims_a_second(
                            owner, rig.seconds, self._flood(rig.seconds, mallory)
                        )
                        await self._hold_keys(rig, owner, mallory)
            finally:
                await owner.execute("alter system reset track_functions")
                await owner.execute("select pg_reload_conf()")
        rig.figure("claims/s before", calm)
        rig.figure("claims/s in the flood", flooded)
        # Messages that a claim would find together may take a claim each in the flood.
        extra = flooded - calm - handled
        rig.require(
            extra < self._EXTRA_CLAIMS * len(rig.workers),
            f"{self._FLOOD} notifications a second cause {extra:.0f} empty claims a second",
        )

    @asynccontextmanager
    async def _hostile_role(self, rig: Rig, owner: Connection) -> AsyncIterator[Connection]:
        password = rig.random.randbytes(8).hex()
        await owner.execute(f"create role {self._NAME} login password '{password}'")
        try:
            database = await owner.fetchval("select quote_ident(current_database())")
            await owner.execute(f"grant connect on database {database} to {self._NAME}")
            address = urlsplit(rig.server.dsn)
            netloc = f"{self._NAME}:{password}@{address.netloc.rpartition('@')[2]}"
            async with session(urlunsplit(address._replace(netloc=netloc)), "mallory") as mallory:
                yield mallory
        finally:
            await owner.execute(f"drop owned by {self._NAME}")
            await owner.execute(f"drop role {self._NAME}")

    async def _claims_a_second(
        self, owner: Connection, seconds: float, during: Any
    ) -> tuple[float, float]:
        """Return claims and archived messages a second."""
        [before], began = await owner.fetch(_CLAIMS), time.monotonic()
        await during
        [after] = await owner.fetch(_CLAIMS)
        lasted = max(seconds, time.monotonic() - began)
        return (after[0] - before[0]) / lasted, (after[1] - before[1]) / lasted

    async def _try_everything(self, rig: Rig, owner: Connection, mallory: Connection) -> None:
        relations = [row[0] for row in await owner.fetch(RELATIONS)]
        denied = tried = 0
        for statement in statements(relations):
            tried += 1
            try:
                await mallory.execute(statement)
            except asyncpg.InsufficientPrivilegeError:
                denied += 1
            except asyncpg.PostgresError as error:
                rig.findings.append(f"{statement!r} was refused, but with {error.sqlstate}")
            else:
                rig.findings.append(f"{statement!r} was accepted")
        rig.figure("tried", tried)
        rig.figure("share denied", denied / tried)

    async def _flood(self, seconds: float, mallory: Connection) -> None:
        end = time.monotonic() + seconds
        portion = self._FLOOD // 20
        number = 0
        while time.monotonic() < end:
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
        longest = max(waits(history, *self._held), default=0)
        rig.figure("wait s without keys", longest)
        rig.require(
            longest < 10, f"a message waited {longest:.1f} s while another role held all locks"
        )


_CLAIMS = """
select coalesce(sum(f.calls), 0)::bigint, (select count(*) from messages.message_archive)
from pg_stat_user_functions as f
where f.schemaname = 'messages'
  and f.funcname = 'claim'
"""
RELATIONS = """
select c.oid::regclass::text
from pg_class as c
where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
  and c.relkind in ('r', 'p', 'v')
order by 1
"""
"""The tables and views of the schemas, by name."""
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


def statements(relations: Sequence[str]) -> list[str]:
    """Return the statements of the hostile role, for these tables and views."""
    lines = _STATEMENTS.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    found: list[str] = []
    for statement in text.split(";\n"):
        if "{relation}" in statement:
            found += [statement.format(relation=relation) for relation in relations]
        elif statement.strip():
            found.append(statement.format())
    return found
