"""The shape of a sample: its queues, the messages of each hour, and its incidents."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Incident:
    """Hours in which a queue deviates from its past: factors of its times, and an error."""

    queue: str
    since: datetime
    until: datetime
    wait: float = 1.0
    run: float = 1.0
    failure: float = 1.0
    error: str | None = None

    @property
    def what(self) -> str:
        """The deviations, as text."""
        factors = (("wait", self.wait), ("run", self.run), ("failures", self.failure))
        parts = [f"{name} x {factor:g}" for name, factor in factors if factor != 1]
        return ", ".join([*parts, *([self.error] if self.error else [])])


@dataclass(frozen=True, slots=True)
class Profile:
    """The messages of a queue; times are medians in milliseconds, spreads are of logarithms."""

    queue: str
    types: tuple[str, ...]
    wait: float
    run: float
    failure: float
    max_attempts: int
    errors: tuple[str, ...]
    wait_spread: float = 0.8
    run_spread: float = 0.6


@dataclass(frozen=True, slots=True)
class Hour:
    """The messages of one hour, by number; `strain` is a factor of their waits."""

    start: datetime
    first: int
    count: int
    strain: float
    newer: bool


_NETWORK = (
    "ConnectionRefusedError: [Errno 111] connect call failed ('@h')",
    "TimeoutError: no answer from @h after 30.@n s",
    "HTTPStatusError: 503 Service Unavailable for url http://shop:8080/v2/@u",
)
_DATA = (
    "KeyError: 'order @n'",
    "ValidationError: 1 validation error for Order: customer: no customer @u",
    "psycopg.errors.UniqueViolation: duplicate key (id)=(@n) already exists",
)
PROFILES = (
    Profile("page_view", ("view", "click"), 12, 3, 0.01, 3, _NETWORK[:2]),
    Profile("order confirmed/EU", ("order", "refund"), 40, 120, 0.03, 5, _DATA + _NETWORK),
    Profile("mail", ("welcome", "invoice", "reminder"), 250, 400, 0.06, 5, _NETWORK),
    Profile("thumbnail", ("image", "video"), 900, 2500, 0.04, 2, ("OSError: @u.jpg is cut",)),
    Profile("billing", ("charge",), 60, 800, 0.05, 8, _NETWORK + _DATA, 0.6, 0.9),
    Profile("search_index", ("add", "remove"), 1500, 45, 0.02, 3, _NETWORK[:1]),
    Profile("webhook", ("call",), 30, 900, 0.18, 6, _NETWORK, 1.1, 1.2),
    Profile("geocode", ("address",), 70, 350, 0.08, 3, _DATA[:2] + _NETWORK[1:]),
    Profile("report", ("daily", "weekly"), 4000, 30_000, 0.1, 1, ("MemoryError: @n MB",)),
    Profile("fraud check", ("score",), 15, 60, 0.02, 3, _DATA[1:]),
)


def hours_of(messages: int, seed: int, since: datetime, days: int) -> list[Hour]:
    """Distribute the messages by day and night, weekends, growth, a nightly run, and bursts."""
    dice = random.Random(seed)  # noqa: S311  it must be reproducible
    starts = [since + timedelta(hours=hour) for hour in range(24 * days)]
    daily = [1 + 0.6 * math.sin(2 * math.pi * (start.hour - 9) / 24) for start in starts]
    nightly = [3.0 if start.hour == 2 else 1.0 for start in starts]
    weights = [
        # Weeks count from the start, not by the calendar: a seed gives the same sample on each day.
        day * night * (0.55 if number // 24 % 7 > 4 else 1) * (1 + 0.3 * number / len(starts))
        for number, (day, night) in enumerate(zip(daily, nightly, strict=True))
    ]
    for burst in dice.sample(range(len(starts)), max(1, days // 3)):
        weights[burst] *= 4
    hours, first, sum_, all_ = [], 1, 0.0, sum(weights)
    for number, start in enumerate(starts):
        sum_ += weights[number]
        last = messages if number + 1 == len(starts) else round(messages * sum_ / all_)
        newer = 2 * number >= len(starts)
        hours.append(Hour(start, first, last - first + 1, nightly[number], newer))
        first = last + 1
    return hours


def incidents_of(seed: int, end: datetime, quantity: int) -> tuple[Incident, ...]:
    """Plant incidents in the last days, in the three queues with most messages."""
    dice = random.Random(seed + 1)  # noqa: S311
    found = []
    for number in range(quantity):
        since = end - timedelta(hours=4 + 5 * number + dice.randrange(2))
        span = (since, since + timedelta(hours=2))
        queue = PROFILES[number % 3].queue
        match number % 3:
            case 0:
                found.append(Incident(queue, *span, wait=20))
            case 1:
                found.append(Incident(queue, *span, failure=8))
            case _:
                found.append(Incident(queue, *span, error="CertificateError: @h has expired"))
    return tuple(found)


def bounds_of(share: float) -> list[float]:
    """Return where the share of each queue but the first begins, on a line from 0 to 1."""
    weights = [1 / (number + 1) for number in range(len(PROFILES) - 1)]
    bounds, at = [], share
    for weight in weights:
        bounds.append(at)
        at += (1 - share) * weight / sum(weights)
    return bounds
