"""The metrics of the database: their names, labels and help texts."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from notifyq.operations.metrics.event_metrics import Names
from notifyq.operations.monitor import Backlog, Health, Lag

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
_Values: TypeAlias = defaultdict[tuple[str, ...], float]


class _Figure(NamedTuple):
    metric: str
    label: str | None
    text: str
    is_counter: bool = False


FIGURES = {
    "analyze_age": _Figure("analyze_age_seconds", "table", "Time since a table was analyzed."),
    "notifications_sent": _Figure(
        "notifications_sent", "channel", "Notifications sent.", is_counter=True
    ),
    "bloat": _Figure("bloat_ratio", "table", "Estimated share of a table that is dead or free."),
    "connections": _Figure("connections", None, "Client connections of the server."),
    "connections_most": _Figure("connections_most", None, "Limit of client connections."),
    "cron_failed": _Figure("cron_failed_runs", "entry", "Failed pg_cron runs within an hour."),
    "cron_run_age": _Figure("cron_run_age_seconds", "entry", "Time since the last pg_cron run."),
    "database_bytes": _Figure("database_bytes", None, "Size of the database."),
    "dead_rows": _Figure("dead_rows", "table", "Dead rows that vacuum has not removed."),
    "expired_for": _Figure(
        "reaping_delay_seconds", None, "How long the oldest expired lock has not been reaped."
    ),
    "frozen_age": _Figure("frozen_age", None, "Transactions since the database was frozen."),
    "index_bytes": _Figure("index_bytes", "table", "Size of the indexes of a table."),
    "kept_wal": _Figure("kept_wal_bytes", "slot", "WAL kept by a replication slot."),
    "live_rows": _Figure("live_rows", "table", "Live rows, from the statistics of the server."),
    "lock_waits": _Figure("lock_waits", None, "Sessions that wait for a lock."),
    "longest_idle_in_transaction": _Figure(
        "longest_idle_in_transaction_seconds", None, "Longest idle transaction."
    ),
    "longest_lock_wait": _Figure("longest_lock_wait_seconds", None, "Longest wait for a lock."),
    "longest_transaction": _Figure(
        "longest_transaction_seconds", None, "Longest running transaction."
    ),
    "maintenance_failing": _Figure(
        "maintenance_failing", "duty", "Failed runs of a duty of maintenance since one succeeded."
    ),
    "maintenance_failures": _Figure(
        "maintenance_failures", "duty", "Failed runs of a duty of maintenance.", is_counter=True
    ),
    "misplaced": _Figure("misplaced_rows", None, "Archived rows outside the partition of a day."),
    "missing": _Figure("missing_parts", None, "Missing triggers and other schema objects."),
    "notify_queue": _Figure(
        "notify_queue_ratio", None, "How full the notification queue of the server is, 0 to 1."
    ),
    "overdue_for": _Figure(
        "staging_delay_seconds", None, "How long the oldest due message has not been staged."
    ),
    "partitions": _Figure("partitions", "table", "Daily partitions of archive and attempts."),
    "partitions_ahead": _Figure("partitions_ahead", "table", "Daily partitions for future days."),
    "published": _Figure(
        "published", "channel", "Messages and events published, by channel.", is_counter=True
    ),
    "table_bytes": _Figure("table_bytes", "table", "Size of a table without its indexes."),
    "vacuum_age": _Figure("vacuum_age_seconds", "table", "Time since a table was vacuumed."),
    "waiting_for": _Figure("waiting_for_seconds", None, "How long the oldest message has waited."),
    "worker_sessions": _Figure("worker_sessions", None, "Listening sessions of workers."),
    "xmin_age": _Figure(
        "xmin_age", "cause", "Age of the oldest snapshot in transactions, by what holds it."
    ),
}
"""The numbers of messages.health() by name."""

CAUSES = ("session", "prepared transaction", "replication slot", "standby")
_BY_QUEUE = {
    "paused": "1 if the queue is paused.",
    "expired": "Messages whose lock has expired.",
    "dead": "Messages that failed permanently within 24 hours and were not retried.",
    "dead_recently": "Messages that failed permanently within 10 minutes and were not retried.",
    "oldest_waiting_seconds": "How long the next message has waited.",
    "oldest_expired_seconds": "How long the oldest expired lock has not been reaped.",
    "overdue_seconds": "How long the oldest due message has not been staged.",
}
_BY_SUBSCRIPTION = {
    "lag_seconds": "Age of the oldest event that the subscriber has not finished.",
    "pending": "Events that the subscriber has not finished, counted up to 10000.",
    "retries": "Events that wait for their next delivery, counted up to 10000.",
}


def families(
    backlog: list[Backlog], lags: list[Lag], health: Health, queues: Names, subscriptions: Names
) -> Iterator[_Family]:
    """Make the metrics; queues and subscriptions beyond the limit of their names are merged."""
    yield from _of_queues(backlog, queues)
    yield from _of_subscriptions(lags, subscriptions)
    yield from _of_health(health)


def _of_queues(backlog: list[Backlog], names: Names) -> Iterator[_Family]:
    now = datetime.now(UTC)
    states: _Values = defaultdict(float)
    values: _Values = defaultdict(float)
    # The busiest queues come first and get their own labels.
    for row in sorted(backlog, key=lambda it: -(it.waiting + it.locked + it.dead)):
        queue = names[row.queue]
        for state in ("waiting", "scheduled", "locked", "parked"):
            states[queue, state] += getattr(row, state)
        for what in ("paused", "expired", "dead", "dead_recently"):
            values[what, queue] += getattr(row, what)
        for what, instant in (
            ("oldest_waiting_seconds", row.oldest_waiting_at),
            ("oldest_expired_seconds", row.oldest_expired_at),
            ("overdue_seconds", row.next_due_at),
        ):
            age = 0.0 if instant is None else (now - instant).total_seconds()
            values[what, queue] = max(values[what, queue], age)
    family = GaugeMetricFamily(
        "notifyq_messages", "Live messages of a queue, by state.", labels=["queue", "state"]
    )
    for labels, value in states.items():
        family.add_metric(labels, value)
    yield family
    yield from _each(_BY_QUEUE, "notifyq_queue_", ["queue"], values)


def _of_subscriptions(lags: list[Lag], names: Names) -> Iterator[_Family]:
    values: _Values = defaultdict(float)
    for row in sorted(lags, key=lambda it: -it.lag):
        key = names.pair(row.stream, row.subscriber)
        lag = "lag_seconds", *key
        values[lag] = max(values[lag], row.lag.total_seconds())
        for what in ("pending", "retries"):
            values[what, *key] += getattr(row, what)
    yield from _each(_BY_SUBSCRIPTION, "notifyq_subscription_", ["stream", "subscriber"], values)


def _each(
    texts: Mapping[str, str], prefix: str, labels: list[str], values: _Values
) -> Iterator[_Family]:
    for what, text in texts.items():
        family = GaugeMetricFamily(f"{prefix}{what}", text, labels=labels)
        for (name, *names), value in values.items():
            if name == what:
                family.add_metric(names, value)
        yield family


def _of_health(health: Health) -> Iterator[_Family]:
    for name, (metric, label, text, is_counter) in FIGURES.items():
        found = health.by_subject(name)
        if name == "xmin_age" and health.is_whole:  # the alert needs zeros
            found = dict.fromkeys(CAUSES, 0.0) | found
        kind = CounterMetricFamily if is_counter else GaugeMetricFamily
        family = kind(f"notifyq_{metric}", text, labels=[] if label is None else [label])
        for subject, value in found.items():
            family.add_metric([] if label is None else [subject], value)
        yield family
