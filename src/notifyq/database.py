"""Connections: how they are made, pooled, tried again, and how their errors become ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import weakref
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from notifyq.backoff import is_lost, is_misfit, is_passing, retrying
from notifyq.config import DatabaseSettings, masked
from notifyq.errors import (
    AccessDeniedError,
    ConfigurationError,
    DatabaseUnavailableError,
    NotifyqError,
    SchemaError,
    SchemaMissingError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import TypeAlias

    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    # What a caller's open transaction runs on: a connection of its own, or one of a pool.
    AnyConnection: TypeAlias = Connection | PoolConnectionProxy[asyncpg.Record]

log = logging.getLogger("notifyq.database")


def _session(name: str) -> dict[str, str]:
    return {
        "application_name": name,
        # Claims at SERIALIZABLE fail by the dozen, whatever the database's default says.
        "default_transaction_isolation": "read committed",
        # One that the role or the database has for the sake of others; ours is command_timeout.
        "statement_timeout": "0",
    }


def explained(error: BaseException, dsn: str) -> NotifyqError | None:
    """Our error for a foreign one, or None where it is not ours to explain."""
    where = masked(dsn)
    match error:
        case NotifyqError():
            return error
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return AccessDeniedError(f"{error}: check user and password of {where}")
        case asyncpg.InvalidCatalogNameError():
            return DatabaseUnavailableError(f"{error}: create it, or correct {where}")
        case asyncpg.InsufficientPrivilegeError():
            return AccessDeniedError(
                f"{error}: ask the owner for one of the roles notifyq_publisher, notifyq_worker, "
                "notifyq_reader, notifyq_admin"
            )
        case asyncpg.InvalidSchemaNameError():
            return SchemaMissingError(f"{error}: install the schema with `notifyq init`")
        case _ if is_misfit(error):
            return _misfit(error)
        case asyncpg.ClientConfigurationError() | ssl.SSLCertVerificationError():
            return ConfigurationError(f"the DSN {where} cannot be used: {error}")
        case _:
            return _unavailable(error, where) if is_passing(error) else None


def _misfit(error: BaseException) -> SchemaError:
    reason = f"{error}: the schema in the database and this package do not fit: "
    if isinstance(error, asyncpg.InterfaceError):
        return SchemaError(f"{reason}run `notifyq migrate`, or install the package that fits")
    return SchemaMissingError(f"{reason}run `notifyq migrate`, or `notifyq init` in a new database")


def _unavailable(error: BaseException, where: str) -> DatabaseUnavailableError:
    reason = str(error) or type(error).__name__
    if is_lost(error):
        return DatabaseUnavailableError(
            f"no connection to {where}: {reason}: is the server running?"
        )
    return DatabaseUnavailableError(f"{where} cannot do it now: {reason}: try again later")


@contextlib.contextmanager
def explaining(dsn: str) -> Iterator[None]:
    """Raise our errors in place of asyncpg's and the system's; the one place that translates."""
    try:
        yield
    except (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
    ) as error:
        ours = explained(error, dsn)
        if ours is None or isinstance(error, NotifyqError):
            raise
        raise ours from error


async def connect(dsn: str, *, name: str = "notifyq", timeout: float = 10) -> Connection:
    """Open one connection; `name` is what pg_stat_activity shows."""
    if not dsn.startswith(("postgres://", "postgresql://")):
        raise _unusable(dsn)
    with explaining(dsn):
        try:
            return await asyncpg.connect(dsn, timeout=timeout, server_settings=_session(name))
        except (asyncpg.ClientConfigurationError, OSError):
            raise  # a certificate that is not trusted is a ValueError, too
        except (ValueError, OverflowError):  # what asyncpg says to ports and hosts
            # What they say may quote a part of the DSN that was not meant as a port.
            raise _unusable(dsn) from None


def _unusable(dsn: str) -> ConfigurationError:
    return ConfigurationError(
        f"the DSN {masked(dsn)!r} cannot be used: "
        "it must look like postgresql://user:password@host:5432/database"
    )


class _Pooled(asyncpg.Connection):
    """A connection that is reset when it comes back from a user, and only then.

    Our own calls leave nothing behind, and a reset would double their round trips. What functions
    of ours keep in the session, for the next call on it, is meant to stay.
    """

    is_lent = False

    def lend(self) -> None:
        self.is_lent = True

    async def reset(self, *, timeout: float | None = None) -> None:
        if self.is_lent:
            await super().reset(timeout=timeout)
            self.is_lent = False


class Database:
    """A pool of connections that answers calls, trying again while a lost server comes back."""

    def __init__(
        self, dsn: str, *, settings: DatabaseSettings | None = None, name: str = "notifyq"
    ) -> None:
        self.dsn = dsn
        self.settings = settings or DatabaseSettings.load()
        self.name = name
        self._pool: Pool | None = None
        self._users = 0
        self._opening = asyncio.Lock()
        self._lanes: weakref.WeakSet[Database] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Database({masked(self.dsn)!r})"

    async def __aenter__(self) -> Database:
        await self.open()
        self._users += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._users -= 1
        if self._users == 0:  # workers of one process share it
            await self.close()

    async def open(self) -> Pool:
        """Connect, once; a server that is not there is an error at once."""
        async with self._opening:
            if self._pool is None:
                settings = self.settings
                timeout = settings.connect_timeout.total_seconds()
                # A single connection first: its errors are about this DSN, a pool's are not.
                await (await connect(self.dsn, name=self.name, timeout=timeout)).close()
                with explaining(self.dsn):
                    self._pool = await asyncpg.create_pool(
                        self.dsn,
                        # None that the pool would restore by itself: it logs each try that fails.
                        min_size=0,
                        max_size=settings.pool_size,
                        timeout=timeout,
                        command_timeout=settings.command_timeout.total_seconds(),
                        server_settings=_session(self.name),
                        connection_class=_Pooled,
                    )
            return self._pool

    def lane(self, size: int = 1) -> Database:
        """One more connection to the same server, or more: all calls over one share its session.

        It is opened by the first call, replaced if it is lost, and closed with this object.
        """
        settings = self.settings.model_copy(update={"pool_size": size})
        lane = Database(self.dsn, settings=settings, name=self.name)
        self._lanes.add(lane)
        return lane

    async def close(self) -> None:
        """Close the pool and the lanes; calls that still run get a few seconds."""
        await asyncio.gather(self._close_pool(), *(lane.close() for lane in self._lanes))

    async def _close_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(5):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AnyConnection]:
        """Borrow a connection of the pool, for a transaction or a COPY."""
        pool = await self.open()
        with explaining(self.dsn):
            async with pool.acquire() as connection:
                cast("_Pooled", connection).lend()
                yield connection

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Run a call once and return its rows."""
        pool = await self.open()
        with explaining(self.dsn):
            return await pool.fetch(statement, *args)

    async def value(self, statement: str, *args: Any) -> Any:
        """Run a call once and return its one value."""
        pool = await self.open()
        with explaining(self.dsn):
            return await pool.fetchval(statement, *args)

    async def persist(
        self, statement: str, *args: Any, retried: Callable[[], None] | None = None
    ) -> list[asyncpg.Record]:
        """Run a call that is safe to repeat until it is through, or the retries are used up.

        `retried` is called before each repetition: the call before may have taken effect.
        """
        await self.open()
        what = f"a call to {masked(self.dsn)}"
        with explaining(self.dsn):
            async for attempt in retrying(what, log, self.settings.retry_for):
                with attempt:
                    if retried is not None and attempt.retry_state.attempt_number > 1:
                        retried()
                    # Asked for each time: another user of this object may have closed the last one.
                    pool = await self.open()
                    return await pool.fetch(statement, *args)
        raise AssertionError  # tenacity returns or raises; this line tells the type checker
