"""A relay whose source is a subscription of a stream: batch by batch, in their order."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from notifyq.config import RelaySettings
from notifyq.database import sql
from notifyq.database.retry import Patience
from notifyq.errors import ConfigurationError
from notifyq.models.message import decode
from notifyq.notify.shared import Listening
from notifyq.notify.wake import Wake
from notifyq.relay.backpressure import Backpressure
from notifyq.relay.events import RelayMoved, RelayRefused, RelayStarted, RelayStopped
from notifyq.relay.handshake import introduce
from notifyq.relay.message import RelayMessage
from notifyq.relay.target import PASSING, reason_of
from notifyq.relay.transformation import transform
from notifyq.telemetry import Guarded, log_sink
from notifyq.telemetry.tracebacks import in_line

if TYPE_CHECKING:
    import asyncpg

    from notifyq.database.pool import Database
    from notifyq.relay.message import Item, Transform
    from notifyq.relay.target import Sent
    from notifyq.telemetry import Sink

log = logging.getLogger("notifyq.relay")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Events:
    """The events of a batch as messages on their way."""

    def __init__(self, rows: list[asyncpg.Record], source: str, queue: str) -> None:
        self._rows = rows
        self._source = source
        self._queue = queue
        us = timedelta(microseconds=1)
        self.places = [f"{row['id']}@{(row['created_at'] - _EPOCH) // us}" for row in rows]
        self.made: dict[int, list[Item]] = {}
        self.failed: dict[int, Exception] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def id(self, index: int) -> int:
        return int(self._rows[index]["id"])

    def attempts(self, index: int) -> int:
        return (self._rows[index]["retries"] or 0) + 1

    def message(self, index: int) -> RelayMessage:
        row = self._rows[index]
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

    def put(self, index: int, items: list[Item]) -> None:
        self.made[index] = items

    def fail(self, index: int, error: Exception) -> None:
        self.made[index] = []
        self.failed[index] = error

    def items(self) -> list[Item]:
        return [item for index in range(len(self)) for item in self.made[index]]


class StreamRelay:
    """Moves what a subscriber of a stream of `source` gets into a queue or a stream of `target`.

    Each event arrives once, also after seek(): what the target has received, it does not take
    again. The subscription must be there. Otherwise it is as `Relay`.
    """

    def __init__(
        self,
        source: Database,
        target: Database,
        stream: str,
        subscriber: str,
        queue: str,
        *,
        transform: Transform | None = None,
        once: bool = False,
        accept_restored: bool = False,
        settings: RelaySettings | None = None,
        sink: Sink = log_sink,
    ) -> None:
        self._source = source
        self._target_database = target
        self._stream = stream
        self._subscriber = subscriber
        self._queue = queue
        self._transform = transform
        self._once = once
        self._accepts_restored = accept_restored
        self._settings = settings or RelaySettings.load()
        self._sink = Guarded(sink)
        self._wake = Wake()
        self._is_stopping = False
        self._has_batch = False
        self._patience = Patience("the start", log, source.settings.retry_for)
        self._home: asyncio.AbstractEventLoop | None = None
        self._moving: asyncio.Task[None] | None = None
        self.name = f"relay {socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.counts: Counter[str] = Counter()
        """Events by what became of them: moved, known, dropped, failed, refused."""

    @property
    def label(self) -> str:
        """Stream and subscriber, for people."""
        return f"{self._stream}:{self._subscriber}"

    def stop(self) -> None:
        """End after the batch under way; called again, now. For any thread."""
        if self._home is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
                self._home.call_soon_threadsafe(self._stop_requested)
        else:
            self._is_stopping = True

    def _stop_requested(self) -> None:
        self._patience.stop()
        # What it waits for besides, a server that is away, may take for ever.
        if self._moving is not None and (self._is_stopping or not self._has_batch):
            self._moving.cancel()
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Move events until `stop()`; raises what `Relay.run` does."""
        if self._home is not None:
            raise ConfigurationError("a relay runs once: make another one")
        self._home = asyncio.get_running_loop()
        if self._is_stopping:
            return
        async with AsyncExitStack() as stack:
            if await self._patience.through(partial(self._open, stack)):
                await self._serve()

    async def _open(self, stack: AsyncExitStack) -> None:
        """Have all that stays open until the end; nothing of it if that is not all to be had."""
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._source)
            await opened.enter_async_context(self._target_database)
            self._names, self._target = await introduce(
                self._source,
                self._target_database,
                self._settings.remember,
                part=f"{self._stream}/{self._subscriber}",
                accept_restored=self._accepts_restored,
            )
            self._stall = Backpressure(self._target, self._sink, on_end=self._wake.set)
            self._listener = Listening(
                self._source,
                [sql.NEW_EVENT],
                self._hear,
                name="notifyq relay",
                sink=self._sink,
            )
            await opened.enter_async_context(self._listener)
            stack.push_async_exit(opened.pop_all())

    async def _serve(self) -> None:
        self._sink(RelayStarted(relay=self.name, routes=(f"{self.label}:{self._queue}",)))
        failed = self._listener.failed
        self._moving = asyncio.create_task(self._move_until_stopped())
        try:
            await asyncio.wait({self._moving, failed}, return_when=asyncio.FIRST_COMPLETED)
            if self._moving.done():
                with suppress(asyncio.CancelledError):  # it was told to end now
                    await self._moving
            else:
                await failed
        finally:
            self._moving.cancel()
            await asyncio.wait({self._moving})
            self._sink(RelayStopped(relay=self.name, moved=self.counts["moved"], released=0))

    def _hear(self, _channel: str, payload: str) -> None:
        if payload in {"", self._stream}:
            self._wake.set()

    async def _move_until_stopped(self) -> None:
        while not self._is_stopping:
            # Cleared before the look: a bell that rings while it is under way must set it again.
            self._wake.clear()
            since = time.monotonic()
            rows = await self._source.persist(
                sql.NEXT_EVENTS, self._stream, self._subscriber, self._settings.batch, None, None
            )
            if rows[0]["batch"] is not None:
                # Of a batch without events there is one row, too.
                self._has_batch = True
                error = await self._move(
                    rows[0]["batch"], [row for row in rows if row["id"]], since
                )
                self._has_batch = False
                if error is not None and not self._is_stopping:
                    # The batch stays open, and comes again.
                    await self._stall.last(reason_of(error))
                continue
            if self._once:
                return
            await self._wake.rest(self._settings.poll.total_seconds())

    async def _move(self, batch: int, rows: list[asyncpg.Record], since: float) -> Exception | None:
        """Move a batch; return why the target cannot take it now, if it is so."""
        events = _Events(rows, self.label, self._queue)
        await transform(self._transform or (lambda message: message), events)
        sent = await self._target.send(events.items(), self._settings.hold.total_seconds())
        if sent.error is not None:
            if not isinstance(sent.error, PASSING):
                raise sent.error
            return sent.error
        refused = await self._settle(batch, events, sent)
        place = next(reversed(sent.ids), None)
        if place is not None:
            await self._source.persist(
                sql.RELAY_FINISH, *self._names, place, [], [], [], [], None, None
            )
        await self._source.persist(sql.FINISH_BATCH, batch)
        numbers = {
            "known": sent.known,
            "merged": sent.merged,
            "dropped": sum(not made for made in events.made.values()) - len(events.failed),
            "failed": len(events.failed),
            "refused": refused,
        }
        moved = len(events) - numbers["dropped"] - numbers["failed"] - refused
        self.counts.update(numbers, moved=moved)
        took = time.monotonic() - since
        first = min((row["created_at"] for row in rows), default=datetime.now(UTC))
        age = (datetime.now(UTC) - first).total_seconds()
        self._sink(
            RelayMoved(
                source=self.label, quantity=moved, lost=0, lag=max(age, took), took=took, **numbers
            )
        )
        return None

    async def _settle(self, batch: int, events: _Events, sent: Sent) -> int:
        """Write down which events are not at the target; return how many it has refused."""
        refused = 0
        for index, error in events.failed.items():
            reason = f"the transformation of the relay failed: {reason_of(error)}"
            log.warning(
                "%s: the transformation failed on event %d in attempt %d of %d: %s",
                self.label, events.id(index), events.attempts(index), self._settings.attempts,
                in_line(f"{type(error).__name__}: {reason_of(error)}"),
            )  # fmt: skip
            if events.attempts(index) >= self._settings.attempts:
                await self._source.persist(sql.FAIL_EVENT, batch, events.id(index), reason)
            else:
                delay = timedelta(seconds=2 ** events.attempts(index))
                await self._source.persist(
                    sql.RETRY_EVENTS, batch, [events.id(index)], [delay], [reason]
                )
        for index, items in events.made.items():
            reasons = [sent.refused[item[0]] for item in items if item[0] in sent.refused]
            if reasons:
                refused += 1
                details = f"the target of the relay refuses it: {reasons[0]}"
                await self._source.persist(sql.FAIL_EVENT, batch, events.id(index), details)
                self._sink(
                    RelayRefused(source=self.label, message_id=events.id(index), reason=reasons[0])
                )
        return refused
