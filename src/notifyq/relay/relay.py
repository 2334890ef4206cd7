"""The relay: claim at the source, have it received at the target, finish at the source."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from notifyq.config import RelaySettings
from notifyq.database import sql
from notifyq.database.retry import Patience
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.notify.listener import Listener
from notifyq.notify.poller import Poll, Poller
from notifyq.notify.suppression import Suppression
from notifyq.notify.wake import TokenBucket
from notifyq.relay.backpressure import Backpressure
from notifyq.relay.events import RelayStarted, RelayStopped
from notifyq.relay.fetcher import RelayFetcher
from notifyq.relay.handshake import introduce
from notifyq.relay.settlement import Settlement
from notifyq.relay.target import PASSING, reason_of
from notifyq.relay.transformation import transform
from notifyq.telemetry import Guarded, log_sink
from notifyq.worker.maintenance import Upkeep

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from notifyq.database.pool import Database
    from notifyq.notify.session import Session
    from notifyq.relay.batch import RelayBatch
    from notifyq.relay.message import Transform
    from notifyq.telemetry import Sink

log = logging.getLogger("notifyq.relay")

_TICK = 0.5
"""Seconds between two looks at the locks."""


class Relay:
    """Moves messages of queues of `source` into queues of `target`, each once.

    `routes` says which queue becomes which other one. `run()` returns after `stop()`: batches under
    way have the grace to end, then they are released; `stop()` again releases them now. With `once`
    it also returns when nothing is left to move. A relay runs once; any number may run at a time.
    """

    def __init__(
        self,
        source: Database,
        target: Database,
        routes: Mapping[str, str],
        *,
        transform: Transform | None = None,
        filter: str | None = None,
        once: bool = False,
        accept_restored: bool = False,
        settings: RelaySettings | None = None,
        sink: Sink = log_sink,
    ) -> None:
        if not routes:
            raise ConfigurationError("a relay needs a queue at least: {'orders': 'orders'}")
        self._source = source
        self._target_database = target
        self._routes = dict(routes)
        self._transform = transform
        self._once = once
        self._accepts_restored = accept_restored
        self._settings = settings or RelaySettings.load()
        self._sink = Guarded(sink)
        self.name = f"relay {socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.counts: Counter[str] = Counter()
        """Messages by what became of them: moved, known, dropped, failed, refused and so on."""
        self._wake = asyncio.Event()
        self._flights: dict[RelayBatch, asyncio.Task[None]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._intake = RelayFetcher(source, self._routes, self._settings, self.name, filter)
        self._stops = 0
        self._recovery: asyncio.Timeout | None = None
        self._patience = Patience("the start", log, source.settings.retry_for)
        self._home: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Claim no more and end what is under way; called again, release it now. For any thread."""
        self._stops += 1
        if self._home is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
                self._home.call_soon_threadsafe(self._stop_requested)

    def _stop_requested(self) -> None:
        self._wake.set()
        self._patience.stop()
        if self._recovery is not None:
            self._recovery.reschedule(asyncio.get_running_loop().time())
        if self._stops > 1:
            self._cancel()

    async def run(self) -> None:
        """Move messages until `stop()`. Waits for a target that is down for as long as it takes.

        A source or a target that is away when it starts is waited for as long as retries last.
        Raises LostReceiptsError where the target was restored to an earlier state.
        """
        if self._home is not None:
            raise ConfigurationError("a relay runs once: make another one")
        self._home = asyncio.get_running_loop()
        if self._stops:
            return
        async with AsyncExitStack() as stack:
            if await self._patience.through(partial(self._open, stack)):
                await self._serve()
        if self._failure is not None:
            raise self._failure

    async def _open(self, stack: AsyncExitStack) -> None:
        """Have all that stays open until the end; nothing of it if that is not all to be had."""
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._source)
            await opened.enter_async_context(self._target_database)
            await self._introduce()
            promises = Suppression(self._source, self._sink, on_session=self._wake.set)
            self._attendance = Poller(
                promises, list(self._routes), poll=self._settings.poll.total_seconds()
            )
            listener = Listener(
                self._source.listen_dsn,
                [sql.NEW_MESSAGE],
                self._hear,
                settings=self._source.settings,
                name="notifyq relay",
                ping=10,
                services=[self._extend, promises.serve],
                sink=self._sink,
            )
            await opened.enter_async_context(listener)
            listener.failed.add_done_callback(self._ended)
            stack.push_async_exit(opened.pop_all())

    async def _serve(self) -> None:
        routes = tuple(f"{source}:{target}" for source, target in self._routes.items())
        self._sink(RelayStarted(relay=self.name, routes=routes))
        self._begin(Upkeep(self._source, 1.0, self._sink).serve())
        try:
            await self._move_until_stopped()
        finally:
            try:
                await self._drain()
            finally:
                for service in list(self._working):
                    service.cancel()
                if self._working:
                    await asyncio.wait(set(self._working))
                await self._attendance.close()
                await self._intake.close()
                self._sink(
                    RelayStopped(
                        relay=self.name,
                        moved=self.counts["moved"],
                        released=self.counts["released"],
                    )
                )

    async def _introduce(self) -> None:
        settings = self._settings
        names, self._target = await introduce(
            self._source,
            self._target_database,
            settings.remember,
            accept_restored=self._accepts_restored,
        )
        self._ledger = Settlement(self._source, names, settings.attempts, self.counts, self._sink)
        self._stall = Backpressure(self._target, self._sink, on_end=self._wake.set)

    async def _move_until_stopped(self) -> None:
        vain = TokenBucket()
        while not self._stops:
            # Cleared before the look: a bell that rings while it is under way must set it again.
            is_rung = self._wake.is_set()
            self._wake.clear()
            room = self._room
            if room > 0:
                look = await self._look(is_last=self._attendance.owes_look or self._once)
                await self._attendance.note(look)
                if look.is_full:
                    continue
                if self._once and not look.queues and not look.has_failed and not self._flights:
                    return
                if is_rung and not look.queues and (pause := vain.spend()) > 0:
                    await asyncio.sleep(pause)
            room = self._room
            seconds = await self._attendance.pause(room)
            if seconds > 0 and room > 0:
                seconds = min(seconds, await self._attendance.until_token())
            if seconds > 0 and not self._stops:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._wake.wait()

    @property
    def _room(self) -> int:
        return 0 if self._stall.is_on else self._settings.in_flight - len(self._flights)

    async def _look(self, *, is_last: bool) -> Poll:
        """Claim a batch, and have it moved."""
        began = time.monotonic()
        try:
            look, flight = await self._intake.claim(is_last=is_last)
        except DatabaseUnavailableError as error:
            log.warning("claim failed: %s", error)
            await self._recover()
            return Poll(frozenset(), is_full=False, began=began, has_failed=True)
        if flight is not None:
            self._flights[flight] = self._begin(self._move(flight))
        return look

    async def _recover(self) -> None:
        """After a claim without an answer: it may have locked messages that nobody knows of."""
        if self._stops:
            return
        known = [i for flight in list(self._flights) for i in flight.ids]
        # The call is tried again for minutes; a stop must not wait for that.
        try:
            async with asyncio.timeout(None) as self._recovery:
                await self._source.persist(sql.RELEASE_ORPHANS, self.name, known)
        except TimeoutError:
            log.debug("the relay stops before it knows what its last claim has locked")
        finally:
            self._recovery = None

    async def _move(self, flight: RelayBatch) -> None:
        try:
            if self._transform is not None:
                await transform(self._transform, flight)
            hold = 0 if self._stops or self._stall.is_on else self._settings.hold.total_seconds()
            sent = await self._target.send(flight.items(), hold)
            if sent.error is not None:
                # Before anything is released, which would be claimed again at once.
                self._judge(sent.error)
            await self._ledger.settle(flight, sent)
        except asyncio.CancelledError:
            await self._ledger.release(flight, range(len(flight)))
            raise
        finally:
            del self._flights[flight]
            self._wake.set()

    def _judge(self, error: Exception) -> None:
        """Wait for a target that cannot take messages now; end with any other error."""
        if not isinstance(error, PASSING):
            self._fail(error)
        elif not self._stall.is_on and not self._stops:
            self._intake.slow_down()
            self._stall.is_on = True
            self._begin(self._stall.last(reason_of(error)))

    async def _extend(self, session: Session) -> None:
        """Hold the locks of batches that are under way, for ever; on the listener's loop."""
        while True:
            await asyncio.sleep(_TICK / 2)
            now = time.monotonic()
            for flight in list(self._flights):
                if flight.extend_at <= now:
                    await session.fetch(
                        sql.EXTEND_MANY, flight.ids, flight.tokens, self._settings.lock_timeout
                    )
                    flight.extend_at = now + flight.seconds / 3

    def _hear(self, _channel: str, payload: str) -> None:
        queue, _, ids = payload.rpartition(":")
        if not queue or (queue in self._routes and self._attendance.answers(queue, ids)):
            self._wake.set()

    async def _drain(self) -> None:
        moving = set(self._flights.values())
        if moving and self._stops < 2:
            await asyncio.wait(moving, timeout=self._settings.grace.total_seconds())
        if moving:
            self._cancel()
            await asyncio.wait(moving)
        for flight in list(self._flights):  # cancelled before they had begun
            await self._ledger.release(flight, range(len(flight)))

    def _cancel(self) -> None:
        for task in self._flights.values():
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the claims; if it ends with an error, so does the relay."""
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error; `run()` raises it."""
        if self._failure is None:
            self._failure = error
            self._stops += 1
            self._wake.set()
