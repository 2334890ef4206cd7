"""Errors of notifyq for those of the driver, and which of them are retried."""

import asyncio
import ssl
import traceback

import asyncpg
import pytest

from notifyq import (
    AccessDeniedError,
    App,
    ConfigurationError,
    DatabaseUnavailableError,
    NotifyqError,
    QueueNotFoundError,
    SchemaError,
    SchemaMissingError,
)
from notifyq.database.pool import Database, connect, explained, explaining
from notifyq.database.retry import is_passing

DSN = "postgresql://u:secret@db.example:5432/shop"
WHERE = "postgresql://u:***@db.example:5432/shop"
NO_SUCH = "select messages.no_such_function($1::integer)"
# Of the class that also means that a connection is closed.
MISFIT = asyncpg.InterfaceError("the server expects 6 arguments for this query, 5 were passed")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (asyncpg.InvalidPasswordError("no entry"), AccessDeniedError, "check user and password"),
        (
            asyncpg.InvalidAuthorizationSpecificationError("no role"),
            AccessDeniedError,
            "check user and password",
        ),
        (asyncpg.InvalidCatalogNameError("no db"), DatabaseUnavailableError, "create it"),
        (asyncpg.InsufficientPrivilegeError("denied"), AccessDeniedError, "notifyq_worker"),
        (asyncpg.InvalidSchemaNameError("no schema"), SchemaMissingError, "notifyq init"),
        (asyncpg.UndefinedFunctionError("no function"), SchemaMissingError, "notifyq init"),
        (asyncpg.UndefinedTableError("no table"), SchemaMissingError, "notifyq init"),
        (asyncpg.UndefinedFunctionError("claim(text)"), SchemaMissingError, "package do not fit"),
        (MISFIT, SchemaError, "package do not fit: run `notifyq migrate`"),
        (asyncpg.ClientConfigurationError("bad"), ConfigurationError, "cannot be used"),
        (
            ssl.SSLCertVerificationError(1, "certificate verify failed: IP address mismatch"),
            ConfigurationError,
            "cannot be used: certificate verify failed",
        ),
        (ConnectionRefusedError("refused"), DatabaseUnavailableError, "is the server running"),
        (TimeoutError(), DatabaseUnavailableError, "TimeoutError: is the server running"),
        (
            asyncpg.ConnectionDoesNotExistError("closed"),
            DatabaseUnavailableError,
            "is the server running",
        ),
        (
            asyncpg.InterfaceError("connection is closed"),
            DatabaseUnavailableError,
            "is the server running",
        ),
        (
            asyncpg.TargetServerAttributeNotMatched("read-only"),
            DatabaseUnavailableError,
            "is the server running",
        ),
        (asyncpg.QueryCanceledError("canceled"), DatabaseUnavailableError, "try again later"),
        (asyncpg.TooManyConnectionsError("full"), DatabaseUnavailableError, "try again later"),
        (asyncpg.DiskFullError("full"), DatabaseUnavailableError, "try again later"),
        (asyncpg.ReadOnlySQLTransactionError("ro"), DatabaseUnavailableError, "try again later"),
    ],
)
def test_a_driver_error_becomes_an_error_of_notifyq_with_advice(
    error: Exception, kind: type[NotifyqError], text: str
) -> None:
    ours = explained(error, DSN)
    assert type(ours) is kind
    assert text in str(ours)
    assert "secret" not in str(ours)
    with pytest.raises(kind) as caught, explaining(DSN):
        raise error
    assert caught.value.__cause__ is error


def test_a_cancelled_statement_does_not_count_as_a_lost_server() -> None:
    ours = explained(asyncpg.QueryCanceledError("canceling statement due to timeout"), DSN)
    assert (
        str(ours)
        == f"{WHERE} cannot do this now: canceling statement due to timeout: try again later"
    )


def test_an_error_of_notifyq_is_unchanged() -> None:
    error = QueueNotFoundError("there is no queue 'x'")
    assert explained(error, DSN) is error
    with pytest.raises(QueueNotFoundError) as caught, explaining(DSN):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [asyncpg.UniqueViolationError("twice"), asyncpg.DataError("bad")])
def test_an_unrelated_error_is_unchanged(error: Exception) -> None:
    assert explained(error, DSN) is None
    with pytest.raises(type(error)) as caught, explaining(DSN):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ConnectionDoesNotExistError("x"),
        asyncpg.AdminShutdownError("x"),
        asyncpg.CrashShutdownError("x"),
        asyncpg.CannotConnectNowError("x"),
        asyncpg.TooManyConnectionsError("x"),
        asyncpg.DiskFullError("x"),
        asyncpg.OutOfMemoryError("x"),
        asyncpg.ReadOnlySQLTransactionError("x"),
        asyncpg.TargetServerAttributeNotMatched("x"),
        asyncpg.InternalClientError("another operation is in progress"),
        asyncpg.SerializationError("x"),
        asyncpg.DeadlockDetectedError("x"),
        asyncpg.LockNotAvailableError("x"),
        asyncpg.QueryCanceledError("x"),
        asyncpg.InterfaceError("connection is closed"),
        ConnectionResetError(),
        TimeoutError(),
    ],
)
def test_a_passing_error_is_retried(error: Exception) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InvalidPasswordError("x"),
        asyncpg.UndefinedFunctionError("x"),
        MISFIT,
        asyncpg.DataError("x"),
        asyncpg.ProgramLimitExceededError("x"),
        asyncpg.ClientConfigurationError("x"),
        QueueNotFoundError("x"),
        asyncio.CancelledError(),
        ValueError("x"),
    ],
)
def test_a_permanent_error_is_not_retried(error: BaseException) -> None:
    assert not is_passing(error)


@pytest.mark.parametrize(
    "dsn",
    [
        "localhost dbname=x",
        "http://host/db",
        "",
        "postgresql://u:secret@host:port/db",
        "postgresql://u:secret@127.0.0.1:99999/db",
        "postgresql://u:secret@[::1/db",
    ],
)
async def test_a_dsn_that_cannot_be_used_is_an_error_of_configuration(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        await connect(dsn)
    assert "secret" not in str(caught.value)


async def test_a_dsn_may_name_several_hosts() -> None:
    with pytest.raises(DatabaseUnavailableError, match="is the server running"):
        await connect("postgresql://u:secret@127.0.0.1:1,127.0.0.1:2/db")


async def test_a_call_that_the_schema_lacks_is_not_retried(database: str) -> None:
    async with Database(database) as ours:
        for statement, args in (("select messages.claim($1::text[])", ()), (NO_SUCH, (1,))):
            with pytest.raises(SchemaError, match="package do not fit"):
                async with asyncio.timeout(5):
                    await ours.persist(statement, *args)


@pytest.mark.parametrize("odd", ["s3cr3t/half", "s3cr3t#half", "s3cr3t?half", "s3cr3t[half"])
async def test_a_traceback_of_an_unusable_dsn_shows_no_part_of_the_password(odd: str) -> None:
    with pytest.raises(NotifyqError) as caught:
        await connect(f"postgresql://me:{odd}@127.0.0.1:1/x", timeout=2)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


async def test_errors_of_who_borrows_a_connection_stay_what_they_are(app: App) -> None:
    await app.streams.create("news")
    await app.streams.subscribe("news", "reader")
    read = app.subscription("news", "reader")
    for lent in (app.database.connection, app.database.transaction, read.transaction):
        for error in (FileNotFoundError("a.txt"), asyncpg.UndefinedTableError("no seat")):
            with pytest.raises(type(error), match=str(error)):
                async with lent():
                    raise error
