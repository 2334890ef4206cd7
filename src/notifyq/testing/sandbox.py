"""An App on a test database: a test calls the handlers and sets the time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import ANY

from pydantic_core import to_jsonable_python

from notifyq.arguments import duration
from notifyq.execution.call import BatchCall, Cause, HandlerCall
from notifyq.execution.capture import Capture, capturing
from notifyq.execution.processes import Processes
from notifyq.execution.runtime import Runtime, Threads, Transactions
from notifyq.handlers.handler import Handler
from notifyq.handlers.subscriber import Subscriber
from notifyq.models.event import Event
from notifyq.models.message import ArchivedMessage, Message
from notifyq.models.outcome import Failed, Rejected, Released, Suspended
from notifyq.queues.results import Handle
from notifyq.telemetry import log_events
from notifyq.worker.fetch import Claims
from notifyq.worker.streams.delivery import Delivery

if TYPE_CHECKING:
    from notifyq.app import App

_ALL = 10_000
_SHOWN = 10
# The functions of the schema read the clock of the database: move the rows into the past instead.
_ADVANCE = """
update messages.message
set created_at = created_at - $1::interval,
  available_at = available_at - $1::interval,
  locked_at = locked_at - $1::interval,
  lock_expires_at = lock_expires_at - $1::interval
"""
_ADVANCE_EVENTS = "update notifyq.event_retry set due_at = due_at - $1::interval"
_ADVANCE_STEPS = """
update notifyq.step set due_at = due_at - $1::interval where state is null and due_at is not null"""
_ADVANCE_EXPIRY = "update notifyq.expiry set expires_at = expires_at - $1::interval"
_EVENTS = "select * from messages.events_since(stream => $1)"
_MAINTENANCE = "select messages.stage_due(), messages.reap(), notifyq.expire(1000000)"


class Sandbox:
    """While it is open, its App uses the database of `dsn`.

    Nothing runs in the background: `drain()` calls the handlers, one by one, on the event loop of
    the test. The database must have the schema and no other users, as that of fixture
    `notifyq_dsn`. `dsn` must be that of its owner, since `advance()` changes rows.
    """

    def __init__(
        self,
        app: App,
        dsn: str,
        *,
        resources: Mapping[Any, Any] | None = None,
        crash_after_steps: bool = False,
    ) -> None:
        """Describe it; `resources` replaces, by type, the resources of handlers.

        With `crash_after_steps` each call of a handler ends after a new step, as if its worker had
        been killed, and the message is handled again.
        """
        self.app = app
        self.dsn = dsn
        self._crashes = crash_after_steps
        self._resources = resources

    async def __aenter__(self) -> Self:
        """Point the App to the database, and create the queues of its handlers."""
        await self.app.close()
        self._dsn, self.app.dsn = self.app.dsn, self.dsn
        self._stack = AsyncExitStack()
        self._stack.push_async_callback(self._restore)
        async with self._stack:
            registry = self.app.registry
            subscribers = registry.subscribers()
            await self.app.create()
            opened = registry.opened(registry.queues(), self._resources, subscribers=subscribers)
            self._handlers = await self._stack.enter_async_context(opened)
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Restore the App, without connections."""
        await self._stack.aclose()

    async def _restore(self) -> None:
        await self.app.close()
        self.app.dsn = self._dsn

    async def published(
        self,
        queue: str | Handler[Any],
        payload: Any = ANY,
        *,
        times: int | None = 1,
        **fields: Any,
    ) -> list[Any]:
        """Assert that such a message was published `times` times (None: at least once).

        Returns the messages, handled or not. `payload` is compared as JSON and may be a model;
        `fields` are attributes of `Message` such as `priority` or `dedup_key`, or of `Event` where
        `queue` is a stream.
        """
        name = queue.queue if isinstance(queue, Handler) else queue
        archive = self.app.archive
        everything: list[Any] = [
            *await archive.finished(name, quantity=_ALL),
            *await archive.live(name, quantity=_ALL),
            *await self._events(name),
        ]
        everything.sort(key=lambda message: message.id)
        found = [
            message
            for message in everything
            if _is_json(payload, message)
            and all(getattr(message, field) == value for field, value in fields.items())
        ]
        if len(found) != times and not (found and times is None):
            wanted = "" if payload is ANY else f" {payload!r}"
            wanted += "".join(f", {field} {value!r}" for field, value in fields.items())
            raise AssertionError(
                f"{_count(len(found))}{wanted} in queue {name!r}, "
                f"expected {'some' if times is None else times}; published were:\n"
                + "\n".join(f"  {_line(message)}" for message in everything[:_SHOWN])
                + ("\n  …" if len(everything) > _SHOWN else "" if everything else "  nothing")
            )
        return found

    async def _events(self, name: str) -> list[Event]:
        """The events, if this is the name of a stream."""
        if not any(row["stream"] == name for row in await self.app.streams.info()):
            return []
        return [Event.from_row(row, name) for row in await self.app.database.fetch(_EVENTS, name)]

    async def drain(
        self, *queues: str | Handler[Any], check: bool = True, most: int = 1000
    ) -> list[ArchivedMessage]:
        """Handle all due messages, also those that handlers publish; return the finished ones.

        It also calls subscribers for all events. With `check` the first attempt that does not
        succeed raises an AssertionError with the reason. Messages that are due later stay, for
        example for their next attempt: see `advance()`. More than `most` messages are an error, as
        handlers may publish to each other without end. A parked message stays: see `signal()`.
        """
        registry = self.app.registry
        readers = [it.subscription for it in queues if isinstance(it, Subscriber)]
        names = [
            it.queue if isinstance(it, Handler) else it
            for it in queues
            if not isinstance(it, Subscriber)
        ]
        if not queues:
            names = list(registry.queues())
            readers = [it.subscription for it in registry.subscribers()]
        claims = Claims(self.app.database, "sandbox")
        database = self.app.database
        runtime = Runtime(
            threads=Threads(registry.around_sync),
            database=database,
            transactions=Transactions(database, 1),
            processes=Processes(),
            crashes=self._crashes,
        )
        level = registry.capture_logs
        if level is not None:
            runtime.capture = Capture(level, database.encoding)
        handled: list[int] = []
        delivered = 0
        try:
            with nullcontext() if level is None else capturing(level):
                while True:
                    handled += await self._handle_all(
                        claims, runtime, names, check=check, most=most
                    )
                    more = sum([await self._deliver(it, runtime, check=check) for it in readers])
                    if not more:
                        break
                    if (delivered := delivered + more) > most:
                        raise AssertionError(
                            f"more than {most} events: do subscribers publish to each other "
                            "endlessly?"
                        )
        finally:
            await runtime.close()
            await claims.close()
        found = [await self.app.archive.find(message_id) for message_id in dict.fromkeys(handled)]
        return [message for message in found if isinstance(message, ArchivedMessage)]

    async def _handle_all(
        self, claims: Claims, runtime: Runtime, names: list[str], *, check: bool, most: int
    ) -> list[int]:
        """Handle the due messages of these queues; return their ids."""
        handled: list[int] = []
        allowed = [self._handlers[queue].policy.max_attempts for queue in names]
        while names and (
            messages := await claims.claim(names, 1, full_scan=True, max_attempts=allowed)
        ):
            handler = self._handlers[messages[0].queue]
            if (more := (handler.batch or 1) - 1) > 0:
                messages += await claims.claim(
                    [handler.queue],
                    more,
                    full_scan=True,
                    max_attempts=[handler.policy.max_attempts],
                )
            await self._handle(claims, runtime, handler, messages, check=check)
            handled += [message.id for message in messages]
            if len(handled) > most:
                raise AssertionError(
                    f"more than {most} messages: do handlers publish to each other endlessly? "
                    f"The last was {_line(messages[-1])}"
                )
        return handled

    async def _deliver(
        self, subscription: tuple[str, str], runtime: Runtime, *, check: bool
    ) -> int:
        """Call a subscriber for all its events; return how many they were."""
        subscriber = self._handlers[subscription]
        read = self.app.subscription(*subscription)
        delivered = 0
        while (batch := await read.next_batch(subscriber.quantity)) is not None:
            delivery = Delivery(subscriber, self.app.database, runtime, log_events)
            await delivery.handle(batch)
            if check and delivery.errors:
                stream, name = subscription
                raise AssertionError(
                    f"{name!r} of stream {stream!r} did not succeed: {delivery.errors[0]}"
                )
            delivered += len(batch)
        return delivered

    async def signal(self, name: str, payload: Any = None, *, to: Handle[Any] | None = None) -> int:
        """Send a signal, as `App.signal` does, or to one message; return how many it wakes."""
        return await (self.app.signal(name, payload) if to is None else to.signal(name, payload))

    async def advance(self, by: timedelta | float) -> None:
        """Move the time on, in seconds: messages become due or expire, and so do locks."""
        database = self.app.database
        for statement in (_ADVANCE, _ADVANCE_STEPS, _ADVANCE_EVENTS, _ADVANCE_EXPIRY):
            await database.fetch(statement, duration("by", by))
        await database.fetch(_MAINTENANCE)

    async def _handle(
        self,
        claims: Claims,
        runtime: Runtime,
        handler: Handler[Any],
        messages: list[Message],
        *,
        check: bool,
    ) -> None:
        batch: BatchCall[HandlerCall] = BatchCall(handler)
        batch.members += [HandlerCall(handler, message) for message in messages]
        call = batch if handler.batch else batch.members[0]
        timer = None
        if handler.timeout is not None:
            loop = asyncio.get_running_loop()
            limit = handler.timeout.total_seconds()
            timer = loop.call_later(limit, call.stop, Cause.TIMEOUT)
        if handler.batch:
            outcomes = await batch.outcomes(runtime)
        else:
            outcomes = {member: await member.outcome(runtime) for member in batch.members}
        if timer is not None:
            timer.cancel()
        for member, outcome in outcomes.items():
            log = None if member.records is None else member.records.close()
            await claims.settler.add(member.message, outcome, log)
            if isinstance(outcome, Suspended):
                # Where it crashed, and is not parked.
                await claims.settler.add(member.message, Released())
        for member, outcome in outcomes.items():
            if check and isinstance(outcome, Failed | Rejected):
                reason = outcome.details if isinstance(outcome, Failed) else outcome.reason
                raise AssertionError(f"{_line(member.message)} did not succeed: {reason}")


def _is_json(expected: Any, message: Message | ArchivedMessage | Event) -> bool:
    found = message.payload()
    if found == expected:
        return True
    with suppress(ValueError):
        return bool(found == to_jsonable_python(expected))
    return False


def _count(number: int) -> str:
    return f"{number or 'no'} message{'' if number == 1 else 's'}"


def _line(message: Message | ArchivedMessage | Event) -> str:
    return f"message {message.id} of queue {message.queue!r}: {message.message}"
