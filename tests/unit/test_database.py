"""What our errors say for foreign ones, and which of those may pass."""

import asyncio

import asyncpg
import pytest

from notifyq import (
    AccessDeniedError,
    ConfigurationError,
    DatabaseUnavailableError,
    NotifyqError,
    QueueNotFoundError,
    SchemaMissingError,
)
from notifyq.backoff import is_passing
from notifyq.database import connect, explained, explaining

DSN = "postgresql://u:secret@db.example:5432/shop"
WHERE = "postgresql://u:***@db.example:5432/shop"


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
        (asyncpg.ClientConfigurationError("bad"), ConfigurationError, "cannot be used"),
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
def test_a_foreign_error_becomes_ours_and_says_what_to_do(
    error: Exception, kind: type[NotifyqError], text: str
) -> None:
    ours = explained(error, DSN)
    assert type(ours) is kind
    assert text in str(ours)
    assert "secret" not in str(ours)
    with pytest.raises(kind) as caught, explaining(DSN):
        raise error
    assert caught.value.__cause__ is error


def test_a_statement_that_was_cancelled_does_not_look_like_a_server_that_is_gone() -> None:
    ours = explained(asyncpg.QueryCanceledError("canceling statement due to timeout"), DSN)
    assert (
        str(ours)
        == f"{WHERE} cannot do it now: canceling statement due to timeout: try again later"
    )


def test_an_error_of_ours_stays_as_it_is() -> None:
    error = QueueNotFoundError("there is no queue 'x'")
    assert explained(error, DSN) is error
    with pytest.raises(QueueNotFoundError) as caught, explaining(DSN):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [asyncpg.UniqueViolationError("twice"), asyncpg.DataError("bad")])
def test_an_error_that_only_the_caller_understands_is_left_alone(error: Exception) -> None:
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
def test_what_another_try_may_mend_passes(error: Exception) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InvalidPasswordError("x"),
        asyncpg.UndefinedFunctionError("x"),
        asyncpg.DataError("x"),
        asyncpg.ProgramLimitExceededError("x"),
        asyncpg.ClientConfigurationError("x"),
        QueueNotFoundError("x"),
        asyncio.CancelledError(),
        ValueError("x"),
    ],
)
def test_what_no_other_try_mends_does_not_pass(error: BaseException) -> None:
    assert not is_passing(error)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=localhost dbname=x",
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
