"""Clients that call the functions of the schema and record calls and answers."""

from __future__ import annotations

import asyncio
import random
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg

from notifyq.chaos.checker import CheckResult, check
from notifyq.chaos.final import read_final
from notifyq.chaos.history import LOCK_FIELDS, History, Invoked, digest, read
from support.database import Connect, Connection, rows, value

_DEAD_SINCE = """
select messages.current_position() as snapshot, d.id
from (select) as once
left join messages.dead_since(seen => $1) as d on true
"""

SHORT, LONG = timedelta(milliseconds=60), timedelta(minutes=1)
"""Locks that are outlived on purpose, and locks that never are."""
MAX_ATTEMPTS = 3
_ROUNDS = 8


class Lock(SimpleNamespace):
    """A message as a claim handed it out: a row of messages.claim()."""


class Client:
    """One session that publishes, claims and settles."""

    def __init__(self, session: Connection, history: History, chance: random.Random) -> None:
        self.session = session
        self.chance = chance
        self._history = history

    async def publish(self) -> int | None:
        """Publish a message with a key; None where the server refused it."""
        payload = {"key": str(uuid.UUID(int=self.chance.getrandbits(128))), "text": "ü", "n": 1}
        call = self._history.invoke(
            "publish", key=payload["key"], queue="default", digest=digest(payload)
        )
        try:
            id_: int = await value(self.session, "publish", queue="default", message=payload)
        except asyncpg.PostgresError as error:
            call.fail(error=error)
            return None
        call.ok(id=id_)
        return id_

    async def claim(self, lock: timedelta = LONG, quantity: int = 1) -> list[Lock]:
        """Claim in a transaction of its own."""
        call = self._history.invoke("claim")
        try:
            return self.claimed(call, await self.claim_rows(lock, quantity))
        except asyncpg.PostgresError as error:
            call.fail(error=error)
            return []

    async def claim_rows(self, lock: timedelta, quantity: int = 1) -> list[asyncpg.Record]:
        """Claim and record nothing: it may be rolled back."""
        return await rows(self.session, "claim", quantity=quantity, lock_duration=lock)

    def begin(self, op: str, **fields: Any) -> Invoked:
        """Record the start of a call of several statements."""
        return self._history.invoke(op, **fields)

    def claimed(self, call: Invoked, found: list[asyncpg.Record]) -> list[Lock]:
        """Record what a committed claim granted."""
        call.ok(messages=[{name: row[name] for name in LOCK_FIELDS} for row in found])
        return [Lock(**row) for row in found]

    def execute(self, lock: Lock) -> None:
        """Do what a handler does: nothing, but seen."""
        self._history.invoke(
            "execute", id=lock.id, lock_token=lock.lock_token, attempts=lock.attempts,
            key=lock.message.get("key"), digest=digest(lock.message),
            lock_expires_at=lock.lock_expires_at,
        ).ok()  # fmt: skip

    async def dawdle(self) -> None:
        """Take as long as a short lock stands."""
        await self.session.execute("select pg_sleep($1)", SHORT.total_seconds())

    async def outlive(self, lock: Lock) -> None:
        """Wait until the lock, if nobody extends it, has expired by the clock of the server."""
        await self.session.execute("select pg_sleep_until($1)", lock.lock_expires_at)

    async def finish(self, lock: Lock, status: str = "success") -> bool:
        return await self._settle("finish", lock, status=status)

    async def release(self, lock: Lock) -> bool:
        return await self._settle("release", lock)

    async def retry(self, lock: Lock) -> bool:
        return await self._settle("retry", lock, delay=timedelta(0))

    async def extend(self, lock: Lock, by: timedelta = LONG) -> bool:
        # Read before the call: a lock that seems to end too early is no violation, too late is one.
        now: datetime = await self.session.fetchval("select clock_timestamp()")
        return await self._settle("extend", lock, {"lock_expires_at": now + by}, lock_duration=by)

    async def reap(self) -> int:
        return int(await value(self.session, "reap"))

    async def _settle(
        self, op: str, lock: Lock, answer: dict[str, Any] | None = None, **arguments: Any
    ) -> bool:
        fields = {"status": arguments["status"]} if "status" in arguments else {}
        call = self._history.invoke(op, id=lock.id, lock_token=lock.lock_token, **fields)
        try:
            held: bool = await value(
                self.session, op, id=lock.id, lock_token=lock.lock_token, **arguments
            )
        except asyncpg.PostgresError as error:
            call.fail(error=error)
            return False
        call.ok(held=held, **(answer or {}))
        return held


class Watcher:
    """Follows dead messages as `notifyq dead watch` does: from snapshot to snapshot."""

    def __init__(self, session: Connection, history: History, seen: str) -> None:
        self.session = session
        self._history = history
        self._seen = seen
        history.note("watch", position=seen)

    async def report(self) -> None:
        """Report messages that are dead since the last report."""
        found = await self.session.fetch(_DEAD_SINCE, self._seen)
        self._seen = found[0]["snapshot"]
        for row in found:
            if row["id"] is not None:
                self._history.note("dead", id=row["id"])


class Listener:
    """Claims after a notification, and at no other time."""

    FENCE = "test_fence"

    def __init__(self, client: Client) -> None:
        self._client = client
        self._wake = asyncio.Event()
        self._is_notified = False
        self._is_over = False

    async def listen(self) -> None:
        await self._client.session.add_listener("new_message", self._notified)
        await self._client.session.add_listener(self.FENCE, self._end)

    async def work(self) -> None:
        """Claim after each notification, up to a notification of the channel FENCE.

        Notifications arrive in the order of commits: none can arrive behind the fence.
        """
        while not self._is_over or self._is_notified:
            await self._wake.wait()
            self._wake.clear()
            if self._is_notified:
                self._is_notified = False
                while found := await self._client.claim(quantity=100):
                    for lock in found:
                        self._client.execute(lock)
                        await self._client.finish(lock)

    def _notified(self, *_: object) -> None:
        self._is_notified = True
        self._wake.set()

    def _end(self, *_: object) -> None:
        self._is_over = True
        self._wake.set()


class Stage:
    """One run: its clients and its history."""

    def __init__(self, connect: Connect, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self._connect = connect
        self._folder = folder
        self._histories: list[History] = []
        self._watcher: Watcher | None = None

    async def open(self) -> None:
        """Make the queue ready: short backoff, some attempts; and watch dead messages."""
        session = await self._connect()
        seen: str = await session.fetchval("select messages.current_position()")
        self._watcher = Watcher(session, self.history("watcher"), seen)
        await value(session, "alter_queue", name="default", backoff=timedelta(0))
        await self.set_attempts(MAX_ATTEMPTS)

    @property
    def watcher(self) -> Watcher:
        assert self._watcher is not None
        return self._watcher

    async def set_attempts(self, most: int) -> None:
        await value(self.watcher.session, "alter_queue", name="default", max_attempts=most)

    async def client(self, name: str) -> Client:
        return Client(
            await self._connect(), self.history(name), random.Random(self.chance.random())
        )

    def history(self, name: str) -> History:
        history = History(self._folder, name)
        self._histories.append(history)
        return history

    async def result(self) -> CheckResult:
        """Drain, report dead messages a last time, and check the history."""
        client = await self.client("drainer")
        call = client.begin("drain")
        if await _drained(client):
            call.ok()
        else:
            call.fail(error="messages are left")
        await self.watcher.report()
        for history in self._histories:
            history.close()
        return check(read(self._folder), await read_final(client.session))


async def _drained(client: Client) -> bool:
    """Reap, claim and finish until nothing is live; False if that does not come about."""
    for _ in range(_ROUNDS):
        await client.reap()
        for lock in await client.claim(quantity=1000):
            client.execute(lock)
            await client.finish(lock)
        left = await rows(client.session, "message_list", quantity=1000)
        if not left:
            return True
        # What is left is locked by a client that is gone, with a short lock.
        await client.session.execute("select pg_sleep($1)", SHORT.total_seconds())
    return False
