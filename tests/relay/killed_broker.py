"""Relays that kill themselves, each one step later: `killed_broker.py SOURCE URL SUBJECT`.

There is a step before and behind each call to the source that moves the position, each 2nd message
that the broker receives, and each of its answers.
"""

from __future__ import annotations

import sys
from typing import Any

from notifyq.config import RelaySettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.relay import StreamRelay
from notifyq.relay.brokers import _KINDS, jetstream
from notifyq.relay.brokers.broker import Answer, Outgoing
from support.database import session
from support.dying import die_at_each_step, step

SOURCE, URL, SUBJECT = sys.argv[1:]


class Mortal(jetstream.JetStream):
    """Kills its process at a step."""

    async def publish(self, messages: list[Outgoing]) -> list[Answer]:
        step()
        answers = await super().publish(messages)
        step()
        return answers

    async def _send(self, index: int, message: Outgoing) -> None:
        await super()._send(index, message)
        if index % 2:
            await self._client.flush()
            step()


class Source(Database):
    """Kills its process at a step."""

    async def persist(self, statement: str, *args: Any, **options: Any) -> Any:
        if statement != sql.FINISH_BATCH:
            return await super().persist(statement, *args, **options)
        step()
        answer = await super().persist(statement, *args, **options)
        step()
        return answer


async def run() -> None:
    """Relay everything, or as much as there are steps."""
    settings = RelaySettings.load(batch=5)
    await StreamRelay(
        Source(SOURCE), URL, "orders", "hub", SUBJECT, once=True, settings=settings
    ).run()


async def prepare(numbers: range) -> None:
    """End the session of the killed relay, and publish more events."""
    async with session(SOURCE) as connection:
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() "
            "and datname = current_database() and application_name like 'notifyq%'"
        )
        for number in numbers:
            await connection.execute(
                "select messages.publish('orders', $1::jsonb, key => $2)",
                number + 1,
                f"k{number % 2}",
            )


setattr(jetstream, _KINDS["nats"][2], Mortal)
die_at_each_step(prepare, run)
