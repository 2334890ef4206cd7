"""A reproducible archive for experiments: skewed queues, bursts, late commits, failures."""

from __future__ import annotations

import contextlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from psycopg import errors

from notifyq.errors import AccessDeniedError, ConfigurationError, SchemaMissingError
from notifyq.spark.analysis.shape import PROFILES, Incident, bounds_of, hours_of, incidents_of
from notifyq.spark.connection import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from psycopg import Connection

    from notifyq.spark.analysis.shape import Hour

    _Session = Connection[tuple[Any, ...]]

_TEXT = Path(__file__).with_name("sample.sql").read_text(encoding="utf-8")
_SECTION = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.DOTALL | re.MULTILINE)
_STATEMENTS = {found[1]: found[2].strip() for found in _SECTION.finditer(_TEXT)}
_SETTINGS = (
    "set timezone = 'UTC'",
    "set synchronous_commit = off",
    "set jit = off",
    "set maintenance_work_mem = '256MB'",
)
_KEPT = timedelta(days=30)
"""How long the archive keeps the sample, counted from its end."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The result. Equal samples have equal digests in every database."""

    messages: int
    queues: int
    dead: int
    digest: int
    since: datetime
    until: datetime
    incidents: tuple[Incident, ...]
    seconds: float


def sample(
    dsn: str,
    *,
    messages: int = 2_000_000,
    seed: int = 1,
    days: int = 14,
    until: datetime | None = None,
    share: float = 0.8,
    planted: int = 3,
    on_progress: Callable[[int], None] | None = None,
) -> Sample:
    """Fill the archive of an unused database with finished messages.

    `share` is the part of the largest queue; `until` is a midnight in UTC, by default the last one;
    `planted` incidents (of three kinds, in turn) are in the last days. Raises ConfigurationError
    where the database already has messages, events or queues.
    """
    end = _midnight(until)
    _check(messages, days, share)
    hours = hours_of(messages, seed, end - timedelta(days=days), days)
    incidents = incidents_of(seed, end, planted)
    given = {
        "seed": seed,
        "profiles": _json({"number": n, **asdict(p)} for n, p in enumerate(PROFILES)),
        "incidents": _json(asdict(incident) for incident in incidents),
        "bounds": bounds_of(share),
        "until": end,
    }
    began = monotonic()
    with _session(dsn) as session:
        _prepare(session, end, days, messages)
        by_day = [hours[at : at + 24] for at in range(0, len(hours), 24)]
        done = _Count(on_progress)
        with ThreadPoolExecutor(2) as pool:
            for running in [pool.submit(_fill, dsn, day, given, done) for day in by_day]:
                running.result()
        with session.transaction():
            _run_each(session, "unstage", {})
        with ThreadPoolExecutor(2) as pool:
            # The first reader of a row sets hint bits, and would make a first run slower.
            vacuum = pool.submit(session.execute, "vacuum (analyze) messages.message_archive")
            found = pool.submit(_digest, dsn, end)
            vacuum.result()
            count, queues, dead, digest = found.result()
    return Sample(
        messages=count,
        queues=queues,
        dead=dead,
        # Modulo 2^63: it fits into a 64-bit integer.
        digest=int(digest) % 2**63,
        since=end - timedelta(days=days),
        until=end,
        incidents=incidents,
        seconds=monotonic() - began,
    )


class _Count:
    """Counts rows of several threads; a race may lose a few, which only a progress bar shows."""

    def __init__(self, report: Callable[[int], None] | None) -> None:
        self._report = report
        self._done = 0

    def add(self, rows: int) -> None:
        self._done += rows
        if self._report is not None:
            self._report(self._done)


def _midnight(until: datetime | None) -> datetime:
    now = datetime.now(UTC)
    end = (until or now.replace(hour=0, minute=0, second=0, microsecond=0)).astimezone(UTC)
    if end != end.replace(hour=0, minute=0, second=0, microsecond=0) or end > now:
        raise ConfigurationError(
            f"the sample must end at a past midnight in UTC, not at {end.isoformat()}"
        )
    return end


def _check(messages: int, days: int, share: float) -> None:
    if not 1 <= messages <= 2**31 or not 1 <= days <= 3650:
        raise ConfigurationError("a sample has 1 to 2147483648 messages of 1 to 3650 days")
    if not 0 < share < 1:
        raise ConfigurationError(
            f"the share of the largest queue must be more than 0 and less than 1, not {share}"
        )


def _json(rows: Iterable[Any]) -> str:
    return json.dumps(list(rows), default=str)


@contextlib.contextmanager
def _session(dsn: str) -> Iterator[_Session]:
    with connect(dsn, name="notifyq spark sample") as session:
        try:
            session.execute(_one(session, "owner")[0])
        except errors.InsufficientPrivilege:
            raise AccessDeniedError(
                "a sample is written into the tables: connect as the owner of the schema"
            ) from None
        except (errors.InvalidSchemaName, errors.UndefinedTable):
            raise SchemaMissingError("no schema messages here: run `notifyq init`") from None
        for setting in _SETTINGS:
            session.execute(setting)
        yield session


def _one(session: _Session, statement: str, **given: Any) -> Any:
    return session.execute(_STATEMENTS[statement], given).fetchone()


def _prepare(session: _Session, end: datetime, days: int, messages: int) -> None:
    if _one(session, "is_used")[0]:
        raise ConfigurationError(
            "the database already has messages or queues: use a new database for a sample"
        )
    since = end - timedelta(days=days)
    retention = datetime.now(UTC) - since + _KEPT
    with session.transaction():
        # First: messages that are published from now on get ids after the sample.
        session.execute(_STATEMENTS["numbers"], {"last": messages})
        _run_each(session, "retired", {"until": end})
        _run_each(session, "stage", {"since": since, "until": end})
        session.execute(_STATEMENTS["default_queue"], {"retention": retention})
        for profile in PROFILES:
            given = {"queue": profile.queue, "max_attempts": profile.max_attempts}
            session.execute(_STATEMENTS["queue"], {**given, "retention": retention})


def _run_each(session: _Session, statement: str, given: dict[str, Any]) -> None:
    """Run the statements that a query returns."""
    for (found,) in session.execute(_STATEMENTS[statement], given).fetchall():
        session.execute(found)


def _digest(dsn: str, end: datetime) -> Any:
    with _session(dsn) as session:
        return _one(session, "digest", until=end)


def _fill(dsn: str, hours: list[Hour], given: dict[str, Any], done: _Count) -> None:
    """Insert a day, one transaction for each hour; late messages commit after all others."""
    with _session(dsn) as session, _session(dsn) as late, late.transaction():
        for hour in filter(lambda hour: hour.count, hours):
            values = {**given, **asdict(hour), "hour": hour.start}
            for used, is_late in ((late, True), (session, False)):
                done.add(used.execute(_STATEMENTS["rows"], {**values, "late": is_late}).rowcount)
