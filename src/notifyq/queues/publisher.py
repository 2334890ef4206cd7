"""Publishing: one message, many, or a stream of them in batches."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.encoding import storing
from notifyq.database.external import adapt
from notifyq.errors import ConfigurationError, InvalidArgumentError
from notifyq.models.payload import check_json, encode
from notifyq.queues.publish_options import (
    ManyOptions,
    MessageOptions,
    Options,
    after_keys,
    before_keys,
    text,
)
from notifyq.queues.published import Published, of_batch

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from notifyq.database.encryption.envelopes import Keys
    from notifyq.database.external import Awaited, External
    from notifyq.database.pool import AnyConnection, Database
    from notifyq.queues.payload_schema import PayloadSchemas
    from notifyq.queues.publish_options import KeyOf
    from notifyq.telemetry.tracing import Tracing

_KEYS = ("dedup_key", "key")
_MOST = 10_000
"""Most messages of a statement: more are hardly faster, and need memory on both sides."""
_LARGEST = 8_000_000
"""Characters of a statement without its last message: an array must be smaller than 1 GB."""


class PublishOptions(MessageOptions, total=False):
    """Options of one message, and where it is published."""

    connection: Awaited | None
    """Publish in its transaction; by default the message is committed at once."""


class PublishManyOptions(ManyOptions, total=False):
    """Options of many messages, and where they are published."""

    connection: Awaited | None
    """Publish in its transaction; by default the messages are committed at once."""


class PublishStreamOptions(PublishManyOptions, total=False):
    """Options of a stream of messages, and how large its batches are."""

    batch: int


class Publisher:
    """Publishes into queues, on the pool or in a transaction of the caller.

    `connection` is a connection of the caller: the message exists when its transaction commits, and
    never if it rolls back. Any library that `notifyq.within` supports will do, if its calls are
    awaited. With `schemas`, payloads are checked before anything is sent. With `tracing`, each call
    is a span, which the headers carry.
    """

    def __init__(
        self,
        database: Database,
        *,
        schemas: PayloadSchemas | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._database = database
        self._keys = database.keys
        self._schema = database.schema
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
    ) -> Published:
        """Publish a message and return its id; where `dedup_key` is taken, the id that holds it.

        `is_duplicate` of the id: no new message was published.
        `key` groups messages: order, limits and fairness of a queue can depend on it.
        """
        with self._span(queue, options) as span:
            encoded = encode(payload)
            if self._schemas is not None:
                await self._schemas.check(queue, [encoded])
            if self._keys is not None:
                [encoded] = await self._encrypted(connection, queue, [encoded], self._keys)
            keys = text("dedup_key", dedup_key), text("key", key)
            args = (queue, encoded, *before_keys(options), *keys, *after_keys(options))
            number, is_duplicate = await self._row(connection, sql.PUBLISH, *args)
            if span is not None:
                span.set_attribute("messaging.message.id", str(number))
            return Published(number, is_duplicate=is_duplicate)

    async def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        connection: Awaited | None = None,
        dedup_key: KeyOf | None = None,
        key: KeyOf | None = None,
        **options: Unpack[Options],
    ) -> list[Published]:
        """Publish messages, all or none; return their ids in order.

        `dedup_key` and `key` return the keys of a payload, or None; where the `dedup_key` is taken,
        the id that holds it is returned, and its `is_duplicate` is true. Each 10,000 share one
        statement and one notification.
        """
        gathered = _Gathered(dedup_key, key)
        batches = [full for payload in payloads if (full := gathered.add(payload))]
        if not batches:
            return await self._publish_batch(connection, queue, gathered.take(), **options)
        if (rest := gathered.take()).texts:
            batches.append(rest)
        published: list[Published] = []
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
    ) -> AsyncIterator[list[Published]]:
        """Publish a stream in batches, in bounded memory; yield the ids of each batch.

        A batch is published, all or none, when it is full or the stream ends; in an open
        transaction of `connection`, when that commits. An error has the position of its message,
        counted from 1; the batches that were yielded before it are published.
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
        """Open a transaction for a stream that is published all or none, even a slow one."""
        async with self._database.begun() as connection:
            await connection.execute(sql.NO_IDLE_TIMEOUT)
            yield connection

    @asynccontextmanager
    async def joining(self, connection: Awaited | None) -> AsyncIterator[Awaited]:
        """Open a transaction, inside that of the caller if there is one; give its connection."""
        if connection is None:
            async with self._database.begun() as own:
                yield own
        else:
            async with self._adapt(connection).transaction():
                yield connection

    def _adapt(self, connection: Awaited) -> External:
        external = adapt(connection, self._schema)
        if external.blocks:
            raise ConfigurationError(
                "calls on this connection would block the event loop: publish on it with "
                "notifyq.within.publish(connection, queue, payload)"
            )
        return external

    def _span(
        self, queue: str, options: Options, quantity: int | None = None
    ) -> AbstractContextManager[Span | None]:
        if self._tracing is None:
            return nullcontext()
        return self._tracing.publishing(queue, cast("dict[str, Any]", options), quantity)

    async def _publish_batch(
        self,
        connection: Awaited | None,
        queue: str,
        batch: _Batch,
        *,
        before: int = 0,
        **options: Unpack[Options],
    ) -> list[Published]:
        with self._span(queue, options, len(batch.texts)):
            if self._schemas is not None:
                await self._schemas.check(queue, batch.texts, before=before)
            texts = batch.texts
            if self._keys is not None:
                texts = await self._encrypted(connection, queue, texts, self._keys)
            args = (queue, texts, *before_keys(options), *batch.keys, *after_keys(options))
            try:
                ids, duplicates = await self._row(connection, sql.PUBLISH_MANY, *args)
            except _NotStoredError as error:
                for position, encoded in enumerate(batch.texts, before + 1):
                    try:
                        check_json(encoded)
                    except ValueError as reason:
                        raise ConfigurationError(
                            f"PostgreSQL cannot store the message at position {position}: {reason}"
                        ) from error
                raise
            keeps_first = options.get("on_duplicate", "keep") == "keep"
            return of_batch(ids, duplicates, keeps_first=keeps_first)

    async def _encrypts(self, _connection: Awaited | None, queue: str) -> bool:
        return await self._database.encrypts(queue)

    def _forget_encrypted(self) -> None:
        self._database.forget_encrypted()

    async def _encrypted(
        self, connection: Awaited | None, queue: str, texts: list[str], keys: Keys
    ) -> list[str]:
        """The texts as this queue or stream takes them."""
        if not await self._encrypts(connection, queue):
            return texts
        return [keys.encrypt_json(queue, "payload", it) for it in texts]

    async def _row(
        self, connection: Awaited | None, statement: str, *args: Any
    ) -> asyncpg.Record | Sequence[Any]:
        try:
            calls = self._database if connection is None else self._adapt(connection)
            with storing("the message", _NotStoredError):
                rows = await calls.fetch(statement, *args)
        except InvalidArgumentError:
            if self._keys is not None:
                self._forget_encrypted()  # the queue may be encrypted since
            raise
        return rows[0]


class _NotStoredError(ConfigurationError):
    pass


class _Batch(NamedTuple):
    texts: list[str]
    keys: list[list[str | None] | None]


class _Gathered:
    """Payloads that gather into a batch of bounded number and size."""

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
        """Add a payload; return the batch if it is full."""
        encoded = encode(payload)
        self._texts.append(encoded)
        self._size += len(encoded)
        for name, keys, make in zip(_KEYS, self._keys, self._makers, strict=True):
            if keys is not None and make is not None:
                keys.append(text(name, make(payload)))
        is_full = len(self._texts) >= self._most or self._size >= _LARGEST
        return self.take() if is_full else None

    def take(self) -> _Batch:
        """Return the batch so far and begin a new one."""
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
