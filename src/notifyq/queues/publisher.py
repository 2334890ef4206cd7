"""Publishing: one message, many, or a stream of them in batches."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import asyncpg

from notifyq.database import sql
from notifyq.database.external import borrow
from notifyq.errors import ConfigurationError
from notifyq.models.payload import check_json, encode
from notifyq.queues.publish_options import (
    ManyOptions,
    MessageOptions,
    Options,
    before_keys,
    behind_keys,
    text,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from notifyq.database.external import Awaited, Borrowed
    from notifyq.database.pool import AnyConnection, Database
    from notifyq.queues.payload_schema import PayloadSchemas
    from notifyq.queues.publish_options import KeyOf
    from notifyq.telemetry.tracing import Tracing

_KEYS = ("dedup_key", "key")
_MOST = 10_000
"""Messages of a statement: more are hardly faster, and take memory here and there."""
_LARGEST = 8_000_000
"""Characters of a statement, but for the last of its messages; an array has less than 1 GB."""


class PublishOptions(MessageOptions, total=False):
    """What holds for one message, and where it is published."""

    connection: Awaited | None
    """In whose transaction; by default it is committed at once."""


class PublishManyOptions(ManyOptions, total=False):
    """What holds for many messages, and where they are published."""

    connection: Awaited | None
    """In whose transaction; by default they are committed at once."""


class PublishStreamOptions(PublishManyOptions, total=False):
    """What holds for a stream of messages, and where and in what portions they are published."""

    batch: int


class Publisher:
    """Publish into queues, on the pool or inside a transaction of the caller's.

    `connection` is the caller's own, with a transaction open or not: the message is there when
    that transaction commits, and not if it doesn't. It may be of any library that
    `notifyq.within` knows, if calls on it are awaited. With `schemas` payloads are checked here
    too, and nothing is sent for one that the schema of its queue refuses; with `tracing` each
    call is a span, which the headers carry.
    """

    def __init__(
        self,
        database: Database,
        *,
        schemas: PayloadSchemas | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._database = database
        self._schemas = schemas
        self._tracing = tracing

    async def publish(
        self,
        queue: str,
        payload: Any,
        *,
        connection: Awaited | None = None,
        dedup_key: str | None = None,
        key: str | None = None,
        **options: Unpack[Options],
    ) -> int:
        """Publish one message and return its id; where `dedup_key` is taken, the id that has it.

        `key` says what the message is about: order, limits and shares of a queue may go by it.
        """
        if self._tracing is None:
            return await self._publish(queue, payload, connection, (dedup_key, key), options)
        with self._tracing.publishing(queue, cast("dict[str, Any]", options)) as span:
            number = await self._publish(queue, payload, connection, (dedup_key, key), options)
            span.set_attribute("messaging.message.id", str(number))
            return number

    async def _publish(
        self,
        queue: str,
        payload: Any,
        connection: Awaited | None,
        keys: tuple[str | None, str | None],
        options: Options,
    ) -> int:
        encoded = encode(payload)
        if self._schemas is not None:
            await self._schemas.check(queue, [encoded])
        named = (text("dedup_key", keys[0]), text("key", keys[1]))
        args = (queue, encoded, *before_keys(options), *named, *behind_keys(options))
        [published] = await self._ids(connection, sql.PUBLISH, *args)
        return published

    async def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        connection: Awaited | None = None,
        dedup_key: KeyOf | None = None,
        key: KeyOf | None = None,
        **options: Unpack[Options],
    ) -> list[int]:
        """Publish messages, all or none; return their ids in order.

        `dedup_key` and `key` give the keys of a payload, or None; where the `dedup_key` is taken,
        the id that has it is returned. Every 10,000 have one statement and one bell.
        """
        gathered = _Gathered(dedup_key, key)
        batches = [full for payload in payloads if (full := gathered.add(payload))]
        if not batches:
            return await self._publish_batch(connection, queue, gathered.take(), **options)
        if (rest := gathered.take()).texts:
            batches.append(rest)
        published: list[int] = []
        async with self.joining(connection) as held:
            for batch in batches:
                published += await self._publish_batch(
                    held, queue, batch, before=len(published), **options
                )
        return published

    async def publish_stream(
        self,
        queue: str,
        payloads: AsyncIterable[Any] | Iterable[Any],
        *,
        batch: int = 1000,
        connection: Awaited | None = None,
        dedup_key: KeyOf | None = None,
        key: KeyOf | None = None,
        **options: Unpack[Options],
    ) -> AsyncIterator[list[int]]:
        """Publish a stream in batches, in bounded memory; yield the ids of each batch.

        A batch is published, all of it or none, when it has so many messages or the stream ends;
        with a `connection` that has a transaction open, when that commits. An error says which
        message it is about, counted from 1; what was yielded before it is published.
        """
        gathered = _Gathered(dedup_key, key, batch)
        published = 0
        async for payload in _each(payloads):
            if full := gathered.add(payload):
                yield await self._publish_batch(
                    connection, queue, full, before=published, **options
                )
                published += len(full.texts)
        if (rest := gathered.take()).texts:
            yield await self._publish_batch(connection, queue, rest, before=published, **options)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AnyConnection]:
        """Open a transaction for a stream that is published all or none, however slow it is."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(sql.PATIENCE)
            yield connection

    @asynccontextmanager
    async def joining(self, connection: Awaited | None) -> AsyncIterator[Awaited]:
        """Open a transaction of our own, or one inside of the caller's, and give its connection."""
        if connection is None:
            async with self._database.connection() as own, own.transaction():
                yield own
        else:
            async with self._borrow(connection).transaction():
                yield connection

    def _borrow(self, connection: Awaited) -> Borrowed:
        borrowed = borrow(connection)
        if borrowed.blocks:
            raise ConfigurationError(
                "calls on this connection would block the event loop: publish on it with "
                "notifyq.within.publish(connection, queue, payload)"
            )
        return borrowed

    async def _publish_batch(
        self,
        connection: Awaited | None,
        queue: str,
        batch: _Batch,
        *,
        before: int = 0,
        **options: Unpack[Options],
    ) -> list[int]:
        if self._tracing is None:
            return await self._send(connection, queue, batch, before, options)
        given, quantity = cast("dict[str, Any]", options), len(batch.texts)
        with self._tracing.publishing(queue, given, quantity):
            return await self._send(connection, queue, batch, before, options)

    async def _send(
        self,
        connection: Awaited | None,
        queue: str,
        batch: _Batch,
        before: int,
        options: Options,
    ) -> list[int]:
        if self._schemas is not None:
            await self._schemas.check(queue, batch.texts, before=before)
        args = (queue, batch.texts, *before_keys(options), *batch.keys, *behind_keys(options))
        try:
            return await self._ids(connection, sql.PUBLISH_MANY, *args)
        except _NotStoredError as error:
            for number, encoded in enumerate(batch.texts, before + 1):
                try:
                    check_json(encoded)
                except ValueError as reason:
                    raise ConfigurationError(
                        f"PostgreSQL cannot store the message at position {number}: {reason}"
                    ) from error
            raise

    async def _ids(self, connection: Awaited | None, statement: str, *args: Any) -> list[int]:
        try:
            if connection is None:
                own = await self._database.fetch(statement, *args)
                return [row[0] for row in own]
            rows = await self._borrow(connection).fetch(statement, *args)
        except asyncpg.DataError as error:
            # NaN, \u0000, half a surrogate pair, a date beyond what PostgreSQL has.
            raise _NotStoredError(f"PostgreSQL cannot store the message: {error}") from error
        return [row[0] for row in rows]


class _NotStoredError(ConfigurationError):
    pass


class _Batch(NamedTuple):
    texts: list[str]
    keys: list[list[str | None] | None]


class _Gathered:
    """Payloads as they gather to a batch of bounded number and size."""

    def __init__(self, dedup_key: KeyOf | None, key: KeyOf | None, most: int = _MOST) -> None:
        self._makers = dedup_key, key
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._texts: list[str] = []
        self._keys: list[list[str | None] | None] = [
            None if make is None else [] for make in self._makers
        ]
        self._size = 0

    def add(self, payload: Any) -> _Batch | None:
        """Add one and return the batch if it is full."""
        encoded = encode(payload)
        self._texts.append(encoded)
        self._size += len(encoded)
        for name, keys, make in zip(_KEYS, self._keys, self._makers, strict=True):
            if keys is not None and make is not None:
                keys.append(text(name, make(payload)))
        is_full = len(self._texts) >= self._most or self._size >= _LARGEST
        return self.take() if is_full else None

    def take(self) -> _Batch:
        """Return what has gathered and begin anew."""
        batch = _Batch(self._texts, self._keys)
        self._begin()
        return batch


async def _each(payloads: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    if isinstance(payloads, AsyncIterable):
        async for payload in payloads:
            yield payload
    else:
        for payload in payloads:
            yield payload
