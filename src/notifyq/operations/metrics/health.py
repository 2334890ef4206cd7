"""Whether a process is alive, and ready: asked from a thread of nobody's."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from notifyq.telemetry import (
    Event,
    ListenerConnected,
    ListenerLost,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.worker.worker import Worker

_LOOPS = ("handlers", "listener")


class _Probe:
    """Asks an event loop for a sign of life, one question at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._answered.set()
        self._asked_at = time.monotonic()
        self._took = 0.0

    def ask(self) -> None:
        """Put a question, unless the one before has no answer yet."""
        with self._lock:
            if not self._answered.is_set():
                return
            self._asked_at = time.monotonic()
            self._answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed: its worker has ended
                self._answer()

    def _answer(self) -> None:
        self._took = time.monotonic() - self._asked_at
        self._answered.set()

    def answered(self, until: float) -> bool:
        """Wait until then for the answer."""
        return self._answered.wait(max(0.0, until - time.monotonic()))

    @property
    def delay(self) -> float:
        """Seconds that the last answer took, or that the next one is due."""
        is_due = not self._answered.is_set()
        return time.monotonic() - self._asked_at if is_due else self._took


class Judge(Protocol):
    """What the pages of a process ask."""

    def faults(self, within: float) -> list[str]:
        """Why the process is not alive, after waiting for so many seconds at most."""

    def unready(self) -> str | None:
        """Why it does not do its work now; None: it does."""


class LoopHealth:
    """Whether one event loop answers, on which all work of a process is done."""

    def __init__(self, unready: Callable[[], str | None]) -> None:
        self.unready = unready
        self._probe: _Probe | None = None

    def watch(self) -> None:
        """Ask the loop that this is called on."""
        if self._probe is None:
            self._probe = _Probe(asyncio.get_running_loop())

    def faults(self, within: float) -> list[str]:
        """Why the process is not alive, after waiting for so many seconds at most."""
        probe = self._probe
        if probe is None:
            return []
        probe.ask()
        if probe.answered(time.monotonic() + within):
            return []
        return [f"the event loop has not answered for {probe.delay:.1f} s"]


class Health:
    """What the workers of a process say of themselves, and whether their loops answer."""

    def __init__(self) -> None:
        self._watched: WeakSet[Worker] = WeakSet()
        self._probes: dict[asyncio.AbstractEventLoop, _Probe] = {}
        self._running = 0
        self._stopping = 0
        self._has_started = False
        self._sessions = 0

    def watch(self, worker: Worker) -> None:
        """Ask this worker too."""
        self._watched.add(worker)

    def note(self, event: Event) -> None:
        """Learn from an event of a worker how it is."""
        match event:
            case WorkerStarted():
                self._running += 1
                self._has_started = True
            case WorkerStopping():
                self._stopping += 1
            case WorkerStopped():
                self._running -= 1
                self._stopping -= 1
                self._sessions = max(0, self._sessions - 1)
            case ListenerConnected():
                self._sessions += 1
            case ListenerLost():
                self._sessions = max(0, self._sessions - 1)

    @property
    def workers(self) -> int:
        """How many workers run."""
        return self._running

    @property
    def is_connected(self) -> bool:
        """Whether each of them has its listening session."""
        return self._sessions >= self._running > 0

    @property
    def slots(self) -> tuple[int, int]:
        """How many handlers run, and how many may, in all workers together."""
        slots = [worker.slots for worker in list(self._watched)]
        return sum(it[0] for it in slots), sum(it[1] for it in slots)

    def delay(self, place: int) -> float:
        """Seconds that the slowest loop of this kind takes to answer; also asks for the next."""
        delays = [0.0]
        for probe in self._each(place):
            probe.ask()
            probe.answered(time.monotonic() + 0.02)
            delays.append(probe.delay)
        return max(delays)

    def faults(self, within: float) -> list[str]:
        """Why the process is not alive, after waiting for so many seconds at most; empty: it is."""
        until = time.monotonic() + within
        probes = [(place, probe) for place in (0, 1) for probe in self._each(place)]
        for _, probe in probes:
            probe.ask()
        return [
            f"the event loop of the {_LOOPS[place]} has not answered for {probe.delay:.1f} s"
            for place, probe in probes
            if not probe.answered(until)
        ]

    def unready(self) -> str | None:
        """Why the workers do not claim messages now; None: they do."""
        if not self._has_started:
            return "starting"
        if self._stopping or not self._running:
            return "stopping"
        if not self.is_connected:
            return "the listening session is being made anew"
        return None

    def _each(self, place: int) -> list[_Probe]:
        loops = {loop for it in list(self._watched) if (loop := it.loops[place]) is not None}
        for loop in loops - self._probes.keys():
            self._probes[loop] = _Probe(loop)
        for gone in [loop for loop in self._probes if loop.is_closed()]:
            with suppress(KeyError):  # another scrape was first
                del self._probes[gone]
        return [self._probes[loop] for loop in loops if loop in self._probes]
