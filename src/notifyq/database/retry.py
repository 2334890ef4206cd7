"""Retries of database calls: bounded in time, jittered and logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import asyncpg
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from notifyq.errors import DatabaseUnavailableError, QueueBusyError

# The server is down, starting, full, or has become a standby: another attempt may succeed.
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
    # No host matches target_session_attrs, or the connection broke in a state that the driver
    # cannot handle; the driver discards it.
    asyncpg.InternalClientError,
)


def is_misfit(error: BaseException) -> bool:
    """Whether the database does not know the call: versions of schema and package differ."""
    if isinstance(error, asyncpg.InterfaceError):
        # Its only text about the call; all others are about the connection.
        return str(error).startswith("the server expects ")
    return isinstance(error, asyncpg.UndefinedFunctionError | asyncpg.UndefinedTableError)


def is_lost(error: BaseException) -> bool:
    """Whether the connection is lost; False where the server answers with an error."""
    return not is_misfit(error) and isinstance(
        error,
        asyncpg.PostgresConnectionError
        | asyncpg.InterfaceError
        | asyncpg.InternalClientError
        | OSError,
    )


def is_away(error: BaseException) -> bool:
    """Whether no server could answer: it is down, starting or shutting down."""
    error = _cause(error)
    return is_lost(error) or isinstance(
        error,
        asyncpg.CannotConnectNowError | asyncpg.AdminShutdownError | asyncpg.CrashShutdownError,
    )


def is_passing(error: BaseException) -> bool:
    """Whether the same call may succeed later, on this connection or a new one."""
    error = _cause(error)
    if isinstance(error, asyncpg.InterfaceError):
        # asyncpg has no class of its own for "connection is closed".
        return not (isinstance(error, asyncpg.ClientConfigurationError) or is_misfit(error))
    return isinstance(error, _PASSING) and not isinstance(error, asyncio.CancelledError)


def _cause(error: BaseException) -> BaseException:
    """The error of the driver or the system behind a DatabaseUnavailableError."""
    if isinstance(error, DatabaseUnavailableError) and error.__cause__ is not None:
        return error.__cause__
    return error


_JITTER = wait_random(0, 0.5)
_WHILE_AWAY = wait_exponential(multiplier=0.1, max=1) + _JITTER
_WHILE_BUSY = wait_exponential(multiplier=0.1, max=5) + _JITTER


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    # Attempts cost nothing while the server is away, and work should resume soon. A server that
    # answers "too many connections" or "read-only" gets fewer of them.
    return (_WHILE_AWAY if error is None or is_away(error) else _WHILE_BUSY)(state)


def retrying(
    what: str,
    log: logging.Logger,
    lasting: timedelta,
    may_pass: Callable[[BaseException], bool] = is_passing,
) -> AsyncRetrying:
    """Retry errors that may pass for as long as `lasting`; then raise the last one unchanged."""

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning(
            "%s failed (%s: %s), attempt %d follows in %.1f s",
            what,
            type(error).__name__,
            error,
            state.attempt_number + 1,
            state.upcoming_sleep,
        )

    return AsyncRetrying(
        retry=retry_if_exception(may_pass),
        stop=stop_after_delay(lasting),
        wait=_wait,
        before_sleep=before_sleep,
        reraise=True,
    )


class StoppableWait:
    """A wait, mostly for a server that is away, that a stop ends."""

    def __init__(self) -> None:
        self._is_stopped = False
        self._timeout: asyncio.Timeout | None = None

    def stop(self) -> None:
        """End the wait now, and later ones at once; call it on the event loop of `through`."""
        if self._timeout is not None and not self._is_stopped:
            self._timeout.reschedule(asyncio.get_running_loop().time())
        self._is_stopped = True

    async def through(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Do a step, unless it is stopped before or meanwhile: False."""
        if self._is_stopped:
            return False
        timeout = self._timeout = asyncio.timeout(None)
        try:
            async with timeout:
                await step()
        except TimeoutError:
            if not timeout.expired():
                raise
            return False
        finally:
            self._timeout = None
        return True


def _may_start(error: BaseException) -> bool:
    return is_passing(error) or isinstance(error, QueueBusyError)


class Patience(StoppableWait):
    """The start of a process: it waits while a server is away, or a queue is in use."""

    def __init__(self, what: str, log: logging.Logger, lasting: timedelta) -> None:
        super().__init__()
        self._retrying = partial(retrying, what, log, lasting, _may_start)

    async def through(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Retry a step of the start until it succeeds. False: it was stopped before.

        An error that cannot pass is raised at once, such as a wrong password or database name.
        """

        async def retried() -> None:
            async for attempt in self._retrying():
                with attempt:
                    await step()

        return await super().through(retried)
