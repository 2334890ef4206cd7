"""One subscription as a program reads it: batches as they come, and what becomes of their events.

What a batch does happens on the pool, or in the transaction that it was opened in.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from notifyq.arguments import duration
from notifyq.database import sql
from notifyq.errors import BatchNotFoundError, ConfigurationError
from notifyq.models.event import Event
from notifyq.notify.shared import Listening
from notifyq.notify.wake import Wake
from notifyq.telemetry import log_sink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    import asyncpg

    from notifyq.database.pool import AnyConnection, Database
    from notifyq.telemetry import Sink

MOST = 1_000_000
"""Events of one batch, at most."""
_LOADED = 10_000
"""Events that a batch may have to be read as a whole."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """Events of one subscription that are finished together.

    Until it is finished, every session gets this one.
    """

    id: int
    stream: str
    subscriber: str
    _database: Database = field(repr=False)
    _connection: AnyConnection | None = field(default=None, repr=False)
    """The transaction that it was opened in."""
    _events: list[Event] | None = field(default=None, repr=False)
    is_finished: bool = False

    @property
    def events(self) -> list[Event]:
        """Its events in order; a batch of more than 10,000 is read with `async for` only."""
        if self._events is None:
            raise ConfigurationError(
                f"a batch of more than {_LOADED} events is read bit by bit: "
                "write `async for event in batch`, or ask for smaller batches"
            )
        return self._events

    def __len__(self) -> int:
        return len(self.events)

    def within(self, connection: AnyConnection) -> Batch:
        """The same batch, in a transaction that is open on this connection."""
        return replace(self, _connection=connection)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Its events in order, a thousand in memory at a time where there are many."""
        if self._events is not None:
            for event in self._events:
                yield event
            return
        async with AsyncExitStack() as stack:
            connection = self._connection
            if connection is None:
                connection = await stack.enter_async_context(self._database.connection())
            await connection.execute(sql.HOLD_EVENTS, self.id)
            stack.push_async_callback(_close, connection)
            while rows := await connection.fetch(sql.FETCH_EVENTS):
                for row in rows:
                    yield Event.from_row(row, self.stream)

    async def retry(
        self, event: Event | int, delay: timedelta | float = 0, reason: str | None = None
    ) -> bool:
        """Deliver an event again, to this subscriber only, after a while. False: it will be.

        Its id stays the same, `retries` grows; it is part of a later batch.
        """
        rows = await self._fetch(
            sql.RETRY_EVENT, self.id, _id(event), duration("delay", delay), reason
        )
        return bool(rows[0][0])

    async def fail(self, event: Event | int, reason: str | None = None) -> bool:
        """Give an event up for this subscriber: it is archived with the reason. False: it was."""
        rows = await self._fetch(sql.FAIL_EVENT, self.id, _id(event), reason)
        return bool(rows[0][0])

    async def finish(self) -> bool:
        """Finish the batch: the next one follows it. False: it was finished already."""
        rows = await self._fetch(sql.FINISH_BATCH, self.id)
        self.is_finished = True
        return bool(rows[0][0])

    async def leave(self) -> bool:
        """Leave it as it is, to whoever asks next. False: it was finished.

        Without a word it would count as an attempt, where another worker takes it up.
        """
        return bool((await self._fetch(sql.LEAVE_BATCH, self.id))[0][0])

    async def _fetch(self, statement: str, *args: Any) -> Sequence[asyncpg.Record]:
        if self._connection is not None:
            return await self._connection.fetch(statement, *args)
        # Each of these calls may be repeated: it says false where it has taken effect before.
        return await self._database.persist(statement, *args)


async def _close(connection: AnyConnection) -> None:
    if not connection.is_closed():
        await connection.execute(sql.CLOSE_EVENTS)


def _id(event: Event | int) -> int:
    return event if isinstance(event, int) else event.id


class SubscriptionOptions(TypedDict, total=False):
    """What may be said of a `Subscription` besides whose it is."""

    member: str | None
    takeover: timedelta | float | None
    poll: timedelta | float
    sink: Sink


class Subscription:
    """A subscriber of a stream as a loop of your own reads it.

    Several `member`s share a subscription, each with batches of its own; one that has had a batch
    open for longer than `takeover` loses it to this one.
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
        sink: Sink = log_sink,
    ) -> None:
        self._database = database
        self.stream = stream
        self.subscriber = subscriber
        self._member = member
        self._takeover = duration("takeover", takeover)
        self._poll = duration("poll", poll) or timedelta()
        self._sink = sink

    async def next_batch(
        self, quantity: int = 500, *, connection: AnyConnection | None = None
    ) -> Batch | None:
        """The batch to be handled now, of up to so many events; None where nothing is there.

        Until it is finished it is the same one in every session, unless `recover` splits it.
        With a `connection` all that the batch does happens there, in the transaction that is open.
        """
        if not 1 <= quantity <= MOST:
            raise ConfigurationError(f"quantity must be between 1 and {MOST}, not {quantity}")
        is_loaded = quantity <= _LOADED
        fetch = self._database.persist if connection is None else connection.fetch
        rows = await fetch(
            sql.NEXT_EVENTS if is_loaded else sql.NEXT_BATCH,
            self.stream,
            self.subscriber,
            quantity,
            self._member,
            self._takeover,
        )
        if rows[0][0] is None:
            return None
        # Of a batch without events there is one row, too.
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
        """Take the place of a reader that is gone without a word; return how many events it had.

        Those come again, a tenth of them at a time; one that was alone already is dead after
        `max_attempts`. Call it before `next_batch`, and only where no other reader can be left.
        """
        args = self.stream, self.subscriber, max_attempts, self._member, ordered
        return int((await self._database.persist(sql.RECOVER_BATCH, *args))[0][0])

    async def next_retry(self) -> timedelta | None:
        """How long until an event comes again that was put off."""
        rows = await self._database.persist(sql.NEXT_RETRY, self.stream, self.subscriber)
        left: timedelta | None = rows[0][0]
        return left

    async def batches(self, quantity: int = 500) -> AsyncGenerator[Batch, None]:
        """Batches as they come, for ever; each is finished when the loop asks for the next one.

        A loop that is left by an error or `break` leaves its batch as it is: it comes again.
        Publishing wakes the loop. It is at least once: what a body has done before it failed is
        done again.
        """
        wake = Wake()

        def hear(_channel: str, payload: str) -> None:
            if payload in {"", self.stream}:
                wake.set()

        async with Listening(
            self._database, [sql.NEW_EVENT], hear, name="notifyq subscription", sink=self._sink
        ) as listener:
            while True:
                # Cleared before the look: a bell that rings during it causes another look.
                wake.clear()
                while (batch := await self.next_batch(quantity)) is not None:
                    yield batch
                    await self._finish(batch)
                listener.check()
                await wake.rest(self._poll.total_seconds())

    @asynccontextmanager
    async def transaction(
        self, quantity: int = 500
    ) -> AsyncIterator[tuple[AnyConnection, Batch | None]]:
        """Open a transaction with the next batch: the body's writes and its end are one commit.

        So its effects are there exactly once. If the body raises, nothing has happened, and the
        batch comes again. The batch is None where nothing is there.
        """
        async with self._database.connection() as connection, connection.transaction():
            await connection.fetch(sql.TRANSACTION)
            batch = await self.next_batch(quantity, connection=connection)
            yield connection, batch
            if batch is not None and not batch.is_finished and not await batch.finish():
                raise BatchNotFoundError(f"batch {batch.id} was finished by another session")

    @staticmethod
    async def _finish(batch: Batch) -> None:
        if not batch.is_finished:
            # Of a batch that another session finished meanwhile, the events were handled twice,
            # which is what "at least once" allows.
            await batch.finish()
