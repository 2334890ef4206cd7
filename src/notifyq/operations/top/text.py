"""Figures as short texts, which fit into 80 columns and need no colour."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from notifyq.operations.monitor import Health
    from notifyq.operations.top.snapshot import Snapshot

_UNITS = ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k"))
_BARS = "▁▂▃▄▅▆▇█"
_SLOW = 2.0
"""Seconds of a look from which on that is said."""
_LATE = 60.0
"""Seconds that the upkeep may be late before that is said."""
_LARGE = 64 * 2**20
"""Bytes of a table from which on its bloat costs something."""
_OLD_XMIN = 1_000_000
"""Transactions that a snapshot may be old before that is said."""


def count(number: float, *, exact: bool = True) -> str:
    """1234, 12.3k, 4.5M; ~ where it is a guess."""
    about = "" if exact else "~"
    for limit, unit in _UNITS:
        if number >= limit:
            value = number / (1000 if unit == "k" else limit)
            return f"{about}{value:.1f}{unit}" if value < 100 else f"{about}{value:.0f}{unit}"
    return f"{about}{number:.0f}"


def per_second(rate: float) -> str:
    """0.3/s, 12/s; empty for none."""
    if rate == 0:
        return "-"
    return f"{rate:.2f}/s" if rate < 1 else f"{rate:.1f}/s" if rate < 10 else f"{count(rate)}/s"


def size(number: float) -> str:
    """Bytes: 12 kB, 3.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.3g} TB"


def lasting(span: timedelta | None) -> str:
    """12ms, 3.4s, 5m, 2h, 30d; a dash for none."""
    if span is None:
        return "-"
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return f"{1000 * seconds:.0f}ms"
    for limit, length, unit in ((10, 1, "s"), (120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return (
                f"{seconds / length:.1f}{unit}" if limit == 10 else f"{seconds / length:.0f}{unit}"
            )
    return f"{seconds / 86_400:.0f}d"


def age(now: datetime, since: datetime | None) -> str:
    """How long ago that was."""
    return lasting(None if since is None else now - since)


def course(values: Sequence[float]) -> str:
    """A few numbers as bars, the largest as high as it goes."""
    most = max(values, default=0.0)
    if most == 0:
        return "▁" * len(values)
    return "".join(_BARS[min(7, round(7 * value / most))] for value in values)


def printable(text: str | None, most: int = 500) -> str:
    """One line without what could steer a terminal: texts come from anywhere."""
    line = (text or "").strip()[:most].partition("\n")[0]
    return "".join(c if c.isprintable() else "?" for c in line)


def summary(seen: Snapshot) -> str:
    """What waits, runs, dies and is done, of all queues together."""
    rows = seen.backlog
    exact = all(it.is_exact for it in rows)
    total = seen.total
    oldest = min((it.oldest_waiting_at for it in rows if it.oldest_waiting_at), default=None)
    parts = [
        f"waiting {count(sum(it.waiting for it in rows), exact=exact)}",
        f"running {count(sum(it.locked for it in rows))}",
        f"dead/day {count(sum(it.dead for it in rows))}",
        f"rate {per_second(total.finished)}",
        f"failing {per_second(total.dead)}" if total.dead else "",
        f"oldest {age(seen.now, oldest)}",
        f"wait95 {lasting(total.wait_p95)}" if total.wait_p95 is not None else "",
        f"(looking took {seen.took:.1f}s)" if seen.took > _SLOW else "",
    ]
    return "  ".join(filter(None, parts))


def worries(seen: Snapshot) -> list[str]:
    """What is wrong with the database, the worst first; nothing where all is well."""
    if seen.health is None:
        return []
    return [*filter(None, (*_of_upkeep(seen, seen.health), *_of_server(seen, seen.health)))]


def _of_upkeep(seen: Snapshot, health: Health) -> Iterator[str]:
    expired, overdue = health.get("expired_for") or 0, health.get("overdue_for") or 0
    if expired > _LATE:
        yield f"locks expired {lasting(timedelta(seconds=expired))} ago, nobody reaps"
    if overdue > _LATE:
        yield f"due messages wait {lasting(timedelta(seconds=overdue))}: no upkeep"
    if failed := sum(it.failed for it in seen.cron):
        yield f"pg_cron failed {failed} {'time' if failed == 1 else 'times'} in an hour"
    if gone := sum(it.state in {"silent", "gone"} and it.held > 0 for it in seen.workers):
        yield (
            f"{gone} workers are gone and hold messages"
            if gone > 1
            else "a worker is gone and holds messages"
        )


def _of_server(seen: Snapshot, health: Health) -> Iterator[str]:
    for holder in seen.holders[:1]:
        if (holder.xmin_age or 0) >= _OLD_XMIN:
            who = printable(f"pid {holder.pid}" if holder.pid else holder.name)
            yield f"xmin held by {holder.cause} {who}, {count(holder.xmin_age or 0)} old"
    if (queue := health.get("notify_queue") or 0) > 0.1:
        yield f"NOTIFY {queue:.0%} full"
    used, most = _connections(health)
    if used > 0.9 * most:
        yield f"{used:.0f} of {most:.0f} connections"
    if (bloat := _bloat(health)) > 0.8:
        yield f"bloat {bloat:.0%}"
    if waits := health.get("lock_waits"):
        yield f"{waits:.0f} {'waits' if waits == 1 else 'wait'} for locks"


def _bloat(health: Health) -> float:
    """The part of a table that is neither rows nor wanted room, of those that are of some size."""
    sizes = health.by_subject("table_bytes")
    found = health.by_subject("bloat").items()
    return max((part for table, part in found if sizes.get(table, 0) >= _LARGE), default=0.0)


def _connections(health: Health) -> tuple[float, float]:
    return health.get("connections") or 0, health.get("connections_most") or 1


def condition(seen: Snapshot) -> str:
    """One line on the database."""
    found = worries(seen)
    if found:
        return "! " + "; ".join(found)
    health = seen.health
    if health is None:
        return ""
    bloat = _bloat(health)
    cron = "pg_cron ok" if seen.cron else "no pg_cron"
    ages = health.by_subject("xmin_age")
    used, most = _connections(health)
    return (
        f"ok  xmin {count(max(ages.values(), default=0))}  "
        f"NOTIFY {health.get('notify_queue') or 0:.0%}  bloat {bloat:.0%}  "
        f"connections {used:.0f}/{most:.0f}  {cron}"
    )
