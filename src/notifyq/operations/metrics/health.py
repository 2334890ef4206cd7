"""Liveness and readiness of a process, checked from another thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from notifyq.telemetry import (
    ListenerConnected,
    ListenerLost,
    MaintenanceFailing,
    TelemetryEvent,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)

if TYPE_CHECKING:
    from notifyq.worker.worker import Worker


class _Probe:
    """Measures how long an event loop takes to respond."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._responded = threading.Event()
        self._responded.set()
        self._sent_at = time.monotonic()
        self._took = 0.0

    def send(self) -> None:
        """Schedule a callback, unless the last one is still pending."""
        with self._lock:
            if not self._responded.is_set():
                return
            self._sent_at = time.monotonic()
            self._responded.clear()
            try:
                self._loop.call_soon_threadsafe(self._respond)
            except RuntimeError:  # the loop is closed: its worker has ended
                self._respond()

    def _respond(self) -> None:
        self._took = time.monotonic() - self._sent_at
        self._responded.set()

    def has_responded(self, until: float) -> bool:
        """Wait until then for the callback."""
        return self._responded.wait(max(0.0, until - time.monotonic()))

    @property
    def delay(self) -> float:
        """Seconds that the last callback took, or that the pending one has waited."""
        is_pending = not self._responded.is_set()
        return time.monotonic() - self._sent_at if is_pending else self._took


def _faults(probes: list[tuple[str, _Probe]], within: float) -> list[str]:
    until = time.monotonic() + within
    for _, probe in probes:
        probe.send()
    return [
        f"the event loop{name} has not responded for {probe.delay:.1f} s"
        for name, probe in probes
        if not probe.has_responded(until)
    ]


class LoopHealth:
    """The health of a process with one event loop."""

    def __init__(self, unready: Callable[[], str | None]) -> None:
        self.unready = unready
        """Why the process does not work now; None if it does."""
        self.degraded: list[str] = []
        self._probe: _Probe | None = None

    def watch(self) -> None:
        """Watch the running event loop."""
        if self._probe is None:
            self._probe = _Probe(asyncio.get_running_loop())

    def faults(self, within: float) -> list[str]:
        """Why the process is stuck; waits for so many seconds at most."""
        return _faults([("", self._probe)] if self._probe is not None else [], within)


class Health:
    """The health of a process with workers."""

    def __init__(self) -> None:
        self._watched: WeakSet[Worker] = WeakSet()
        self._probes: dict[asyncio.AbstractEventLoop, _Probe] = {}
        self.workers = 0
        """How many workers run."""
        self._stopping = 0
        self._has_started = False
        self._sessions = 0
        self.degraded: list[str] = []
        """What fails beside the process, which goes on."""

    def watch(self, worker: Worker) -> None:
        """Watch this worker."""
        self._watched.add(worker)

    def note(self, event: TelemetryEvent) -> None:
        """Note an event of a worker."""
        match event:
            case WorkerStarted():
                self.workers += 1
                self._has_started = True
            case WorkerStopping():
                self._stopping += 1
            case WorkerStopped():
                self.workers -= 1
                self._stopping -= 1
                self._sessions = max(0, self._sessions - 1)
            case ListenerConnected():
                self._sessions += 1
            case ListenerLost():
                self._sessions = max(0, self._sessions - 1)
            case MaintenanceFailing():
                self.degraded = [f"maintenance {it}" for it in event.failing]

    @property
    def is_connected(self) -> bool:
        """Whether each worker has its listening session."""
        return self._sessions >= self.workers > 0

    @property
    def slots(self) -> tuple[int, int]:
        """How many handlers run, and how many may run, in all workers together."""
        slots = [worker.slots for worker in list(self._watched)]
        return sum(it[0] for it in slots), sum(it[1] for it in slots)

    def delay(self, kind: int) -> float:
        """Seconds that the slowest loop of this kind takes to respond; also starts a probe."""
        delays = [0.0]
        for probe in self._each(kind):
            probe.send()
            probe.has_responded(time.monotonic() + 0.02)
            delays.append(probe.delay)
        return max(delays)

    def faults(self, within: float) -> list[str]:
        """Why the process is stuck; waits for so many seconds at most."""
        loops = enumerate((" of the handlers", " of the listener"))
        return _faults([(name, it) for kind, name in loops for it in self._each(kind)], within)

    def unready(self) -> str | None:
        """Why the workers do not claim messages now; None if they do."""
        if not self._has_started:
            return "starting"
        if self._stopping or not self.workers:
            return "stopping"
        if not self.is_connected:
            return "the listening session reconnects"
        return None

    def _each(self, kind: int) -> list[_Probe]:
        loops = {loop for it in list(self._watched) if (loop := it.loops[kind]) is not None}
        for loop in loops - self._probes.keys():
            self._probes[loop] = _Probe(loop)
        for gone in [loop for loop in self._probes if loop.is_closed()]:
            with suppress(KeyError):  # another scrape did it
                del self._probes[gone]
        return [self._probes[loop] for loop in loops if loop in self._probes]
