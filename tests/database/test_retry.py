"""How long to wait for a server: short while it is away, longer while it refuses, until a stop."""

import asyncio
import logging
from datetime import timedelta

import asyncpg
import pytest
from tenacity import Future, RetryCallState

from notifyq.database.retry import Patience, StoppableWait, retrying
from notifyq.errors import QueueBusyError


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


def patience() -> Patience:
    return Patience("trying", logging.getLogger("test"), timedelta(minutes=5))


@pytest.mark.parametrize("make", [StoppableWait, patience])
async def test_a_stop_ends_a_wait_however_often_it_comes(make: type[StoppableWait]) -> None:
    waits, is_ending = make(), asyncio.Event()

    async def step() -> None:
        waits.stop()
        try:
            await asyncio.Event().wait()
        finally:
            is_ending.set()
            waits.stop()
            await asyncio.sleep(0)

    assert not await waits.through(step)
    assert is_ending.is_set()
    waits.stop()
    assert not await waits.through(step)


@pytest.mark.parametrize("make", [StoppableWait, patience])
async def test_a_wait_that_is_over_can_be_stopped(make: type[StoppableWait]) -> None:
    waits = make()
    assert await waits.through(lambda: asyncio.sleep(0))
    waits.stop()


async def test_a_start_waits_for_a_queue_that_others_use() -> None:
    outcomes: list[Exception | None] = [QueueBusyError("in use"), None]

    async def step() -> None:
        if error := outcomes.pop(0):
            raise error

    assert await patience().through(step)
    assert outcomes == []


async def test_a_timeout_of_the_step_itself_is_no_stop() -> None:
    async def step() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await StoppableWait().through(step)
