"""Running one message: from a locked row to an outcome. Knows nothing of loops and of locks."""

from __future__ import annotations

import asyncio
import enum
import re
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_json

from notifyq.handlers import Reject, Retry
from notifyq.model import Failed, Message, Outcome, Rejected, Released, Status, Success

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from notifyq.handlers import Handler, Middleware
    from notifyq.threads import Threads

_DETAILS = 8000
"""Longest details, in characters; the end of a traceback says more than its beginning."""
_PACKAGE = Path(__file__).parent
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
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.cause is None and task is not None and task.cancelling():
                raise  # the worker itself is being cancelled
            return self._stopped()
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
                return Rejected(clean(_text(error) or "rejected by the handler"))
            case Retry():
                return Failed(clean(_text(error) or "retry"), after=error.after)
            case _:
                return Failed(clean(describe(error)))

    def _stopped(self) -> Outcome:
        match self.cause:
            case Cause.LOCK:
                return Failed("the handler outlived its lock", status=Status.LOCK_EXPIRED)
            case Cause.TIMEOUT:
                return Failed(f"the handler took longer than its timeout {self.handler.timeout}")
            case Cause.STOP:
                return Released()
            case None:
                return Failed("the handler cancelled itself")

    def _success(self, result: Any) -> Outcome:
        if result is None:
            return _NO_RESULT
        try:
            if self.handler.result is not None:
                text = self.handler.result.dump_json(result, warnings=False).decode()
            else:
                text = to_json(result).decode()
        except Exception as error:  # noqa: BLE001  a result may have serializers of the user's
            return Failed(clean(f"the result cannot be written as JSON: {_text(error)}"))
        if "\\u0000" in text and _NUL.search(text):
            return Failed("the result has the character \\u0000, which PostgreSQL cannot store")
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


def describe(error: BaseException) -> str:
    """An error for `details`: its class and text first, then where it came from."""
    head = "".join(traceback.format_exception_only(error)).strip()
    # The frames of notifyq say nothing about the handler.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _PACKAGE not in (path := Path(frame.filename)).parents
        or _PACKAGE / "demo" in path.parents
    ]
    tail = "".join(traceback.format_list(frames)).rstrip()
    return f"{head}\n{tail}" if tail else head


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  it may be a class of the user's
        return f"{type(error).__name__}, which has no text"


def clean(details: str) -> str:
    """Text that a PostgreSQL text column takes, of bounded length."""
    if len(details) > _DETAILS:
        details = f"{details[: _DETAILS // 2]}\n…\n{details[-_DETAILS // 2 :]}"
    return details.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()


def _explain(error: ValidationError) -> str:
    parts = [
        f"{'.'.join(str(part) for part in item['loc']) or 'payload'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "the payload is not valid: " + "; ".join(parts)
