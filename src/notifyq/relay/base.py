"""The life of a relay: connect to both ends, move until it is stopped, disconnect."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

from notifyq.arguments import known_options
from notifyq.config import RelaySettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import Refusals, is_limited
from notifyq.database.retry import Patience
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Wake, call_on
from notifyq.queues.admin import Admin
from notifyq.relay.brokers import broker_of
from notifyq.relay.brokers.target import BrokerTarget
from notifyq.relay.events import (
    RelayMoved,
    RelayRefused,
    RelayResumed,
    RelayStalled,
    RelayStarted,
    RelayStopped,
)
from notifyq.relay.target import Target, reason_of
from notifyq.telemetry import Guarded, TelemetryHandler, log_events
from notifyq.worker.fetch import process_name

if TYPE_CHECKING:
    from notifyq.relay.message import Transform
    from notifyq.relay.target import Sent

log = logging.getLogger("notifyq.relay")

_PROBE, _LONGEST_PROBE = 0.2, 5.0
"""Seconds between two checks of a target that is down: the first pause, the longest."""

_TARGET = "the target"


class RelayOptions(TypedDict, total=False):
    """Options of every relay."""

    transform: Transform | None
    once: bool
    """Return when nothing is left to move."""
    settings: RelaySettings | None
    telemetry: TelemetryHandler


class BaseRelay(ABC):
    """Runs a relay; a subclass connects and moves the messages."""

    _target: Target | BrokerTarget

    def __init__(
        self, routes: Iterable[str], retry_for: timedelta, **options: Unpack[RelayOptions]
    ) -> None:
        """Describe the relay; its start is tried again for `retry_for`."""
        known_options("a relay", options, RelayOptions.__annotations__)
        self._routes_text = tuple(routes)
        self._transform = options.get("transform")
        self._once = options.get("once", False)
        self._settings = options.get("settings") or RelaySettings.load()
        self._telemetry = Guarded(options.get("telemetry", log_events))
        self.name = f"relay {process_name()}"
        self.counts: Counter[str] = Counter()
        """Messages by outcome: moved, known, merged, dropped, failed, refused, lost, released."""
        self.works = asyncio.Event()
        """Set when it has moved messages, or found none."""
        self._wake = Wake()
        self._stops = 0
        self._stalled: dict[str | None, float] = {}
        # What the events and the metrics have of it; how often it is logged the refusals decide.
        self._reported: set[str | None] = set()
        self._refusals = Refusals(log)
        self._failure: BaseException | None = None
        self._patience = Patience("the start", log, retry_for)
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Finish what is being moved, then return from `run()`; called again, return now.

        Any thread may call it.
        """
        self._stops += 1
        if self._loop is not None:
            call_on(self._loop, self._stop_requested)

    def _stop_requested(self) -> None:
        self._wake.set()
        self._patience.stop()
        self._on_stop()

    async def run(self) -> None:
        """Move messages until `stop()`; wait without limit for a target that goes down meanwhile.

        At the start it waits for both ends for as long as retries last. Raises
        LostReceiptsError where the target was restored to an earlier state.
        """
        if self._loop is not None:
            raise ConfigurationError("a relay runs once: make another one")
        self._loop = asyncio.get_running_loop()
        if self._stops:
            return
        async with AsyncExitStack() as stack:
            if await self._patience.through(partial(self._open, stack)):
                self._telemetry(RelayStarted(relay=self.name, routes=self._routes_text))
                try:
                    await self._serve()
                finally:
                    moved, released = self.counts["moved"], self.counts["released"]
                    self._telemetry(RelayStopped(relay=self.name, moved=moved, released=released))
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Open what stays open until the end; if a step fails, close the others."""

    @abstractmethod
    async def _serve(self) -> None:
        """Move messages until the relay is stopped."""

    @abstractmethod
    def _on_stop(self) -> None:
        """React to `stop()`, on the event loop of the relay."""

    async def _open_database(self, opened: AsyncExitStack, database: Database) -> None:
        await opened.enter_async_context(database)
        await Admin(database).check_schema()

    def _stall(self, source: str | None, error: Exception) -> None:
        """Report once that the target takes nothing of a source; None: that it is down.

        That it is down is known after `hold`; a queue that is full for a shorter time is nothing.
        """
        since = self._stalled.setdefault(source, time.monotonic())
        has_lasted = time.monotonic() - since >= self._settings.hold.total_seconds()
        if source is None:
            self._refusals.refused(_TARGET, error, "all messages wait for it")
        if source not in self._reported and (source is None or has_lasted):
            self._reported.add(source)
            self._telemetry(RelayStalled(relay=self.name, source=source, reason=reason_of(error)))

    def _resume(self, source: str | None) -> None:
        """Report that it waits no more, if it did."""
        if source is None:
            self._refusals.works(_TARGET)
        since = self._stalled.pop(source, None)
        if since is not None and source in self._reported:
            self._reported.remove(source)
            seconds = time.monotonic() - since
            self._telemetry(RelayResumed(relay=self.name, source=source, seconds=seconds))

    async def _wait_for_target(self) -> None:
        """After the target was down: wait until it answers again."""
        pause = _PROBE
        while None in self._stalled:
            # Jitter: many relays may wait for one server.
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
            try:
                await self._target.check()
            except Exception as again:
                if not isinstance(again, DatabaseUnavailableError) and not is_limited(again):
                    raise
                pause = min(2 * pause, _LONGEST_PROBE)
            else:
                self._resume(None)
        self._wake.set()

    def _note_refused(self, source: str, message_id: int, reason: str) -> None:
        self._telemetry(RelayRefused(source=source, message_id=message_id, reason=reason))

    def _note_moved(
        self, source: str, quantity: int, sent: Sent, *, lag: float, took: float, **counts: int
    ) -> None:
        """Count and report a settled batch."""
        self.works.set()
        counts |= {"known": sent.known, "merged": sent.merged}
        self.counts.update(counts, moved=quantity)
        self._telemetry(RelayMoved(source=source, quantity=quantity, lag=lag, took=took, **counts))


class DatabaseRelay(BaseRelay):
    """A relay from a database, where it listens, to another one or to a message broker."""

    def __init__(
        self,
        source: Database,
        target: Database | str,
        routes: Iterable[str],
        *,
        part: str = "",
        accept_restored: bool = False,
        **options: Unpack[RelayOptions],
    ) -> None:
        """Describe the relay; a `part` of the source has receipts of its own.

        A target that is a text is the URL of a message broker. `accept_restored`: accept that the
        target was restored, lost messages stay lost.
        """
        super().__init__(routes, source.settings.retry_for, **options)
        self._source = source
        self._to = target
        self._part = part
        self._accepts_restored = accept_restored
        # Of the target and the source among receipts; a broker has none.
        self._names: tuple[str, ...] = ()

    async def _open(self, stack: AsyncExitStack) -> None:
        async with AsyncExitStack() as opened:
            await self._open_database(opened, self._source)
            if isinstance(self._to, Database):
                await self._open_database(opened, self._to)
                self._target = await self._target_of(self._to)
            else:
                self._target = BrokerTarget(broker_of(self._to), self._part)
                opened.push_async_callback(self._target.close)
                await self._target.check()
            self._listener = self._make_listener()
            await opened.enter_async_context(self._listener)
            stack.push_async_exit(opened.pop_all())

    async def _target_of(self, database: Database) -> Target:
        """The database of receipts; raise where it has lost some."""
        source = await self._source.value(sql.RELAY_SOURCE)
        source = f"{source} {self._part}".strip()
        target = await database.value(sql.RELAY_TARGET)
        self._names = target, source
        if self._accepts_restored:
            await self._source.value(sql.RELAY_FORGET, target)
        remember = self._settings.remember
        made = Target(database, source, remember)
        marks = await self._source.fetch(sql.RELAY_MARKS, target, source, remember * 0.9)
        await made.check(row[0] for row in marks)
        return made

    @abstractmethod
    def _make_listener(self) -> Listener:
        """Listen for what there is to move."""
