"""What a worker hears: bells for its queues, and whether one calls for a look.

A payload is a hint that anybody may forge: it decides on a look, and on nothing else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.notify.wake import TokenBucket
from notifyq.telemetry import BellHeard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from notifyq.notify.poller import Poller
    from notifyq.telemetry import Guarded
    from notifyq.worker.streams.consumer import StreamConsumer


class NotificationFilter:
    """Hears for a worker; `wake` is called for each bell that its claims should answer."""

    def __init__(
        self,
        queues: Sequence[str],
        streams: Sequence[str],
        sink: Guarded,
        attendance: Poller,
        readers: Sequence[StreamConsumer],
        wake: Callable[[], None],
    ) -> None:
        self._queues = frozenset(queues)
        self._streams = frozenset(streams)
        self._sink = sink
        self._attendance = attendance
        self._readers = readers
        self._wake = wake
        self._vain = TokenBucket()
        self._rung_at: float | None = None

    def take(self) -> float | None:
        """When the first bell has rung since the last call, in monotonic seconds."""
        rung_at, self._rung_at = self._rung_at, None
        return rung_at

    def in_vain(self) -> float:
        """Note a bell that was about nothing; return for how many seconds to hear no other."""
        return self._vain.spend()

    def hear(self, channel: str, payload: str) -> None:
        """Take a bell; one without a channel means that some may have been missed."""
        if channel != sql.NEW_MESSAGE:
            if payload in self._streams:
                self._report(channel, payload)
            for readers in self._readers:
                readers.hear(payload)
        if channel == sql.NEW_EVENT:
            return
        queue, _, ids = payload.rpartition(":")
        if not queue:
            self._wake()
        elif queue in self._queues:
            self._report(channel, queue)
            if self._attendance.answers(queue, ids):
                self._rung_at = self._rung_at or time.monotonic()
                self._wake()

    def _report(self, channel: str, name: str) -> None:
        if self._sink.hears(BellHeard):
            self._sink(BellHeard(channel=channel, name=name))
