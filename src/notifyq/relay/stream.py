"""The relay of a subscription: it moves batch by batch, in order."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import concerns_all
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.models.message import decode
from notifyq.notify.listener import Listener
from notifyq.notify.session import Session
from notifyq.notify.wake import call_on
from notifyq.printable import in_line
from notifyq.relay.base import DatabaseRelay, log
from notifyq.relay.brokers import broker_of
from notifyq.relay.brokers.broker import Outgoing
from notifyq.relay.message import RelayBatch, RelayMessage, transform
from notifyq.relay.target import WAITS, reason_of

if TYPE_CHECKING:
    from notifyq.relay.base import RelayOptions
    from notifyq.relay.target import Sent

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_POSITION = "0" * 40
"""As long as the positions of events become, with a number behind."""
_TURN_EVERY = 1.0
"""Seconds between two tries to take the place of another relay."""


class _EventBatch(RelayBatch):
    """A batch of a subscription."""

    def __init__(self, rows: list[asyncpg.Record], source: str, queue: str) -> None:
        super().__init__([f"{row['id']}@{(row['created_at'] - _EPOCH) // _US}" for row in rows])
        self.rows = rows
        self._source = source
        self._queue = queue

    def id(self, index: int) -> int:
        return int(self.rows[index]["id"])

    def attempts(self, index: int) -> int:
        return (self.rows[index]["retries"] or 0) + 1

    def keep(self) -> None:
        """Have the target receive the events as they are."""
        for index, (position, row) in enumerate(zip(self.positions, self.rows, strict=True)):
            columns = row["message"], 0, row["type"], row["headers"], row["key"], None, None, None
            self.made[index] = [(position, self._queue, *columns)]

    def message(self, index: int) -> RelayMessage:
        row = self.rows[index]
        return RelayMessage(
            id=row["id"],
            source=self._source,
            queue=self._queue,
            message=row["message"],
            headers=decode(row["headers"]),
            type=row["type"],
            key=row["key"],
            attempts=self.attempts(index),
        )


class StreamRelay(DatabaseRelay):
    """Moves the events of a subscriber of `source` into a queue or a stream of `target`.

    Each event arrives once, also after seek(): the target ignores events that it has received. The
    subscription must exist. Otherwise it works as `Relay`.

    `target` may be the URL of a message broker, `nats://`, `amqp://` or `kafka://`, and `queue` a
    subject, a queue or `exchange/routing_key`, or a topic there: the events of a key arrive in
    their order, and the subscription moves on when the broker has acknowledged them.
    """

    def __init__(
        self,
        source: Database,
        target: Database | str,
        stream: str,
        subscriber: str,
        queue: str,
        *,
        accept_restored: bool = False,
        **options: Unpack[RelayOptions],
    ) -> None:
        super().__init__(
            source,
            target,
            [f"{stream}:{subscriber}:{queue}"],
            part=f"{stream}/{subscriber}",
            accept_restored=accept_restored,
            **options,
        )
        self._stream = stream
        self._subscriber = subscriber
        self._queue = queue
        self.label = f"{stream}:{subscriber}"
        """The source in logs and telemetry events."""
        self._has_batch = False
        self._moving: asyncio.Task[None] | None = None
        self._turn = asyncio.Event()
        """Set while this is the one relay of the subscription that sends."""
        self._identity: tuple[int, Any] | None = None

    def _on_stop(self) -> None:
        # Without a batch it may wait for a server that is away.
        if self._moving is not None and (self._stops > 1 or not self._has_batch):
            self._moving.cancel()

    async def _open(self, stack: AsyncExitStack) -> None:
        if not isinstance(self._to, Database):
            # Else its events would be dead, all of them, one by one.
            any_event = Outgoing(f"{self._part}/{_POSITION}", self._queue, b"", {}, None, None)
            if reason := broker_of(self._to).refusal(any_event):
                raise ConfigurationError(f"no event of {self.label} can be sent: {reason}")
        await super()._open(stack)

    def _make_listener(self) -> Listener:
        services = [partial(self._take_turn, asyncio.get_running_loop())]
        if isinstance(self._to, Database):  # which receives no event twice
            services = []
            self._turn.set()
        return Listener(
            self._source,
            [sql.NEW_EVENT],
            partial(self._wake.on_event, self._stream),
            name="notifyq relay",
            telemetry=self._telemetry,
            services=services,
        )

    async def _take_turn(self, home: asyncio.AbstractEventLoop, session: Session) -> None:
        """Wait until no other relay sends the same batches; on the listener's loop."""
        try:
            if self._identity is not None:
                # The server may not have noticed that the session before is gone.
                with suppress(asyncpg.PostgresError):
                    await session.fetch(sql.END_SESSION, *self._identity)
            # The session of a pooler cannot hold a lock.
            if await session.delivers():
                [row] = await session.fetch(sql.KEEP_ALIVE)
                self._identity = (row["pid"], row["backend_start"])
                subscription = f"{self._source.schema} {self.label}"
                is_alone = partial(session.fetch, sql.LOCK_RELAY, subscription)
                if not (await is_alone())[0][0]:
                    log.info("%s: another relay moves it, this one waits", self.label)
                    while not (await is_alone())[0][0]:  # noqa: ASYNC110  it is the server
                        await asyncio.sleep(_TURN_EVERY)
            call_on(home, self._turn.set)
            await asyncio.Event().wait()
        finally:
            call_on(home, self._turn.clear)

    async def _serve(self) -> None:
        failed = self._listener.failed
        self._moving = asyncio.create_task(self._move_until_stopped())
        try:
            await asyncio.wait({self._moving, failed}, return_when=asyncio.FIRST_COMPLETED)
            if self._moving.done():
                with suppress(asyncio.CancelledError):  # by _on_stop()
                    await self._moving
            else:
                await failed
        finally:
            self._moving.cancel()
            await asyncio.wait({self._moving})

    async def _move_until_stopped(self) -> None:
        while not self._stops:
            await self._turn.wait()
            # Clear first: a notification during the fetch causes another one.
            self._wake.clear()
            has_more = True
            # A batch stays open and comes again.
            async with self._refusals.repeated(
                self.label, "it is tried again each second", self._is_final
            ):
                has_more = await self._move_next()
            if has_more:
                continue
            if self._once:
                return
            await self._wake.rest(self._settings.poll.total_seconds())

    def _is_final(self, error: Exception) -> bool:
        return concerns_all(error) or (self._once and not isinstance(error, WAITS))

    async def _move_next(self) -> bool:
        """Move a batch, if there is one."""
        since = time.monotonic()
        rows = await self._source.persist(
            sql.NEXT_EVENTS, self._stream, self._subscriber, self._settings.batch, None, None
        )
        if rows[0]["batch"] is None:
            self._resume(self.label)
            self.works.set()
            return False
        # A batch without events is one row, too.
        events = [row for row in rows if row["id"]]
        self._has_batch = True
        try:
            error = await self._move(rows[0]["batch"], events, since)
        finally:
            self._has_batch = False
        if error is not None and not self._stops:
            # The batch stays open and comes again.
            self._stall(None, error)
            await self._wait_for_target()
        return True

    async def _move(
        self, batch_id: int, rows: list[asyncpg.Record], since: float
    ) -> Exception | None:
        """Move a batch; return the error if the target cannot receive it now."""
        batch = _EventBatch(rows, self.label, self._queue)
        if self._transform is None:
            batch.keep()
        else:
            await transform(self._transform, batch)
        sent = await self._target.send(batch.items(), self._settings.hold.total_seconds())
        if sent.error is not None:
            if not isinstance(sent.error, DatabaseUnavailableError):
                raise sent.error
            return sent.error
        for error in sent.stopped.values():
            self._stall(self.label, error)
            raise error
        self._resume(self.label)
        await self._settle_failed(batch_id, batch)
        refused = await self._settle_refused(batch_id, batch, sent)
        position = next(reversed(sent.ids), None)
        if position is not None and self._names:
            await self._source.persist(
                sql.RELAY_FINISH, *self._names, position, [], [], [], [], None, None
            )
        await self._source.persist(sql.FINISH_BATCH, batch_id)
        failed = len(batch.failed)
        dropped = sum(not made for made in batch.made.values()) - failed
        took = time.monotonic() - since
        now = datetime.now(UTC)
        age = (now - min((row["created_at"] for row in rows), default=now)).total_seconds()
        self._note_moved(
            self.label,
            len(batch) - dropped - failed - refused,
            sent,
            lag=max(age, took),
            took=took,
            dropped=dropped,
            failed=failed,
            refused=refused,
            lost=0,
        )
        return None

    async def _settle_failed(self, batch_id: int, batch: _EventBatch) -> None:
        """Retry the events on which the transformation failed, or give them up."""
        most = self._settings.attempts
        for index, error in batch.failed.items():
            event_id, attempts = batch.id(index), batch.attempts(index)
            reason = f"the transformation of the relay failed: {reason_of(error)}"
            log.warning(
                "%s: the transformation failed on event %d in attempt %d of %d: %s",
                self.label, event_id, attempts, most,
                in_line(f"{type(error).__name__}: {reason_of(error)}"),
            )  # fmt: skip
            if attempts >= most:
                await self._source.persist(sql.FAIL_EVENT, batch_id, event_id, reason)
            else:
                delay = timedelta(seconds=2**attempts)
                await self._source.persist(
                    sql.RETRY_EVENTS, batch_id, [event_id], [delay], [reason]
                )

    async def _settle_refused(self, batch_id: int, batch: _EventBatch, sent: Sent) -> int:
        """Archive the events that the target refused as dead; return how many they are."""
        refused = 0
        for index, items in batch.made.items():
            reasons = [sent.refused[item[0]] for item in items if item[0] in sent.refused]
            if reasons:
                refused += 1
                details = f"the target of the relay refuses it: {reasons[0]}"
                await self._source.persist(sql.FAIL_EVENT, batch_id, batch.id(index), details)
                self._note_refused(self.label, batch.id(index), reasons[0])
        return refused
