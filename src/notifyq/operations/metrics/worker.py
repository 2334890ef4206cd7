"""The metrics of the workers of a process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from notifyq.database import statements as sql
from notifyq.operations.metrics.event_metrics import RUNS, WAITS, EventMetrics, Names
from notifyq.operations.metrics.health import Health
from notifyq.telemetry import (
    BatchDropped,
    BatchFinished,
    EventRetried,
    HandlerStuck,
    ListenerConnected,
    LockLost,
    LocksExpired,
    LocksExtended,
    LoopBlocked,
    MaintenanceDone,
    MessageFinished,
    MessagesClaimed,
    NotificationReceived,
    OrphansReleased,
    QueueSuppressed,
    QueueUnsuppressed,
    SchedulesFired,
    StreamSuppressed,
    StreamUnsuppressed,
    TelemetryEvent,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from notifyq.worker.worker import Worker

_DELIVERY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


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
        self._make_messages()
        self._make_streams()
        self._make_process()
        self._handlers |= {
            BatchDropped: lambda event: self._dropped.labels(*self._names(event)).inc(),
            BatchFinished: self._batch_finished,
            NotificationReceived: lambda event: self._received.labels(event.channel).inc(),
            EventRetried: lambda event: self._event_retries.labels(*self._names(event)).inc(),
            HandlerStuck: lambda event: self._stuck.labels(self._queues[event.queue]).inc(),
            LoopBlocked: self._loop_blocked,
            LockLost: lambda event: self._lost.labels(self._queues[event.queue]).inc(),
            LocksExpired: self._locks_expired,
            LocksExtended: lambda event: self._extended.inc(event.quantity),
            MessageFinished: self._message_finished,
            MessagesClaimed: self._messages_claimed,
            OrphansReleased: lambda event: self._orphans.inc(event.quantity),
            QueueSuppressed: lambda event: self._suppressed_queues.add(event.queue),
            QueueUnsuppressed: lambda event: self._suppressed_queues.discard(event.queue),
            SchedulesFired: lambda event: self._fired.inc(event.quantity),
            StreamSuppressed: lambda event: self._suppressed_streams.add(event.stream),
            StreamUnsuppressed: lambda event: self._suppressed_streams.discard(event.stream),
            MaintenanceDone: self._maintenance_done,
        }

    def __call__(self, event: TelemetryEvent) -> None:
        """Count an event."""
        super().__call__(event)
        self.health.note(event)

    def watch(self, worker: Worker) -> None:
        """Also export the slots and the health of a worker."""
        self.health.watch(worker)
        self._queues.add(worker.queues)
        for queue in worker.queues:  # rate() needs a first zero
            for status in ("success", "rejected", "failed", "lock_expired", "released"):
                self._finished.labels(self._queues[queue], status)
            self._claimed.labels(self._queues[queue])

    def _make_messages(self) -> None:
        self._claims = self._counter(
            "claims", "Claims that returned messages, by what triggered them.", "woken_by"
        )
        self._claimed = self._counter("claimed", "Messages claimed.", "queue")
        self._finished = self._counter(
            "finished", "Settled attempts, by status.", "queue", "status"
        )
        self._retries = self._counter(
            "retries",
            "Settled attempts after the first one of their message.",
            "queue",
        )
        self._waits = self._histogram(
            "wait_seconds",
            "Time from when a message was available until it was locked.",
            WAITS,
            "queue",
        )
        self._runs = self._histogram("run_seconds", "Run time of handlers.", RUNS, "queue")
        self._notifications = self._histogram(
            "notification_to_claim_seconds",
            "Time from a notification until the messages were claimed.",
            _DELIVERY,
        )
        self._received = self._counter(
            "notifications_received", "Notifications received, by channel.", "channel"
        )
        self._suppressed = self._counter(
            "notifications_suppressed",
            "Messages claimed and events finished while this worker suppressed notifications.",
            "channel",
        )
        self._lost = self._counter(
            "locks_lost", "Messages settled too late: another worker had locked them.", "queue"
        )
        self._expired = self._counter(
            "locks_expired", "Expired locks that this process ended, of any worker.", "queue"
        )
        self._extended = self._counter("locks_extended", "Locks extended while their handlers ran.")
        self._stuck = self._counter(
            "handlers_stuck", "Timed-out handlers whose thread still runs.", "queue"
        )
        self._blocked = self._counter(
            "loop_blocked",
            "Times that a handler blocked the event loop for a second or more.",
            "queue",
        )
        self._blocked_seconds = self._counter(
            "loop_blocked_seconds",
            "Seconds that handlers blocked the event loop, in times of a second or more.",
            "queue",
        )
        self._orphans = self._counter(
            "orphans_released", "Messages released because the worker did not receive their claim."
        )

    def _make_streams(self) -> None:
        names = ("stream", "subscriber")
        self._batches = self._counter("batches_finished", "Batches of streams finished.", *names)
        self._dropped = self._counter(
            "batches_dropped", "Batches that were dropped and are delivered again.", *names
        )
        self._events = self._counter(
            "batch_events", "Events of finished batches, by outcome.", *names, "outcome"
        )
        self._event_retries = self._counter(
            "event_retries", "Failed attempts at events that are retried.", *names
        )
        self._batch_runs = self._histogram("batch_seconds", "Run time of batches.", RUNS, *names)

    def _make_process(self) -> None:
        health = self.health
        self._gauge("workers", "Workers that run in this process.", lambda: health.workers)
        self._gauge("handlers_running", "Handlers that run now.", lambda: health.slots[0])
        self._gauge("slots", "Handlers that may run at the same time.", lambda: health.slots[1])
        self._gauge(
            "listener_connected",
            "1 while every worker has its listening session.",
            lambda: health.is_connected,
        )
        self._gauge(
            "queues_suppressed",
            "Queues whose publishers skip notifications because of load.",
            lambda: len(self._suppressed_queues),
        )
        self._gauge(
            "streams_suppressed",
            "Streams whose publishers skip notifications because of load.",
            lambda: len(self._suppressed_streams),
        )
        for kind, name in enumerate(("handlers", "listener")):
            self._gauge(
                f"{name}_loop_delay_seconds",
                f"How long the event loop of the {name} takes to respond.",
                partial(health.delay, kind),
            )
        self._maintenance = self._counter(
            "maintenance_runs", "Runs of messages.maintain() by this process."
        )
        self._reaped = self._counter("maintenance_reaped", "Expired locks reaped by maintenance.")
        self._staged = self._counter(
            "maintenance_staged", "Scheduled messages staged by maintenance."
        )
        self._notified = self._counter(
            "maintenance_notifications", "Notifications repeated by maintenance."
        )
        self._fired = self._counter("schedules_fired", "Messages published for schedules.")

    def _messages_claimed(self, event: MessagesClaimed) -> None:
        if event.since_notification is None:
            self._claims.labels("poll").inc()
        else:
            self._claims.labels("notification").inc()
            self._notifications.observe(event.since_notification)
        for queue, quantity in event.by_queue.items():
            self._claimed.labels(self._queues[queue]).inc(quantity)
            if queue in self._suppressed_queues:
                self._suppressed.labels(sql.NEW_MESSAGE).inc(quantity)

    def _locks_expired(self, event: LocksExpired) -> None:
        for queue, quantity in event.by_queue.items():
            self._expired.labels(self._queues[queue]).inc(quantity)

    def _loop_blocked(self, event: LoopBlocked) -> None:
        source = event.queue or event.stream
        queue = "" if source is None else self._queues[source]
        self._blocked.labels(queue).inc()
        self._blocked_seconds.labels(queue).inc(event.seconds)

    def _message_finished(self, event: MessageFinished) -> None:
        queue = self._queues[event.queue]
        self._finished.labels(queue, event.status).inc()
        if event.attempts > 1:
            self._retries.labels(queue).inc()
        self._waits.labels(queue).observe(event.queued)
        self._runs.labels(queue).observe(event.run)

    def _listener_connected(self, event: ListenerConnected) -> None:
        # Suppression leases ended with the lost session.
        self._suppressed_queues.clear()
        self._suppressed_streams.clear()
        super()._listener_connected(event)

    def _maintenance_done(self, event: MaintenanceDone) -> None:
        self._maintenance.inc()
        self._reaped.inc(event.reaped)
        self._staged.inc(event.staged)
        self._notified.inc(event.notified)

    def _names(self, event: BatchFinished | BatchDropped | EventRetried) -> tuple[str, str]:
        return self._subscriptions.pair(event.stream, event.subscriber)

    def _batch_finished(self, event: BatchFinished) -> None:
        names = self._names(event)
        self._batches.labels(*names).inc()
        self._batch_runs.labels(*names).observe(event.run)
        for outcome, quantity in (
            ("success", event.events),
            ("retried", event.retried),
            ("failed", event.failed),
        ):
            self._events.labels(*names, outcome).inc(quantity)
            if event.stream in self._suppressed_streams:
                self._suppressed.labels(sql.NEW_EVENT).inc(quantity)
