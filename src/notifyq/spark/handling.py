"""Handling messages on executors: claimed by the driver, finished by tasks with their tokens."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError
from notifyq.handlers.retries import Reject, Retry
from notifyq.spark import statements
from notifyq.spark.connection import connect
from notifyq.spark.failures import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    _Function = Callable[[Any], Any]

_FLUSH = 0.5
"""Seconds after which a task finishes what it has handled; more at once cost less."""
_MOST = 500


@dataclass(frozen=True, slots=True)
class Handled:
    """What became of the messages of one claim, or of several together."""

    claimed: int = 0
    succeeded: int = 0
    rejected: int = 0
    failed: int = 0
    """Attempts that failed; what has attempts left comes again."""
    lost: int = 0
    """Messages whose lock was lost: another worker has them, whatever the function did."""

    def __add__(self, other: Handled) -> Handled:
        """Add what two claims came to."""
        return Handled(
            self.claimed + other.claimed,
            self.succeeded + other.succeeded,
            self.rejected + other.rejected,
            self.failed + other.failed,
            self.lost + other.lost,
        )


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

    `function` gets the payload and returns what becomes the result; it may raise Reject and Retry.
    It runs at least once for each message: what was handled by a task that died before it could
    tell comes again. Locks are kept for as long as the batch takes.
    """
    if quantity < 1:
        raise ConfigurationError("the quantity of a batch is at least 1")
    context = spark.sparkContext
    name = f"spark:{context.applicationId}"
    with translated(), connect(dsn, name="notifyq spark handle") as session:
        rows = session.execute(statements.CLAIM, (queue, quantity, name)).fetchall()
    if not rows:
        return Handled()
    claimed = [_Claimed(id_, token, message) for id_, token, message, _ in rows]
    parts = min(partitions or context.defaultParallelism, len(claimed))

    def work(found: Iterator[_Claimed]) -> Iterator[Handled]:
        yield handle(dsn, list(found), function)

    with _held(dsn, claimed, min(seconds for *_, seconds in rows) / 3):
        counts = context.parallelize(claimed, parts).mapPartitions(work).collect()
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
    """Handle batch after batch, see handle_batch(), until the queue has nothing to claim.

    With `stop` it goes on until that is set, and looks once a second while there is nothing.
    """
    total = Handled()
    while stop is None or not stop.is_set():
        done = handle_batch(spark, dsn, queue, function, quantity=quantity, partitions=partitions)
        total += done
        if done.claimed and on_batch is not None:
            on_batch(done)
        if not done.claimed:
            if stop is None:
                break
            stop.wait(1)
    return total


@contextmanager
def _held(dsn: str, claimed: Sequence[_Claimed], every: float) -> Iterator[None]:
    """Extend the locks of a batch until the block ends; those that are finished are passed over."""
    ended = threading.Event()

    def extend() -> None:
        while not ended.wait(every):
            try:
                with connect(dsn, name="notifyq spark handle") as session:
                    _still_held(session, claimed)
            except Exception:  # noqa: BLE001, S112  the next one may come through
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
    with translated(), connect(dsn, name="notifyq spark handle") as session:
        # A task that is tried again finds here what the first attempt had finished.
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
    """How it ended, its result, and why: the statuses of messages, or `retry`."""
    try:
        result = function(json.loads(message.message))
        return "success", None if result is None else json.dumps(result), None
    except Reject as verdict:
        return "rejected", None, str(verdict)
    except Retry as verdict:
        return "retry", verdict.after, str(verdict) or None
    except Exception as error:  # noqa: BLE001  whatever it is, the message has failed
        return "retry", None, f"{type(error).__name__}: {error}"


class _Settlement:
    """Gathers outcomes, and tells the database of many at once."""

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
