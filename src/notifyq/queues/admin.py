"""Queues and the schema: what an operator does."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from notifyq.arguments import check_fields, number, plain, text
from notifyq.database import sql
from notifyq.errors import SchemaTooNewError, SchemaTooOldError
from notifyq.queues.payload_schema import schema_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import asyncpg

    from notifyq.database.pool import Calls
    from notifyq.queues.payload_schema import Schema


Bell = Literal["auto", "always", "off"]
"""Whether what is published rings: unless a worker attends, for each statement, or never."""
Overflow = Literal["reject", "drop_oldest"]
"""What happens beyond the capacity: publishing fails, or the oldest are archived as rejected."""

log = logging.getLogger("notifyq.worker")

_OF_HANDLERS = dict.fromkeys(("lock_timeout", "max_attempts", "backoff", "backoff_max"))
_NONE = (0, timedelta(0), "-", "true")
"""What takes a value of a policy away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Policy of a queue; None is the default when it is created, "as it is" when it is altered.

    Durations are timedeltas or seconds. For limits, from `concurrency` to `capacity`, 0 is "none":
    that takes one away, as it does for `retention_dead`, "-" for `payload_type` and True for
    `payload_schema`.
    """

    lock_timeout: timedelta | float | None = None
    max_attempts: int | None = None
    backoff: timedelta | float | None = None
    backoff_max: timedelta | float | None = None
    bell: Bell | None = None
    retention: timedelta | float | None = None
    max_bytes: int | None = None
    concurrency: int | None = None
    key_concurrency: int | None = None
    rate: int | None = None
    rate_period: timedelta | float | None = None
    rate_burst: int | None = None
    key_rate: int | None = None
    key_rate_period: timedelta | float | None = None
    key_rate_burst: int | None = None
    ordered: bool | None = None
    fair: bool | None = None
    capacity: int | None = None
    overflow: Overflow | None = None
    durable: bool | None = None
    """False: messages are gone after a crash of the server, and only what dies is archived."""
    payload_type: str | None = None
    """The type whose values messages are, as PostgreSQL names it: `integer`, not `int4`."""
    payload_schema: Schema | None = None
    """The JSON Schema that messages must satisfy, or a pydantic model that has it."""
    retention_dead: timedelta | float | None = None
    """How long the archive keeps what did not succeed, if not for `retention`."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's kind where it is written."""
        check_fields(self)

    def args(self) -> tuple[object, ...]:
        """The values in the order of the SQL functions."""
        return tuple(self._values().values())

    def differences(self, queue: Mapping[str, object]) -> list[str]:
        """What a queue, a row of `queue_info`, has otherwise than is said here."""
        said = {name: value for name, value in self._values().items() if value is not None}
        found = {name: queue[name] for name in said}
        if schema := found.get("payload_schema"):
            found["payload_schema"], said["payload_schema"] = (
                json.dumps(json.loads(str(it)), sort_keys=True)
                for it in (schema, said["payload_schema"])
            )
        # None of them is null there, and one of these here.
        return [
            f"{name} is {found[name]}, not {value}"
            for name, value in said.items()
            if found[name] != value and not (found[name] is None and value in _NONE)
        ]

    def _values(self) -> dict[str, object]:
        return plain(self) | {"payload_schema": schema_text(self.payload_schema)}


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
            f"version {installed} of the schema is installed, which serves notifyq from schema "
            f"{serves} on, and this one is of {sql.SCHEMA_VERSION}: upgrade the package"
        )


class Admin:
    """Create, change, pause and drop queues, and say who may use them."""

    def __init__(self, database: Calls) -> None:
        self._database = database

    async def check_schema(self) -> None:
        """Raise unless the schema in the database is one that this version works with."""
        [row] = await self._database.fetch(sql.VERSIONS)
        check_versions(row["version"], row["serves"])

    async def create_queue(self, name: str, policy: Policy | None = None) -> bool:
        """Create a queue. False: it existed, and nothing changed."""
        text("name", name)
        args = (policy or Policy()).args()
        return bool(await self._database.value(sql.CREATE_QUEUE, name, *args))

    async def create_missing(self, policies: Mapping[str, Policy]) -> list[str]:
        """Create the queues that are missing; return those. One with other limits is warned of."""
        existing = {row["queue"]: row for row in await self.queue_info()}
        missing = []
        for queue, policy in policies.items():
            if queue not in existing:
                await self.create_queue(queue, policy)
                missing.append(queue)
            # What a handler says of itself holds whatever the queue says.
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
        await self._database.fetch(sql.ALTER_QUEUE, name, *policy.args())

    async def drop_queue(self, name: str, *, force: bool = False) -> int:
        """Drop a queue, with `force` also its live messages; return how many those were."""
        return int(await self._database.value(sql.DROP_QUEUE, name, force))

    async def pause_queue(self, name: str) -> bool:
        """Hand out no more messages. False: it was paused already."""
        return bool(await self._database.value(sql.PAUSE_QUEUE, name))

    async def resume_queue(self, name: str) -> bool:
        """Hand out messages again. False: it was not paused."""
        return bool(await self._database.value(sql.RESUME_QUEUE, name))

    async def grant_queue(
        self, name: str, role: str, *, publish: bool = True, consume: bool = True
    ) -> bool:
        """Let a role and its members use a queue, which is closed to others from then on.

        False: it was so already.
        """
        return bool(await self._database.value(sql.GRANT_QUEUE, name, role, publish, consume))

    async def revoke_queue(self, name: str, role: str) -> bool:
        """Take a grant back; with the last one the queue is open again. False: there was none."""
        return bool(await self._database.value(sql.REVOKE_QUEUE, name, role))

    async def queue_grants(self, name: str | None = None) -> list[asyncpg.Record]:
        """The grants of each queue that has any, or of one."""
        return await self._database.fetch(sql.QUEUE_GRANTS, name)

    async def set_share(self, name: str, key: str, weight: float | None) -> bool:
        """Give a key of a fair queue more or less than others; None takes that back.

        False: it was so already.
        """
        text("name", name)
        text("key", key)
        number("weight", weight)
        return bool(await self._database.value(sql.SET_SHARE, name, key, weight))

    async def queue_shares(self, name: str | None = None) -> list[asyncpg.Record]:
        """The keys that have a weight of their own, of each queue or of one."""
        return await self._database.fetch(sql.QUEUE_SHARES, name)

    async def queue_info(self, name: str | None = None) -> list[asyncpg.Record]:
        """Policy and counts of each queue, or of one."""
        return await self._database.fetch(sql.QUEUE_INFO, name)
