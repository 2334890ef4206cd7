"""Creates in the database what the handlers and subscribers of a worker declare."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from notifyq.database import statements as sql
from notifyq.errors import AccessDeniedError
from notifyq.queues.admin import Admin
from notifyq.queues.schedules import Schedules
from notifyq.streams.admin import Streams

if TYPE_CHECKING:
    from collections.abc import Collection

    from notifyq.database.pool import Database
    from notifyq.handlers.registry import Registry

log = logging.getLogger("notifyq.worker")


async def declare(
    database: Database, registry: Registry, queues: Collection[str], streams: Collection[str]
) -> None:
    """Create missing queues, schedules, streams and subscriptions.

    A queue or schedule that is refused leaves none of the others behind. All workers do it in the
    same order, and each stream in a transaction of its own: else two that start together would wait
    for each other. Behind another transaction they wait a short time only, and start anew.
    """
    if queues:
        async with database.transaction() as calls:
            await calls.fetch(sql.SHORT_WAITS)
            await Admin(calls).create_missing(registry.policies(sorted(queues)))
            wanted = sorted(registry.schedules_of(queues), key=lambda it: it.name)
            try:
                async with calls.connection.transaction():
                    await Schedules(calls).add_all(wanted)
            except AccessDeniedError:
                log.warning(
                    "the schedules of this app were not updated, as only an admin may define them: "
                    "run `notifyq schedules apply`"
                )
        await _warn_of_one_attempt(database, registry, queues)
    if streams:
        in_order = sorted(registry.subscribers(streams), key=lambda it: it.subscription)
        await Streams(database).subscribe_all(in_order)


async def _warn_of_one_attempt(
    database: Database, registry: Registry, queues: Collection[str]
) -> None:
    """Warn where what is recorded is of no use after a crash, as no attempt is left."""
    durable = [registry[queue] for queue in queues if registry[queue].takes_steps]
    if not durable:
        return
    allowed = {row["queue"]: row["max_attempts"] for row in await Admin(database).queue_info()}
    for handler in durable:
        if (handler.policy.max_attempts or allowed.get(handler.queue)) == 1:
            log.warning(
                "the handler of queue %r takes Steps, but with max_attempts 1 a message whose "
                "worker is killed is not handled again: allow it more attempts",
                handler.queue,
            )
