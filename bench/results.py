"""The results of a run: raw samples as JSON, and their medians and percentiles."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from notifyq.errors import NotifyqError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = 1
"""The version of the file; others are refused."""
NOTIFYQ = "notifyq"
"""The system that all others are compared with."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured quantity and its presentation."""

    label: str
    unit: str
    scale: float = 1
    """The factor from SI units to `unit`."""
    larger_is_better: bool = False
    is_headline: bool = False
    """Whether charts and the list of better peers show it."""


METRICS = {
    "rate": Metric("rate", "messages/s", larger_is_better=True, is_headline=True),
    "p50": Metric("p50", "ms", 1000, is_headline=True),
    "p95": Metric("p95", "ms", 1000, is_headline=True),
    "p99": Metric("p99", "ms", 1000, is_headline=True),
    "server_cpu": Metric("server CPU", "µs/message", 1e6),
    "worker_cpu": Metric("worker CPU", "µs/message", 1e6),
    "publisher_cpu": Metric("publisher CPU", "µs/message", 1e6),
    "per_core": Metric(
        "server and worker", "messages/core-second", larger_is_better=True, is_headline=True
    ),
    "wal": Metric("WAL", "bytes/message"),
    "archive": Metric("archive", "bytes/message"),
    "backlog": Metric("backlog at the end", "messages"),
    "left": Metric("not handled", "messages"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: a system, in a variant of a case, in a round."""

    case: str
    variant: str
    system: str
    round: int
    values: dict[str, float]
    """By the names of METRICS, in SI units."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from the publication to the handler's start, of each message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A system that did not complete a case in a round."""

    case: str
    system: str
    round: int
    reason: str


@dataclass(slots=True)
class Results:
    """The results of a run."""

    started: str
    """ISO 8601, UTC."""
    machine: dict[str, str]
    settings: dict[str, str]
    """Settings of the server."""
    options: dict[str, Any]
    """Options of the run: sizes, rounds, cases."""
    systems: dict[str, str] = field(default_factory=dict)
    """Version and settings of each system, in a line."""
    not_run: dict[str, str] = field(default_factory=dict)
    """Systems that could not be prepared, with the reason."""
    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of `write`."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise NotifyqError(f"{path} has results of another version of notifyq bench")
            samples = [Sample(**sample) for sample in data.pop("samples")]
            failures = [Failure(**failure) for failure in data.pop("failures", [])]
            return cls(**data, samples=samples, failures=failures)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotifyqError(f"{path} has no results of notifyq bench") from error

    def values(self, case: str, variant: str, system: str, metric: str) -> list[float]:
        """Return the values of the rounds, those that were measured."""
        return [
            sample.values[metric]
            for sample in self.samples
            if (sample.case, sample.variant, sample.system) == (case, variant, system)
            and metric in sample.values
        ]

    def median(self, case: str, variant: str, system: str, metric: str) -> float | None:
        """Return the median over the rounds, or None where nothing was measured."""
        found = self.values(case, variant, system, metric)
        return median(found) if found else None

    def ratio(
        self, case: str, variant: str, system: str, metric: str, baseline: str = NOTIFYQ
    ) -> float | None:
        """Return the system's median divided by that of the baseline, unless it is not positive."""
        theirs = self.median(case, variant, system, metric)
        ours = self.median(case, variant, baseline, metric)
        return theirs / ours if theirs is not None and ours is not None and ours > 0 else None

    def failed(self, case: str) -> dict[str, int]:
        """Return in how many rounds a system did not complete a case."""
        return Counter(failure.system for failure in self.failures if failure.case == case)

    def not_measured(self) -> list[str]:
        """Return the cases without a sample, and systems that completed one in no round."""
        found = []
        for case in self.options["cases"]:
            if not self.names("system", case):
                found.append(case)
                continue
            failed, rounds = self.failed(case), self.options["rounds"]
            found += [f"{case} of {it}" for it, count in failed.items() if count == rounds]
        return found

    def names(self, attribute: str, case: str | None = None) -> list[str]:
        """Return the cases, variants or systems that have samples, in the order of appearance."""
        chosen = (sample for sample in self.samples if case in {None, sample.case})
        return list(dict.fromkeys(str(getattr(sample, attribute)) for sample in chosen))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 by name; nothing without latencies."""
    if not latencies:
        return {}
    return {f"p{percent}": percentile(latencies, percent) for percent in (50, 95, 99)}
