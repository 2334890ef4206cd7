"""What a worker holds: every message from its claim to its settlement, and how each has ended."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notifyq.execution.call import HandlerCall
from notifyq.models.message import Retried
from notifyq.models.outcome import Committed, Doubtful, Failed, Outcome, Rejected, Released, Success
from notifyq.telemetry import LockLost, MessageFinished
from notifyq.telemetry.tracebacks import in_line, log_failure
from notifyq.worker.heartbeat import Heartbeat, Key, Lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.execution.batch import BatchCall
    from notifyq.handlers.handler import Handler
    from notifyq.models.message import Message
    from notifyq.queues.batch_completer import Answer
    from notifyq.queues.claim_client import ClaimClient
    from notifyq.telemetry import Guarded

log = logging.getLogger("notifyq.worker")

_OVER = Released()


class Held(HandlerCall):
    """A message from its claim to its settlement; without a task it waits for a slot."""

    __slots__ = ("batch", "ended", "lock", "run", "waits_since")

    def __init__(self, handler: Handler[Any], message: Message, lock: Lock) -> None:
        super().__init__(handler, message)
        self.lock = lock
        self.batch: BatchCall[Held] | None = None
        """The call that it is handled in together with others."""
        self.waits_since = 0.0
        self.ended: Outcome = Released()
        self.run = 0.0  # seconds


class InFlight:
    """The messages of a worker that are not settled yet.

    `on_free` is called after each that is, `on_failure` with an error that no handler has made.
    On the listener's loop `on_lost` is called with the key of a lock that was lost, `on_extended`
    with how many were extended.
    """

    def __init__(
        self,
        inbox: ClaimClient,
        sink: Guarded,
        *,
        on_free: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        on_lost: Callable[[Key], None],
        on_extended: Callable[[int], None],
    ) -> None:
        self._inbox = inbox
        self._sink = sink
        self._on_free = on_free
        self._on_failure = on_failure
        self._held: dict[Key, Held] = {}
        self._batched = 0
        self._changed = asyncio.Event()
        self.batches: set[BatchCall[Held]] = set()
        """Calls with a message that is not settled yet."""
        self.heartbeat = Heartbeat(on_lost, on_extended)
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many messages are not settled yet."""
        return len(self._held)

    @property
    def calls(self) -> int:
        """How many calls of handlers they are for."""
        return len(self._held) - self._batched + len(self.batches)

    @property
    def keys(self) -> list[Key]:
        """Ids and lock tokens of the messages that are not settled yet."""
        return list(self._held)

    def open_calls(self) -> list[Held | BatchCall[Held]]:
        """Messages that are handled alone, and batches, that are not settled yet."""
        alone = [held for held in self._held.values() if held.batch is None]
        return [*alone, *self.batches]

    def get(self, key: Key) -> Held | None:
        """A message that is not settled yet."""
        return self._held.get(key)

    def add(self, held: Held) -> None:
        """Hold a message: from now on its lock is extended."""
        self._held[held.lock.key] = held
        self.heartbeat.add(held.lock)

    def join(self, held: Held, batch: BatchCall[Held]) -> None:
        """Have a message handled together with others."""
        held.batch = batch
        batch.members.append(held)
        batch.unsettled += 1
        self.batches.add(batch)
        self._batched += 1

    async def settle(self, held: Held) -> None:
        """Write down how a message has ended."""
        # Its lock is extended on: to write the outcome down may take longer than it lasts.
        try:
            match held.ended:
                case Committed():
                    self._settled(held, held.ended.is_held)
                case Doubtful():
                    answer = await self._inbox.settle(held.message, held.ended)
                    if not answer:
                        # Only now is the transaction over, one way or the other.
                        answer = await self._inbox.is_archived(held.message)
                        held.ended = Committed(is_held=answer)
                    self._settled(held, answer)
                case Success() | Rejected() | Failed() | Released():
                    self._inbox.finish(
                        held.message, held.ended, lambda answer: self._settled(held, answer)
                    )
        except BaseException as error:
            self._settled(held, error)
            if not isinstance(error, Exception):
                raise  # of the worker or of the process

    async def release(self, released: list[Held]) -> None:
        """Give messages back whose handling has not begun."""
        for held in released:
            self.heartbeat.remove(held.lock)
        try:
            kept = await self._inbox.release([held.message for held in released])
        except BaseException as error:
            for held in released:
                self._settled(held, error)
            if not isinstance(error, Exception):
                raise  # of the worker or of the process
        else:
            for held in released:
                self._settled(held, held.message.id in kept)

    def fail(self, held: Held, error: BaseException) -> None:
        """Give up a message because of an error that its handler has not made."""
        self._settled(held, error)

    async def wait_until_idle(
        self, seconds: float, hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every message is settled, for so long, or until hurried."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._held and not hurried():
                    self._changed.clear()
                    await self._changed.wait()

    def stir(self) -> None:
        """Have `wait_until_idle` ask again whether it is hurried."""
        self._changed.set()

    def _settled(self, held: Held, answer: Answer | BaseException) -> None:
        """Take the answer to a settlement: whether the lock was held, or what went wrong."""
        self.heartbeat.remove(held.lock)
        if self._held.pop(held.lock.key, None) is None:
            return
        if (batch := held.batch) is not None:
            self._batched -= 1
            batch.unsettled -= 1
            if batch.unsettled == 0:
                self.batches.discard(batch)
        self._changed.set()
        self._on_free()
        if isinstance(answer, Exception):
            self._on_failure(answer)  # whatever it is, the worker must not go on
        elif not isinstance(answer, BaseException):
            if answer:
                _log(held, answer)
            try:
                self._report(held, is_held=bool(answer))
            except Exception:
                # Raised here, it would keep whatever settles from telling the other messages.
                log.exception("the end of message %d was not reported", held.message.id)
        # An error knows its frames and these know this message: a cycle, which costs a collection.
        held.ended = _OVER

    def _report(self, held: Held, *, is_held: bool) -> None:
        message, outcome, status = held.message, held.ended, str(held.ended.status)
        self.counts[status if is_held else "lost"] += 1
        if not is_held:
            self._sink(
                LockLost(queue=message.queue, message_id=message.id, lock_token=message.lock_token)
            )
        elif self._sink.hears(MessageFinished):
            locked_at = message.locked_at or message.created_at
            self._sink(
                MessageFinished(
                    queue=message.queue,
                    message_id=message.id,
                    lock_token=message.lock_token,
                    status=status,
                    attempts=message.attempts,
                    wait=(locked_at - message.created_at).total_seconds(),
                    queued=(
                        locked_at - max(message.created_at, message.available_at)
                    ).total_seconds(),
                    run=held.run,
                    details=getattr(outcome, "details", getattr(outcome, "reason", None)),
                )
            )


def _log(held: Held, answer: Answer) -> None:
    message = held.message
    what = f"queue {message.queue!r}: message {message.id}"
    match held.ended:
        case Rejected(reason):
            log.warning("%s is rejected: %s", what, in_line(reason))
        case Failed():
            # True alone: whether another attempt follows was in an answer that got lost.
            attempt = f" in attempt {message.attempts}"
            is_last = False
            if isinstance(answer, Retried):
                attempt += f" of {answer.max_attempts}"
                is_last = answer.delay is None
                if answer.delay is not None:
                    attempt += f", next try in {max(answer.delay.total_seconds(), 0):.1f} s"
            log_failure(log, what, held.ended, attempt, is_last=is_last)


def messages_of(call: Held | BatchCall[Held]) -> list[Held]:
    """The messages that one call of a handler is for."""
    return [call] if isinstance(call, Held) else call.members


def deadline_of(call: Held | BatchCall[Held]) -> float:
    """When the first of their locks is over, in monotonic seconds."""
    return min(held.lock.deadline for held in messages_of(call))
