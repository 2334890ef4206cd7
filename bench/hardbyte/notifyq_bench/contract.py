"""The contract of the benchmark: its settings, the producer, and the samples on standard output.

The file beside it brings the queue: how to publish a batch, and how deep the queue is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_WINDOW = 30
"""Seconds of the latencies in a sample."""
_DEPTH_EVERY = 0.25
"""Seconds between two polls of the depth."""
_END = 4.0
"""Seconds that a worker has to end after SIGTERM; the contract gives the process five."""


class Settings:
    """What the harness sets, from the environment."""

    def __init__(self) -> None:
        if (scenario := os.environ.get("SCENARIO", "long_horizon")) != "long_horizon":
            raise SystemExit(f"there is no scenario {scenario!r}: this adapter has long_horizon")
        self.dsn = os.environ["DATABASE_URL"]
        self.aims_at_depth = os.environ.get("PRODUCER_MODE") == "depth-target"
        self.rate = _number("PRODUCER_RATE", 800)
        self.batch = int(_number("PRODUCER_BATCH_MAX", 128))
        self.tick = _number("PRODUCER_BATCH_MS", 10) / 1000
        self.depth = _number("TARGET_DEPTH", 1000)
        self.workers = int(_number("WORKER_COUNT", 32))
        self.padding = "x" * max(0, int(_number("JOB_PAYLOAD_BYTES", 256)) - 40)
        self.work = _number("JOB_WORK_MS", 1) / 1000
        self.every = _number("SAMPLE_EVERY_S", 5)
        self.queues = int(_number("BENCH_QUEUE_COUNT", 1))
        self.instance = int(_number("BENCH_INSTANCE_ID", 0))
        self._rate_file = Path(os.environ.get("PRODUCER_RATE_CONTROL_FILE", ""))

    def rate_now(self) -> float:
        """Return the jobs that are due each second; a phase of high load writes the file."""
        try:
            return float(self._rate_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # there is none, or it is just being written
            return self.rate


def _number(name: str, default: float) -> float:
    return float(os.environ.get(name, default))


class Latencies:
    """The latencies of the last 30 seconds; their memory does not grow with their number.

    Counts leave one by one: a sample that merged 30 seconds would hold the handlers up while it
    measures them.
    """

    def __init__(self) -> None:
        # How many had so many milliseconds, to three significant digits; in each second, in all.
        self._seconds: deque[tuple[int, Counter[float]]] = deque()
        self._all: Counter[float] = Counter()

    def add(self, seconds: float, number: int = 1) -> None:
        """Add a latency that so many jobs had."""
        now = int(time.monotonic())
        if not self._seconds or self._seconds[-1][0] != now:
            self._seconds.append((now, Counter()))
            self._forget(now)
        value = float(f"{max(0.0, seconds) * 1000:.2e}")
        self._seconds[-1][1][value] += number
        self._all[value] += number

    def percentiles(self) -> dict[str, float]:
        """Return p50, p95 and p99 in milliseconds; 0 where nothing happened."""
        self._forget(int(time.monotonic()))
        number = self._all.total()
        wanted = {f"p{percent}": number * percent / 100 for percent in (50, 95, 99)}
        found, seen = dict.fromkeys(wanted, 0.0), 0
        for value in sorted(self._all):
            for name, rank in wanted.items():
                if seen < rank:
                    found[name] = value
            seen += self._all[value]
        return found

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0][0] < now - _WINDOW:
            for value, number in self._seconds.popleft()[1].items():
                self._all[value] -= number
                if not self._all[value]:
                    del self._all[value]


class Adapter:
    """The process of a system: it produces jobs, counts what its handlers report, and samples."""

    def __init__(self, system: str, settings: Settings) -> None:
        self._system = system
        self._settings = settings
        self._latencies = {
            name: Latencies() for name in ("producer", "producer_call", "claim", "end_to_end")
        }
        self._published = self._finished = 0
        self._depths = {"queue_depth": 0.0, "running_depth": 0.0}
        self._depth_offset = 0.0
        """The depth less what this process has published and not finished."""
        self._sampled = time.monotonic(), 0, 0
        self._ending = asyncio.Event()

    # What handlers report

    def began(self, produced: float) -> None:
        """Count the start of a job that was produced at this instant, by the clock."""
        self._latencies["claim"].add(time.time() - produced)

    def finished(self, produced: float | None = None) -> None:
        """Count a job that has ended."""
        self._finished += 1
        if produced is not None:
            self._latencies["end_to_end"].add(time.time() - produced)

    # The process

    def describe(self, version: str, schema: str, tables: Sequence[str]) -> None:
        """Print the descriptor, which the harness waits for."""
        name = self._settings.dsn.rpartition("/")[2].partition("?")[0]
        self._print({
            "kind": "descriptor", "system": self._system, "version": version,
            "schema_version": schema, "event_tables": list(tables), "extensions": [],
            "db_name": name, "started_at": _now(),
        })  # fmt: skip

    async def run(
        self,
        publish: Callable[[list[dict[str, Any]]], Awaitable[object]],
        depths: Callable[[], Awaitable[dict[str, float]]],
        work: Coroutine[Any, Any, object],
        stop: Callable[[], object],
    ) -> None:
        """Work until SIGTERM; then stop the worker, and print what was not yet sampled."""
        # The harness also paces jobs by lines on standard input, which phases of high load do not
        # change: the rate's file paces them here. The lines are read, or the harness would block.
        threading.Thread(target=_drain_input, daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._ending.set)
        worker = asyncio.create_task(work)
        producer = asyncio.create_task(self._produce(publish))
        tasks = [producer, *map(asyncio.create_task, (self._observe(depths), self._sample()))]
        signalled = asyncio.create_task(self._ending.wait())
        await asyncio.wait([worker, signalled, *tasks], return_when=asyncio.FIRST_COMPLETED)
        # What is being published is counted, unless the server does not answer.
        await asyncio.wait([producer], timeout=_END / 4)
        for task in (signalled, *tasks):
            task.cancel()
        results = await asyncio.gather(signalled, *tasks, return_exceptions=True)
        stop()
        done, _ = await asyncio.wait([worker], timeout=_END * 3 / 4)
        self._print_sample()
        if failed := [it for it in results if isinstance(it, Exception)]:
            raise failed[0]
        if not done:  # the server does not answer: its locks expire
            print("the worker did not end in time", file=sys.stderr)
            os._exit(0)
        worker.result()
        if not self._ending.is_set():
            raise SystemExit("the worker has ended by itself")

    async def _produce(self, publish: Callable[[list[dict[str, Any]]], Awaitable[object]]) -> None:
        credit, credited = 0.0, time.monotonic()
        while not self._ending.is_set():
            await asyncio.sleep(self._settings.tick)
            if self._settings.aims_at_depth:
                depth = self._depth_offset + self._published - self._finished
                credit = self._settings.depth - depth
            else:
                now = time.monotonic()
                credit += self._settings.rate_now() * (now - credited)
                credited = now
            while credit >= 1 and not self._ending.is_set():
                batch = min(int(credit), self._settings.batch)
                credit -= batch
                await self._publish(publish, batch)

    async def _publish(
        self, publish: Callable[[list[dict[str, Any]]], Awaitable[object]], number: int
    ) -> None:
        begun, produced = time.monotonic(), time.time()
        jobs = [
            {"n": self._published + n, "at": produced, "padding": self._settings.padding}
            for n in range(number)
        ]
        try:
            await publish(jobs)
        except Exception as error:  # noqa: BLE001  a chaos phase: whatever the driver raises
            print(f"{number} jobs were not published: {error}", file=sys.stderr)
            return
        self._published += number
        seconds = time.monotonic() - begun
        self._latencies["producer_call"].add(seconds)
        self._latencies["producer"].add(seconds / number, number)

    async def _observe(self, depths: Callable[[], Awaitable[dict[str, float]]]) -> None:
        # One replica observes the queue, and all must know its depth that aim at one.
        while self._settings.instance == 0 or self._settings.aims_at_depth:
            here = self._published - self._finished
            try:
                self._depths = await depths()
                self._depth_offset = self._depths["queue_depth"] - here
            except Exception as error:  # noqa: BLE001
                print(f"the depth is unknown: {error}", file=sys.stderr)
            await asyncio.sleep(_DEPTH_EVERY)
        await asyncio.Event().wait()

    # Samples

    async def _sample(self) -> None:
        every = self._settings.every
        due = time.time() // every * every
        while True:
            due = max(due, time.time() // every * every) + every  # by the clock, as all systems
            await asyncio.sleep(due - time.time())
            self._print_sample()

    def _print_sample(self) -> None:
        now = time.monotonic()
        since, published, finished = self._sampled
        self._sampled = now, self._published, self._finished
        # The rate of a tick that came late is over its real length.
        seconds = max(0.1, round(now - since, 1))
        values: list[tuple[str, float, float]] = [
            (f"{name}_{percentile}_ms", value, _WINDOW)
            for name, latencies in self._latencies.items()
            for percentile, value in latencies.percentiles().items()
        ]
        # Theirs has two names for the time from a job's production to its start.
        values += [
            (name.replace("claim", "subscriber"), value, window)
            for name, value, window in values
            if name.startswith("claim")
        ]
        values += [
            ("enqueue_rate", (self._published - published) / seconds, seconds),
            ("completion_rate", (self._finished - finished) / seconds, seconds),
        ]
        if self._settings.instance == 0:
            target = 0.0 if self._settings.aims_at_depth else self._settings.rate_now()
            values += [(name, depth, 0) for name, depth in self._depths.items()]
            values += [("producer_target_rate", target, 0)]
        at = _now()
        for metric, value, window in values:
            self._print({
                "t": at, "system": self._system, "kind": "adapter", "subject_kind": "adapter",
                "subject": "", "metric": metric, "value": value, "window_s": window,
            })  # fmt: skip

    def _print(self, record: dict[str, Any]) -> None:
        print(json.dumps({**record, "instance_id": self._settings.instance}), flush=True)


def _drain_input() -> None:
    for _ in sys.stdin:
        pass


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
