"""Anomalies: hours in which a queue deviates from its own past.

An hour is compared with the same hour of earlier days, so nightly runs are no anomalies; with fewer
than seven of those, with all hours of the last week.

- wait, run: the logarithm of p95, which must have doubled;
- failures: the arcsine of the square root of the share of dead messages, which must have grown by
  half and by two percentage points;
- errors: a G-test of their mix by fingerprint against the last week (the statistic is divided by
  its usual value), with a Jensen-Shannon divergence of at least 0.1.

The first three count by how many deviations (median absolute deviations, not smaller than the noise
of so few messages) an hour lies above the median of its past. Student's distribution gives the
probability of that in a normal hour, and the rule of Benjamini and Hochberg bounds the share of
false alarms of each hour over all queues.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from psycopg.rows import class_row

from notifyq.errors import ConfigurationError
from notifyq.spark import statements
from notifyq.spark.connection import demand, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
_LEAST = 30
"""Messages that an hour must have to be tested, or to be compared with."""
_LEAST_ERRORS = 10
_DAYS = 7
"""Values that a past of the same hour must have."""
_HOURS = 24
"""Values that a past of all hours must have."""
_FINGERPRINTS = 20
"""The most frequent ones are compared; all others count as one."""


@dataclass(frozen=True, slots=True)
class Hour:
    """The finished messages of a queue in one hour; times in milliseconds."""

    bucket_at: datetime
    queue: str
    finished: int
    dead: int
    wait_p95: float | None = None
    run_p95: float | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An hour in which `metric` deviates from the past of its queue."""

    bucket_at: datetime
    queue: str
    metric: str
    value: float
    expected: float
    chance: float
    finished: int
    details: str


@dataclass(frozen=True, slots=True)
class Findings:
    """The anomalies, how many of them were not reported before, and how many hours were tested."""

    anomalies: tuple[Anomaly, ...]
    new: int
    hours: int
    """Hours of queues with enough messages and enough past."""


def anomalies(
    dsn: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    past: timedelta = timedelta(days=28),
    rate: float = 0.001,
    alerts: str | None = "anomalies",
    report: bool = True,
) -> Findings:
    """Test the whole hours from `since` (a day ago) until `until` (now) against the time before.

    `rate` bounds the share of false alarms. New anomalies are stored in messages.anomaly, and
    published into the queue `alerts` unless that is None; with `report` False nothing is written.
    """
    end = _whole(until or datetime.now(UTC))
    begin = _whole(since or end - DAY)
    if begin >= end:
        raise ConfigurationError("there is no whole hour between --since and --until")
    if not 0 < rate < 1:
        raise ConfigurationError(
            f"the rate of false alarms must be more than 0 and less than 1, not {rate}"
        )
    with opened(dsn, name="notifyq spark anomalies") as session:
        if report:
            demand(session, statements.REPORTING)
        with session.cursor(row_factory=class_row(Hour)) as cursor:
            hours = cursor.execute(statements.ARCHIVE_HOURS, (begin - past, end)).fetchall()
        found, tested = detect(hours, begin, rate=rate)
        new = 0
        if found and report:
            rows = json.dumps([asdict(one) for one in found], default=str)
            new = len(session.execute(statements.REPORT_ANOMALIES, (rows, alerts)).fetchall())
    return Findings(tuple(found), new, tested)


def _whole(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def detect(
    hours: Iterable[Hour], since: datetime, *, rate: float = 0.001
) -> tuple[list[Anomaly], int]:
    """Return the anomalies among the hours from `since` on, and how many hours were tested."""
    by_queue: dict[str, dict[datetime, Hour]] = defaultdict(dict)
    for hour in hours:
        if hour.finished >= _LEAST:
            by_queue[hour.queue][hour.bucket_at.astimezone(UTC)] = hour
    tests: dict[datetime, list[tuple[Anomaly, bool]]] = defaultdict(list)
    tested = 0
    for known in by_queue.values():
        for at in sorted(at for at in known if at >= since):
            if found := _tests(known, at):
                tested += 1
                tests[at].extend(found)
    return [one for at in sorted(tests) for one in _discoveries(tests[at], rate)], tested


def _discoveries(tests: Sequence[tuple[Anomaly, bool]], rate: float) -> list[Anomaly]:
    """Apply the rule of Benjamini and Hochberg; small deviations count as tests only."""
    ranked = sorted(tests, key=lambda test: test[0].chance)
    passed = [
        rank for rank, (test, _) in enumerate(ranked, 1) if test.chance <= rate * rank / len(ranked)
    ]
    return [test for test, matters in ranked[: max(passed, default=0)] if matters]


def _tests(known: dict[datetime, Hour], at: datetime) -> list[tuple[Anomaly, bool]]:
    """Compare an hour with its past by each metric that has enough values."""
    week = [known[then] for step in range(1, 24 * 7 + 1) if (then := at - step * HOUR) in known]
    same = [known[then] for step in range(1, 57) if (then := at - step * DAY) in known]
    past = same if len(same) >= _DAYS else week
    if len(past) < (_DAYS if past is same else _HOURS):
        return []
    hour = known[at]
    found = [
        _latency("wait", hour, past, lambda one: one.wait_p95),
        _latency("run", hour, past, lambda one: one.run_p95),
        _failures(hour, past),
        _errors(hour, week),
    ]
    return [test for test in found if test is not None]


def _latency(
    metric: str, hour: Hour, past: Sequence[Hour], get: Callable[[Hour], float | None]
) -> tuple[Anomaly, bool] | None:
    value = get(hour)
    points = [(math.log(max(p, 1.0)), 3 / one.finished) for one in past if (p := get(one))]
    if value is None or len(points) < _DAYS:
        return None
    point = (math.log(max(value, 1.0)), 3 / hour.finished)
    chance, middle = _above(point, points, least=0.05)
    usual = math.exp(middle)
    details = f"p95 of {metric} is {value:.0f} ms, {usual:.0f} ms in the past"
    return _anomaly(hour, metric, value, usual, chance, details), value >= 2 * usual


def _failures(hour: Hour, past: Sequence[Hour]) -> tuple[Anomaly, bool]:
    def turned(one: Hour) -> tuple[float, float]:
        part = (one.dead + 0.375) / (one.finished + 0.75)
        return math.asin(math.sqrt(part)), 1 / (4 * one.finished)

    chance, middle = _above(turned(hour), [turned(one) for one in past], least=0.005)
    usual, value = math.sin(middle) ** 2, hour.dead / hour.finished
    details = f"{value:.1%} of the messages failed permanently, {usual:.1%} in the past"
    matters = value >= 1.5 * usual and value >= usual + 0.02
    return _anomaly(hour, "failures", value, usual, chance, details), matters


def _errors(hour: Hour, past: Sequence[Hour]) -> tuple[Anomaly, bool] | None:
    before: Counter[str] = Counter()
    for one in past:
        before.update(one.errors)
    if sum(hour.errors.values()) < _LEAST_ERRORS or before.total() < 5 * _LEAST_ERRORS:
        return None
    names = [name for name, _ in (before + Counter(hour.errors)).most_common(_FINGERPRINTS)]
    statistic, freedom = _g_test(hour.errors, before, names)
    enough = [one for one in past if sum(one.errors.values()) >= _LEAST_ERRORS][:_HOURS]
    usual = [_g_test(one.errors, before, names) for one in enough]
    # Errors come in groups: hours differ by more than chance.
    spread = max(1.0, median(g / df for g, df in usual) if usual else 1.0)
    chance = _above_chi_squared(statistic / spread, freedom)
    value = _divergence(hour.errors, before, names)
    total = sum(hour.errors.values())
    name = max(names, key=lambda n: hour.errors.get(n, 0) / total - before[n] / before.total())
    details = (
        f"{hour.errors.get(name, 0) / total:.0%} of the errors are {name!r}, "
        f"{before[name] / before.total():.0%} in the past"
    )
    return _anomaly(hour, "errors", value, 0.0, chance, details), value >= 0.1


def _anomaly(
    hour: Hour, metric: str, value: float, expected: float, chance: float, details: str
) -> Anomaly:
    return Anomaly(
        hour.bucket_at, hour.queue, metric, value, expected, chance, hour.finished, details[:1000]
    )


def _above(
    point: tuple[float, float], points: Sequence[tuple[float, float]], *, least: float
) -> tuple[float, float]:
    """Return the probability of a value so far above those of the past, and their median.

    A point is a value and its variance by the limited number of messages.
    """
    middle = median(value for value, _ in points)
    noise = median(varies for _, varies in points)
    deviation = 1.4826 * median(abs(value - middle) for value, _ in points)
    variance = max(deviation**2, noise, least**2) + max(0.0, point[1] - noise)
    score = (point[0] - middle) / math.sqrt(variance * (1 + math.pi / 2 / len(points)))
    return _above_student(score, len(points) - 1), middle


def _above_student(score: float, freedom: int) -> float:
    """Return the upper tail of Student's distribution by Wallace's approximation."""
    normal = math.sqrt(freedom * math.log1p(score**2 / freedom)) * (1 - 3 / (4 * (freedom + 1)))
    return 0.5 * math.erfc(math.copysign(normal, score) / math.sqrt(2))


def _above_chi_squared(statistic: float, freedom: int) -> float:
    """Return the upper tail of chi-squared by Wilson and Hilferty's approximation."""
    part = 2 / (9 * freedom)
    score = ((statistic / freedom) ** (1 / 3) - 1 + part) / math.sqrt(part)
    return 0.5 * math.erfc(score / math.sqrt(2))


def _g_test(now: dict[str, int], before: Counter[str], names: Sequence[str]) -> tuple[float, int]:
    rows = [_parts(now, names), _parts(before, names)]
    sums = [sum(row) for row in rows]
    columns = [a + b for a, b in zip(*rows, strict=True)]
    all_ = sum(sums)
    statistic = 2 * sum(
        seen * math.log(seen * all_ / (row_sum * column_sum))
        for row, row_sum in zip(rows, sums, strict=True)
        for seen, column_sum in zip(row, columns, strict=True)
        if seen
    )
    return max(0.0, statistic), max(1, sum(1 for column in columns if column) - 1)


def _divergence(now: dict[str, int], before: Counter[str], names: Sequence[str]) -> float:
    a, b = _parts(now, names), _parts(before, names)

    def entropy(parts: Sequence[float]) -> float:
        return -sum(part * math.log2(part) for part in parts if part)

    p, q = [n / sum(a) for n in a], [n / sum(b) for n in b]
    both = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    return entropy(both) - (entropy(p) + entropy(q)) / 2


def _parts(counts: dict[str, int], names: Sequence[str]) -> list[int]:
    """Return the counts of these names, and of all others together."""
    named = [counts.get(name, 0) for name in names]
    return [*named, sum(counts.values()) - sum(named)]
