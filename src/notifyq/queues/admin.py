"""Queues and the schema: what an operator does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg

from notifyq.arguments import duration as seconds
from notifyq.arguments import instant, number, text, whole
from notifyq.database import statements as sql
from notifyq.errors import ConfigurationError, SchemaTooNewError, SchemaTooOldError
from notifyq.queues.policy import ALTER_QUEUE, CREATE_QUEUE, Policy

if TYPE_CHECKING:
    from notifyq.database.pool import Calls

log = logging.getLogger("notifyq.worker")

_OF_HANDLERS = dict.fromkeys(("lock_duration", "max_attempts", "backoff", "backoff_max"))
"""A handler may set these itself, whatever its queue has."""


def check_versions(installed: int, serves: int) -> None:
    """Raise unless a schema of version `installed` works with this package.

    `serves` is the oldest version whose packages that schema still serves.
    """
    if installed < sql.SCHEMA_VERSION:
        raise SchemaTooOldError(
            f"version {installed} of the schema is installed, {sql.SCHEMA_VERSION} is needed: "
            "run `notifyq migrate`"
        )
    if serves > sql.SCHEMA_VERSION:
        raise SchemaTooNewError(
            f"version {installed} of the schema is installed, which works with packages for "
            f"schema {serves} or later; this one is for {sql.SCHEMA_VERSION}: upgrade the package"
        )


class Admin:
    """Create, change, pause and drop queues, and grant them to roles."""

    def __init__(self, database: Calls) -> None:
        self._database = database

    async def check_schema(self) -> None:
        """Raise unless this package works with the schema in the database."""
        [row] = await self._database.fetch(sql.VERSIONS)
        check_versions(row["version"], row["serves"])

    async def create_queue(self, name: str, policy: Policy | None = None) -> bool:
        """Create a queue. False: it existed, and nothing changed."""
        text("name", name)
        args = (policy or Policy()).args()
        self._database.forget_encrypted()
        return bool(await self._database.value(CREATE_QUEUE, name, *args))

    async def create_missing(self, policies: Mapping[str, Policy]) -> list[str]:
        """Create missing queues and return them; log a warning for one with another policy."""
        existing = {row["queue"]: row for row in await self.queue_info()}
        missing = []
        for queue, policy in policies.items():
            if queue not in existing:
                await self.create_queue(queue, policy)
                missing.append(queue)
            elif differences := replace(policy, **_OF_HANDLERS).differences(dict(existing[queue])):
                log.warning(
                    "queue %r exists and keeps its policy: %s; `notifyq queues alter` changes it",
                    queue,
                    ", ".join(differences),
                )
        return missing

    async def alter_queue(self, name: str, policy: Policy) -> None:
        """Change the policy of a queue."""
        text("name", name)
        self._database.forget_encrypted()
        await self._database.fetch(ALTER_QUEUE, name, *policy.args())

    async def drop_queue(self, name: str, *, force: bool = False) -> int:
        """Drop a queue, with `force` also its live messages; return their number."""
        return int(await self._database.value(sql.DROP_QUEUE, name, force))

    async def pause_queue(
        self,
        name: str,
        *,
        until: datetime | None = None,
        duration: timedelta | float | None = None,
    ) -> bool:
        """Hand out no more messages, until an instant or for a time: then it resumes by itself.

        A queue that is paused already gets the new end. False: nothing changed.
        """
        if until is not None and duration is not None:
            raise ConfigurationError("give until or duration, not both")
        ends = [instant("until", until), seconds("duration", duration)]
        return bool(await self._database.value(sql.PAUSE_QUEUE_UNTIL, name, *ends))

    async def resume_queue(self, name: str) -> bool:
        """Hand out messages again. False: it was not paused."""
        return bool(await self._database.value(sql.RESUME_QUEUE, name))

    async def grant_queue(
        self, name: str, role: str, *, publish: bool = True, consume: bool = True
    ) -> bool:
        """Let a role and its members use a queue, which is then closed to all others.

        False: nothing changed.
        """
        return bool(await self._database.value(sql.GRANT_QUEUE, name, role, publish, consume))

    async def revoke_queue(self, name: str, role: str) -> bool:
        """Revoke a grant; without the last one the queue is open again. False: there was none."""
        return bool(await self._database.value(sql.REVOKE_QUEUE, name, role))

    async def grant_read(self, name: str, role: str) -> bool:
        """Let a role with `notifyq_viewer` read a queue or stream; it closes nothing to others.

        False: nothing changed.
        """
        return bool(await self._database.value(sql.GRANT_READ, name, role))

    async def revoke_read(self, name: str, role: str) -> bool:
        """Revoke a grant to read. False: there was none."""
        return bool(await self._database.value(sql.REVOKE_READ, name, role))

    async def queue_grants(self, name: str | None = None) -> list[asyncpg.Record]:
        """The grants of each queue or stream that has any, or of one."""
        return await self._database.fetch(sql.QUEUE_GRANTS, name)

    async def set_share(self, name: str, key: str, weight: float | None) -> bool:
        """Give a key of a fair queue a larger or smaller share; None makes it equal again.

        False: nothing changed.
        """
        text("name", name)
        text("key", key)
        number("weight", weight)
        return bool(await self._database.value(sql.SET_SHARE, name, key, weight))

    async def queue_shares(self, name: str | None = None) -> list[asyncpg.Record]:
        """The weights of keys, of each queue or of one."""
        return await self._database.fetch(sql.QUEUE_SHARES, name)

    async def set_limit(
        self, name: str, key: str, *, concurrency: int | None = None, rate: int | None = None
    ) -> bool:
        """Give one key other limits than `key_concurrency` and `key_rate` of its queue.

        The rate is in the period of the queue. None is the limit of the queue, and None for both
        removes the limits of the key. False: nothing changed.
        """
        text("name", name)
        text("key", key)
        whole("concurrency", concurrency, 10**9)
        whole("rate", rate, 10**9)
        return bool(await self._database.value(sql.SET_LIMIT, name, key, concurrency, rate))

    async def queue_limits(self, name: str | None = None) -> list[asyncpg.Record]:
        """The limits of single keys, of each queue or of one."""
        return await self._database.fetch(sql.QUEUE_LIMITS, name)

    async def queue_info(self, name: str | None = None) -> list[asyncpg.Record]:
        """Policy and counts of each queue, or of one."""
        return await self._database.fetch(sql.QUEUE_INFO, name)


async def copy_queues(source: Calls, target: Calls, names: Mapping[str, str]) -> list[str]:
    """Create queues that the target lacks, as they are at the source; return their names.

    `names` maps queues of the source to those of the target. Shares and limits of keys are copied
    with a queue; grants are not.
    """
    here, there = Admin(source), Admin(target)
    found = {row["queue"]: Policy.of(dict(row)) for row in await here.queue_info()}
    wanted = {new: found[old] for old, new in names.items() if old in found}
    created = await there.create_missing(wanted)
    for old, new in names.items():
        if new not in created:
            continue
        for row in await here.queue_shares(old):
            await there.set_share(new, row["key"], row["weight"])
        for row in await here.queue_limits(old):
            await there.set_limit(new, row["key"], concurrency=row["concurrency"], rate=row["rate"])
    return created
