"""Publishing: one message, many, or a stream of them in batches."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypedDict, Unpack

import asyncpg
from pydantic_core import PydanticSerializationError, to_json

from notifyq import sql
from notifyq.database import explaining
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from datetime import datetime, timedelta

    from notifyq.database import AnyConnection, Database

    DedupKey = Callable[[Any], str | None]

# What a numeric holds, before and after the point.
_MOST_DIGITS = 131_072
_MOST_DECIMALS = 16_383

_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


_MOST = 10_000
"""Messages of a statement: more are hardly faster, and take memory here and there."""
_LARGEST = 8_000_000
"""Characters of a statement, but for the last of its messages; an array has less than 1 GB."""


class Json(str):
    """A payload that is JSON text already: it is published as it is."""

    __slots__ = ()


def encode(payload: Any) -> str:
    """JSON text of a payload: plain data, dataclasses, pydantic models, dates, UUIDs, enums."""
    if isinstance(payload, Json):
        return payload
    try:
        return to_json(payload, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the payload cannot be written as JSON: {error}") from error


class Options(TypedDict, total=False):
    """What holds for each of many messages; as for one of them, see `Publisher.publish`."""

    priority: int
    delay: timedelta | None
    available_at: datetime | None
    type: str | None
    headers: dict[str, Any] | None


class Publisher:
    """Publish into queues, on the pool or inside a transaction of the caller's.

    `connection` is the caller's own, with a transaction open or not: the message is there when
    that transaction commits, and not if it doesn't.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(
        self,
        queue: str,
        payload: Any,
        *,
        connection: AnyConnection | None = None,
        priority: int = 0,
        delay: timedelta | None = None,
        available_at: datetime | None = None,
        type: str | None = None,
        headers: dict[str, Any] | None = None,
        dedup_key: str | None = None,
    ) -> int:
        """Publish one message and return its id; with a live `dedup_key`, the id that has it."""
        args = (
            queue,
            encode(payload),
            priority,
            delay,
            available_at,
            type,
            None if headers is None else encode(headers),
            dedup_key,
        )
        [published] = await self._ids(connection, sql.PUBLISH, *args)
        return published

    async def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        connection: AnyConnection | None = None,
        dedup_key: DedupKey | None = None,
        **options: Unpack[Options],
    ) -> list[int]:
        """Publish messages, all or none; return their ids in order.

        `dedup_key` gives the key of a payload, or None; while a live message has that key, its id
        is returned instead. There is one statement and one bell for every 10,000.
        """
        gathered = _Gathered(dedup_key)
        batches = [full for payload in payloads if (full := gathered.add(payload))]
        if not batches:
            return await self._publish_batch(connection, queue, gathered.take(), **options)
        if (rest := gathered.take()).texts:
            batches.append(rest)
        published: list[int] = []
        async with self._transaction(connection) as held:
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
        connection: AnyConnection | None = None,
        dedup_key: DedupKey | None = None,
        **options: Unpack[Options],
    ) -> AsyncIterator[list[int]]:
        """Publish a stream in batches, in bounded memory; yield the ids of each batch.

        A batch is published, all of it or none, when it has so many messages or the stream ends;
        with a `connection` that has a transaction open, when that commits. An error says which
        message it is about, counted from 1; what was yielded before it is published.
        """
        gathered = _Gathered(dedup_key, batch)
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
    async def _transaction(self, connection: AnyConnection | None) -> AsyncIterator[AnyConnection]:
        if connection is None:
            async with self._database.connection() as own, own.transaction():
                yield own
        else:
            async with connection.transaction():
                yield connection

    async def _publish_batch(
        self,
        connection: AnyConnection | None,
        queue: str,
        batch: _Batch,
        *,
        before: int = 0,
        priority: int = 0,
        delay: timedelta | None = None,
        available_at: datetime | None = None,
        type: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> list[int]:
        heads = None if headers is None else encode(headers)
        args = (queue, batch.texts, priority, delay, available_at, type, heads, batch.keys)
        try:
            return await self._ids(connection, sql.PUBLISH_MANY, *args)
        except _NotStoredError as error:
            for number, text in enumerate(batch.texts, before + 1):
                try:
                    check_json(text)
                except ValueError as reason:
                    raise ConfigurationError(
                        f"PostgreSQL cannot store the message at position {number}: {reason}"
                    ) from error
            raise

    async def _ids(self, connection: AnyConnection | None, statement: str, *args: Any) -> list[int]:
        try:
            if connection is None:
                rows = await self._database.fetch(statement, *args)
            else:
                with explaining(self._database.dsn):
                    rows = await connection.fetch(statement, *args)
        except asyncpg.DataError as error:
            # NaN, \u0000, half a surrogate pair, a date beyond what PostgreSQL has.
            raise _NotStoredError(f"PostgreSQL cannot store the message: {error}") from error
        return [row[0] for row in rows]


class _NotStoredError(ConfigurationError):
    pass


class _Batch(NamedTuple):
    texts: list[str]
    keys: list[str | None] | None


class _Gathered:
    """Payloads as they gather to a batch of bounded number and size."""

    def __init__(self, dedup_key: DedupKey | None, most: int = _MOST) -> None:
        self._key = dedup_key
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._texts: list[str] = []
        self._keys: list[str | None] = []
        self._size = 0

    def add(self, payload: Any) -> _Batch | None:
        """Add one and return the batch if it is full."""
        text = encode(payload)
        self._texts.append(text)
        self._size += len(text)
        if self._key is not None:
            self._keys.append(self._key(payload))
        is_full = len(self._texts) >= self._most or self._size >= _LARGEST
        return self.take() if is_full else None

    def take(self) -> _Batch:
        """Return what has gathered and begin anew."""
        batch = _Batch(self._texts, None if self._key is None else self._keys)
        self._begin()
        return batch


async def _each(payloads: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    if isinstance(payloads, AsyncIterable):
        async for payload in payloads:
            yield payload
    else:
        for payload in payloads:
            yield payload


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def check_json(text: str) -> None:
    """Raise ValueError, saying why, for a text that PostgreSQL would not take as jsonb."""
    try:
        _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if "\\u" not in text:
        return
    # Without the escaped backslashes, every backslash that is left begins an escape.
    escapes = text.replace("\\\\", "--")
    if "\\u0000" in escapes:
        raise ValueError("it has the character \\u0000, which PostgreSQL cannot store")
    if lone := _LONE_SURROGATE.search(escapes):
        raise ValueError(f"it has {lone.group()}, which is half a character")


def _check_size(number: str) -> None:
    mantissa, _, exponent = number.lower().partition("e")
    if not exponent and len(number) <= _MOST_DECIMALS:
        return
    whole, _, fraction = mantissa.partition(".")
    shift = int(exponent[:12] or 0)
    decimals = len(fraction) - shift
    significant = (whole + fraction).lstrip("-0")
    if decimals > _MOST_DECIMALS or (significant and len(significant) - decimals > _MOST_DIGITS):
        raise ValueError(f"the number {number[:20]} has more digits than PostgreSQL can store")


# Made once: it takes longer than a short text. Numbers stay text: PostgreSQL keeps more digits.
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=_check_size, parse_float=_check_size)
