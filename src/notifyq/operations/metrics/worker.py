"""The metrics of the workers of a process: a sink of their events."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.operations.metrics.health import Health
from notifyq.operations.metrics.names import Names
from notifyq.operations.metrics.sink import RUNS, WAITS, EventMetrics
from notifyq.telemetry import (
    BatchDropped,
    BatchFinished,
    BellHeard,
    Event,
    EventRetried,
    HandlerStuck,
    ListenerConnected,
    LockLost,
    LocksExtended,
    MessageFinished,
    MessagesClaimed,
    OrphansReleased,
    QueueAttended,
    QueueUnattended,
    SchedulesFired,
    StreamAttended,
    StreamUnattended,
    UpkeepDone,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from notifyq.worker.worker import Worker

BELLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class WorkerMetrics(EventMetrics):
    """Counts what workers do; hand it to `app.worker(metrics=…)`.

    It keeps a registry of its own, with the figures of the process, or uses the one that is given.
    Names of queues and of subscriptions become labels up to `most_names` of each; what comes after
    that is counted under `(others)`.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, most_names: int = 100) -> None:
        super().__init__(registry)
        self.health = Health()
        """Whether the workers are alive, and ready."""
        self._queues = Names(most_names)
        self._subscriptions = Names(most_names)
        self._attended: set[str] = set()
        self._attended_streams: set[str] = set()
        self._make_messages()
        self._make_streams()
        self._make_process()
        self._sinks |= {
            BatchDropped: self._batch_dropped,
            BatchFinished: self._batch_finished,
            BellHeard: self._bell_heard,
            EventRetried: self._event_retried,
            HandlerStuck: self._handler_stuck,
            LockLost: self._lock_lost,
            LocksExtended: lambda event: self._extended.inc(event.quantity),
            MessageFinished: self._finished_one,
            MessagesClaimed: self._claimed_some,
            OrphansReleased: lambda event: self._orphans.inc(event.quantity),
            QueueAttended: lambda event: self._attended.add(event.queue),
            QueueUnattended: lambda event: self._attended.discard(event.queue),
            SchedulesFired: lambda event: self._fired.inc(event.quantity),
            StreamAttended: lambda event: self._attended_streams.add(event.stream),
            StreamUnattended: lambda event: self._attended_streams.discard(event.stream),
            UpkeepDone: self._upkeep_done,
        }

    def __call__(self, event: Event) -> None:
        """Count an event."""
        super().__call__(event)
        self.health.note(event)

    def watch(self, worker: Worker) -> None:
        """Also export what a worker tells when it is asked."""
        self.health.watch(worker)
        self._queues.add(worker.queues)
        for queue in worker.queues:  # so that a rate has a zero to begin from
            for status in ("success", "rejected", "failed", "lock_expired", "released"):
                self._finished.labels(self._queues[queue], status)
            self._claimed.labels(self._queues[queue])

    def _make_messages(self) -> None:
        self._claims = self._counter(
            "claims", "Claims that brought messages, by what had called for them.", "woken_by"
        )
        self._claimed = self._counter("claimed", "Messages claimed.", "queue")
        self._finished = self._counter(
            "finished", "Attempts that were settled, by how they ended.", "queue", "status"
        )
        self._retries = self._counter(
            "retries",
            "Attempts that were settled and were not the first of their message.",
            "queue",
        )
        self._waits = self._histogram(
            "wait_seconds", "From when a message could be claimed to its lock.", WAITS, "queue"
        )
        self._runs = self._histogram(
            "run_seconds", "From the call of a handler to its end.", RUNS, "queue"
        )
        self._bells = self._histogram(
            "bell_to_claim_seconds", "From the bell to the messages that it rang for.", BELLS
        )
        self._heard = self._counter("bells_heard", "Bells heard, by their channel.", "channel")
        self._silenced = self._counter(
            "bells_silenced",
            "Messages claimed, and events finished, that nobody rang for as this worker attended.",
            "channel",
        )
        self._lost = self._counter(
            "locks_lost", "Messages settled too late: their lock was another's by then.", "queue"
        )
        self._extended = self._counter("locks_extended", "Locks that were extended in time.")
        self._stuck = self._counter(
            "handlers_stuck", "Handlers given up whose thread runs on.", "queue"
        )
        self._orphans = self._counter(
            "orphans_released", "Messages given back whose claim was never answered."
        )

    def _make_streams(self) -> None:
        names = ("stream", "subscriber")
        self._batches = self._counter("batches_finished", "Batches of streams finished.", *names)
        self._dropped = self._counter(
            "batches_dropped", "Batches not finished here, which come again.", *names
        )
        self._events = self._counter(
            "batch_events", "Events of finished batches, by how they ended.", *names, "outcome"
        )
        self._event_retries = self._counter(
            "event_retries", "Attempts at events that failed and are made again.", *names
        )
        self._batch_runs = self._histogram(
            "batch_seconds", "From the start of a batch to its end.", RUNS, *names
        )

    def _make_process(self) -> None:
        health = self.health
        self._gauge("workers", "Workers of this process that run.", lambda: health.workers)
        self._gauge("handlers_running", "Handlers that run now.", lambda: health.slots[0])
        self._gauge("slots", "Handlers that may run at a time.", lambda: health.slots[1])
        self._gauge(
            "listener_connected",
            "1 while every listening session stands.",
            lambda: health.is_connected,
        )
        self._gauge(
            "queues_attended",
            "Queues under load, whose publishers need not ring.",
            lambda: len(self._attended),
        )
        self._gauge(
            "streams_attended",
            "Streams under load, whose publishers need not ring.",
            lambda: len(self._attended_streams),
        )
        for name, place in (("handlers", 0), ("listener", 1)):
            self._gauge(
                f"{name}_loop_delay_seconds",
                f"How long the event loop of the {name} took to answer, or has not answered.",
                partial(health.delay, place),
            )
        self._upkeeps = self._counter("upkeep_runs", "Runs of messages.maintain() made here.")
        self._reaped = self._counter("upkeep_reaped", "Locks found expired by the upkeep.")
        self._staged = self._counter("upkeep_staged", "Scheduled messages that became due.")
        self._rung = self._counter("upkeep_bells", "Bells rung again by the upkeep.")
        self._fired = self._counter("schedules_fired", "Messages published for schedules.")

    def _claimed_some(self, event: MessagesClaimed) -> None:
        if event.since_bell is None:
            self._claims.labels("look").inc()
        else:
            self._claims.labels("bell").inc()
            self._bells.observe(event.since_bell)
        for queue, quantity in event.by_queue.items():
            self._claimed.labels(self._queues[queue]).inc(quantity)
            if queue in self._attended:
                self._silenced.labels(sql.NEW_MESSAGE).inc(quantity)

    def _finished_one(self, event: MessageFinished) -> None:
        queue = self._queues[event.queue]
        self._finished.labels(queue, event.status).inc()
        if event.attempts > 1:
            self._retries.labels(queue).inc()
        self._waits.labels(queue).observe(event.queued)
        self._runs.labels(queue).observe(event.run)

    def _lock_lost(self, event: LockLost) -> None:
        self._lost.labels(self._queues[event.queue]).inc()

    def _handler_stuck(self, event: HandlerStuck) -> None:
        self._stuck.labels(self._queues[event.queue]).inc()

    def _bell_heard(self, event: BellHeard) -> None:
        self._heard.labels(event.channel).inc()

    def _listener_connected(self, event: ListenerConnected) -> None:
        # What it attended ended with the session before.
        self._attended.clear()
        self._attended_streams.clear()
        super()._listener_connected(event)

    def _upkeep_done(self, event: UpkeepDone) -> None:
        self._upkeeps.inc()
        self._reaped.inc(event.reaped)
        self._staged.inc(event.staged)
        self._rung.inc(event.rung)

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
            if event.stream in self._attended_streams:
                self._silenced.labels(sql.NEW_EVENT).inc(quantity)

    def _batch_dropped(self, event: BatchDropped) -> None:
        self._dropped.labels(*self._names(event)).inc()

    def _event_retried(self, event: EventRetried) -> None:
        self._event_retries.labels(*self._names(event)).inc()
