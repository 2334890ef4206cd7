"""How long to wait for a server: short while it is away, longer while it refuses."""

import logging
from datetime import timedelta

import asyncpg
import pytest
from tenacity import Future, RetryCallState

from notifyq.database.retry import retrying


def longest_wait(error: Exception) -> float:
    retries = retrying("trying", logging.getLogger("test"), timedelta(minutes=5))
    waits = []
    for attempt in range(1, 20):
        state = RetryCallState(retries, None, (), {})
        state.attempt_number = attempt
        state.outcome = Future.construct(attempt, error, has_exception=True)
        waits.append(retries.wait(state))
    return max(waits)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        asyncpg.CannotConnectNowError(),
        asyncpg.AdminShutdownError(),
        asyncpg.ConnectionDoesNotExistError(),
        asyncpg.InterfaceError("connection is closed"),
    ],
)
def test_a_server_that_is_away_is_retried_soon(error: Exception) -> None:
    assert longest_wait(error) <= 1.5


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.TooManyConnectionsError(),
        asyncpg.ReadOnlySQLTransactionError(),
        asyncpg.LockNotAvailableError(),
    ],
)
def test_a_server_that_refuses_is_retried_more_slowly(error: Exception) -> None:
    assert 5 <= longest_wait(error) <= 5.5
