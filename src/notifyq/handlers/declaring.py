"""Creates in the database what the handlers and subscribers of a worker declare."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

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
    """Create missing queues, schedules, streams and subscriptions, each by a call of its own.

    Creating one may lock out publishers until the commit: in one transaction they would wait for
    all of it, and workers that start together for each other.
    """
    if queues:
        await Admin(database).create_missing(registry.policies(sorted(queues)))
        await _warn_of_one_attempt(database, registry, queues)
    if streams:
        await Streams(database).subscribe_all(registry.subscribers(streams))
    try:
        await Schedules(database).add_all(registry.schedules_of(queues))
    except AccessDeniedError:
        log.warning(
            "the schedules of this app were not updated, as only an admin may define them: "
            "run `notifyq schedules apply`"
        )


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
