"""One call of a handler, for one message or a batch: from locked rows to outcomes.

Loops and locks are elsewhere.
"""

from __future__ import annotations

import asyncio
import enum
import re
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from notifyq.database.encryption.sealing import encrypted, open_message, until_key
from notifyq.durable.control import LockLostError, Parked
from notifyq.durable.current import CURRENT
from notifyq.durable.steps import Steps
from notifyq.errors import ConfigurationError, DecryptionError, MissingKeyError
from notifyq.execution.runtime import StepWork, is_closing
from notifyq.handlers.retries import Reject, Retry, Snooze
from notifyq.handlers.subscriber import Subscriber
from notifyq.models.annotations import name
from notifyq.models.message import Message, Status
from notifyq.models.outcome import (
    Committed,
    Doubtful,
    Failed,
    Outcome,
    Rejected,
    Released,
    Success,
    Suspended,
)
from notifyq.models.payload import is_sealed
from notifyq.telemetry.tracebacks import clean, describe, explain, report, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping

    from notifyq.database.encryption.envelopes import Keys
    from notifyq.database.pool import AnyConnection
    from notifyq.durable.recorder import Recorder
    from notifyq.execution.capture import Records
    from notifyq.execution.runtime import Runtime, Transactions
    from notifyq.handlers.handler import Handler, Middleware

T = TypeVar("T")
M = TypeVar("M", bound="HandlerCall")

_NO_RESULT = Success()
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The escape in JSON text, not an escaped backslash followed by u0000."""


class Cause(enum.StrEnum):
    """Why a running handler was stopped from outside."""

    TIMEOUT = "timeout"
    LOCK = "lock"
    STOP = "stop"


class HandlerCall:
    """One message and the call of its handler."""

    __slots__ = (
        "cause", "handler", "is_running", "message", "records", "started", "steps", "task",
    )  # fmt: skip

    def __init__(self, handler: Handler[Any], message: Message) -> None:
        self.handler = handler
        self.message = message
        self.cause: Cause | None = None
        self.started: float | None = None
        """When it began, in monotonic seconds."""
        self.task: asyncio.Task[Any] | None = None
        """The task that awaits the outcome; set where the task was created for it."""
        self.is_running = False
        """Whether the handler has been called and has not returned."""
        self.steps: Recorder | None = None
        """The record of its steps, where the handler takes them."""
        self.records: Records | None = None
        """What the handler has logged, where that is captured."""

    @property
    def running_task(self) -> asyncio.Task[Any] | None:
        """The task that runs the handler."""
        return self.task

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

    async def outcome(self, runtime: Runtime, transaction: AnyConnection | None = None) -> Outcome:
        """Validate the payload and call the handler; return how that ended.

        A `transaction` of the caller must be ended by the caller, as the outcome requires.
        """
        if is_sealed(self.message.message) and (ended := self.open(runtime.keys)) is not None:
            return ended
        # A process checks it itself, but middleware must not see one that is not valid.
        payload = None if self.handler.process and not self.handler.middleware else self.payload()
        if isinstance(payload, Rejected | Failed):
            return payload
        if self.handler.process is not None:
            return await self._in_process(self.handler.process, runtime)
        if runtime.capture is not None:
            self.records = runtime.capture.begin()
        return (await self.handle({self: payload}, runtime, transaction))[self]

    def open(self, keys: Keys | None) -> Outcome | None:
        """Decrypt the message if it is encrypted; return the outcome where that fails."""
        try:
            self.message = open_message(self.message, keys)
        except MissingKeyError as error:
            return self.raised(error)
        except DecryptionError as error:
            self.message = self.message.opened(self.message.message)  # its error is encrypted
            return self.raised(error)
        return None

    def payload(self) -> Any:
        """The payload as the handler takes it, or the outcome where it is not valid."""
        handler = self.handler
        try:
            if not handler.takes_payload:
                return None
            if handler.payload is None:
                return self.message.payload()
            return handler.payload.validate_json(self.message.message)
        except ValidationError as error:
            return Rejected(clean(explain(error)))
        except (ValueError, RecursionError) as error:
            return Rejected(clean(f"the payload cannot be decoded: {error}"))
        except BaseException as error:  # noqa: BLE001  a type may have validators of the user
            return self.raised(error)

    def handle(
        self, payloads: Mapping[M, Any], runtime: Runtime, transaction: AnyConnection | None
    ) -> Coroutine[Any, Any, dict[M, Outcome]]:
        """Call the handler with these payloads of messages; return how that ended for each."""
        # No coroutine of its own: it would cost each message.
        if self.handler.is_transactional and transaction is None:
            return self._in_transaction(payloads, runtime)
        return self._called(payloads, runtime, transaction)

    async def _in_transaction(
        self, payloads: Mapping[M, Any], runtime: Runtime
    ) -> dict[M, Outcome]:
        ended: dict[M, Outcome] = {}
        try:
            async with self._transaction(runtime) as connection:
                ended = await self._called(payloads, runtime, connection)
                await _finish(connection, ended, runtime)
        except asyncio.CancelledError as cancelled:
            return self._all_stopped(payloads, cancelled, runtime)
        except RollBackError:
            return ended
        except Exception as error:  # noqa: BLE001  the server may answer anything
            return {member: member.rolled_back(ended.get(member), error) for member in payloads}
        return {
            member: Committed() if isinstance(outcome, Success) else outcome
            for member, outcome in ended.items()
        }

    async def _called(
        self, payloads: Mapping[M, Any], runtime: Runtime, transaction: AnyConnection | None
    ) -> dict[M, Outcome]:
        try:
            returned = await self._call(payloads, runtime, transaction)
            if self.task is not None and self.task.cancelling():
                await runtime.let_go()
        except asyncio.CancelledError as cancelled:
            return self._all_stopped(payloads, cancelled, runtime)
        except BaseException as error:
            if is_closing(error, self.task):
                raise
            return {member: member.raised(error) for member in payloads}
        if self.handler.batch is None:
            [member] = payloads
            return {member: member.success(returned)}
        returned = [None] * len(payloads) if returned is None else returned
        if not isinstance(returned, Sequence) or len(returned) != len(payloads):
            count = f"{len(returned)} of them" if isinstance(returned, Sequence) else "no list"
            wrong = Failed(
                f"the handler must return None or a list with an outcome for each of its "
                f"{len(payloads)} messages, not {count}"
            )
            return dict.fromkeys(payloads, wrong)
        return {
            member: member.raised(value)
            if isinstance(value, BaseException)
            else member.success(value)
            for member, value in zip(payloads, returned, strict=True)
        }

    def _all_stopped(
        self, members: Collection[M], cancelled: asyncio.CancelledError, runtime: Runtime
    ) -> dict[M, Outcome]:
        for member in members:
            member.cause = self.cause
        return {member: member.stopped(cancelled, runtime) for member in members}

    async def _in_process(self, where: tuple[str, str], runtime: Runtime) -> Outcome:
        if runtime.processes is None:
            raise ConfigurationError("only a worker runs handlers in processes")
        self.started = None  # starting a process does not count as time of the handler
        processes, tracing = runtime.processes, self.handler.tracing

        async def run() -> Outcome:  # inside the span, which is a middleware
            carried = tracing.carried() if tracing is not None else {}
            outcome, self.records = await processes.run(
                where, self.message, self.begin, carried, runtime.capture
            )
            return outcome

        try:
            if not self.handler.middleware:
                return await self._interruptible(run())
            call = _around(partial(_result_of, run), self.message, self.handler.middleware)
            return self.success(await self._interruptible(call()))
        except asyncio.CancelledError as cancelled:
            return self.stopped(cancelled, runtime)
        except EndedError as ended:
            return ended.outcome
        except BaseException as error:
            if is_closing(error, self.task):
                raise
            return self.raised(error)

    @asynccontextmanager
    async def _transaction(self, runtime: Runtime) -> AsyncIterator[AnyConnection]:
        """Open a transaction for the handler; waiting for it can be stopped like the handler."""
        if runtime.transactions is None:
            raise ConfigurationError("only a worker runs transactional handlers")
        async with AsyncExitStack() as stack:
            opened = runtime.transactions.open()
            yield await self._interruptible(stack.enter_async_context(opened))

    async def _call(
        self, payloads: Mapping[M, Any], runtime: Runtime, transaction: AnyConnection | None
    ) -> Any:
        """Call the handler with its arguments, inside its middleware."""
        handler = self.handler
        message: Any = self.message
        payload: Any
        if handler.batch is None:
            [payload] = payloads.values()
        else:
            message = [member.message for member in payloads]
            payload = list(payloads.values())
        slots = {"payload": payload, "message": message, "transaction": transaction}
        if handler.takes_steps:
            slots["steps"] = steps = Steps(self.message, StepWork(handler, runtime))
            self.steps = steps.record
        if runtime.database is not None and handler.is_async:
            CURRENT.set((self.message, runtime.database))
        args = [slots[slot] for slot in handler.takes]
        function = handler.function
        if handler.names:
            function = partial(function, **{name: slots[slot] for name, slot in handler.names})
        if not handler.is_async:
            function = partial(runtime.threads.run, function)
        if self.steps is not None:
            function = partial(self.steps.run_handler, function)
        if handler.middleware or handler.tracing is not None:
            function, args = self._wrapped(partial(function, *args), message), []
        return await self._interruptible(function(*args))

    def _wrapped(self, call: Callable[[], Awaitable[Any]], message: Any) -> Any:
        """The call inside its middleware and its span."""
        call = _around(call, self.message, self.handler.middleware)
        if self.handler.tracing is not None:
            call = self.handler.tracing.around(self.handler, message, call)
        return call

    async def _interruptible(self, call: Awaitable[T]) -> T:
        self.task = self.task or asyncio.current_task()
        # The task may be cancelled only inside the handler: after it, the task settles.
        self.is_running = True
        try:
            return await call
        finally:
            self.is_running = False
            if self.cause is not None and self.task is not None:
                self.task.uncancel()

    def raised(self, error: BaseException) -> Outcome:
        """The outcome of a call that raised this."""
        if self.steps is not None and self.steps.ended is not None:
            error = self.steps.ended  # also where the handler has raised another error since
        match error:
            case Parked():
                return Suspended()
            case MissingKeyError():  # of its payload, a step, or what that waits for
                return until_key(self.message, error)
            case LockLostError():
                return Committed(is_held=False)
            case Reject():
                return _rejected(error)
            case Snooze() if not isinstance(self.handler, Subscriber):
                return Released(error.after)
            case Retry():
                return self._failed(error, text_of(error) or "retry")
            case _:
                return self._failed(error, describe(error))

    def stopped(self, cancelled: asyncio.CancelledError, runtime: Runtime) -> Outcome:
        """The outcome of a cancelled attempt; raises where the worker itself is cancelled."""
        if self.cause is None and runtime.is_cancelled():
            raise cancelled
        if self.steps is not None and isinstance(self.steps.ended, Parked):
            return Suspended()  # the lock was given back, which the heartbeat takes for a loss
        match self.cause:
            case Cause.LOCK:
                return Failed("the handler outlived its lock", status=Status.LOCK_EXPIRED)
            case Cause.TIMEOUT:
                late = TimeoutError(
                    f"the handler took longer than its timeout {self.handler.timeout}"
                )
                # The traceback shows where the handler was stopped.
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
        """The outcome of an attempt whose transaction ended with an error."""
        if outcome is not None and not isinstance(outcome, Success):
            return outcome  # it was to be rolled back, which a lost server does by itself
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
        except BaseException as error:  # noqa: BLE001  a result may have serializers of the user
            # Not this error: its traceback is only of our frames, the serializer keeps none.
            why = (
                f"the result of {name(self.handler.function)}, of type {type(result).__name__}, "
                f"cannot be written as JSON: {text_of(error)}"
            )
            return self._failed(ValueError(why), why)
        if "\\u0000" in text and _NUL.search(text):
            why = "the result has the character \\u0000, which PostgreSQL cannot store"
            return self._failed(ValueError(why), why)
        return Success(text)


def _rejected(error: Reject) -> Rejected | Failed:
    reason = clean(text_of(error) or "rejected by the handler")
    if error.__cause__ is None:
        return Rejected(reason)
    # Its cause belongs in the history of attempts.
    return Failed(reason, status=Status.REJECTED, gives_up=True, error=report(error))


async def _finish(connection: AnyConnection, ended: dict[M, Outcome], runtime: Runtime) -> None:
    """Finish in the transaction what has succeeded; the rest is settled after it."""
    done = {member: it for member, it in ended.items() if isinstance(it, Success)}
    if not done:
        raise RollBackError
    finishes = [(it.message, encrypted(it.message, done[it], runtime.keys)) for it in done]
    held = await cast("Transactions", runtime.transactions).finish(connection, finishes)
    if len(held) == len(done):
        return
    # The writes for a message that another worker has now cannot be separated from the rest:
    # nothing is committed, and the others are handled again.
    for member in done:
        is_held = member.message.id in held
        ended[member] = Released() if is_held else Committed(is_held=False)
    raise RollBackError


class BatchCall(Generic[M]):
    """Messages that one call handles together.

    Each keeps its own lock: a message without its lock is left out or not finished, the others go
    on.
    """

    def __init__(self, handler: Handler[Any]) -> None:
        self.handler = handler
        self.members: list[M] = []
        self.started: float | None = None
        self.waits_since = 0.0
        self.lost: set[M] = set()
        """Members whose lock was lost."""
        self._call: HandlerCall | None = None
        self.task: asyncio.Task[Any] | None = None

    @property
    def is_full(self) -> bool:
        """Whether it takes no more messages."""
        return len(self.members) >= (self.handler.batch or 1)

    @property
    def running_task(self) -> asyncio.Task[Any] | None:
        """The task that runs the handler."""
        return self.task if self._call is None else self._call.running_task

    def stop(self, cause: Cause) -> bool:
        """Stop the handler if it runs; false where there is nothing to stop."""
        return self._call is not None and self._call.stop(cause)

    def lose(self, member: M) -> bool:
        """Leave out a member whose lock is lost; true if no other member is left."""
        self.lost.add(member)
        return len(self.lost) == len(self.members)

    async def outcomes(
        self, runtime: Runtime, transaction: AnyConnection | None = None
    ) -> dict[M, Outcome]:
        """Validate the payloads and call the handler; return how that ended for each message.

        A `transaction` of the caller must be ended by the caller, as the outcomes require.
        """
        ended: dict[M, Outcome] = {}
        payloads: dict[M, Any] = {}
        for member in self.members:
            if member in self.lost:
                ended[member] = Released()
                continue
            if is_sealed(member.message.message) and (it := member.open(runtime.keys)) is not None:
                ended[member] = it
                continue
            payload = member.payload()
            if isinstance(payload, Rejected | Failed):
                ended[member] = payload
            else:
                payloads[member] = payload
        if payloads:
            call = self._call = HandlerCall(self.handler, next(iter(payloads)).message)
            call.task = self.task
            ended |= await call.handle(payloads, runtime, transaction)
        return ended


class EndedError(Exception):
    """Passes on an outcome that is already known."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class RollBackError(Exception):
    """Rolls back a transaction whose outcomes are known."""


async def _result_of(run: Callable[[], Awaitable[Outcome]]) -> Any:
    outcome = await run()
    if not isinstance(outcome, Success):
        raise EndedError(outcome)
    return None if outcome.result is None else from_json(outcome.result)


def _around(
    call: Callable[[], Awaitable[Any]], message: Message, middleware: tuple[Middleware, ...]
) -> Callable[[], Awaitable[Any]]:
    for outer in reversed(middleware):
        call = partial(outer, message, call)
    return call
