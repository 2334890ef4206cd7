"""Handle messages on executors: the driver claims them, tasks finish them with their tokens."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from operator import add
from time import monotonic
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError
from notifyq.handlers.retries import Reject, Retry
from notifyq.spark import statements
from notifyq.spark.connection import connect, opened
from notifyq.spark.engine import SparkEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    _Function = Callable[[Any], Any]

_FLUSH = 0.5
"""Seconds between two flushes of finished messages."""
_MOST = 500
"""Messages that are finished in one call, at most."""


@dataclass(frozen=True, slots=True)
class Handled:
    """How many messages of one claim, or of several, ended in which way."""

    claimed: int = 0
    succeeded: int = 0
    rejected: int = 0
    failed: int = 0
    """Attempts that failed; messages with attempts left are retried."""
    lost: int = 0
    """Messages whose lock was lost: another worker has them."""

    def __add__(self, other: Handled) -> Handled:
        """Add the numbers of two claims."""
        return Handled(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class _Claimed:
    id: int
    lock_token: int
    message: str


def handle_batch(
    spark: Any,
    dsn: str,
    queue: str,
    function: _Function,
    *,
    quantity: int = 1000,
    partitions: int | None = None,
) -> Handled:
    """Claim up to `quantity` messages of a queue, handle them on the executors, and finish them.

    `function` gets the payload and returns the result; it may raise Reject and Retry. It runs at
    least once for each message, and again where a task crashed before it finished the message.
    Locks are extended until the batch ends.
    """
    if quantity < 1:
        raise ConfigurationError(f"the quantity of a batch must be at least 1, not {quantity}")
    engine = SparkEngine(spark)
    name = f"spark:{spark.conf.get('spark.app.id')}"
    with opened(dsn, name="notifyq spark handle") as session:
        [[is_encrypted]] = session.execute(statements.IS_ENCRYPTED, (queue,)).fetchall()
        if is_encrypted:
            raise ConfigurationError(f"queue {queue!r} is encrypted: a worker with keys handles it")
        rows = session.execute(statements.CLAIM, (queue, quantity, name)).fetchall()
    if not rows:
        return Handled()
    claimed = [_Claimed(id_, token, message) for id_, token, message, _ in rows]
    parts = min(partitions or engine.slots, len(claimed))
    tasks = [claimed[first::parts] for first in range(parts)]

    def work(task: Sequence[_Claimed]) -> Handled:
        return handle(dsn, task, function)

    with _held(dsn, claimed, min(seconds for *_, seconds in rows) / 3):
        counts = engine.run(tasks, work)
    return sum(counts, Handled(claimed=len(claimed)))


def handle_queue(
    spark: Any,
    dsn: str,
    queue: str,
    function: _Function,
    *,
    quantity: int = 1000,
    partitions: int | None = None,
    stop: threading.Event | None = None,
    on_batch: Callable[[Handled], None] | None = None,
) -> Handled:
    """Handle batch after batch, see handle_batch(), until the queue has no message to claim.

    With `stop` it continues until that is set, and polls an empty queue once a second.
    """
    total = Handled()
    while stop is None or not stop.is_set():
        done = handle_batch(spark, dsn, queue, function, quantity=quantity, partitions=partitions)
        total += done
        if not done.claimed:
            if stop is None:
                break
            stop.wait(1)
        elif on_batch is not None:
            on_batch(done)
    return total


@contextmanager
def _held(dsn: str, claimed: Sequence[_Claimed], every: float) -> Iterator[None]:
    """Extend the locks of a batch until the block ends; finished messages are skipped."""
    ended = threading.Event()

    def extend() -> None:
        while not ended.wait(every):
            try:
                with connect(dsn, name="notifyq spark handle") as session:
                    _still_held(session, claimed)
            except Exception:  # noqa: BLE001, S112  the next attempt may succeed
                continue

    thread = threading.Thread(target=extend, name="notifyq-spark-locks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def handle(dsn: str, claimed: Sequence[_Claimed], function: _Function) -> Handled:
    """Handle messages in this process, as a task does, and finish them."""
    if not claimed:
        return Handled()
    with opened(dsn, name="notifyq spark handle") as session:
        # A retried task must skip the messages that its first attempt finished.
        held = _still_held(session, claimed)
        settlement = _Settlement(session)
        for message in claimed:
            if message.id in held:
                settlement.add(message, *_outcome(function, message))
        settlement.flush()
    return settlement.total + Handled(lost=len(claimed) - len(held))


def _still_held(session: Any, claimed: Sequence[_Claimed]) -> set[int]:
    given = ([m.id for m in claimed], [m.lock_token for m in claimed])
    return {row[0] for row in session.execute(statements.EXTEND_MANY, given)}


def _outcome(function: _Function, message: _Claimed) -> tuple[str, Any, Any]:
    """Return a status of messages or `retry`, the result or the delay, and the details."""
    try:
        result = function(json.loads(message.message))
        return "success", None if result is None else json.dumps(result), None
    except Reject as error:
        return "rejected", None, str(error)
    except Retry as error:
        return "retry", error.after, str(error) or None
    except Exception as error:  # noqa: BLE001  any error fails the attempt
        return "retry", None, f"{type(error).__name__}: {error}"


class _Settlement:
    """Collects outcomes, and finishes many messages in one call."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._waiting: list[tuple[_Claimed, str, Any, Any]] = []
        self._since = monotonic()
        self.total = Handled()

    def add(self, message: _Claimed, status: str, value: Any, details: str | None) -> None:
        if status == "retry":
            given = (message.id, message.lock_token, value, details)
            (kept,) = self._session.execute(statements.RETRY, given).fetchone()
            self.total += Handled(failed=int(kept), lost=int(not kept))
            return
        self._waiting.append((message, status, value, details))
        if len(self._waiting) >= _MOST or monotonic() - self._since > _FLUSH:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            messages, statuses, results, details = zip(*self._waiting, strict=True)
            given = (
                [m.id for m in messages],
                [m.lock_token for m in messages],
                list(statuses),
                list(details),
                list(results),
            )
            found = self._session.execute(statements.FINISH_MANY, given).fetchall()
            kept = {row[0] for row in found}
            done = [status for m, status, *_ in self._waiting if m.id in kept]
            self.total += Handled(
                succeeded=done.count("success"),
                rejected=done.count("rejected"),
                lost=len(self._waiting) - len(done),
            )
        self._waiting, self._since = [], monotonic()
