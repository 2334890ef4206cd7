"""Figures of the database as metrics: what each is called, and what its labels are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from notifyq.operations.metrics.names import Names
    from notifyq.operations.monitor import Backlog, Health, Lag

    _Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily


class _Figure(NamedTuple):
    metric: str
    label: str | None
    text: str
    only_rises: bool = False


FIGURES = {
    "analyze_age": _Figure("analyze_age_seconds", "table", "Since a table was analyzed."),
    "bells_sent": _Figure("bells_sent", "channel", "Bells that were rung.", only_rises=True),
    "bloat": _Figure("bloat_ratio", "table", "Part of a table that is dead or empty, guessed."),
    "connections": _Figure("connections", None, "Sessions of clients on the server."),
    "connections_most": _Figure("connections_most", None, "Sessions that there may be."),
    "cron_failed": _Figure("cron_failed_runs", "entry", "Runs of pg_cron failed within an hour."),
    "cron_run_age": _Figure("cron_run_age_seconds", "entry", "Since the last run of pg_cron."),
    "database_bytes": _Figure("database_bytes", None, "Size of the database."),
    "dead_rows": _Figure("dead_rows", "table", "Rows that vacuum has not taken yet."),
    "expired_for": _Figure(
        "reaping_delay_seconds", None, "Since when the oldest expired lock is not reaped."
    ),
    "frozen_age": _Figure("frozen_age", None, "Transactions since the database was frozen."),
    "index_bytes": _Figure("index_bytes", "table", "Size of the indexes of a table."),
    "kept_wal": _Figure("kept_wal_bytes", "slot", "WAL that a replication slot keeps."),
    "live_rows": _Figure("live_rows", "table", "Rows, as the server last counted them."),
    "lock_waits": _Figure("lock_waits", None, "Sessions that wait for locks."),
    "longest_idle_in_transaction": _Figure(
        "longest_idle_in_transaction_seconds", None, "Longest idle transaction."
    ),
    "longest_lock_wait": _Figure("longest_lock_wait_seconds", None, "Longest wait for a lock."),
    "longest_transaction": _Figure(
        "longest_transaction_seconds", None, "Longest transaction under way."
    ),
    "misplaced": _Figure("misplaced_rows", None, "Archived rows outside of the day they are of."),
    "missing": _Figure("missing_parts", None, "Triggers and the like that are gone."),
    "notify_queue": _Figure(
        "notify_queue_ratio", None, "How full the notifications of the server are, 0 to 1."
    ),
    "overdue_for": _Figure(
        "staging_delay_seconds", None, "Since when the oldest due message is not staged."
    ),
    "partitions": _Figure("partitions", "table", "Days of the archive and of the attempts."),
    "partitions_ahead": _Figure("partitions_ahead", "table", "Days of them made ahead."),
    "published": _Figure(
        "published", "channel", "Messages and events published, by their bell.", only_rises=True
    ),
    "table_bytes": _Figure("table_bytes", "table", "Size of a table without its indexes."),
    "vacuum_age": _Figure("vacuum_age_seconds", "table", "Since a table was vacuumed."),
    "waiting_for": _Figure("waiting_for_seconds", None, "Since when the oldest message waits."),
    "worker_sessions": _Figure("worker_sessions", None, "Listening sessions of workers."),
    "xmin_age": _Figure(
        "xmin_age", "cause", "Transactions that the oldest snapshot keeps vacuum from, by cause."
    ),
}
"""The figures of messages.health() by their names."""

CAUSES = ("session", "prepared transaction", "replication slot", "standby")
_BY_QUEUE = {
    "paused": "1 where a queue is paused.",
    "expired": "Messages locked past their time.",
    "dead": "Messages that died within a day and were not redriven.",
    "oldest_waiting_seconds": "Since when the first in turn waits.",
    "oldest_expired_seconds": "Since when the oldest lock is expired.",
    "overdue_seconds": "Since when a scheduled message is due that nobody stages.",
}
_BY_SUBSCRIPTION = {
    "lag_seconds": "How old the oldest event is that a subscriber has not finished.",
    "pending": "Events that a subscriber has not finished, up to 10000.",
    "retries": "Events that wait to be delivered again, up to 10000.",
}


def families(
    backlog: list[Backlog], lags: list[Lag], health: Health, queues: Names, subscriptions: Names
) -> Iterator[_Family]:
    """Make the metrics; queues and subscriptions beyond the first ones are put together."""
    yield from _of_queues(backlog, queues)
    yield from _of_subscriptions(lags, subscriptions)
    yield from _of_health(health)


def _of_queues(backlog: list[Backlog], names: Names) -> Iterator[GaugeMetricFamily]:
    now = datetime.now(UTC)

    def age(instant: datetime | None) -> float:
        return max(0.0, (now - instant).total_seconds()) if instant is not None else 0.0

    quantity: float
    value: float
    states: dict[tuple[str, str], float] = {}
    values: dict[tuple[str, str], float] = {}
    # Those with the most to do have names of their own, if not all can.
    for row in sorted(backlog, key=lambda it: -(it.waiting + it.locked + it.dead)):
        queue = names[row.queue]
        for state, quantity in (
            ("waiting", row.waiting),
            ("scheduled", row.scheduled),
            ("locked", row.locked),
        ):
            states[queue, state] = states.get((queue, state), 0) + quantity
        for what, value in (
            ("paused", row.paused),
            ("expired", row.expired),
            ("dead", row.dead),
        ):
            values[what, queue] = values.get((what, queue), 0) + value
        for what, value in (
            ("oldest_waiting_seconds", age(row.oldest_waiting_at)),
            ("oldest_expired_seconds", age(row.oldest_expired_at)),
            ("overdue_seconds", age(row.next_due_at)),
        ):
            values[what, queue] = max(values.get((what, queue), 0.0), value)
    family = GaugeMetricFamily(
        "notifyq_messages", "Live messages of a queue.", labels=["queue", "state"]
    )
    for labels, value in states.items():
        family.add_metric(labels, value)
    yield family
    yield from _each(_BY_QUEUE, "notifyq_queue_", ["queue"], values)


def _of_subscriptions(lags: list[Lag], names: Names) -> Iterator[GaugeMetricFamily]:
    value: float
    values: dict[tuple[str, ...], float] = {}
    for row in sorted(lags, key=lambda it: -it.lag):
        key = names.pair(row.stream, row.subscriber)
        lag = "lag_seconds", *key
        values[lag] = max(values.get(lag, 0.0), row.lag.total_seconds())
        for what, value in (("pending", row.pending), ("retries", row.retries)):
            values[what, *key] = values.get((what, *key), 0) + value
    yield from _each(_BY_SUBSCRIPTION, "notifyq_subscription_", ["stream", "subscriber"], values)


def _each(
    texts: dict[str, str],
    prefix: str,
    labels: list[str],
    values: dict[tuple[str, ...], float] | dict[tuple[str, str], float],
) -> Iterable[GaugeMetricFamily]:
    made = {
        what: GaugeMetricFamily(f"{prefix}{what}", text, labels=labels)
        for what, text in texts.items()
    }
    for (what, *names), value in values.items():
        made[what].add_metric(names, float(value))
    return made.values()


def _of_health(health: Health) -> Iterator[_Family]:
    for name, (metric, label, text, only_rises) in FIGURES.items():
        found = health.by_subject(name)
        if name == "xmin_age":  # an alert needs the zero, too
            found = dict.fromkeys(CAUSES, 0.0) | found
        kind = CounterMetricFamily if only_rises else GaugeMetricFamily
        family = kind(f"notifyq_{metric}", text, labels=[] if label is None else [label])
        for subject, value in found.items():
            family.add_metric([] if label is None else [subject], value)
        yield family
