"""Streams and their subscriptions: what an operator does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, get_args

import asyncpg

from notifyq.arguments import instant, zoned
from notifyq.database import statements as sql
from notifyq.errors import ConfigurationError
from notifyq.models.event import SubscriptionInfo
from notifyq.queues.options import PolicyBase, SqlType, call, option
from notifyq.queues.payload_schema import Schema
from notifyq.queues.policy import Notify

if TYPE_CHECKING:
    from notifyq.database.pool import Calls


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicy(PolicyBase):
    """Policy of a stream; None is the default when it is created, "as it is" when it is altered.

    Durations are timedeltas or seconds; a pydantic model stands for its JSON Schema.
    """

    payload_type: SqlType | None = option(
        "SQL type of all events, published with messages.enqueue().", none="any"
    )
    payload_schema: Schema | None = option("JSON Schema that events must satisfy.", none="any JSON")
    durable: bool | None = option(
        "Not durable (unlogged): events are lost when the server crashes.", off="unlogged"
    )
    retention: timedelta | float | None = option(
        "How long events are kept for a replay, after every subscriber has read them.",
        default="1h",
    )
    max_lag: timedelta | float | None = option(
        "Age at which events are skipped for a subscriber that has not read them.", none="no limit"
    )
    max_events: int | None = option(
        "Events that a subscriber may be behind before it skips some.", none="no limit"
    )
    notify: Notify | None = option(
        "auto: publishing wakes subscribers, unless a busy one polls; always: it always does; "
        "off: they only poll.",
        default="auto",
        choices=get_args(Notify),
    )
    max_bytes: int | None = option(
        "Most bytes of an event and its headers, as JSON text.",
        default="1048576",
        least=4096,
        most=2**28,
    )
    encrypted: bool | None = option(
        "Programs encrypt payloads; plain text is refused.", off="plain"
    )


CREATED_WITH: Final = ("durable", "encrypted")
"""Options that can only be set when a stream is created."""
CREATE_STREAM: Final = call("create_stream", StreamPolicy)
ALTER_STREAM: Final = call("alter_stream", StreamPolicy, without=CREATED_WITH)


class Subscribing(Protocol):
    """What wants to be subscribed."""

    @property
    def stream(self) -> str:
        """The stream."""

    @property
    def subscription(self) -> tuple[str, str]:
        """Stream and name."""

    @property
    def position(self) -> str:
        """Where it begins."""

    @property
    def stream_policy(self) -> StreamPolicy | None:
        """What the stream gets where it is missing."""


class Streams:
    """Create, change, pause and drop streams; add, move and remove their subscribers.

    A position is `"last"` (the last tick: what was published since then is delivered), `"now"`,
    `"start"` (all that is kept), the number of a tick, or an instant.
    """

    def __init__(self, database: Calls) -> None:
        self._database = database

    async def create(self, name: str, policy: StreamPolicy | None = None) -> bool:
        """Create a stream. False: it existed, and nothing changed."""
        args = (policy or StreamPolicy()).args()
        self._database.forget_encrypted()
        return bool(await self._database.value(CREATE_STREAM, name, *args))

    async def alter(self, name: str, policy: StreamPolicy) -> None:
        """Change the policy of a stream, except whether it is durable or encrypted."""
        for option_name in CREATED_WITH:
            if getattr(policy, option_name) is not None:
                raise ConfigurationError(f"{option_name} can only be set when a stream is created")
        await self._database.fetch(ALTER_STREAM, name, *policy.args(without=CREATED_WITH))

    async def drop(self, name: str, *, force: bool = False) -> int:
        """Drop a stream; with `force` its subscriptions, too: return how many those were."""
        return int(await self._database.value(sql.DROP_STREAM, name, force))

    async def pause(self, name: str) -> bool:
        """Refuse what is published into the stream. False: it was paused already."""
        return bool(await self._database.value(sql.PAUSE_STREAM, name))

    async def resume(self, name: str) -> bool:
        """Take what is published again. False: it was not paused."""
        return bool(await self._database.value(sql.RESUME_STREAM, name))

    async def info(self, name: str | None = None) -> list[asyncpg.Record]:
        """Policy and counts of each stream, or of one."""
        return await self._database.fetch(sql.STREAM_INFO, name)

    async def subscribe(
        self, stream: str, subscriber: str, position: str | int | datetime = "last"
    ) -> bool:
        """Add a subscriber. False: there was one of this name, and it stays where it is."""
        args = stream, subscriber, as_position(position)
        return bool(await self._database.value(sql.SUBSCRIBE, *args))

    async def subscribe_all(self, subscribers: Iterable[Subscribing]) -> list[tuple[str, str]]:
        """Create what is missing of these streams and subscriptions; return those that were."""
        streams = {row["stream"] for row in await self.info()}
        existing = {(it.stream, it.subscriber) for it in await self.subscriptions()}
        missing = [it for it in subscribers if it.subscription not in existing]
        for subscriber in missing:
            if subscriber.stream not in streams:
                await self.create(subscriber.stream, subscriber.stream_policy)
            await self.subscribe(*subscriber.subscription, subscriber.position)
        return [subscriber.subscription for subscriber in missing]

    async def unsubscribe(self, stream: str, subscriber: str) -> bool:
        """Remove a subscriber, and what waits to be delivered to it again. False: none was there.

        Its dead events stay in the archive.
        """
        return bool(await self._database.value(sql.UNSUBSCRIBE, stream, subscriber))

    async def seek(self, stream: str, subscriber: str, position: str | int | datetime) -> None:
        """Have a subscriber go on from another position; a batch that it has open is given up."""
        await self._database.fetch(sql.SEEK, stream, subscriber, as_position(position))

    async def forward(
        self,
        stream: str,
        subscriber: str,
        queue: str,
        position: str | int | datetime = "last",
        filter: str | None = None,
    ) -> bool:
        """Move the events of a subscription into a queue, each exactly once.

        Subscribes at `position` if need be; `filter` is a JSON path, other events are left out.
        False: it forwarded already, and goes on into this queue.
        """
        args = stream, subscriber, queue, as_position(position), filter
        return bool(await self._database.value(sql.FORWARD, *args))

    async def unforward(self, stream: str, subscriber: str, *, keep: bool = False) -> bool:
        """End forwarding, and the subscription unless it is to be kept. False: it did not."""
        return bool(await self._database.value(sql.UNFORWARD, stream, subscriber, keep))

    async def forwards(self, stream: str | None = None) -> list[asyncpg.Record]:
        """Which subscriptions forward into which queue, and why one fails."""
        return await self._database.fetch(sql.FORWARDS, stream)

    async def tick(self, stream: str | None = None) -> int | None:
        """Cut a tick and return its number, or how many streams were ticked, where none is named.

        Nobody has to: `next_batch` cuts one where something is there.
        """
        number: int | None = await self._database.value(sql.TICK, stream)
        return number

    async def subscriptions(
        self, stream: str | None = None, subscriber: str | None = None
    ) -> list[SubscriptionInfo]:
        """Where subscriptions stand: all, those of a stream, or one."""
        rows = await self._database.fetch(sql.SUBSCRIPTION_INFO, stream, subscriber)
        return [SubscriptionInfo.from_row(row) for row in rows]


def as_position(position: str | int | datetime) -> str:
    """A position as the functions take it."""
    if not isinstance(position, datetime):
        return str(position)
    instant("position", position)
    return zoned(position).isoformat()
