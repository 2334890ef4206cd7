"""The metrics of the workers of a process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from notifyq import telemetry as events
from notifyq.database import statements as sql
from notifyq.operations.metrics.event_metrics import RUNS, WAITS, EventMetrics, Names
from notifyq.operations.metrics.health import Health

if TYPE_CHECKING:
    from notifyq.worker.worker import Worker

_DELIVERY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_OF_QUEUES = {
    "claimed": "Messages claimed.",
    "retries": "Settled attempts after the first one of their message.",
    "locks_lost": "Messages settled too late: another worker had locked them.",
    "locks_expired": "Expired locks that this process ended, of any worker.",
    "handlers_stuck": "Timed-out handlers whose thread still runs.",
    "loop_blocked": "Times that a handler blocked the event loop for a second or more.",
    "loop_blocked_seconds": "Seconds that handlers blocked the event loop, in times of a second "
    "or more.",
}
_OF_CHANNELS = {
    "notifications_received": "Notifications received, by channel.",
    "notifications_suppressed": "Messages claimed and events finished while this worker "
    "suppressed notifications.",
}
_OF_SUBSCRIPTIONS = {
    "batches_finished": "Batches of streams finished.",
    "batches_dropped": "Batches that were dropped and are delivered again.",
    "event_retries": "Failed attempts at events that are retried.",
}
_OF_THE_PROCESS = {
    "locks_extended": "Locks extended while their handlers ran.",
    "orphans_released": "Messages released because the worker did not receive their claim.",
    "maintenance_runs": "Runs of messages.maintain() by this process.",
    "maintenance_reaped": "Expired locks reaped by maintenance.",
    "maintenance_staged": "Scheduled messages staged by maintenance.",
    "maintenance_notifications": "Notifications repeated by maintenance.",
    "schedules_fired": "Messages published for schedules.",
}


class WorkerMetrics(EventMetrics):
    """Counts events of workers; pass it to `app.worker(metrics=…)`.

    It uses the given registry, or a new one with metrics of the process. Queues and subscriptions
    after the first `most_names` of each are counted as `(others)`.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, most_names: int = 100) -> None:
        super().__init__(registry)
        self.health = Health()
        """Liveness and readiness of the workers."""
        self._queues = Names(most_names)
        self._subscriptions = Names(most_names)
        self._suppressed_queues: set[str] = set()
        self._suppressed_streams: set[str] = set()
        self._make_counters()
        self._make_histograms()
        self._make_gauges()
        self._handlers |= {
            events.BatchDropped: lambda it: self._count("batches_dropped", *self._names(it)),
            events.BatchFinished: self._batch_finished,
            events.NotificationReceived: lambda it: self._count(
                "notifications_received", it.channel
            ),
            events.EventRetried: lambda it: self._count("event_retries", *self._names(it)),
            events.HandlerStuck: lambda it: self._count_by("handlers_stuck", {it.queue: 1}),
            events.LoopBlocked: self._loop_blocked,
            events.LockLost: lambda it: self._count_by("locks_lost", {it.queue: 1}),
            events.LocksExpired: lambda it: self._count_by("locks_expired", it.by_queue),
            events.LocksExtended: lambda it: self._count("locks_extended", by=it.quantity),
            events.MessageFinished: self._message_finished,
            events.MessagesClaimed: self._messages_claimed,
            events.OrphansReleased: lambda it: self._count("orphans_released", by=it.quantity),
            events.QueueSuppressed: lambda it: self._suppressed_queues.add(it.queue),
            events.QueueUnsuppressed: lambda it: self._suppressed_queues.discard(it.queue),
            events.SchedulesFired: lambda it: self._count("schedules_fired", by=it.quantity),
            events.StreamSuppressed: lambda it: self._suppressed_streams.add(it.stream),
            events.StreamUnsuppressed: lambda it: self._suppressed_streams.discard(it.stream),
            events.MaintenanceDone: self._maintenance_done,
        }

    def __call__(self, event: events.TelemetryEvent) -> None:
        """Count an event."""
        super().__call__(event)
        self.health.note(event)

    def watch(self, worker: Worker) -> None:
        """Also export the slots and the health of a worker."""
        self.health.watch(worker)
        self._queues.add(worker.queues)
        for queue in worker.queues:  # rate() needs a first zero
            for status in ("success", "rejected", "failed", "lock_expired", "released"):
                self._count("finished", self._queues[queue], status, by=0)
            for name in ("claimed", "locks_lost", "handlers_stuck"):
                self._count(name, self._queues[queue], by=0)

    def _make_counters(self) -> None:
        by_cause = "Claims that returned messages, by what triggered them."
        self._add_counters({"claims": by_cause}, "woken_by")
        self._add_counters({"finished": "Settled attempts, by status."}, "queue", "status")
        self._add_counters(_OF_QUEUES, "queue")
        self._add_counters(_OF_CHANNELS, "channel")
        subscription = ("stream", "subscriber")
        self._add_counters(_OF_SUBSCRIPTIONS, *subscription)
        by_outcome = "Events of finished batches, by outcome."
        self._add_counters({"batch_events": by_outcome}, *subscription, "outcome")
        self._add_counters(_OF_THE_PROCESS)

    def _make_histograms(self) -> None:
        waits = "Time from when a message was available until it was locked."
        self._waits = self._histogram("wait_seconds", waits, WAITS, "queue")
        self._runs = self._histogram("run_seconds", "Run time of handlers.", RUNS, "queue")
        notified = "Time from a notification until the messages were claimed."
        self._notifications = self._histogram("notification_to_claim_seconds", notified, _DELIVERY)
        self._batch_runs = self._histogram(
            "batch_seconds", "Run time of batches.", RUNS, "stream", "subscriber"
        )

    def _make_gauges(self) -> None:
        health = self.health
        self._gauge("workers", "Workers that run in this process.", lambda: health.workers)
        self._gauge("handlers_running", "Handlers that run now.", lambda: health.slots[0])
        self._gauge("slots", "Handlers that may run at the same time.", lambda: health.slots[1])
        self._gauge(
            "listener_connected",
            "1 while every worker has its listening session.",
            lambda: health.is_connected,
        )
        for name, suppressed in (
            ("queues", self._suppressed_queues),
            ("streams", self._suppressed_streams),
        ):
            self._gauge(
                f"{name}_suppressed",
                f"{name.capitalize()} whose publishers skip notifications because of load.",
                partial(len, suppressed),
            )
        for kind, name in enumerate(("handlers", "listener")):
            self._gauge(
                f"{name}_loop_delay_seconds",
                f"How long the event loop of the {name} takes to respond.",
                partial(health.delay, kind),
            )

    def _count_by(self, name: str, by_queue: dict[str, float]) -> None:
        for queue, quantity in by_queue.items():
            self._count(name, self._queues[queue], by=quantity)

    def _messages_claimed(self, event: events.MessagesClaimed) -> None:
        if event.since_notification is None:
            self._count("claims", "poll")
        else:
            self._count("claims", "notification")
            self._notifications.observe(event.since_notification)
        for queue, quantity in event.by_queue.items():
            self._count("claimed", self._queues[queue], by=quantity)
            if queue in self._suppressed_queues:
                self._count("notifications_suppressed", sql.NEW_MESSAGE, by=quantity)

    def _loop_blocked(self, event: events.LoopBlocked) -> None:
        source = event.queue or event.stream
        queue = "" if source is None else self._queues[source]
        self._count("loop_blocked", queue)
        self._count("loop_blocked_seconds", queue, by=event.seconds)

    def _message_finished(self, event: events.MessageFinished) -> None:
        queue = self._queues[event.queue]
        self._count("finished", queue, event.status)
        if event.attempts > 1:
            self._count("retries", queue)
        self._waits.labels(queue).observe(event.queued)
        self._runs.labels(queue).observe(event.run)

    def _listener_connected(self, event: events.ListenerConnected) -> None:
        # Suppression leases ended with the lost session.
        self._suppressed_queues.clear()
        self._suppressed_streams.clear()
        super()._listener_connected(event)

    def _maintenance_done(self, event: events.MaintenanceDone) -> None:
        self._count("maintenance_runs")
        self._count("maintenance_reaped", by=event.reaped)
        self._count("maintenance_staged", by=event.staged)
        self._count("maintenance_notifications", by=event.notified)

    def _names(
        self, event: events.BatchFinished | events.BatchDropped | events.EventRetried
    ) -> tuple[str, str]:
        return self._subscriptions.pair(event.stream, event.subscriber)

    def _batch_finished(self, event: events.BatchFinished) -> None:
        names = self._names(event)
        self._count("batches_finished", *names)
        self._batch_runs.labels(*names).observe(event.run)
        for outcome, quantity in (
            ("success", event.events),
            ("retried", event.retried),
            ("failed", event.failed),
        ):
            self._count("batch_events", *names, outcome, by=quantity)
            if event.stream in self._suppressed_streams:
                self._count("notifications_suppressed", sql.NEW_EVENT, by=quantity)
