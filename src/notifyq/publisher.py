"""Publishing: one message, many, or a stream of them by COPY."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import asyncpg
from pydantic_core import PydanticSerializationError, to_json

from notifyq import sql
from notifyq.database import explaining
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable
    from datetime import datetime, timedelta

    from notifyq.database import AnyConnection, Database

# What a numeric holds, before and after the point.
_MOST_DIGITS = 131_072
_MOST_DECIMALS = 16_383

_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


_NO_TIMEOUT = 10.0 * 365 * 86_400
"""Seconds. None would be the timeout of all commands."""


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
        priority: int = 0,
        delay: timedelta | None = None,
        available_at: datetime | None = None,
        type: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> list[int]:
        """Publish messages with one statement and one bell; return their ids in order."""
        args = (
            queue,
            [encode(payload) for payload in payloads],
            priority,
            delay,
            available_at,
            type,
            None if headers is None else encode(headers),
        )
        return await self._ids(connection, sql.PUBLISH_MANY, *args)

    async def copy(
        self,
        queue: str,
        messages: AsyncIterable[Json],
        *,
        priority: int = 0,
        delay: timedelta | None = None,
        available_at: datetime | None = None,
        type: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Publish by COPY, all or none; return how many. `delay` counts from now."""
        columns: dict[str, Any] = {"queue": queue, "priority": priority, "type": type}
        if headers is not None:
            columns["headers"] = encode(headers)
        if delay is not None:
            available_at = await self._database.value(sql.LATER, delay)
        if available_at is not None:
            columns["available_at"] = available_at
        values = tuple(columns.values())

        async def rows() -> AsyncIterator[tuple[Any, ...]]:
            async for message in messages:
                yield *values, message

        async with self._database.connection() as connection:
            tag = await connection.copy_records_to_table(
                "message",
                schema_name="messages",
                columns=[*columns, "message"],
                records=rows(),
                # A stream takes as long as its source does.
                timeout=_NO_TIMEOUT,
            )
        return int(tag.split()[-1])

    async def _ids(self, connection: AnyConnection | None, statement: str, *args: Any) -> list[int]:
        try:
            if connection is None:
                rows = await self._database.fetch(statement, *args)
            else:
                with explaining(self._database.dsn):
                    rows = await connection.fetch(statement, *args)
        except asyncpg.DataError as error:
            # NaN, \u0000, half a surrogate pair, a date beyond what PostgreSQL has.
            raise ConfigurationError(f"PostgreSQL cannot store the message: {error}") from error
        return [row[0] for row in rows]


def check_json(text: str) -> None:
    """Raise ValueError, saying why, for a text that PostgreSQL would not take as jsonb."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        # Numbers are left as text: PostgreSQL keeps more digits than Python turns into an int.
        json.loads(text, parse_constant=refuse, parse_int=_check_size, parse_float=_check_size)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
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
