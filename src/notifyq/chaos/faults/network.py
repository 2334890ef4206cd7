"""What a network does to connections: cuts them, forgets them, holds them back, loses answers."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import LOCK, payload
from notifyq.chaos.sending import FAILURES, send, waits
from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig

_PING = 1.0
_PING_TIMEOUT = 5.0
"""Seconds that the listener waits for an answer to its ping; see listener.py."""


class NetworkCut(Fault):
    """Connections break, the listening ones too, and for a moment new ones are refused."""

    name = "network-cut"
    title = "all connections are cut, several times"
    number = "12"
    # What is not found after a reconnection would wait for this.
    worker_settings: ClassVar[Mapping[str, str]] = {"NOTIFYQ_POLL": "30s"}

    async def inject(self, rig: Rig) -> None:
        """Cut, refuse for up to 0.3 s, let go on, again and again."""
        cuts = 0
        lasts = rig.lasting()
        while lasts():
            with rig.injecting(self.name, outage=True):
                rig.proxy.is_closed = True
                rig.proxy.cut()
                await rig.pause(0, 0.3)
                rig.proxy.is_closed = False
            cuts += 1
            await rig.pause(0.5, 1)
        rig.figure("cuts", cuts)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """No message may have waited for the poll."""
        longest = max(waits(history, since=0), default=0)
        rig.figure("longest wait s", longest)
        rig.require(longest < 20, f"a message waited {longest:.1f} s, as if for the poll")


class HalfOpen(Fault):
    """Connections fall silent, and nobody is told: a host is gone, a firewall forgets."""

    name = "half-open"
    title = "connections fall silent without an end"
    number = "13"
    worker_settings: ClassVar[Mapping[str, str]] = {
        "NOTIFYQ_PING": f"{_PING}s",
        "NOTIFYQ_COMMAND_TIMEOUT": "2s",
    }

    async def inject(self, rig: Rig) -> None:
        """Silence what stands, and wait until each worker listens on another connection."""
        before = set(await rig.server.backends("notifyq worker"))
        began = time.monotonic()

        async def listen_again() -> bool:
            fresh = set(await rig.server.backends("notifyq worker")) - before
            return len(fresh) >= len(rig.workers)

        with rig.injecting(self.name):
            rig.proxy.silence()
            await rig.until(listen_again, "all workers listen again")
            seconds = time.monotonic() - began
        rig.figure("detection s", seconds)
        bound = _PING + _PING_TIMEOUT
        # Twice the bound: the machine may be busy with something else.
        rig.require(
            seconds < 2 * bound,
            f"silence was noticed after {seconds:.1f} s, ping and timeout are {bound:.0f} s",
        )

        async def are_gone() -> bool:
            return not before & set(await rig.server.backends("notifyq worker"))

        # A session that the server still believes in keeps its promises: publishers do not ring.
        await rig.until(are_gone, "the sessions that fell silent have ended")


class Partition(Fault):
    """Traffic stops both ways for longer than locks last, and then goes on as if nothing was."""

    name = "partition"
    title = "no traffic either way for longer than a lock"
    number = "28"
    workers = 3

    async def inject(self, rig: Rig) -> None:
        """Hold all traffic back in the middle of batches, twice at least."""
        lasts = rig.lasting()
        seconds = []
        for _ in range(2):
            seconds.append(rig.random.uniform(0.6, 1.6) * LOCK)
            with rig.injecting(self.name, outage=True):
                rig.proxy.hold()
                await asyncio.sleep(seconds[-1])
                rig.proxy.resume()
            await rig.pause(0.5, 1)
        while lasts():
            await rig.pause(0.1)
        rig.figure("longest s", max(seconds))


class AmbiguousPublish(Fault):
    """The server commits, and the publisher is never told; it tries again with the same key."""

    name = "ambiguous-publish"
    title = "answers to publishers are lost after the commit"
    number = "27"

    _CLIENTS: ClassVar[int] = 3
    # Longer than a client needs to try again: a key is free when its message is finished.
    _DELAY: ClassVar[timedelta] = timedelta(seconds=2)

    async def inject(self, rig: Rig) -> None:
        """Lose an answer to whatever is published, all the time."""
        self._keys: set[str] = set()
        self._lost = 0
        settings = DatabaseSettings.load(
            pool_size=self._CLIENTS, connect_timeout=timedelta(seconds=5)
        )
        async with Database(rig.dsn, settings=settings, name="notifyq chaos client") as database:
            with rig.injecting(self.name):
                lasts = rig.lasting()
                loser = asyncio.create_task(self._lose(rig))
                try:
                    while lasts():
                        clients = [self._publish(rig, database) for _ in range(self._CLIENTS)]
                        await asyncio.gather(*clients)
                        await rig.pause(0.05, 0.1)
                finally:
                    loser.cancel()
                    await asyncio.wait({loser})
                    rig.proxy.lose_nothing()

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """One message for each key."""
        ids: defaultdict[str, set[int]] = defaultdict(set)
        for call in history:
            if call.op == "execute" and call.fields["key"] in self._keys:
                ids[call.fields["key"]].add(call.fields["id"])
        doubled = [key for key, found in ids.items() if len(found) > 1]
        rig.figure("answers lost", self._lost)
        rig.figure("keys", len(self._keys))
        rig.figure("keys twice", len(doubled))
        for key in doubled:
            rig.findings.append(f"key {key} was published as {sorted(ids[key])}")
        missing = len(self._keys - ids.keys())
        rig.require(not missing, f"{missing} keys were published and never executed")

    async def _lose(self, rig: Rig) -> None:
        while True:
            rig.proxy.lose_answer_to(b'"key"')
            await rig.proxy.lost.wait()
            self._lost += 1
            await rig.pause(0, 0.05)

    async def _publish(self, rig: Rig, database: Database) -> None:
        message = payload(rig.random, "quick")
        key = message["key"]
        self._keys.add(key)
        while True:
            try:
                await send(
                    rig.history, database, "quick", message, dedup_key=key, delay=self._DELAY
                )
            except FAILURES:
                continue
            return
