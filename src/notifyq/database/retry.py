"""How often and how long a lost connection is tried again: always bounded, jittered and logged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from notifyq.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

# The server is gone, going, coming, full, or has become a standby: another try may succeed.
_PASSING = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientResourcesError,
    asyncpg.DatabaseDroppedError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    ConnectionError,
    TimeoutError,
    OSError,
    # None of the hosts is the one that was asked for, or the driver lost its way on a connection
    # that broke at a bad moment; it throws that one away.
    asyncpg.InternalClientError,
)


def is_misfit(error: BaseException) -> bool:
    """Whether a call of ours is not one that the database knows: schema and package differ."""
    if isinstance(error, asyncpg.InterfaceError):
        # Of its texts this is the one that tells of the call and not of the connection.
        return str(error).startswith("the server expects ")
    return isinstance(error, asyncpg.UndefinedFunctionError | asyncpg.UndefinedTableError)


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, as opposed to a server that answers, but not this call."""
    return not is_misfit(error) and isinstance(
        error,
        asyncpg.PostgresConnectionError
        | asyncpg.InterfaceError
        | asyncpg.InternalClientError
        | OSError,
    )


def is_away(error: BaseException) -> bool:
    """Whether there was no server that could answer: none, or one that starts or shuts down."""
    error = _foreign(error)
    return is_lost(error) or isinstance(
        error,
        asyncpg.CannotConnectNowError | asyncpg.AdminShutdownError | asyncpg.CrashShutdownError,
    )


def is_passing(error: BaseException) -> bool:
    """Whether the same call may succeed a little later, on this connection or a new one."""
    error = _foreign(error)
    if isinstance(error, asyncpg.InterfaceError):
        # asyncpg has no class of its own for "connection is closed".
        return not (isinstance(error, asyncpg.ClientConfigurationError) or is_misfit(error))
    return isinstance(error, _PASSING) and not isinstance(error, asyncio.CancelledError)


def _foreign(error: BaseException) -> BaseException:
    """The error of the driver or the system that ours stands for: it decides."""
    if isinstance(error, DatabaseUnavailableError) and error.__cause__ is not None:
        return error.__cause__
    return error


_JITTER = wait_random(0, 0.5)
_UNTIL_BACK = wait_exponential(multiplier=0.1, max=1) + _JITTER
_UNTIL_ABLE = wait_exponential(multiplier=0.1, max=5) + _JITTER


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    # A server that is away costs nothing to ask, and work shall go on as soon as it is back; one
    # that answers "too many" or "read-only" is spared.
    return (_UNTIL_BACK if error is None or is_away(error) else _UNTIL_ABLE)(state)


def retrying(what: str, log: logging.Logger, lasting: timedelta) -> AsyncRetrying:
    """Retry what passes for as long as `lasting`; then the last error is raised as it is."""

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning(
            "%s failed (%s: %s), try %d follows in %.1f s",
            what,
            type(error).__name__,
            error,
            state.attempt_number + 1,
            state.upcoming_sleep,
        )

    return AsyncRetrying(
        retry=retry_if_exception(is_passing),
        stop=stop_after_delay(lasting),
        wait=_wait,
        before_sleep=before_sleep,
        reraise=True,
    )


class Patience:
    """The start of a process: it waits for a server that is away, as the process does later on."""

    def __init__(self, what: str, log: logging.Logger, lasting: timedelta) -> None:
        self._what = what
        self._log = log
        self._lasting = lasting
        self._is_stopped = False
        self._waiting: asyncio.Timeout | None = None

    def stop(self) -> None:
        """End the wait now; on the event loop of `through`."""
        self._is_stopped = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def through(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Do a step of the start until it succeeds. False: it was stopped before.

        What cannot pass, as a wrong password or a database that does not exist, is raised at once.
        """
        if self._is_stopped:
            return False
        waiting = self._waiting = asyncio.timeout(None)
        try:
            async with waiting:
                async for attempt in retrying(self._what, self._log, self._lasting):
                    with attempt:
                        await step()
        except TimeoutError:
            if not waiting.expired():
                raise
            return False
        finally:
            self._waiting = None
        return True
