"""The messages that a worker holds, each from its claim until it is settled."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notifyq.database.refusals import concerns_all, is_refusal
from notifyq.execution.call import BatchCall, HandlerCall
from notifyq.models.message import Retried
from notifyq.models.outcome import (
    Committed,
    Doubtful,
    Failed,
    Outcome,
    Rejected,
    Released,
    Success,
    Suspended,
)
from notifyq.printable import in_line
from notifyq.telemetry import LockLost, MessageFinished
from notifyq.telemetry.tracebacks import log_failure
from notifyq.worker.heartbeat import Heartbeat, Key, Lock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from notifyq.execution.runtime import Runtime
    from notifyq.handlers.handler import Handler
    from notifyq.models.message import Message
    from notifyq.queues.batch_completer import Answer
    from notifyq.queues.claim_client import ClaimClient
    from notifyq.telemetry import Guarded

log = logging.getLogger("notifyq.worker")


class Held(HandlerCall):
    """A message from its claim until it is settled, with the interface of a batch of one."""

    __slots__ = ("batch", "ended", "lock", "run", "waits_since")

    def __init__(self, handler: Handler[Any], message: Message, lock: Lock) -> None:
        super().__init__(handler, message)
        self.lock = lock
        self.batch: BatchCall[Held] | None = None
        """The call that handles it together with others."""
        self.waits_since = 0.0
        self.ended: Outcome = Released()
        self.run = 0.0  # seconds

    @property
    def members(self) -> list[Held]:
        """The message itself."""
        return [self]

    async def outcomes(self, runtime: Runtime) -> dict[Held, Outcome]:
        """Handle it, as a batch does."""
        return {self: await self.outcome(runtime)}


Call = Held | BatchCall[Held]


class InFlight:
    """The messages of a worker that are not settled yet.

    `on_free` is called after each that is settled, `on_failure` with an error that no handler has
    raised. `on_lost` and `on_extended` are those of the heartbeat.
    """

    def __init__(
        self,
        client: ClaimClient,
        telemetry: Guarded,
        *,
        on_free: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        on_lost: Callable[[Key], None],
        on_extended: Callable[[int], None],
    ) -> None:
        self._client = client
        self._telemetry = telemetry
        self._on_free = on_free
        self._on_failure = on_failure
        self._held: dict[Key, Held] = {}
        self._changed = asyncio.Event()
        self.calls: set[Call] = set()
        """Calls of handlers with a message that is not settled yet."""
        self.heartbeat = Heartbeat(on_lost, on_extended)
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many messages are not settled yet."""
        return len(self._held)

    @property
    def keys(self) -> list[Key]:
        """Ids and lock tokens of the messages that are not settled yet."""
        return list(self._held)

    def get(self, key: Key) -> Held | None:
        """A message that is not settled yet."""
        return self._held.get(key)

    def add(self, held: Held, batch: BatchCall[Held] | None = None) -> None:
        """Hold a message, alone or in a batch: from now on its lock is extended."""
        self._held[held.lock.key] = held
        self.heartbeat.add(held.lock)
        held.batch = batch
        if batch is not None:
            batch.members.append(held)
            batch.unsettled += 1
        self.calls.add(batch or held)

    def settle(self, ended: dict[Held, Outcome], run: float) -> Awaitable[object]:
        """Record how messages have ended after so many seconds; none waits for another one."""
        for held, outcome in ended.items():
            held.ended, held.run = outcome, run
        if len(ended) == 1:
            return self._settle(held)
        return asyncio.gather(*map(self._settle, ended))

    async def _settle(self, held: Held) -> None:
        # The heartbeat goes on: this may take longer than the lock lasts.
        try:
            match held.ended:
                case Committed():
                    self.settled(held, held.ended.is_held)
                case Suspended():
                    self.settled(held, answer=True)
                case Doubtful():
                    answer = await self._client.settle(held.message, held.ended)
                    if not answer:
                        # Only now it is certain that the transaction is over.
                        answer = await self._client.is_archived(held.message)
                        held.ended = Committed(is_held=answer)
                    self.settled(held, answer)
                case Success() | Rejected() | Failed() | Released():
                    self._client.finish(
                        held.message, held.ended, lambda answer: self.settled(held, answer)
                    )
        except BaseException as error:
            self.settled(held, error)
            if not isinstance(error, Exception):
                raise  # it ends the worker or the process

    async def release(self, released: list[Held]) -> None:
        """Release messages whose handlers have not begun."""
        for held in released:
            self.heartbeat.remove(held.lock)
        try:
            kept = await self._client.release([held.message for held in released])
        except BaseException as error:
            for held in released:
                self.settled(held, error)
            if not isinstance(error, Exception):
                raise  # it ends the worker or the process
        else:
            for held in released:
                self.settled(held, held.message.id in kept)

    async def wait_until_idle(
        self, seconds: float, hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every message is settled, at most for so long, or until hurried."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._held and not hurried():
                    self._changed.clear()
                    await self._changed.wait()

    def recheck(self) -> None:
        """Have `wait_until_idle` check again whether it is hurried."""
        self._changed.set()

    def settled(self, held: Held, answer: Answer | BaseException) -> None:
        """End a message: `answer` is whether its lock was held, or an error of no handler."""
        self.heartbeat.remove(held.lock)
        if self._held.pop(held.lock.key, None) is None:
            return
        if (batch := held.batch) is not None:
            batch.unsettled -= 1
        if batch is None or batch.unsettled == 0:
            self.calls.discard(batch or held)
        self._changed.set()
        self._on_free()
        if isinstance(answer, Exception):
            self._not_recorded(held, answer)
        elif not isinstance(answer, BaseException):
            if answer and not isinstance(held.ended, Success):
                _log(held, answer)
            try:
                self._report(held, is_held=bool(answer))
            except Exception:
                # Raised here, it would keep the answer from the other messages of a statement.
                log.exception("the end of message %d was not reported", held.message.id)
        # An error refers to its frames, which refer to this message: a cycle costs a collection.
        held.ended = Released()

    def _not_recorded(self, held: Held, error: Exception) -> None:
        if not is_refusal(error) or concerns_all(error):
            self._on_failure(error)  # the worker must not go on with an unknown error
            return
        message = held.message
        self.counts["lost"] += 1
        log.error(
            "queue %r: the end of message %d is refused, its lock expires: %s: %s",
            message.queue, message.id, type(error).__name__, error,
        )  # fmt: skip

    def _report(self, held: Held, *, is_held: bool) -> None:
        message, outcome, status = held.message, held.ended, str(held.ended.status)
        self.counts[status if is_held else "lost"] += 1
        if not is_held:
            self._telemetry(
                LockLost(queue=message.queue, message_id=message.id, lock_token=message.lock_token)
            )
        elif not isinstance(outcome, Suspended) and self._telemetry.wants(MessageFinished):
            locked_at = message.locked_at or message.created_at
            available_at = max(message.created_at, message.available_at)
            self._telemetry(
                MessageFinished(
                    queue=message.queue,
                    message_id=message.id,
                    lock_token=message.lock_token,
                    status=status,
                    attempts=message.attempts,
                    wait=(locked_at - message.created_at).total_seconds(),
                    queued=(locked_at - available_at).total_seconds(),
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
            # A plain True: whether another attempt follows was in an answer that was lost.
            attempt = f" in attempt {message.attempts}"
            is_last = False
            if isinstance(answer, Retried):
                attempt += f" of {answer.max_attempts}"
                is_last = answer.delay is None
                if answer.delay is not None:
                    attempt += f", next try in {max(answer.delay.total_seconds(), 0):.1f} s"
            log_failure(log, what, held.ended, attempt, is_last=is_last)
