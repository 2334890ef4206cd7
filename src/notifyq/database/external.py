"""Connections that callers pass in, of any driver: run our calls on them.

No driver is imported for it: a caller that has a connection has imported its library.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import asyncpg

from notifyq.arguments import zoned
from notifyq.database.installs import renamed
from notifyq.database.pool import explaining
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
    from typing import TypeAlias

    from notifyq.database.pool import AnyConnection

_PARAMETER = re.compile(r"\$(\d+)")
_CALL_ERRORS = re.compile("NQ...|22...|42501|42883|42P01|3F000")
"""SQLSTATEs that are about our call. Others, such as a serialization failure, stay errors of the
driver: the owner of the transaction handles those."""


class Blocking(Protocol):
    """A connection of psycopg or Django, a connection or session of SQLAlchemy."""

    def commit(self) -> None:
        """End the transaction."""


class Asynchronous(Protocol):
    """The asyncio variants of these."""

    def commit(self) -> Coroutine[Any, Any, None]:
        """End the transaction."""


if TYPE_CHECKING:
    Awaited: TypeAlias = AnyConnection | Asynchronous


class External:
    """A connection of the caller, with or without an open transaction; here one of asyncio."""

    blocks: ClassVar[bool] = False
    """Whether a call blocks the thread and needs no event loop."""
    begin: ClassVar[str] = "transaction"
    """The driver's method that opens a transaction, or a savepoint in an open one."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        """Run a call and return its rows."""
        return await self._fetch(renamed(statement, self._schema), *args)

    async def _fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        raise NotImplementedError

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Open a transaction, or a savepoint in an open one."""
        opened: AbstractAsyncContextManager[object] = getattr(self._connection, self.begin)()
        return opened


class _Sync(External):
    """A connection that blocks."""

    blocks = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with getattr(self._connection, self.begin)():
            yield


def adapt(connection: Any, schema: str) -> External:
    """Wrap a connection of any known driver, for calls to an install.

    Raises ConfigurationError for anything else.
    """
    for module, name, kind in _KINDS:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and isinstance(connection, known):
            return kind(connection, schema)
    raise ConfigurationError(
        f"{type(connection).__name__!r} is not a connection that can publish: give one of asyncpg, "
        "psycopg or Django, or a connection or session of SQLAlchemy"
    )


class _Asyncpg(External):
    async def _fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        with explaining("the connection of the caller"):
            rows: list[Sequence[Any]] = await self._connection.fetch(statement, *args)
        return rows


class _Psycopg(_Sync):
    async def _fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        from psycopg import RawCursor, rows

        # A cursor of our own: that of the connection may have other placeholders and rows.
        with _translating(), RawCursor(self._connection, row_factory=rows.tuple_row) as cursor:
            return cursor.execute(statement.encode(), _untyped(args)).fetchall()


class _PsycopgAsync(External):
    async def _fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        from psycopg import AsyncRawCursor, rows

        with _translating():
            async with AsyncRawCursor(self._connection, row_factory=rows.tuple_row) as cursor:
                await cursor.execute(statement.encode(), _untyped(args))
                return await cursor.fetchall()


class _Alchemy(_Sync):
    begin = "begin_nested"

    async def _fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        with _translating():
            return [tuple(row) for row in self._connection.execute(_clause(statement, args))]


class _AlchemyAsync(External):
    begin = "begin_nested"

    async def _fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        with _translating():
            return [tuple(row) for row in await self._connection.execute(_clause(statement, args))]


class _Django(_Sync):
    def __init__(self, connection: Any, schema: str) -> None:
        if connection.vendor != "postgresql":
            raise ConfigurationError(
                f"the database {connection.alias!r} of Django is {connection.vendor}: "
                "messages live in PostgreSQL"
            )
        super().__init__(connection, schema)

    async def _fetch(self, statement: str, *args: Any) -> Sequence[Sequence[Any]]:
        values: list[Any] = [args[int(number) - 1] for number in _PARAMETER.findall(statement)]
        with _translating(), self._connection.cursor() as cursor:
            cursor.execute(_PARAMETER.sub("%s", statement.replace("%", "%%")), _untyped(values))
            rows: list[Sequence[Any]] = cursor.fetchall()
        return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        from django.db.transaction import atomic

        with atomic(using=self._connection.alias):
            yield


_KINDS: tuple[tuple[str, str, type[External]], ...] = (
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
    """Datetimes without a zone are local ones, as in asyncpg."""
    return [zoned(arg) if isinstance(arg, datetime) else arg for arg in args]


def _untyped(args: Sequence[Any]) -> list[Any]:
    """Send numbers as text: a bigint does not match an integer parameter."""
    return [str(arg) if isinstance(arg, int | str) else arg for arg in _zoned(args)]


def _clause(statement: str, args: Sequence[Any]) -> Any:
    """Translate a statement for SQLAlchemy, with the type of each value."""
    from sqlalchemy import bindparam, text

    named = text(_PARAMETER.sub(r":p\1", statement.replace(":", "\\:")))
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
    """Raise the error that asyncpg, or notifyq, would raise for an answer to our call."""
    try:
        yield
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        with explaining("the connection of the caller"):
            raise ours from error


def _translated(error: BaseException) -> BaseException | None:
    """The error of asyncpg for one of another driver, also where another error wraps it."""
    chain: BaseException | None = error
    while chain is not None:
        state = getattr(chain, "sqlstate", None) or getattr(chain, "pgcode", None)
        if isinstance(state, str):
            return _raised_by_server(chain, state) if _CALL_ERRORS.fullmatch(state) else None
        # The driver itself refuses half a character and a NUL in a text.
        if isinstance(chain, UnicodeEncodeError) or _is_data_error(chain):
            return asyncpg.DataError(str(chain))
        chain = getattr(chain, "orig", None) or chain.__cause__
    return None


def _is_data_error(error: BaseException) -> bool:
    # An error that wraps another one is judged by that one.
    wraps = hasattr(error, "orig") or error.__cause__ is not None
    return type(error).__name__ == "DataError" and not wraps


def _raised_by_server(error: BaseException, state: str) -> asyncpg.PostgresError:
    report = getattr(error, "diag", None)
    text = getattr(report, "message_primary", None) or str(error)
    hint = getattr(report, "message_hint", None) or getattr(error.__cause__, "hint", None)
    detail = getattr(report, "message_detail", None) or getattr(error.__cause__, "detail", None)
    fields = {"C": state, "M": text, "H": hint, "D": detail}
    return asyncpg.PostgresError.new({name: value for name, value in fields.items() if value})
