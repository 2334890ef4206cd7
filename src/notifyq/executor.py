"""Running one message: from a locked row to an outcome. Knows nothing of loops and of locks."""

from __future__ import annotations

import asyncio
import enum
import json
import traceback
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from notifyq.handlers import Reject, Retry
from notifyq.model import Failed, Message, Outcome, Rejected, Released, Status, Success

if TYPE_CHECKING:
    from notifyq.handlers import Handler
    from notifyq.threads import Threads

_DETAILS = 8000
"""Longest details, in characters; the end of a traceback says more than its beginning."""


class Cause(enum.StrEnum):
    """Why a running handler was stopped from outside."""

    TIMEOUT = "timeout"
    LOCK = "lock"
    STOP = "stop"


class Execution:
    """One message on its way through its handler."""

    __slots__ = ("_task", "cause", "handler", "message")

    def __init__(self, handler: Handler[Any, Any], message: Message) -> None:
        self.handler = handler
        self.message = message
        self.cause: Cause | None = None
        self._task: asyncio.Task[Any] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the handler has been called and has not returned."""
        return self._task is not None

    def stop(self, cause: Cause) -> None:
        """Stop the handler if it runs; the first cause decides the outcome."""
        if self.cause is None and self._task is not None:
            self.cause = cause
            self._task.cancel()

    async def outcome(self, threads: Threads) -> Outcome:
        """Validate the payload, call the handler, and tell how that ended."""
        try:
            payload = self._payload()
        except ValidationError as error:
            return Rejected(clean(_explain(error)))
        except (ValueError, RecursionError) as error:
            return Rejected(clean(f"the payload cannot be decoded: {error}"))
        try:
            result = await self._call(payload, threads)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.cause is None and task is not None and task.cancelling():
                raise  # the worker itself is being cancelled
            return self._stopped()
        except Reject as signal:
            return Rejected(clean(str(signal) or "rejected by the handler"))
        except Retry as signal:
            return Failed(clean(str(signal) or "retry"), after=signal.after)
        except Exception as error:  # noqa: BLE001  the user's code may raise anything
            return Failed(clean(describe(error)))
        return self._success(result)

    def _payload(self) -> Any:
        if "payload" not in self.handler.takes:
            return None
        if self.handler.payload is None:
            return json.loads(self.message.message)
        return self.handler.payload.validate_json(self.message.message)

    async def _call(self, payload: Any, threads: Threads) -> Any:
        given = {"payload": payload, "message": self.message}
        args = [given[name] for name in self.handler.takes]
        # Only while the task is inside the handler may it be cancelled: past that it settles.
        self._task = asyncio.current_task()
        try:
            if self.handler.is_async:
                return await self.handler.function(*args)
            return await threads.run(self.handler.function, *args)
        finally:
            if self.cause is not None and self._task is not None:
                self._task.uncancel()
            self._task = None

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
            return Success()
        try:
            if self.handler.result is not None:
                text = self.handler.result.dump_json(result, warnings=False).decode()
            else:
                text = to_json(result).decode()
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            return Failed(clean(f"the result cannot be written as JSON: {error}"))
        if "\\u0000" in text:
            return Failed("the result has the character \\u0000, which PostgreSQL cannot store")
        return Success(text)


def describe(error: BaseException) -> str:
    """An error for `details`: its class and text first, then where it came from."""
    head = "".join(traceback.format_exception_only(error)).strip()
    # The frames of notifyq say nothing about the handler.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/notifyq/" not in frame.filename or "/notifyq/demo" in frame.filename
    ]
    tail = "".join(traceback.format_list(frames)).rstrip()
    return f"{head}\n{tail}" if tail else head


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
