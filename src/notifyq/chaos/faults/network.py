"""Faults of the network: cut, half-open and held connections, and lost answers."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import LOCK, payload
from notifyq.chaos.load import FAILURES, send
from notifyq.chaos.recovery import waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.queues.publisher import Publisher

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
        """Check that no message waited for the poll."""
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
            await rig.until(listen_again, "all workers listen again")
        # Twice the bound, because the machine is shared.
        rig.figure("detection s", time.monotonic() - began, most=2 * (_PING + _PING_TIMEOUT))
        # Until the server ends the old sessions, their leases suppress notifications.
        await rig.until(are_gone, "the server ended the old sessions")


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
        """Check that there is one message for each key."""
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
