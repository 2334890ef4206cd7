"""Short texts that fit into 80 columns without colours."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from notifyq.operations import texts
from notifyq.operations.monitor import Health
from notifyq.operations.top.snapshot import Snapshot

_BARS = "▁▂▃▄▅▆▇█"
_SLOW = 2.0
"""Seconds of a read that are reported."""
_LATE = 60.0
"""Seconds of a delay of maintenance that are reported."""
_LARGE = 64 * 2**20
"""Bytes of a table from which on its bloat matters."""
_OLD_XMIN = 1_000_000
"""Age of a snapshot in transactions that is reported."""


def count(number: float, *, exact: bool = True) -> str:
    """1234, 12.3k, 4.5M; with ~ for an estimate."""
    return ("" if exact else "~") + _narrow(texts.short(number))


def lasting(span: timedelta | None) -> str:
    """12ms, 3.4s, 5min, 2h, 30d; a dash for none."""
    return "-" if span is None else _narrow(texts.span(max(span, timedelta(0))))


def _narrow(text: str) -> str:
    return text.replace(" ", "").replace(",", "")


def per_second(rate: float) -> str:
    """0.25/s, 1.3/s, 12/s; a dash for none."""
    if rate == 0:
        return "-"
    return f"{rate:.2f}/s" if rate < 1 else f"{rate:.1f}/s" if rate < 10 else f"{count(rate)}/s"


def age(now: datetime, since: datetime | None) -> str:
    """How long ago an instant was."""
    return lasting(None if since is None else now - since)


def course(values: Sequence[float]) -> str:
    """Numbers as bars, relative to the largest one."""
    most = max(values, default=0.0)
    if most == 0:
        return "▁" * len(values)
    return "".join(_BARS[min(7, round(7 * value / most))] for value in values)


def summary(seen: Snapshot) -> str:
    """One line about all queues together."""
    rows = seen.backlog
    exact = all(it.is_exact for it in rows)
    total = seen.total
    oldest = min((it.oldest_waiting_at for it in rows if it.oldest_waiting_at), default=None)
    parts = [
        f"waiting {count(sum(it.waiting for it in rows), exact=exact)}",
        f"locked {count(sum(it.locked for it in rows))}",
        f"dead/day {count(sum(it.dead for it in rows))}",
        f"rate {per_second(total.finished)}",
        f"failing {per_second(total.dead)}" if total.dead else "",
        f"oldest {age(seen.now, oldest)}",
        f"wait95 {lasting(total.wait_p95)}" if total.wait_p95 is not None else "",
        f"(reading took {seen.took:.1f}s)" if seen.took > _SLOW else "",
    ]
    return "  ".join(filter(None, parts))


def status_line(seen: Snapshot) -> str:
    """One line about the database: its problems, or a few numbers."""
    if seen.refused:
        return "! refused: " + "; ".join(f"{name}: {why}" for name, why in seen.refused.items())
    health = seen.health
    if health is None:
        return ""
    if problems := [*_of_maintenance(seen, health), *_of_server(seen, health)]:
        return "! " + "; ".join(problems)
    cron = "pg_cron ok" if seen.cron else "no pg_cron"
    ages = health.by_subject("xmin_age")
    used, most = _connections(health)
    return (
        f"ok  xmin {count(max(ages.values(), default=0))}  "
        f"NOTIFY {health.get('notify_queue') or 0:.0%}  bloat {_bloat(health):.0%}  "
        f"connections {used:.0f}/{most:.0f}  {cron}"
    )


def _of_maintenance(seen: Snapshot, health: Health) -> Iterator[str]:
    expired, overdue = health.get("expired_for") or 0, health.get("overdue_for") or 0
    if expired > _LATE:
        yield f"locks expired {lasting(timedelta(seconds=expired))} ago and are not reaped"
    if overdue > _LATE:
        yield f"due messages not staged for {lasting(timedelta(seconds=overdue))}"
    for duty, runs in health.by_subject("maintenance_failing").items():
        if runs:
            yield f"maintenance cannot {duty}, {runs:.0f} runs failed"
    if failed := sum(it.failed for it in seen.cron):
        yield f"pg_cron failed {failed} {'time' if failed == 1 else 'times'} in an hour"
    if gone := sum(it.state in {"unresponsive", "gone"} and it.held > 0 for it in seen.workers):
        yield f"{gone} {'worker' if gone == 1 else 'workers'} gone with messages locked"
    if blocked := [it.name for it in seen.workers if it.state == "blocked"]:
        yield f"a handler blocks the event loop of worker {blocked[0]}"


def _of_server(seen: Snapshot, health: Health) -> Iterator[str]:
    for holder in seen.holders[:1]:
        if (holder.xmin_age or 0) >= _OLD_XMIN:
            name = f"pid {holder.pid}" if holder.pid else holder.name
            yield f"xmin held by {holder.cause} {name}, {count(holder.xmin_age or 0)} old"
    if (queue := health.get("notify_queue") or 0) > 0.1:
        yield f"NOTIFY queue {queue:.0%} full"
    used, most = _connections(health)
    if used > 0.9 * most:
        yield f"{used:.0f} of {most:.0f} connections"
    if (bloat := _bloat(health)) > 0.8:
        yield f"bloat {bloat:.0%}"
    if waits := health.get("lock_waits"):
        yield f"{waits:.0f} {'session waits' if waits == 1 else 'sessions wait'} for locks"


def _bloat(health: Health) -> float:
    """The largest share of dead and free space among the large tables."""
    sizes = health.by_subject("table_bytes")
    found = health.by_subject("bloat").items()
    return max((share for table, share in found if sizes.get(table, 0) >= _LARGE), default=0.0)


def _connections(health: Health) -> tuple[float, float]:
    return health.get("connections") or 0, health.get("connections_most") or 1
