"""Which notifications wake a worker: those for its queues, if it is one of those that answer.

Any session can send any payload: a payload may cause a poll, and decides nothing else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from notifyq.database import statements as sql
from notifyq.notify.wake import TokenBucket
from notifyq.telemetry import NotificationReceived

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from notifyq.notify.poller import Poller
    from notifyq.telemetry import Guarded
    from notifyq.worker.streams.consumer import StreamConsumer


class NotificationFilter:
    """Receives notifications; `wake` is called for each that the claims of the worker answer.

    `hurry` is called with the id of a message that may be cancelled.
    """

    def __init__(
        self,
        queues: Sequence[str],
        streams: Sequence[str],
        telemetry: Guarded,
        poller: Poller,
        consumers: Sequence[StreamConsumer],
        wake: Callable[[], None],
        hurry: Callable[[str], None],
    ) -> None:
        self._queues = frozenset(queues)
        self._streams = frozenset(streams)
        self._telemetry = telemetry
        self._poller = poller
        self._consumers = consumers
        self._wake = wake
        self._hurry = hurry
        self._empty_polls = TokenBucket()
        self._notified_at: float | None = None

    def take(self) -> float | None:
        """When the first notification since the last call arrived, in monotonic seconds."""
        notified_at, self._notified_at = self._notified_at, None
        return notified_at

    def spend(self) -> float:
        """Count a notification whose poll found nothing; return how long to ignore others."""
        return self._empty_polls.spend()

    def receive(self, channel: str, payload: str) -> None:
        """Take a notification; without a channel some notifications may have been missed."""
        if channel == sql.CANCELLED_MESSAGE:
            self._hurry(payload)
            return
        if channel != sql.NEW_MESSAGE:
            if payload in self._streams:
                self._report(channel, payload)
            for consumer in self._consumers:
                consumer.receive(payload)
        if channel != sql.NEW_EVENT:
            self._new_message(channel, payload)

    def _new_message(self, channel: str, payload: str) -> None:
        queue, _, ids = payload.rpartition(":")
        if not queue:
            self._wake()
        elif queue in self._queues:
            self._report(channel, queue)
            if self._poller.answers(queue, ids):
                self._notified_at = self._notified_at or time.monotonic()
                self._wake()

    def _report(self, channel: str, name: str) -> None:
        if self._telemetry.wants(NotificationReceived):
            self._telemetry(NotificationReceived(channel=channel, name=name))
