"""What a worker runs handlers with, besides the event loop: threads, transactions, processes."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from notifyq.database import statements as sql
from notifyq.database.encoding import storable
from notifyq.database.installs import ours
from notifyq.database.pool import begun, explaining
from notifyq.database.retry import retrying
from notifyq.durable.recording import Recording
from notifyq.errors import ConfigurationError
from notifyq.execution.around import call_inside
from notifyq.models.message import Message, newest
from notifyq.models.outcome import Outcome, Rejected, Success
from notifyq.notify.wake import call_on

if TYPE_CHECKING:
    from notifyq.database.encryption.envelopes import Keys
    from notifyq.database.pool import AnyConnection, Database
    from notifyq.execution.capture import Capture, Records
    from notifyq.handlers.handler import AroundSync, Handler

    Finish = tuple[Message, Success | Rejected]

log = logging.getLogger("notifyq.worker")


class Threads:
    """Run functions in daemon threads.

    A thread cannot be stopped from outside. A function that its caller has abandoned runs on, and
    `stuck` counts it until it ends. The process can exit without it, which threads of
    `concurrent.futures` would not allow. Each function runs inside the context managers that the
    functions of `around` make.
    """

    def __init__(self, around: Sequence[AroundSync] = ()) -> None:
        self._around = around
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: set[asyncio.Future[Any]] = set()
        self._abandoned: set[asyncio.Future[Any]] = set()
        self._idle = 0
        self._is_closed = False

    @property
    def busy(self) -> int:
        """How many functions run, abandoned ones included."""
        return len(self._running)

    @property
    def stuck(self) -> int:
        """How many functions run on after they were abandoned."""
        return len(self._abandoned)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, with the context variables of the caller."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def call() -> None:
            try:
                result = context.run(call_inside, self._around, function, *args)
            except BaseException as error:  # noqa: BLE001  it is raised where the result is awaited
                call_on(loop, self._ended, future, None, error)
            else:
                call_on(loop, self._ended, future, result, None)

        if self._idle == 0:
            threading.Thread(target=self._serve, name="notifyq-handler", daemon=True).start()
        else:
            self._idle -= 1
        self._running.add(future)
        self._calls.put(call)
        try:
            return await future
        finally:
            # A cancelled function may have ended before this task noticed.
            if future.cancelled() and future in self._running:
                self._abandoned.add(future)

    def close(self) -> None:
        """End the idle threads, and each busy one when it becomes idle."""
        self._is_closed = True
        for _ in range(self._idle):
            self._calls.put(None)
        self._idle = 0

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _ended(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._running.discard(future)
        self._abandoned.discard(future)
        if self._is_closed:
            self._calls.put(None)
        else:
            self._idle += 1
        if future.done():  # abandoned
            return
        if isinstance(error, StopIteration | GeneratorExit):
            # A future cannot pass it on: it would end the coroutines that wait.
            wrapper = RuntimeError(f"the handler raised {type(error).__name__}")
            wrapper.__cause__ = error
            future.set_exception(wrapper)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


class Transactions:
    """Connections for transactional handlers beside the pool, one for each that may run.

    A handler never waits for the connection of another one, and claims do not wait for handlers.
    """

    def __init__(self, database: Database, size: int) -> None:
        self._connections = database.dedicated(size)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AnyConnection]:
        """Begin a transaction; it commits at the end of the block, unless the block raises."""
        async with AsyncExitStack() as stack:
            connection = await self._borrow(stack)
            await stack.enter_async_context(begun(connection, self._connections.dsn))
            with explaining(self._connections.dsn):
                await connection.execute(sql.TRANSACTION)  # not prepared: see Database.connection
            yield connection

    async def finish(self, connection: AnyConnection, finishes: Sequence[Finish]) -> set[int]:
        """Finish messages in the transaction; return the ids whose locks were still held."""
        keys = [(message.id, message.lock_token) for message, _ in finishes]
        encoding = connection.get_settings().server_encoding
        with explaining(self._connections.dsn):
            rows = await connection.fetch(
                ours(connection, sql.FINISH_MANY),
                [message_id for message_id, _ in keys],
                [token for _, token in keys],
                *ends_of([it for _, it in finishes], partial(storable, encoding=encoding)),
            )
        return {message_id for message_id, _ in newest(keys, rows)}

    async def close(self) -> None:
        """Close the connections; open transactions get a few seconds."""
        await self._connections.close()

    async def _borrow(self, stack: AsyncExitStack) -> AnyConnection:
        # The attempt begins when there is a server to work with.
        async for attempt in retrying("a transaction", log, self._connections.settings.retry_for):
            with attempt:
                return await stack.enter_async_context(self._connections.connection())
        raise AssertionError  # tenacity returns or raises; this line is for the type checker


def ends_of(
    outcomes: Sequence[Success | Rejected], text: Callable[[str], str]
) -> tuple[list[str], list[str | None] | None, list[str | None] | None]:
    """Statuses, details and results for FINISH_MANY; None where the server has none to look at."""
    details = [text(it.reason) if isinstance(it, Rejected) else None for it in outcomes]
    results = [it.result if isinstance(it, Success) else None for it in outcomes]
    return (
        [it.status for it in outcomes],
        details if any(it is not None for it in details) else None,
        results if any(it is not None for it in results) else None,
    )


class HandlerProcesses(Protocol):
    """Runs handlers in processes."""

    async def run(
        self,
        where: tuple[str, str],
        message: Message,
        began: Callable[[], None],
        carried: dict[str, str],
        capture: Capture | None,
    ) -> tuple[Outcome, Records | None]:
        """Handle a message with the handler of this module and name.

        `carried` is the trace context of the span around it, or empty.
        """

    def close(self) -> None:
        """Kill the processes."""


@dataclass(slots=True, kw_only=True)
class Runtime:
    """Threads for all handlers; transactions and processes where a handler needs them."""

    threads: Threads = field(default_factory=Threads)
    database: Database | None = None
    """For steps, progress and output of handlers."""
    capture: Capture | None = None
    """Which log records are kept; None: none are collected."""
    crashes: bool = False
    """Whether a call ends after each new step, as by a crash: for tests."""
    transactions: Transactions | None = None
    processes: HandlerProcesses | None = None
    owner: asyncio.Task[Any] | None = None
    """The task that serves; None: a handler whose task is cancelled has ended."""
    is_abandoned: bool = False
    """Whether what still runs is ended from outside."""
    recording: Recording | None = field(init=False)
    """Records steps."""

    def __post_init__(self) -> None:
        self.recording = None if self.database is None else Recording(self.database)

    @property
    def keys(self) -> Keys | None:
        """What decrypts messages, and encrypts how they ended."""
        return None if self.database is None else self.database.keys

    @property
    def stuck(self) -> int:
        """How many slots are taken by functions that run on after they were abandoned."""
        return self.threads.stuck

    def is_cancelled(self) -> bool:
        """Whether the current task is cancelled from outside.

        A handler may cancel its own task, or a library may do it for a timeout: that is forgotten.
        """
        task, owner = asyncio.current_task(), self.owner
        if task is None or not task.cancelling():
            return False
        if self.is_abandoned or owner is None or owner.done() or owner.cancelling():
            return True
        while task.uncancel():
            pass
        return False

    async def let_go(self) -> None:
        """Take the cancellation that a handler has left for what follows it."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.is_cancelled():
                raise

    async def close(self) -> None:
        """End what is idle; threads that run end by themselves."""
        self.threads.close()
        if self.processes is not None:
            self.processes.close()
        if self.recording is not None:
            await self.recording.close()
        if self.transactions is not None:
            await self.transactions.close()


def is_closing(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether this error closes the coroutines of a task from outside, as when its loop ends.

    A handler may raise the same error: then its task is running.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return task is None or asyncio.current_task() is not task
    except RuntimeError:  # there is no running loop
        return True


class StepWork:
    """What the steps of a handler use of its worker."""

    def __init__(self, handler: Handler[Any], runtime: Runtime) -> None:
        if runtime.database is None or runtime.transactions is None or runtime.recording is None:
            raise ConfigurationError("only a worker runs handlers with steps")
        self.publisher = handler.publisher
        self.tracing = handler.tracing
        self.database = runtime.database
        self.recording = runtime.recording
        self.in_thread = runtime.threads.run
        self.transaction = runtime.transactions.open
        self.crashes = runtime.crashes
