"""Running one message: from a locked row to an outcome. Knows nothing of loops and of locks."""

from __future__ import annotations

import asyncio
import enum
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_json

from notifyq.model import Failed, Message, Outcome, Rejected, Released, Status, Success
from notifyq.retries import Reject, Retry
from notifyq.tracebacks import clean, describe, report, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from notifyq.handlers import Handler, Middleware
    from notifyq.threads import Threads

_NO_RESULT = Success()
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The escape itself in JSON text, not a backslash that happens to stand before u0000."""


class Cause(enum.StrEnum):
    """Why a running handler was stopped from outside."""

    TIMEOUT = "timeout"
    LOCK = "lock"
    STOP = "stop"


class Execution:
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

    def stop(self, cause: Cause) -> None:
        """Stop the handler if it runs; the first cause decides the outcome."""
        if self.cause is None and self.is_running and self.task is not None:
            self.cause = cause
            self.task.cancel()

    async def outcome(self, threads: Threads) -> Outcome:
        """Validate the payload, call the handler, and tell how that ended."""
        try:
            payload = self._payload()
        except ValidationError as error:
            return Rejected(clean(_explain(error)))
        except (ValueError, RecursionError) as error:
            return Rejected(clean(f"the payload cannot be decoded: {error}"))
        except Exception as error:  # noqa: BLE001  a payload type may have validators of the user's
            return self._raised(error)
        try:
            result = await self._call(payload, threads)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if self.cause is None and task is not None and task.cancelling():
                raise  # the worker itself is being cancelled
            return self._stopped(cancelled)
        except (KeyboardInterrupt, GeneratorExit):
            raise  # of the process and of the coroutine: not the handler's
        except BaseException as error:  # noqa: BLE001  the user's code may raise anything
            return self._raised(error)
        return self._success(result)

    def _payload(self) -> Any:
        if not self.handler.takes_payload:
            return None
        if self.handler.payload is None:
            return self.message.payload()
        return self.handler.payload.validate_json(self.message.message)

    async def _call(self, payload: Any, threads: Threads) -> Any:
        handler = self.handler
        args = [payload if slot == "payload" else self.message for slot in handler.takes]
        function = handler.function
        if handler.names:
            slots = {"payload": payload, "message": self.message}
            function = partial(function, **{name: slots[slot] for name, slot in handler.names})
        call = function if handler.is_async else partial(threads.run, function)
        if handler.middleware:
            call = _around(call, args, self.message, handler.middleware)
            args = []
        self.task = self.task or asyncio.current_task()
        # Only while the task is inside the handler may it be cancelled: past that it settles.
        self.is_running = True
        try:
            return await call(*args)
        finally:
            self.is_running = False
            if self.cause is not None and self.task is not None:
                self.task.uncancel()

    def _raised(self, error: BaseException) -> Outcome:
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

    def _stopped(self, cancelled: asyncio.CancelledError) -> Outcome:
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
        decision = self.handler.retries.decide(error, self.message.attempts)
        if decision.complaint:
            details = f"{clean(details)}\nretried by the queue's backoff: {decision.complaint}"
        return Failed(
            clean(details),
            after=decision.after,
            status=Status.REJECTED if decision.is_rejected else Status.FAILED,
            gives_up=decision.gives_up,
            error=report(error),
        )

    def _success(self, result: Any) -> Outcome:
        if result is None:
            return _NO_RESULT
        try:
            if self.handler.result is not None:
                text = self.handler.result.dump_json(result, warnings=False).decode()
            else:
                text = to_json(result).decode()
        except Exception as error:  # noqa: BLE001  a result may have serializers of the user's
            return self._failed(error, f"the result cannot be written as JSON: {text_of(error)}")
        if "\\u0000" in text and _NUL.search(text):
            why = "the result has the character \\u0000, which PostgreSQL cannot store"
            return self._failed(ValueError(why), why)
        return Success(text)


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


def _explain(error: ValidationError) -> str:
    parts = [
        f"{'.'.join(str(part) for part in item['loc']) or 'payload'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "the payload is not valid: " + "; ".join(parts)
