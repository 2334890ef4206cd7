"""The pool of connections; errors of asyncpg become errors of notifyq here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from notifyq.config import DatabaseSettings, require_dsn
from notifyq.database import installs
from notifyq.database.connect import Route
from notifyq.database.encoding import storable
from notifyq.database.installs import ours
from notifyq.database.per_loop import PerLoop
from notifyq.database.probes import ROLES_OF_FUNCTION
from notifyq.database.retry import is_lost, is_misfit, is_passing, retrying
from notifyq.database.statements import ENCRYPTED_NAMES, RESULT, STEP_ORIGIN
from notifyq.dsn import masked, unusable
from notifyq.errors import (
    AccessDeniedError,
    ConfigurationError,
    DatabaseUnavailableError,
    NotifyqError,
    SchemaError,
    SchemaMissingError,
)

if TYPE_CHECKING:
    from notifyq.database.encryption.envelopes import Keys

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    # A connection with a caller's transaction: its own, or one of a pool.
    AnyConnection: TypeAlias = Connection | PoolConnectionProxy[asyncpg.Record]

log = logging.getLogger("notifyq.database")


def explained(error: BaseException, dsn: str) -> NotifyqError | None:
    """The error of notifyq for one of asyncpg or the system; None where there is none."""
    where = masked(dsn)
    match error:
        case NotifyqError():
            return error
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return AccessDeniedError(f"{error}: check user and password of {where}")
        case asyncpg.InvalidCatalogNameError():
            return DatabaseUnavailableError(f"{error}: create it, or correct {where}")
        case asyncpg.InsufficientPrivilegeError():
            return _denied(error)
        case asyncpg.InvalidSchemaNameError():
            return SchemaMissingError(f"{error}: install the schema with `notifyq init`")
        case _ if is_misfit(error):
            return _misfit(error)
        case asyncpg.ClientConfigurationError() | ssl.SSLCertVerificationError():
            return _misconfigured(error, where)
        case _:
            return _unavailable(error, where) if is_passing(error) else None


def _denied(
    error: asyncpg.PostgresError, roles: Sequence[str] = (), schema: str = installs.DEFAULT
) -> AccessDeniedError:
    """An error that names the roles that have the right; without them, all of ours."""
    own = installs.inner(schema)
    names = [f"{own}_{it}" for it in ("publisher", "worker", "reader", "admin")]
    given = [it for it in names if it in roles] or names
    which = f"the role {given[0]}" if len(given) == 1 else f"one of the roles {', '.join(given)}"
    return AccessDeniedError(f"{error}: ask the owner for {which}")


def _misconfigured(error: BaseException, where: str) -> ConfigurationError:
    hint = ""
    if isinstance(error, ssl.SSLError) and "channel_binding=require" in where:
        hint = (
            ": notifyq verifies the certificate instead of channel_binding=require: set "
            "sslrootcert=FILE, or leave it out"
        )
    return ConfigurationError(f"the DSN {where} cannot be used: {error}{hint}")


def _misfit(error: BaseException) -> SchemaError:
    reason = f"{error}: the schema in the database and this package do not fit: "
    if isinstance(error, asyncpg.InterfaceError):
        return SchemaError(f"{reason}run `notifyq migrate`, or install the package that fits")
    return SchemaMissingError(f"{reason}run `notifyq migrate`, or `notifyq init` in a new database")


def _unavailable(error: BaseException, where: str) -> DatabaseUnavailableError:
    # Host and port in the error may be parts of the password of a malformed DSN.
    is_misread = where.startswith("(")
    reason = type(error).__name__ if is_misread else str(error) or type(error).__name__
    if is_lost(error):
        question = (
            "is the host right"
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError)
            else "is the server running"
        )
        return DatabaseUnavailableError(f"no connection to {where}: {reason}: {question}?")
    return DatabaseUnavailableError(f"{where} cannot do this now: {reason}: try again later")


@contextlib.contextmanager
def explaining(dsn: str) -> Iterator[None]:
    """Raise errors of notifyq for those of asyncpg and the system; nothing else translates them."""
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


async def connect(
    dsn: str,
    *,
    name: str = "notifyq",
    timeout: float = 10,
    route: Route | None = None,
    schema: str | None = None,
) -> Connection:
    """Open one connection; pg_stat_activity shows it as `name`.

    A `route` keeps what it has detected about the server for the next connection. All statements
    are for the install `schema`, by default that of NOTIFYQ_SCHEMA.
    """
    route = route or Route(dsn, name=name, timeout=timeout, schema=installs.schema_of(schema))
    with explaining(dsn):
        try:
            if route.schema == installs.DEFAULT:
                return await route.connect(asyncpg.Connection)
            connection = await route.connect(_Renaming)
            connection.schema = route.schema
            return connection
        except (ConfigurationError, asyncpg.ClientConfigurationError, OSError):
            raise  # an untrusted certificate is a ValueError, too
        except (ValueError, OverflowError):  # asyncpg on wrong ports and hosts
            # Without the cause: it may quote a part of the password as a port.
            raise unusable(dsn) from None


class _Renaming(asyncpg.Connection):
    """A connection for our own statements only: it sends them with the names of an install."""

    schema = installs.DEFAULT

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        return str(await super().execute(installs.renamed(query, self.schema), *args, **options))

    async def _execute(self, query: str, *args: Any, **options: Any) -> Any:
        # fetch, fetchrow and fetchval call it, and so does execute with arguments.
        call = installs.renamed(query, self.schema)
        return await super()._execute(call, *args, **options)  # type: ignore[misc]

    async def add_listener(self, channel: str, callback: Any) -> None:
        await super().add_listener(installs.channel_of(channel, self.schema), callback)


@contextlib.asynccontextmanager
async def begun(connection: AnyConnection, dsn: str, **options: Any) -> AsyncIterator[None]:
    """Open a transaction, which commits at the end of the block.

    Errors of its begin and its end become those of notifyq. Those of the block stay what they are:
    they may be of anything.
    """
    transaction = connection.transaction(**options)
    with explaining(dsn):
        await transaction.start()
    try:
        yield
    except BaseException:
        # Where the connection is lost, the server rolls back by itself.
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await transaction.rollback()
        raise
    with explaining(dsn):
        await transaction.commit()


class Calls(Protocol):
    """Runs calls: a database, or one transaction of it."""

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Run a call and return its rows."""

    async def value(self, statement: str, *args: Any) -> Any:
        """Run a call and return its one value."""

    def forget_encrypted(self) -> None:
        """Read again which queues are encrypted: one has changed."""


@dataclass
class InTransaction:
    """Runs calls in the transaction that is open on a connection."""

    connection: AnyConnection
    dsn: str

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Run a call and return its rows."""
        with explaining(self.dsn):
            return await self.connection.fetch(ours(self.connection, statement), *args)

    async def value(self, statement: str, *args: Any) -> Any:
        """Run a call and return its one value."""
        with explaining(self.dsn):
            return await self.connection.fetchval(ours(self.connection, statement), *args)

    def forget_encrypted(self) -> None:
        """Nothing is kept here."""


class _Pooled(asyncpg.Connection):
    """A connection that is reset only after a user had it.

    Our own calls leave nothing behind, a reset would double their round trips, and our functions
    keep values in the session for the next call.
    """

    schema = installs.DEFAULT
    """The install of the pool; a lent connection sends the statements of its user unchanged."""
    is_lent = False
    is_shared = False
    """Whether a pooler lends the session: then we must not reset it."""

    def lend(self) -> None:  # a method: the pool's proxy passes on calls, but no attributes
        self.is_lent = True

    async def reset(self, *, timeout: float | None = None) -> None:
        if self.is_lent:
            await super().reset(timeout=timeout)
            self.is_lent = False

    def get_reset_query(self) -> str:
        role = "reset session authorization; reset role; "  # which `reset all` leaves
        return "" if self.is_shared else f"{role}{super().get_reset_query()}"


class _LoopPool:
    """The pool of one event loop, and how many use it there."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.users = 0
        self.opening = asyncio.Lock()

    async def close(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(5):
                    await pool.close()
            except TimeoutError:
                pool.terminate()


class Database:
    """Runs calls on a pool of connections, and retries them while a server is away.

    Each event loop has a pool of its own, which is closed with it, and so has a forked process.
    """

    def __init__(
        self,
        dsn: str,
        *,
        listen_dsn: str | None = None,
        settings: DatabaseSettings | None = None,
        name: str = "notifyq",
        keys: Keys | None = None,
        schema: str | None = None,
    ) -> None:
        require_dsn(dsn)
        self.schema = installs.schema_of(schema)
        """The install in the database; None: that of NOTIFYQ_SCHEMA, else `messages`."""
        if listen_dsn is not None:
            require_dsn(listen_dsn, "the listen DSN")
        self.dsn = dsn
        self.listen_dsn = listen_dsn or dsn
        """The DSN to listen on: the same database without a pooler."""
        self.settings = settings or DatabaseSettings.load()
        self.name = name
        self.keys = keys
        """What encrypts and decrypts; None: nothing does."""
        self._encrypted: set[str] | None = None
        self._origin: str | None = None
        self._route = Route(
            dsn,
            name=name,
            timeout=self.settings.connect_timeout.total_seconds(),
            prepared=self.settings.prepared_statements,
            schema=self.schema,
        )
        self.encoding = "UTF8"
        """That of the database, once it is connected."""
        self._pools = PerLoop(_LoopPool)
        self._dedicated: weakref.WeakSet[Database] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Database({masked(self.dsn)!r})"

    async def __aenter__(self) -> Database:
        await self.open()
        self._pools.get().users += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        held = self._pools.get()
        held.users -= 1
        if held.users == 0:  # workers of a process share it
            await self.close()

    async def open(self) -> Pool:
        """Connect, once; a server that is away is an error at once."""
        held = self._pools.get()
        async with held.opening:
            if held.pool is None:
                # One connection first: its errors name the DSN, those of a pool do not.
                connection = await connect(self.dsn, route=self._route)
                with explaining(self.dsn):
                    # With the lock held: a server that answers no more must not stop all calls.
                    await connection.close(timeout=self.settings.connect_timeout.total_seconds())
                    held.pool = await asyncpg.create_pool(
                        # The pool must not reconnect by itself: it logs each failed attempt.
                        min_size=0,
                        max_size=self.settings.pool_size,
                        command_timeout=self.settings.command_timeout.total_seconds(),
                        connection_class=_Pooled,
                        connect=cast("Any", self._connect),  # it takes fewer options
                    )
            return held.pool

    async def _connect(
        self, _dsn: None, *, connection_class: type[_Pooled], **options: Any
    ) -> _Pooled:
        connection = await self._route.connect(connection_class, **options)
        features = self._route.features
        connection.is_shared = features is not None and features.is_pooled
        connection.schema = self.schema
        self.encoding = connection.get_settings().server_encoding
        self._origin = None  # it may be of another server
        return connection

    def storable(self, text: str) -> str:
        """A text for people, such as details, with what this database cannot store replaced."""
        return storable(text, self.encoding)

    async def step_origin(self) -> str:
        """What makes an id unique that is one in this database."""
        if self._origin is None:
            self._origin = str((await self.persist(STEP_ORIGIN))[0][0])
        return self._origin

    async def encrypts(self, name: str) -> bool:
        """Whether a queue or stream takes encrypted payloads only; false without keys."""
        if self.keys is None:
            return False
        if self._encrypted is None:
            self._encrypted = {row[0] for row in await self.fetch(ENCRYPTED_NAMES)}
        return name in self._encrypted

    async def encrypted_for(self, message_id: int, use: str, text: str) -> str:
        """JSON for a message, as its queue takes it."""
        if self.keys is None:
            return text
        [report] = await self.persist(RESULT, message_id)
        if not await self.encrypts(report["queue"]):
            return text
        return self.keys.encrypt_json(report["queue"], use, text)

    def forget_encrypted(self) -> None:
        """Read again which queues are encrypted: one has changed."""
        self._encrypted = None

    def dedicated(self, size: int = 1) -> Database:
        """A separate pool of the same server: with size 1 all calls share one session.

        The first call opens it, a lost connection is replaced, and it closes with this object.
        """
        settings = self.settings.model_copy(update={"pool_size": size})
        pool = Database(
            self.dsn, listen_dsn=self.listen_dsn, settings=settings, name=self.name, keys=self.keys,
            schema=self.schema,
        )  # fmt: skip
        pool._route.features = self._route.features
        self._dedicated.add(pool)
        return pool

    async def close(self) -> None:
        """Close the pools of this event loop, also dedicated ones; open calls get a few seconds."""
        await asyncio.gather(
            self._pools.get().close(), *(pool.close() for pool in tuple(self._dedicated))
        )

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AnyConnection]:
        """Borrow a connection of the pool, for a transaction or a COPY.

        Errors of its user, of any kind, stay what they are.
        """
        pool = await self.open()
        with explaining(self.dsn):
            connection = await pool.acquire()
        cast("_Pooled", connection).lend()
        try:
            yield connection
        except asyncpg.InvalidSQLStatementNameError:
            connection.terminate()  # its user has deallocated what we prepared
            raise
        finally:
            with explaining(self.dsn):
                await pool.release(connection)

    @contextlib.asynccontextmanager
    async def begun(self, **options: Any) -> AsyncIterator[AnyConnection]:
        """Borrow a connection with a transaction, which commits at the end of the block.

        Errors of its user stay what they are; options are those of asyncpg's `transaction`.
        """
        async with self.connection() as connection, begun(connection, self.dsn, **options):
            yield connection

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[InTransaction]:
        """Run several calls in one transaction."""
        try:
            async with self.begun(isolation="read_committed") as connection:
                yield InTransaction(connection, self.dsn)
        except NotifyqError as error:
            # As a single call does; now, since the transaction answers no more after an error.
            with explaining(self.dsn):
                if isinstance(cause := error.__cause__, asyncpg.ReadOnlySQLTransactionError):
                    await (await self.open()).expire_connections()
                elif isinstance(cause, asyncpg.InsufficientPrivilegeError):
                    raise await self._denied(cause) from cause
            raise

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Run a call once and return its rows."""
        with explaining(self.dsn):
            return cast("list[asyncpg.Record]", await self._call("fetch", statement, *args))

    async def value(self, statement: str, *args: Any) -> Any:
        """Run a call once and return its one value."""
        with explaining(self.dsn):
            return await self._call("fetchval", statement, *args)

    async def persist(
        self, statement: str, *args: Any, retried: Callable[[], None] | None = None
    ) -> list[asyncpg.Record]:
        """Run a call that is safe to repeat, with retries.

        `retried` is called before each repetition: the earlier call may have taken effect.
        """
        what = f"a call to {masked(self.dsn)}"
        with explaining(self.dsn):
            async for attempt in retrying(what, log, self.settings.retry_for):
                with attempt:
                    if retried is not None and attempt.retry_state.attempt_number > 1:
                        retried()
                    return cast("list[asyncpg.Record]", await self._call("fetch", statement, *args))
        raise AssertionError  # unreachable, for the type checker: tenacity returns or raises

    async def _call(self, method: str, statement: str, *args: Any) -> Any:
        # Open it for each call: another user of this object may have closed the pool.
        pool = await self.open()
        try:
            return await getattr(pool, method)(installs.renamed(statement, self.schema), *args)
        except asyncpg.ReadOnlySQLTransactionError:
            # The old primary may keep its connections open.
            await pool.expire_connections()
            raise
        except asyncpg.InsufficientPrivilegeError as error:
            raise await self._denied(error) from error

    async def _denied(self, error: asyncpg.InsufficientPrivilegeError) -> AccessDeniedError:
        """The error for a call that this role may not make, with the roles that may."""
        pool = await self.open()
        # In any language of the server the text ends with the name of the function.
        name = str(error).rpartition(" ")[2]
        statement = installs.renamed(ROLES_OF_FUNCTION, self.schema)
        roles = [row["role"] for row in await pool.fetch(statement, name)]
        return _denied(error, roles, self.schema)
