"""Steps: a handler records what it has done, and does nothing twice after a crash."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast, overload

import tenacity
from pydantic import TypeAdapter

from notifyq.arguments import seconds
from notifyq.database import statements as sql
from notifyq.durable.recorder import (
    RecordedBeforeError,
    Recorder,
    Work,
    decoded,
    described,
    dumped,
    step_name,
)
from notifyq.errors import (
    ResultTimeoutError,
    SignalTimeoutError,
    StepNameError,
)
from notifyq.models.message import Message
from notifyq.queues.results import Handle, outcome_of

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection

T = TypeVar("T")
Duration = timedelta | float


class Signal(NamedTuple):
    """A signal that was received, where a wait was for several."""

    name: str
    """The one that came first."""
    payload: Any
    """What was sent with it."""


class Target(Protocol):
    """A handler that a step publishes to."""

    @property
    def result(self) -> TypeAdapter[Any] | None:
        """Validates the result; None: it is the decoded JSON."""

    @property
    def publish(self) -> Callable[..., Awaitable[Handle[Any]]]:
        """Publishes one message into its queue."""


class Steps:
    """The recorded steps of a message, for its handler.

    A step is found by its name, so code may change between attempts. One that is recorded is not
    done again: its value is returned. A kill between an effect and its record repeats the effect;
    outside the database, pass `idempotency_key(name)` along. Each name is used once in a call;
    `key=n` numbers a name in a loop.

    `sleep`, `wait_for`, `result` and `results` park the message unless what they wait for is
    there: they raise `Parked`, which ends the call, and the handler is called again later.
    """

    def __init__(self, message: Message, work: Work) -> None:
        self.message = message
        self.record = Recorder(message, work)
        """For the worker."""

    def done(self, name: str, *, key: object = None) -> bool:
        """Whether the step is recorded."""
        return self.record.is_done(step_name(name, key))

    def idempotency_key(self, name: str, *, key: object = None) -> str:
        """The same text for this step in each attempt, also after `dead_retry`, and in no other."""
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{self.record.origin}:{step_name(name, key)}").hex

    @overload
    async def run(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        retry: tenacity.BaseRetrying | None = None,
        timeout: Duration | None = None,
        errors: tuple[type[Exception], ...] = (),
        key: object = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def run(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        retry: tenacity.BaseRetrying | None = None,
        timeout: Duration | None = None,
        errors: tuple[type[Exception], ...] = (),
        key: object = None,
        **kwargs: Any,
    ) -> T: ...
    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retry: tenacity.BaseRetrying | None = None,
        timeout: Duration | None = None,
        errors: tuple[type[Exception], ...] = (),
        key: object = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function once and record what it returns; later calls return that value.

        A sync function runs in a thread. `retry` repeats it within this call (tenacity), `timeout`
        (seconds or timedelta) ends one try. `errors` are outcomes: recorded, and raised as
        StepFailedError in this and in each later attempt. Other errors end the attempt. The value
        is JSON, and is validated against the return annotation, the first time too.
        """
        step = self.record.begin("step", name, key)
        if step not in self.record.recorded:
            async with self.record.doing(step):
                try:
                    call = partial(self._try, partial(function, *args, **kwargs), timeout)
                    value = await (_retrying(retry)(call) if retry is not None else call())
                except errors as error:
                    await self.record.record(step, described(error), failed=True)
                else:
                    await self.record.record(step, dumped(step, function, value))
        return self.record.value(step, function)

    @overload
    def transaction(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        errors: tuple[type[Exception], ...] = (),
        key: object = None,
        **kwargs: Any,
    ) -> StepTransaction[T]: ...
    @overload
    def transaction(
        self,
        name: str,
        /,
        *,
        errors: tuple[type[Exception], ...] = (),
        key: object = None,
    ) -> StepTransaction[None]: ...
    def transaction(
        self,
        name: str,
        function: Callable[..., Awaitable[Any]] | None = None,
        /,
        *args: Any,
        errors: tuple[type[Exception], ...] = (),
        key: object = None,
        **kwargs: Any,
    ) -> StepTransaction[Any]:
        """Do a step whose effect in the database and whose record are one commit.

        `await steps.transaction(name, function, …)` calls `function(tx, …)` and returns its value.
        `async with steps.transaction(name) as tx:` runs a block. Python cannot skip a block: where
        the step is recorded, its statements run in a transaction that is rolled back and its errors
        are dropped; see `done(name)`.
        """
        call = None
        if function is not None:

            def call(tx: AnyConnection) -> Awaitable[Any]:
                return function(tx, *args, **kwargs)

        return StepTransaction(
            self.record, self.record.begin("step", name, key), function, call, errors
        )

    async def sleep(self, name: str, until: Duration | datetime, /, *, key: object = None) -> None:
        """Sleep for a time, or until an instant; the first call of a name fixes it."""
        step = self.record.begin("sleep", name, key)
        if not self.record.is_done(step):
            instant = until if isinstance(until, datetime) else None
            delay = None if isinstance(until, datetime) else seconds(until)
            has_passed = (await self.record.wait(step, sql.SLEEP, instant, delay))[0]
            self.record.decide(step, "sleep", "done" if has_passed else "parked")

    @overload
    async def wait_for(
        self, name: str, *, signal: str, timeout: Duration | None = None, key: object = None
    ) -> Any: ...
    @overload
    async def wait_for(
        self,
        name: str,
        *,
        signal: Sequence[str],
        timeout: Duration | None = None,
        key: object = None,
    ) -> Signal: ...
    async def wait_for(
        self,
        name: str,
        *,
        signal: str | Sequence[str],
        timeout: Duration | None = None,
        key: object = None,
    ) -> Any:
        """Wait for a signal and return its payload; for the first of several, a `Signal`.

        Raises SignalTimeoutError once the timeout is over; the first call fixes the deadline.
        """
        step = self.record.begin("signal", name, key)
        signals = [signal] if isinstance(signal, str) else list(signal)
        if not self.record.is_done(step):
            row = await self.record.wait(step, sql.WAIT_FOR_SIGNAL, signals, seconds(timeout))
            value = None
            if row["state"] == "received":
                value = self.record.received(row["signal"], row["payload"])
            self.record.decide(step, "signal", row["state"], value)
        _, state, value = self.record.recorded[step]
        if state == "timed_out":
            raise SignalTimeoutError(
                f"message {self.message.id}: no signal came in time for {step!r}"
            )
        received = decoded(value)
        if isinstance(signal, str):
            return received["payload"]
        return Signal(received["signal"], received["payload"])

    async def publish(
        self,
        name: str,
        target: Target | str,
        payload: Any = None,
        /,
        *,
        key: object = None,
        **options: Any,
    ) -> Handle[Any]:
        """Publish a message once, to a handler or into a queue, in one commit with its record.

        Options are those of `publish`. Hand what it returns to `result` or `results`.
        """
        step = self.record.begin("step", name, key)
        if step not in self.record.recorded:
            async with self.record.doing(step), self.record.transaction(step) as tx:
                options["connection"] = tx
                if isinstance(target, str):
                    child = await self.record.work.publisher.publish(target, payload, **options)
                else:
                    child = await target.publish(payload, **options)
                # An existing message with the same dedup key is that of another.
                child_id = None if child.is_duplicate else int(child)
                await self.record.record_in(tx, step, str(int(child)), child_id=child_id)
        number = int(decoded(self.record.recorded[step].value))
        kind = None if isinstance(target, str) else target.result
        return Handle(number, self.record.work.publisher.results, kind)

    async def result(
        self,
        name: str,
        message: Handle[T] | int,
        /,
        *,
        timeout: Duration | None = None,
        key: object = None,
    ) -> T:
        """Wait for the end of a message and return what its handler returned.

        Raises what `handle.result()` raises for one that failed, and ResultTimeoutError.
        """
        [result] = await self.results(name, [message], timeout=timeout, key=key)
        return cast("T", result)

    async def results(
        self,
        name: str,
        messages: Sequence[Handle[Any] | int],
        /,
        *,
        timeout: Duration | None = None,
        key: object = None,
    ) -> list[Any]:
        """Wait for the end of all of these messages and return their results, in their order.

        Raises what `handle.result()` raises for the first one that failed, and ResultTimeoutError.
        """
        step = self.record.begin("end", name, key)
        if not self.record.is_done(step):
            ids = [int(message) for message in messages]
            row = await self.record.wait(step, sql.WAIT_FOR_ENDS, ids, seconds(timeout))
            self.record.decide(step, "end", row["state"], row["ends"])
        _, state, value = self.record.recorded[step]
        if state == "timed_out":
            raise ResultTimeoutError(
                f"message {self.message.id}: not all messages ended in time for {step!r}"
            )
        kinds = {int(it): it.kind for it in messages if isinstance(it, Handle)}
        keys = self.record.work.database.keys
        ends = {end["message_id"]: end for end in decoded(value)}
        # One that is named twice is recorded once; the first call has fixed the messages.
        ids = [int(message) for message in messages]
        wanted = ids if ends.keys() == set(ids) else ends
        return [outcome_of(_report(ends[it]), kinds.get(it), keys) for it in wanted]

    async def _try(self, call: Callable[[], Any], timeout: Duration | None) -> Any:
        limit = seconds(timeout)
        async with asyncio.timeout(None if limit is None else limit.total_seconds()):
            function: Any = call
            while isinstance(function, partial):
                function = function.func
            if inspect.iscoroutinefunction(function):
                return await call()
            made = await self.record.work.in_thread(call)
            return await made if inspect.isawaitable(made) else made


class StepTransaction(Generic[T]):
    """A step in a transaction: awaited with its function, or entered as a block."""

    def __init__(
        self,
        record: Recorder,
        step: str,
        function: Callable[..., Awaitable[T]] | None,
        call: Callable[..., Awaitable[T]] | None,
        errors: tuple[type[Exception], ...],
    ) -> None:
        self._record = record
        self._step = step
        self._function = function
        self._call = call
        self._errors = errors
        self._block: AbstractAsyncContextManager[AnyConnection]

    def __await__(self) -> Generator[Any, None, T]:
        return self._run().__await__()

    async def _run(self) -> T:
        record, step, call = self._record, self._step, self._call
        if call is None or self._function is None:
            raise StepNameError(f"step {step!r} has no function: use `async with` for a block")
        if step not in record.recorded:
            async with record.doing(step):
                try:
                    async with record.transaction(step) as tx:
                        value = await call(tx)
                        await record.record_in(tx, step, dumped(step, self._function, value))
                except self._errors as error:
                    await record.record(step, described(error), failed=True)
        return cast("T", record.value(step, self._function))

    async def __aenter__(self) -> AnyConnection:
        self._block = self._in_block()
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return bool(await self._block.__aexit__(kind, error, traceback))

    @asynccontextmanager
    async def _in_block(self) -> AsyncIterator[AnyConnection]:
        record, step = self._record, self._step
        was_recorded = step in record.recorded
        dropped: BaseException | None = None
        async with record.doing(step):
            try:
                async with record.transaction(step) as tx:
                    try:
                        yield tx
                    except BaseException as error:
                        if not was_recorded:
                            raise
                        dropped = error
                    if was_recorded:
                        raise RecordedBeforeError
                    await record.record_in(tx, step, "null")
            except self._errors as error:
                await record.record(step, described(error), failed=True)
        record.value(step)
        if dropped is not None and not isinstance(dropped, Exception):
            raise dropped


def _report(end: dict[str, Any]) -> dict[str, Any]:
    """An end as messages.result() reports it."""
    return {
        "id": end["message_id"],
        "state": end["status"],
        "result": json.dumps(end["result"], ensure_ascii=False),
        **{name: end[name] for name in ("queue", "attempts", "details")},
    }


def _retrying(retry: tenacity.BaseRetrying) -> tenacity.AsyncRetrying:
    """The same policy for an async call; the last error is raised as it is."""
    return tenacity.AsyncRetrying(stop=retry.stop, wait=retry.wait, retry=retry.retry, reraise=True)
