"""Relays that kill themselves, each one step later: `killed_inbound.py URL TARGET NAME ADDRESS`.

There is a step before and behind each call to the target, and each acknowledgement to the broker.
"""

from __future__ import annotations

import sys
from typing import Any

from notifyq.config import RelaySettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.relay import BrokerRelay, inbound
from notifyq.relay.brokers import jetstream_reader, reader_of
from notifyq.relay.brokers.broker import Reader
from relay.departures import send
from support.dying import die_at_each_step, step

URL, TARGET, NAME, ADDRESS = sys.argv[1:]


def mortal(*args: Any) -> Reader:
    """A reader that kills its process at a step."""
    made = reader_of(*args)
    acknowledge = made.acknowledge

    async def dying(indexes: list[int]) -> None:
        step()
        await acknowledge(indexes)
        step()

    made.acknowledge = dying  # type: ignore[method-assign]
    return made


class Target(Database):
    """Kills its process at a step."""

    async def fetch(self, statement: str, *args: Any) -> Any:
        return await self._around(super().fetch, statement, *args)

    async def value(self, statement: str, *args: Any) -> Any:
        return await self._around(super().value, statement, *args)

    async def _around(self, call: Any, statement: str, *args: Any) -> Any:
        if statement not in {sql.RECEIVE_MANY, sql.RECEIVE_DEAD}:
            return await call(statement, *args)
        step()
        answer = await call(statement, *args)
        step()
        return answer


async def run() -> None:
    """Relay everything, or as much as there are steps."""
    settings = RelaySettings.load(batch=4)
    await BrokerRelay(URL, Target(TARGET), NAME, "inbox", once=True, settings=settings).run()


async def prepare(numbers: range) -> None:
    """Send more messages; the queue takes none above 1000."""
    for number in numbers:
        await send(URL, ADDRESS, number, number + 1000)


setattr(jetstream_reader, "_ACK_WAIT", 0.2)  # noqa: B010  what a killed relay had comes again
setattr(inbound, "reader_of", mortal)  # noqa: B010
die_at_each_step(prepare, run)
