"""A subscription for a program: its batches, and finish, retry or fail of their events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import asyncpg

from notifyq.arguments import duration
from notifyq.database import statements as sql
from notifyq.database.encryption.envelopes import opened, shown
from notifyq.database.installs import ours
from notifyq.database.pool import InTransaction, explaining
from notifyq.errors import (
    BatchNotFoundError,
    ConfigurationError,
    DecryptionError,
    MissingKeyError,
)
from notifyq.models.event import Event
from notifyq.models.payload import is_sealed
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Wake
from notifyq.telemetry import TelemetryHandler, log_events

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection, Database

MOST = 1_000_000
"""Most events of one batch."""
_LOADED = 10_000
"""Most events of a batch that is loaded as a whole."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """Events of one subscription that are finished together.

    Every session gets the same batch until it is finished.
    """

    id: int
    stream: str
    subscriber: str
    _database: Database = field(repr=False)
    _connection: AnyConnection | None = field(default=None, repr=False)
    """The connection whose transaction opened the batch; None: the pool."""
    _events: list[Event] | None = field(default=None, repr=False)
    is_finished: bool = False

    @property
    def events(self) -> list[Event]:
        """Its events in order; a batch of more than 10,000 events needs `async for`."""
        if self._events is None:
            raise ConfigurationError(
                f"a batch of more than {_LOADED} events is not loaded as a whole: "
                "write `async for event in batch`, or use a smaller quantity"
            )
        if self._events and is_sealed(self._events[0].message):
            self._events = [self._opened(event) for event in self._events]
        return self._events

    def __len__(self) -> int:
        return len(self.events)

    def within(self, connection: AnyConnection) -> Batch:
        """The same batch in the open transaction of this connection."""
        return replace(self, _connection=connection)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Its events in order; of a large batch, a thousand are in memory at a time."""
        if self._events is not None:
            for event in self.events:
                yield event
            return
        async with AsyncExitStack() as stack:
            connection = self._connection
            if connection is None:
                connection = await stack.enter_async_context(self._database.connection())
            with explaining(self._database.dsn):
                await connection.execute(ours(connection, sql.HOLD_EVENTS), self.id)
            stack.push_async_callback(_close, connection)
            while rows := await self.fetch(connection, sql.FETCH_EVENTS):
                for row in rows:
                    yield self._opened(Event.from_row(row, self.stream))

    def _opened(self, event: Event) -> Event:
        """The event, decrypted; one that was changed stays as it is, and fails alone."""
        if not is_sealed(event.message):
            return event
        keys = self._database.keys
        try:
            text = opened(keys, self.stream, "payload", event.message)
        except MissingKeyError:
            raise
        except DecryptionError:
            return event
        return event.opened(text, shown(keys, self.stream, "details", event.reason))

    async def retry(
        self, event: Event | int, delay: timedelta | float = 0, reason: str | None = None
    ) -> bool:
        """Deliver an event again after a delay, to this subscriber only. False: it already will be.

        It comes in a later batch, with the same id and a higher `retries`.
        """
        reason = reason and self.as_stored(reason, event)
        return await self._call(
            sql.RETRY_EVENT, self.id, _id(event), duration("delay", delay), reason
        )

    async def fail(self, event: Event | int, reason: str | None = None) -> bool:
        """Archive an event as dead for this subscriber. False: it already was."""
        reason = reason and self.as_stored(reason, event)
        return await self._call(sql.FAIL_EVENT, self.id, _id(event), reason)

    def as_stored(self, reason: str, event: Event | int | None = None) -> str:
        """A reason as the database gets it: encrypted if the events are."""
        keys = self._database.keys
        if keys is None:
            return reason
        if not isinstance(event, Event) and self._events:
            event = self._events[0]
        if isinstance(event, Event) and (event.is_encrypted or is_sealed(event.message)):
            return keys.encrypt(self.stream, "details", reason)
        return reason

    async def finish(self) -> bool:
        """Finish the batch, so that the next one follows. False: it already was finished."""
        result = await self._call(sql.FINISH_BATCH, self.id)
        self.is_finished = True
        return result

    async def leave(self) -> bool:
        """Release the batch unfinished for the next reader. False: it already was finished.

        Otherwise it would count as an attempt when another worker takes it.
        """
        return await self._call(sql.RELEASE_BATCH, self.id)

    async def _call(self, statement: str, *args: Any) -> bool:
        if self._connection is not None:
            rows = await self.fetch(self._connection, statement, *args)
        else:
            # All these calls are safe to repeat: they return false where nothing is left to do.
            rows = await self._database.persist(statement, *args)
        return bool(rows[0][0])

    async def fetch(
        self, connection: AnyConnection, statement: str, *args: Any
    ) -> list[asyncpg.Record]:
        """Run one of our calls on a connection, whose errors become those of notifyq."""
        return await InTransaction(connection, self._database.dsn).fetch(statement, *args)


async def _close(connection: AnyConnection) -> None:
    if not connection.is_closed():
        # A transaction that has failed answers no more, and must not hide why.
        with suppress(asyncpg.InFailedSQLTransactionError):
            await connection.execute(sql.CLOSE_EVENTS)


def _id(event: Event | int) -> int:
    return event if isinstance(event, int) else event.id


class SubscriptionOptions(TypedDict, total=False):
    """Options of a `Subscription`."""

    member: str | None
    takeover: timedelta | float | None
    poll: timedelta | float
    telemetry: TelemetryHandler


class Subscription:
    """A subscriber of a stream for a loop of your own.

    Several members share a subscription, each with batches of its own, if each passes its name as
    `member`. A member takes over a batch that another one has kept open longer than `takeover`.
    """

    def __init__(
        self,
        database: Database,
        stream: str,
        subscriber: str,
        *,
        member: str | None = None,
        takeover: timedelta | float | None = None,
        poll: timedelta | float = 1,
        telemetry: TelemetryHandler = log_events,
    ) -> None:
        self._database = database
        self.stream = stream
        self.subscriber = subscriber
        self._member = member
        self._takeover = duration("takeover", takeover)
        self._poll = duration("poll", poll) or timedelta()
        self._telemetry = telemetry

    async def next_batch(
        self, quantity: int = 500, *, connection: AnyConnection | None = None
    ) -> Batch | None:
        """Return the current batch, of up to `quantity` events; None where there is no event.

        Every session gets the same batch until it is finished, unless `recover` splits it. With a
        `connection` all calls of the batch run in the open transaction of that.
        """
        if not 1 <= quantity <= MOST:
            raise ConfigurationError(f"quantity must be between 1 and {MOST}, not {quantity}")
        is_loaded = quantity <= _LOADED
        statement = sql.NEXT_EVENTS if is_loaded else sql.NEXT_BATCH
        args = (self.stream, self.subscriber, quantity, self._member, self._takeover)
        if connection is None:
            rows = await self._database.persist(statement, *args)
        else:
            rows = await InTransaction(connection, self._database.dsn).fetch(statement, *args)
        if rows[0][0] is None:
            return None
        # A batch without events is one row, too.
        loaded = [Event.from_row(row, self.stream) for row in rows if is_loaded and row["id"]]
        return Batch(
            id=rows[0][0],
            stream=self.stream,
            subscriber=self.subscriber,
            _database=self._database,
            _connection=connection,
            _events=loaded if is_loaded else None,
        )

    async def recover(self, max_attempts: int, *, ordered: bool = False) -> int:
        """Take over the batch of a reader that crashed; return how many events it had.

        They come again, a tenth of them at a time; an event that was alone in its batch is dead
        after `max_attempts`. Call it before `next_batch`, and only when no other reader runs.
        """
        args = self.stream, self.subscriber, max_attempts, self._member, ordered
        return int((await self._database.persist(sql.RECOVER_BATCH, *args))[0][0])

    async def next_retry(self) -> timedelta | None:
        """How long until the next retried event is due; None where there is none."""
        rows = await self._database.persist(sql.NEXT_RETRY, self.stream, self.subscriber)
        left: timedelta | None = rows[0][0]
        return left

    async def batches(self, quantity: int = 500) -> AsyncGenerator[Batch, None]:
        """Yield batches as they come, without end; the next iteration finishes the last batch.

        Publishing wakes the loop. After an error or `break` in the loop its batch comes again:
        delivery is at least once.
        """
        wake = Wake()
        async with Listener(
            self._database,
            [sql.NEW_EVENT],
            partial(wake.on_event, self.stream),
            name="notifyq subscription",
            telemetry=self._telemetry,
        ) as listener:
            while True:
                # Clear first: a notification during the fetch causes another one.
                wake.clear()
                while (batch := await self.next_batch(quantity)) is not None:
                    yield batch
                    # False where another session has finished it: delivery is at least once.
                    if not batch.is_finished:
                        await batch.finish()
                listener.check()
                await wake.rest(self._poll.total_seconds())

    @asynccontextmanager
    async def transaction(
        self, quantity: int = 500
    ) -> AsyncIterator[tuple[AnyConnection, Batch | None]]:
        """Open a transaction with the next batch; its end and the body's writes are one commit.

        Effects are exactly once: if the body raises, all is rolled back, and the batch comes again.
        The batch is None where there is no event.
        """
        async with self._database.begun() as connection:
            await InTransaction(connection, self._database.dsn).fetch(sql.TRANSACTION)
            batch = await self.next_batch(quantity, connection=connection)
            yield connection, batch
            if batch is not None and not batch.is_finished and not await batch.finish():
                raise BatchNotFoundError(f"batch {batch.id} was finished by another session")
