"""Messages that harm whoever handles them, and a stranger in the same database."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from notifyq.chaos import sending
from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import payload
from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database, connect
from notifyq.models.payload import Json
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

_STATEMENTS = Path(__file__).parents[1] / "hostile.sql"


class Poison(Fault):
    """Messages that take their worker along, and such that no decoder takes."""

    name = "poison"
    title = "messages that kill workers, and that cannot be decoded"
    number = "26"

    _DEEP: ClassVar[int] = 5000
    _HUGE: ClassVar[str] = "1e5000"
    _MOST_ATTEMPTS: ClassVar[int] = 2
    """Of the queue `thread`."""

    async def inject(self, rig: Rig) -> None:
        """Plant bombs all the time, and kill whoever executes a certain message."""
        self._planted: set[int] = set()
        settings = DatabaseSettings.load(pool_size=1)
        async with (
            Database(rig.dsn, settings=settings, name="notifyq chaos client") as database,
            rig.connection() as owner,
        ):
            # As they may have come in before the database had limits: past its triggers.
            await owner.execute("set session_replication_role = replica")
            with rig.injecting(self.name):
                lasts = rig.lasting()
                await self._expect_refusals(rig, Publisher(database))
                fatal = payload(rig.random, "thread") | {"milliseconds": 700}
                self._fatal = await sending.send(rig.history, database, "thread", fatal)
                for _ in range(self._MOST_ATTEMPTS):
                    await self._plant(rig, Publisher(database), owner)
                    await self._kill_who_executes(rig)
                while lasts():
                    await self._plant(rig, Publisher(database), owner)
                    await rig.pause(0.05, 0.2)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Bounded attempts; one for what can never be handled."""
        attempts = [
            message["attempts"]
            for call in history
            if call.op == "claim"
            for message in call.fields.get("messages", ())
            if message["id"] in self._planted
        ]
        deaths = sum(call.op == "execute" and call.fields["id"] == self._fatal for call in history)
        rig.figure("bombs", len(self._planted))
        rig.figure("attempts of bombs", max(attempts, default=0))
        rig.figure("attempts of the fatal one", deaths)
        rig.require(
            deaths <= self._MOST_ATTEMPTS, f"a message that kills its worker ran {deaths} times"
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
        # It goes first, in one batch with others, which must not suffer.
        planted = await publisher.publish("quick", Json(bomb), priority=1, connection=owner)
        call.ok(id=planted)
        self._planted.add(planted)

    async def _kill_who_executes(self, rig: Rig) -> None:
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
            except sending.FAILURES:
                continue
            rig.findings.append(f"the payload {text[:40]} was published")


class Hostile(Fault):
    """A stranger may connect, and tries everything: tables, functions, bells, advisory locks."""

    name = "hostile"
    title = "a stranger in the database"
    number = "30"

    _NAME: ClassVar[str] = "mallory"
    _BELLS: ClassVar[int] = 5000
    """Notifications a second."""
    _VAIN: ClassVar[int] = 120
    """Claims a second that a worker may make more than without them: it allows itself 100."""

    async def inject(self, rig: Rig) -> None:
        """Count claims without the stranger, let it do its worst, and count again."""
        async with rig.connection() as owner:
            await owner.execute("alter system set track_functions = 'pl'")
            await owner.execute("select pg_reload_conf()")
            try:
                calm, _ = await self._claims_a_second(owner, 1.5, asyncio.sleep(1.5))
                async with self._stranger(rig, owner) as mallory:
                    with rig.injecting(self.name):
                        await self._try_everything(rig, owner, mallory)
                        storm, handled = await self._claims_a_second(
                            owner, rig.seconds, self._flood(rig.seconds, mallory)
                        )
                        await self._hold_keys(rig, owner, mallory)
            finally:
                await owner.execute("alter system reset track_functions")
                await owner.execute("select pg_reload_conf()")
        rig.figure("claims/s before", calm)
        rig.figure("claims/s in the flood", storm)
        # A claim for each bell finds messages one by one that would come together without.
        vain = storm - calm - handled
        rig.require(
            vain < self._VAIN * len(rig.workers),
            f"{self._BELLS} bells a second cause {vain:.0f} claims a second in vain",
        )

    @asynccontextmanager
    async def _stranger(self, rig: Rig, owner: Connection) -> AsyncIterator[Connection]:
        password = rig.random.randbytes(8).hex()
        await owner.execute(f"create role {self._NAME} login password '{password}'")
        try:
            database = await owner.fetchval("select quote_ident(current_database())")
            await owner.execute(f"grant connect on database {database} to {self._NAME}")
            address = urlsplit(rig.server.dsn)
            netloc = f"{self._NAME}:{password}@{address.netloc.rpartition('@')[2]}"
            mallory = await connect(urlunsplit(address._replace(netloc=netloc)), name="mallory")
            try:
                yield mallory
            finally:
                mallory.terminate()
        finally:
            await owner.execute(f"drop owned by {self._NAME}")
            await owner.execute(f"drop role {self._NAME}")

    async def _claims_a_second(
        self, owner: Connection, seconds: float, during: Any
    ) -> tuple[float, float]:
        """Claims, and messages that were archived."""
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
                rig.findings.append(f"{statement!r} was let through")
        rig.figure("tried", tried)
        rig.figure("share denied", denied / tried)

    async def _flood(self, seconds: float, mallory: Connection) -> None:
        end = time.monotonic() + seconds
        portion = self._BELLS // 20
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
        """Take every advisory lock that the schema uses: anybody can take any."""
        await mallory.execute(_TAKE_KEYS)
        began = time.monotonic()
        await rig.pause(2)
        self._held = (began, time.monotonic())
        # In vain while a worker is at it, but not every time.
        await rig.until(
            lambda: owner.fetchval("select messages.maintain() is not null"),
            "upkeep is possible while a stranger holds every advisory lock",
        )

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """With the keys in a stranger's hands, messages wait for the poll."""
        found = sending.waits(history, *self._held)
        longest = max(found, default=0)
        rig.figure("wait s without keys", longest)
        rig.require(longest < 10, f"a message waited {longest:.1f} s for a stranger")


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
"""The tables and views of the schema, by name."""
# The keys of attendance and places, as anybody can compute them, and those of upkeep and the like.
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
    """What a stranger tries on these tables and views, and beside them."""
    lines = _STATEMENTS.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    found: list[str] = []
    for statement in text.split(";\n"):
        if "{relation}" in statement:
            found += [statement.format(relation=relation) for relation in relations]
        elif statement.strip():
            found.append(statement.format())
    return found
