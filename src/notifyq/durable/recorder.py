"""The record of one call of a handler: what its steps have done, and what it waits for."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack

import asyncpg
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from notifyq.database import statements as sql
from notifyq.database.encoding import storing
from notifyq.database.encryption.envelopes import opened
from notifyq.database.installs import ours
from notifyq.database.pool import explaining
from notifyq.durable.control import LockLostError, Parked
from notifyq.errors import (
    DatabaseUnavailableError,
    LockNotHeldError,
    StepClosedError,
    StepFailedError,
    StepKindError,
    StepNameError,
    StepNestedError,
    StepValueError,
    WaitError,
)
from notifyq.models.annotations import hints
from notifyq.models.payload import encode
from notifyq.telemetry.tracebacks import clean, text_of

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection, Database
    from notifyq.durable.recording import Recording
    from notifyq.models.message import Message
    from notifyq.queues.publisher import PublishOptions
    from notifyq.queues.results import Handle, Results
    from notifyq.telemetry.tracing import Tracing

_STEP: ContextVar[str | None] = ContextVar("notifyq_step", default=None)
"""The step that the running code is of."""
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_TURNS = 20
"""Turns of the event loop that an error takes at most from a step through groups of tasks."""
_LONGEST = 200
"""Most bytes of the name of a step, with its key."""


class Work(Protocol):
    """What steps are done with: the worker's database, threads and transactions."""

    database: Database
    recording: Recording
    crashes: bool
    """Whether a call ends after each new step, as by a crash: for tests."""
    tracing: Tracing | None
    """Makes spans of steps."""

    @property
    def publisher(self) -> Publisher:
        """The App of the handler."""

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a sync function in a thread."""

    def transaction(self) -> AbstractAsyncContextManager[AnyConnection]:
        """Open a transaction that commits at the end of the block."""


class Publisher(Protocol):
    """An App, as steps use it."""

    @property
    def results(self) -> Results:
        """Waits for the ends of messages."""

    async def publish(
        self, queue: str, payload: Any, **options: Unpack[PublishOptions]
    ) -> Handle[Any]:
        """Publish one message."""


class Recorded(NamedTuple):
    """A recorded step, or what the message waits for: then `state` is None."""

    kind: str
    state: str | None
    value: str | None
    """JSON, as it is stored."""


class RecordedBeforeError(Exception):
    """Rolls back the transaction of a step that was recorded before."""


class Recorder:
    """Records the steps of one message during one call of its handler."""

    def __init__(self, message: Message, work: Work) -> None:
        self.message = message
        self.work = work
        self._lock = (message.id, message.lock_token)
        self._keys = work.database.keys if message.is_encrypted else None
        self.recorded: dict[str, Recorded] = {}
        self.origin = ""
        self._used: set[str] = set()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: asyncio.Future[None] | None = None
        self.ended: Parked | LockLostError | None = None
        """Why the call must end, whatever the handler makes of it; None: it may go on."""
        self._is_over = False

    async def load(self) -> None:
        """Read what earlier calls have recorded."""
        root = self.message.root_id
        # The same for a dead message and what it was published again as.
        self.origin = f"{await self.work.database.step_origin()}:{root or self.message.id}"
        if root is not None:  # else nothing is recorded, and no other call has the lock
            await self._read_all()

    async def _read_all(self) -> None:
        for row in await self.call(sql.RECORDED_STEPS):
            value = self._read(row["kind"], row["value"])
            self.recorded[row["name"]] = Recorded(row["kind"], row["state"], value)

    async def run_handler(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Call the handler; a message that was parked or lost meanwhile ends it in any case."""
        await self.load()
        try:
            returned = await function(*args)
        finally:
            self._is_over = True
        self.check()
        return returned

    def begin(self, kind: str, name: str, key: object) -> str:
        """Return the full name of a step, after the checks that need no database."""
        step = step_name(name, key)
        length = len(step.encode(errors="replace"))
        if not 1 <= length <= _LONGEST or "\0" in step:
            raise StepNameError(
                f"the name of a step has 1 to {_LONGEST} bytes, not {length}, and no zero byte: "
                f"{step[:50]!r}"
            )
        if self._is_over:
            raise StepClosedError(
                f"step {step!r} of message {self.message.id} is called after its handler returned"
            )
        if (outer := _STEP.get()) is not None:
            raise StepNestedError(f"step {step!r} is called inside step {outer!r}: call it after")
        if step in self._used:
            raise StepNameError(
                f"the name {step!r} is used twice in one call of the handler: give each step its "
                "own, or number it in a loop with key="
            )
        before = self.recorded.get(step)
        if before is not None and before.kind != kind:
            raise StepKindError(
                f"{step!r} is recorded as a {before.kind} of message {self.message.id} and cannot "
                f"be a {kind}: give each step, sleep and wait a name of its own"
            )
        self._used.add(step)
        return step

    def is_done(self, step: str) -> bool:
        """Whether it is recorded, and not only waited for."""
        return step in self.recorded and self.recorded[step].state is not None

    @asynccontextmanager
    async def doing(self, step: str) -> AsyncIterator[None]:
        """Do a step in the block; no wait parks the message meanwhile."""
        while self._waiting is not None:  # a wait may park the message in this moment
            await asyncio.shield(self._waiting)
        self.check()
        self._running += 1
        self._idle.clear()
        token = _STEP.set(step)
        is_new = step not in self.recorded
        tracing = self.work.tracing if is_new else None
        try:
            if tracing is None:
                yield
            else:
                with tracing.step(self.message.queue, self.message.id, step) as span:
                    yield
                    if step in self.recorded:
                        span.set_attribute("notifyq.step.state", str(self.recorded[step].state))
        finally:
            _STEP.reset(token)
            self._running -= 1
            if not self._running:
                self._idle.set()
        if self.work.crashes and is_new and step in self.recorded:
            self.ended = Parked(f"message {self.message.id} crashes after {step!r}")
            raise self.ended

    async def wait(self, step: str, statement: str, *args: Any) -> asyncpg.Record:
        """Ask for what a step waits for, once all steps beside it are recorded."""
        if self._waiting is not None:
            raise WaitError(
                f"{step!r} waits beside another wait: a message waits for one at a time"
            )
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            if self._running:
                await self._idle.wait()
                await self._let_fail()
            self.check()
            with storing(f"the value of step {step!r}", StepValueError):
                [row] = await self.call(statement, step, *args)
        finally:
            waiting, self._waiting = self._waiting, None
            waiting.set_result(None)
        return row

    async def _let_fail(self) -> None:
        """Let the error of a step beside a wait end the handler, which takes turns of the loop."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if self._is_over:
            raise StepClosedError(f"the handler of message {self.message.id} ended beside a wait")

    def decide(self, step: str, kind: str, state: str, value: str | None = None) -> None:
        """Take what a wait has brought: raise Parked, or record it."""
        if self.work.tracing is not None:
            self.work.tracing.decided(step, kind, state)
        if state == "parked":
            self.ended = Parked(f"message {self.message.id} is parked in {step!r}")
            raise self.ended
        self.recorded[step] = Recorded(kind, state, value)

    def check(self) -> None:
        """Raise what has ended the call."""
        if self.ended is not None:
            raise self.ended

    async def call(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Run a statement whose first arguments are the lock of the message."""
        try:
            return await self.work.database.persist(statement, *self._lock, *args)
        except LockNotHeldError as error:
            self.ended = LockLostError(str(error))
            raise self.ended from error

    def _written(self, value: str) -> str:
        """The value of a step as the database gets it."""
        if self._keys is None:
            return value
        return self._keys.encrypt_json(self.message.queue, "step", value)

    def _read(self, kind: str, value: str | None) -> str | None:
        """What is stored for a step, decrypted; the reader of an end decrypts it."""
        if value is None or self._keys is None:
            return value
        if kind == "signal":
            received = decoded(value)
            payload = json.dumps(received["payload"], ensure_ascii=False)
            return self.received(received["signal"], payload)
        return opened(self._keys, self.message.queue, "step", value) if kind == "step" else value

    def received(self, signal: str, payload: str) -> str:
        """A signal as the value of its step."""
        if self._keys is not None:
            payload = opened(self._keys, self.message.queue, "signal", payload)
        return f'{{"signal": {encode(signal)}, "payload": {payload}}}'

    async def record(self, step: str, value: str, *, failed: bool = False) -> None:
        """Record a step; the first record of a name wins."""
        with storing(f"the value of step {step!r}", StepValueError):
            written = self._written(value)
            row = await self.work.recording.add(self._lock, step, written, failed=failed)
            if row is None:  # alone: this may wait for the row, and raises if the lock was lost
                [row] = await self.call(sql.RECORD_STEP, step, written, failed)
        self.recorded[step] = Recorded("step", row["state"], self._read("step", row["stored"]))

    async def record_in(
        self, tx: AnyConnection, step: str, value: str, *, child_id: int | None = None
    ) -> None:
        """Record a step in the transaction of its effect; roll that back where it was recorded."""
        try:
            with (
                storing(f"the value of step {step!r}", StepValueError),
                explaining(self.work.database.dsn),
            ):
                written = self._written(value)
                call = ours(tx, sql.RECORD_STEP_IN)
                [row] = await tx.fetch(call, *self._lock, step, written, child_id)
        except LockNotHeldError as error:
            self.ended = LockLostError(str(error))
            raise self.ended from error
        self.recorded[step] = Recorded("step", row["state"], self._read("step", row["stored"]))
        if not row["is_new"]:
            raise RecordedBeforeError

    @asynccontextmanager
    async def transaction(self, step: str) -> AsyncIterator[AnyConnection]:
        """A transaction for the effect and the record of a step."""
        try:
            async with self.work.transaction() as tx:
                yield tx
        except RecordedBeforeError:
            pass  # another call of the handler was first: its effect stands, this one is undone
        except DatabaseUnavailableError:
            # The answer to the commit was lost, or it was not sent.
            self.recorded.pop(step, None)
            await self._read_all()
            if step not in self.recorded:
                raise
        except BaseException:
            self.recorded.pop(step, None)
            raise

    def value(self, step: str, function: Callable[..., Any] | None = None) -> Any:
        """The value of a step as its function returns it; raises StepFailedError."""
        _, state, value = self.recorded[step]
        if state == "failed":
            error = decoded(value)
            raise StepFailedError(
                f"step {step!r} of message {self.message.id} failed: {error['type']}: "
                f"{error['text']}"
            )
        kind = _ANYTHING if function is None else _returned(function)
        return kind.validate_json("null" if value is None else value)


@lru_cache(maxsize=1000)
def _returned(function: Callable[..., Any]) -> TypeAdapter[Any]:
    """What validates and writes what a function returns."""
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__  # an object that can be called
    annotation = hints(function).get("return", Any)
    return TypeAdapter(annotation) if annotation is not Any else _ANYTHING


def dumped(step: str, function: Callable[..., Any], value: Any) -> str:
    """What the function of a step returned, as JSON by its annotation."""
    try:
        kind = _returned(function)
        if kind is not _ANYTHING:  # which would write NaN as null
            value = kind.dump_python(value, mode="json", warnings=False)
        return encode(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise StepValueError(
            f"the value of step {step!r} cannot be written as JSON: {error.__cause__ or error}"
        ) from error


def described(error: BaseException) -> str:
    """An error as the value of a failed step."""
    return encode({"type": type(error).__name__, "text": clean(text_of(error))})


def decoded(value: str | None) -> Any:
    """The value of a step without a type."""
    return None if value is None else _ANYTHING.validate_json(value)


def step_name(name: str, key: object) -> str:
    """The name of a step, numbered by its key."""
    return name if key is None else f"{name}#{key}"
