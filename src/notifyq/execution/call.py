"""Running one message: from a locked row to an outcome. Knows nothing of loops and of locks."""

from __future__ import annotations

import asyncio
import enum
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from notifyq.errors import ConfigurationError
from notifyq.execution.runtime import EndedError, Runtime
from notifyq.execution.transactions import Transactions
from notifyq.handlers.retries import Reject, Retry
from notifyq.models.message import Message, Status
from notifyq.models.outcome import Committed, Doubtful, Failed, Outcome, Rejected, Released, Success
from notifyq.telemetry.tracebacks import clean, describe, explain, report, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from notifyq.database.pool import AnyConnection
    from notifyq.handlers.handler import Handler, Middleware

T = TypeVar("T")

_NO_RESULT = Success()
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The escape itself in JSON text, not a backslash that happens to stand before u0000."""


class Cause(enum.StrEnum):
    """Why a running handler was stopped from outside."""

    TIMEOUT = "timeout"
    LOCK = "lock"
    STOP = "stop"


class HandlerCall:
    """One message on its way through its handler."""

    __slots__ = ("cause", "handler", "is_running", "message", "started", "task")

    def __init__(self, handler: Handler[Any], message: Message) -> None:
        self.handler = handler
        self.message = message
        self.cause: Cause | None = None
        self.started: float | None = None
        """When it began, in monotonic seconds."""
        self.task: asyncio.Task[Any] | None = None
        """The task that awaits the outcome; whoever makes one for it alone may say so."""
        self.is_running = False
        """Whether the handler has been called and has not returned."""

    def begin(self) -> None:
        """Count the handler's time from now on."""
        self.started = time.monotonic()

    def stop(self, cause: Cause) -> bool:
        """Stop the handler if it runs and was not stopped: the first cause decides the outcome."""
        if self.cause is not None or not self.is_running or self.task is None:
            return False
        self.cause = cause
        self.task.cancel()
        return True

    async def outcome(self, tools: Runtime, transaction: AnyConnection | None = None) -> Outcome:
        """Validate the payload, call the handler, and tell how that ended.

        In a transaction of the caller's it is for the caller to end it as the outcome says.
        """
        if self.handler.process is not None:
            return await self._in_process(self.handler.process, tools)
        payload = self.payload()
        if isinstance(payload, Rejected | Failed):
            return payload
        if self.handler.is_transactional and transaction is None:
            return await self._in_transaction(payload, tools)
        return await self._ended(payload, tools, transaction)

    def payload(self) -> Any:
        """The payload as the handler takes it, or the outcome where it is not valid."""
        try:
            return self._payload()
        except ValidationError as error:
            return Rejected(clean(explain(error)))
        except (ValueError, RecursionError) as error:
            return Rejected(clean(f"the payload cannot be decoded: {error}"))
        except BaseException as error:  # noqa: BLE001  a type may have validators of the user's
            return self.raised(error)

    async def _ended(
        self, payload: Any, tools: Runtime, transaction: AnyConnection | None
    ) -> Outcome:
        try:
            result = await self.call(payload, self.message, tools, transaction)
        except asyncio.CancelledError as cancelled:
            return self.stopped(cancelled)
        except BaseException as error:
            if is_closing(error, self.task):
                raise
            return self.raised(error)
        return self.success(result)

    async def _in_transaction(self, payload: Any, tools: Runtime) -> Outcome:
        outcome: Outcome | None = None
        try:
            async with self.transaction(tools) as connection:
                outcome = await self._ended(payload, tools, connection)
                await self._finish(connection, outcome)
        except asyncio.CancelledError as cancelled:
            return self.stopped(cancelled)
        except RollBackError as ended:
            return ended.outcome
        except Exception as error:  # noqa: BLE001  the server may answer anything
            return self.rolled_back(outcome, error)
        return Committed()

    async def _in_process(self, where: tuple[str, str], tools: Runtime) -> Outcome:
        if tools.processes is None:
            raise ConfigurationError("handlers with processes are run by a worker")
        self.started = None  # the start of a process is not the handler's time
        processes, tracing = tools.processes, self.handler.tracing

        async def run() -> Outcome:  # within the span, which is a middleware
            carried = tracing.carried() if tracing is not None else {}
            return await processes.run(where, self.message, self.begin, carried)

        try:
            if not self.handler.middleware:
                return await self._interruptible(run())
            call = _around(partial(_result_of, run), [], self.message, self.handler.middleware)
            return self.success(await self._interruptible(call()))
        except asyncio.CancelledError as cancelled:
            return self.stopped(cancelled)
        except EndedError as ended:
            return ended.outcome
        except BaseException as error:
            if is_closing(error, self.task):
                raise
            return self.raised(error)

    async def _finish(self, connection: AnyConnection, outcome: Outcome) -> None:
        if not isinstance(outcome, Success):
            raise RollBackError(outcome)
        if not await Transactions.finish(connection, [(self.message, outcome)]):
            raise RollBackError(Committed(is_held=False))

    @asynccontextmanager
    async def transaction(self, tools: Runtime) -> AsyncIterator[AnyConnection]:
        """Open a transaction for the handler; the wait for it can be stopped as the handler can."""
        if tools.transactions is None:
            raise ConfigurationError("transactional handlers are run by a worker")
        async with AsyncExitStack() as stack:
            opened = tools.transactions.open()
            yield await self._interruptible(stack.enter_async_context(opened))

    def _payload(self) -> Any:
        if not self.handler.takes_payload:
            return None
        if self.handler.payload is None:
            return self.message.payload()
        return self.handler.payload.validate_json(self.message.message)

    async def call(
        self, payload: Any, message: Any, tools: Runtime, transaction: AnyConnection | None
    ) -> Any:
        """Call the handler with what it takes, and with the middleware around it."""
        handler = self.handler
        slots = {"payload": payload, "message": message, "transaction": transaction}
        args = [slots[slot] for slot in handler.takes]
        function = handler.function
        if handler.names:
            function = partial(function, **{name: slots[slot] for name, slot in handler.names})
        call = function if handler.is_async else partial(tools.threads.run, function)
        if handler.middleware:
            call = _around(call, args, self.message, handler.middleware)
            args = []
        if handler.tracing is not None:
            call, args = handler.tracing.around(handler, message, partial(call, *args)), []
        return await self._interruptible(call(*args))

    async def _interruptible(self, call: Awaitable[T]) -> T:
        self.task = self.task or asyncio.current_task()
        # Only while the task is inside the handler may it be cancelled: past that it settles.
        self.is_running = True
        try:
            return await call
        finally:
            self.is_running = False
            if self.cause is not None and self.task is not None:
                self.task.uncancel()

    def raised(self, error: BaseException) -> Rejected | Failed:
        """The outcome of a call that raised this."""
        match error:
            case Reject():
                reason = clean(text_of(error) or "rejected by the handler")
                if error.__cause__ is None:
                    return Rejected(reason)
                # What led to it is worth a place in the history.
                return Failed(reason, status=Status.REJECTED, gives_up=True, error=report(error))
            case Retry():
                return self._failed(error, text_of(error) or "retry")
            case _:
                return self._failed(error, describe(error))

    def stopped(self, cancelled: asyncio.CancelledError) -> Outcome:
        """How an attempt has ended that was cancelled; raises where it was not the handler."""
        task = asyncio.current_task()
        if self.cause is None and task is not None and task.cancelling():
            raise cancelled  # the worker itself is being cancelled
        match self.cause:
            case Cause.LOCK:
                return Failed("the handler outlived its lock", status=Status.LOCK_EXPIRED)
            case Cause.TIMEOUT:
                late = TimeoutError(
                    f"the handler took longer than its timeout {self.handler.timeout}"
                )
                # Where it was when it was stopped.
                return self._failed(late.with_traceback(cancelled.__traceback__), str(late))
            case Cause.STOP:
                return Released()
            case None:
                return self._failed(cancelled, "the handler cancelled itself")

    def _failed(self, error: BaseException, details: str) -> Failed:
        decision = self.handler.retries.decide(error, self.message)
        if decision.complaint:
            details = f"{clean(details)}\nretried by the queue's backoff: {decision.complaint}"
        return Failed(
            clean(details),
            after=decision.after,
            status=Status.REJECTED if decision.is_rejected else Status.FAILED,
            gives_up=decision.gives_up,
            error=report(error),
        )

    def rolled_back(self, outcome: Outcome | None, error: Exception) -> Outcome:
        """How an attempt has ended whose transaction ended with an error."""
        if outcome is not None and not isinstance(outcome, Success):
            return outcome  # it was to be rolled back, and a server that is gone does so by itself
        what = "opened" if outcome is None else "committed"
        failed = self._failed(error, f"the transaction could not be {what}: {describe(error)}")
        if outcome is None:
            return failed
        return Doubtful(**{it.name: getattr(failed, it.name) for it in fields(failed)})

    def success(self, result: Any) -> Success | Failed:
        """The outcome of a call that returned this."""
        if result is None:
            return _NO_RESULT
        try:
            if self.handler.result is not None:
                text = self.handler.result.dump_json(result, warnings=False).decode()
            else:
                text = to_json(result).decode()
        except BaseException as error:  # noqa: BLE001  a result may have serializers of the user's
            return self._failed(error, f"the result cannot be written as JSON: {text_of(error)}")
        if "\\u0000" in text and _NUL.search(text):
            why = "the result has the character \\u0000, which PostgreSQL cannot store"
            return self._failed(ValueError(why), why)
        return Success(text)


def is_closing(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether this ends the coroutines of a task from outside, as when its loop is closed.

    A handler may raise the same: then its task is running.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return task is None or asyncio.current_task() is not task
    except RuntimeError:  # there is no running loop
        return True


class RollBackError(EndedError):
    """Ends a transaction whose outcome is known already."""


async def _result_of(run: Callable[[], Awaitable[Outcome]]) -> Any:
    outcome = await run()
    if not isinstance(outcome, Success):
        raise EndedError(outcome)
    return None if outcome.result is None else from_json(outcome.result)


def _around(
    call: Callable[..., Awaitable[Any]],
    args: list[Any],
    message: Message,
    middleware: tuple[Middleware, ...],
) -> Callable[[], Awaitable[Any]]:
    inner: Callable[[], Awaitable[Any]] = partial(call, *args)
    for outer in reversed(middleware):
        inner = partial(outer, message, inner)
    return inner
