"""Connections of the caller's, whatever driver they are of: run a call on one as on our own.

Nothing is imported for it: whoever has a connection of a library has imported that library.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import asyncpg

from notifyq.database.pool import explaining
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from typing import TypeAlias

    from notifyq.database.pool import AnyConnection

_PLACE = re.compile(r"\$(\d+)")
_OURS = re.compile("NQ...|22...|42501|42883|42P01|3F000")
"""What of the server's answers is about our call. The others, like a serialization failure, are for
whoever owns the transaction, who knows them as errors of the driver."""


class Blocking(Protocol):
    """A connection of psycopg or Django, a connection or session of SQLAlchemy."""

    def commit(self) -> None:
        """End the transaction."""


class Asynchronous(Protocol):
    """Their twins of asyncio."""

    def commit(self) -> Coroutine[Any, Any, None]:
        """End the transaction."""


if TYPE_CHECKING:
    Awaited: TypeAlias = AnyConnection | Asynchronous


class Borrowed(Protocol):
    """A connection of the caller's, with a transaction open or not."""

    blocks: ClassVar[bool]
    """Whether a call blocks the thread and is through when it returns, without an event loop."""

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        """Run a call and return its rows."""

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Open a transaction, or a savepoint where one is open."""


def borrow(connection: Any) -> Borrowed:
    """Find out what a connection is of; raise ConfigurationError for anything else."""
    for module, name, kind in _KINDS:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and isinstance(connection, known):
            return kind(connection)
    raise ConfigurationError(
        f"{type(connection).__name__!r} is not a connection that can publish: give one of asyncpg, "
        "psycopg or Django, or a connection or session of SQLAlchemy"
    )


class _Asyncpg:
    blocks: ClassVar = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        with explaining("the connection of the caller"):
            rows: list[Sequence[Any]] = await self._connection.fetch(statement, *args)
        return rows

    def transaction(self) -> AbstractAsyncContextManager[object]:
        opened: AbstractAsyncContextManager[object] = self._connection.transaction()
        return opened


class _Psycopg:
    blocks: ClassVar = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        from psycopg import RawCursor, rows

        # A cursor of our own: that of the connection may have other placeholders and rows.
        with _translating(), RawCursor(self._connection, row_factory=rows.tuple_row) as cursor:
            return cursor.execute(statement.encode(), _untyped(args)).fetchall()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self._connection.transaction():
            yield


class _PsycopgAsync:
    blocks: ClassVar = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        from psycopg import AsyncRawCursor, rows

        with _translating():
            async with AsyncRawCursor(self._connection, row_factory=rows.tuple_row) as cursor:
                await cursor.execute(statement.encode(), _untyped(args))
                return await cursor.fetchall()

    def transaction(self) -> AbstractAsyncContextManager[object]:
        opened: AbstractAsyncContextManager[object] = self._connection.transaction()
        return opened


class _Alchemy:
    blocks: ClassVar = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        with _translating():
            return _tuples(self._connection.execute(_clause(statement, args)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self._connection.begin_nested():
            yield


class _AlchemyAsync:
    blocks: ClassVar = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        with _translating():
            return _tuples(await self._connection.execute(_clause(statement, args)))

    def transaction(self) -> AbstractAsyncContextManager[object]:
        opened: AbstractAsyncContextManager[object] = self._connection.begin_nested()
        return opened


class _Django:
    blocks: ClassVar = True

    def __init__(self, connection: Any) -> None:
        if connection.vendor != "postgresql":
            raise ConfigurationError(
                f"the database {connection.alias!r} of Django is {connection.vendor}: "
                "messages live in PostgreSQL"
            )
        self._connection = connection

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        places: list[Any] = [args[int(place) - 1] for place in _PLACE.findall(statement)]
        with _translating(), self._connection.cursor() as cursor:
            cursor.execute(_PLACE.sub("%s", statement.replace("%", "%%")), _untyped(places))
            rows: list[Sequence[Any]] = cursor.fetchall()
        return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        from django.db.transaction import atomic  # type: ignore[import-untyped]  # it has no types

        with atomic(using=self._connection.alias):
            yield


_KINDS: tuple[tuple[str, str, Callable[[Any], Borrowed]], ...] = (
    ("asyncpg", "Connection", _Asyncpg),
    ("asyncpg.pool", "PoolConnectionProxy", _Asyncpg),
    ("psycopg", "Connection", _Psycopg),
    ("psycopg", "AsyncConnection", _PsycopgAsync),
    ("sqlalchemy.engine", "Connection", _Alchemy),
    ("sqlalchemy.orm", "Session", _Alchemy),
    ("sqlalchemy.orm", "scoped_session", _Alchemy),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", _AlchemyAsync),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _AlchemyAsync),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _AlchemyAsync),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _Django),
    ("django.utils.connection", "ConnectionProxy", _Django),
)


def _zoned(args: Sequence[Any]) -> list[Any]:
    """Instants without a zone are local ones, as asyncpg takes them."""
    return [arg.astimezone() if isinstance(arg, datetime) else arg for arg in args]


def _untyped(args: Sequence[Any]) -> list[Any]:
    """Numbers as text: sent as bigint they would fit no parameter that is an integer."""
    return [str(arg) if isinstance(arg, int | str) else arg for arg in _zoned(args)]


def _tuples(result: Any) -> list[Sequence[Any]]:
    return [tuple(row) for row in result]


def _clause(statement: str, args: Sequence[Any]) -> Any:
    """Write a statement as SQLAlchemy has it, with the type of each value."""
    from sqlalchemy import bindparam, text

    named = text(_PLACE.sub(r":p\1", statement.replace(":", "\\:")))
    return named.bindparams(
        *[
            bindparam(f"p{number}", value, type_=_alchemy_type(value))
            for number, value in enumerate(_zoned(args), 1)
        ]
    )


def _alchemy_type(value: Any) -> Any:
    import sqlalchemy as sa
    from sqlalchemy.dialects.postgresql import ARRAY

    match value:
        case int():
            return sa.Integer()
        case str():
            return sa.Text()
        case datetime():
            return sa.DateTime(timezone=True)
        case timedelta():
            return sa.Interval()
        case list():
            is_of_ids = any(isinstance(part, int) for part in value)
            return ARRAY(sa.BigInteger() if is_of_ids else sa.Text())
    return None


@contextmanager
def _translating() -> Iterator[None]:
    """Raise the error that asyncpg would for an answer to our call, ours included."""
    try:
        yield
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        with explaining("the connection of the caller"):
            raise ours from error


def _translated(error: BaseException) -> BaseException | None:
    """The error of asyncpg for one of another driver, or for one that wraps it."""
    chain: BaseException | None = error
    while chain is not None:
        state = getattr(chain, "sqlstate", None) or getattr(chain, "pgcode", None)
        if isinstance(state, str):
            return _raised_by_server(chain, state) if _OURS.fullmatch(state) else None
        # Refused by the driver: half a character, a NUL in a text.
        if isinstance(chain, UnicodeEncodeError) or _is_data_error(chain):
            return asyncpg.DataError(str(chain))
        chain = getattr(chain, "orig", None) or chain.__cause__
    return None


def _is_data_error(error: BaseException) -> bool:
    # Those that wrap another one are judged by that.
    wraps = hasattr(error, "orig") or error.__cause__ is not None
    return type(error).__name__ == "DataError" and not wraps


def _raised_by_server(error: BaseException, state: str) -> asyncpg.PostgresError:
    told = getattr(error, "diag", None)
    text = getattr(told, "message_primary", None) or str(error)
    hint = getattr(told, "message_hint", None) or getattr(error.__cause__, "hint", None)
    detail = getattr(told, "message_detail", None) or getattr(error.__cause__, "detail", None)
    fields = {"C": state, "M": text, "H": hint, "D": detail}
    return asyncpg.PostgresError.new({name: value for name, value in fields.items() if value})
