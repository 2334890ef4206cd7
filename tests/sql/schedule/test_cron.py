"""Cron expressions: what they mean, on clocks that are set, and what is no expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from notifyq.errors import ConfigurationError, InvalidArgumentError
from notifyq.queues.cron_syntax import check_cron
from notifyq.testing.plugin import cloned
from stateful.bench import Session
from support.database import Connection, value

TIMES = """
with recursive times (n, at) as (
  select 1, messages.cron_next($1, $2, $3)
  union all
  select t.n + 1, messages.cron_next($1, $2, t.at) from times as t where t.n < $4
)
select at from times order by n
"""


async def times(
    connection: Connection, cron: str, zone: str, after: str, quantity: int
) -> list[str]:
    """The next times of an expression, as clocks of the zone show them."""
    at = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))
    found = await connection.fetch(TIMES, cron, zone, at, quantity)
    return [row["at"].astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M:%S %z") for row in found]


MEANINGS = [
        ("30 8 * * *", ["01-15 08:30:00", "01-16 08:30:00"]),
        ("*/20 * * * *", ["01-14 12:20:00", "01-14 12:40:00", "01-14 13:00:00"]),
        ("5/25 * * * *", ["01-14 12:05:00", "01-14 12:30:00", "01-14 12:55:00"]),
        ("*/15 30 8 * * *", ["01-15 08:30:00", "01-15 08:30:15", "01-15 08:30:30"]),
        ("0 0 1,15 * *", ["01-15 00:00:00", "02-01 00:00:00", "02-15 00:00:00"]),
        ("0 8 * * mon-fri", ["01-15 08:00:00", "01-16 08:00:00", "01-19 08:00:00"]),
        ("0 8 * * MON,wed", ["01-19 08:00:00", "01-21 08:00:00", "01-26 08:00:00"]),
        ("0 8 * * sat-sun", ["01-17 08:00:00", "01-18 08:00:00", "01-24 08:00:00"]),
        ("0 8 * * 7", ["01-18 08:00:00", "01-25 08:00:00"]),
        ("0 8 * * 0", ["01-18 08:00:00", "01-25 08:00:00"]),
        ("0 0 13 * fri", ["01-16 00:00:00", "01-23 00:00:00", "01-30 00:00:00", "02-06 00:00:00",
                          "02-13 00:00:00"]),
        ("0 0 */7 * mon", ["06-01 00:00:00", "06-08 00:00:00"]),
        ("0 0 1 feb,Mar *", ["02-01 00:00:00", "03-01 00:00:00", "02-01 00:00:00"]),
        ("0 0 L * *", ["01-31 00:00:00", "02-28 00:00:00", "03-31 00:00:00"]),
        ("0 0 LW * *", ["01-30 00:00:00", "02-27 00:00:00", "03-31 00:00:00"]),
        ("0 0 * * friL", ["01-30 00:00:00", "02-27 00:00:00", "03-27 00:00:00"]),
        # The last day of January and of February.
        ("0 0 * * satL", ["01-31 00:00:00", "02-28 00:00:00", "03-28 00:00:00"]),
        ("0 0 * * tue#2", ["02-10 00:00:00", "03-10 00:00:00"]),
        ("0 0 * * 0#5", ["03-29 00:00:00", "05-31 00:00:00"]),
        ("0 0 29 2 *", ["02-29 00:00:00", "02-29 00:00:00"]),
        ("@hourly", ["01-14 13:00:00", "01-14 14:00:00"]),
        ("@Daily", ["01-15 00:00:00", "01-16 00:00:00"]),
        ("@weekly", ["01-18 00:00:00", "01-25 00:00:00"]),
        ("@monthly", ["02-01 00:00:00", "03-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00", "01-01 00:00:00"]),
        ("@every 90s", ["01-14 12:01:30", "01-14 12:03:00"]),
        ("@every 1h30m", ["01-14 13:30:00", "01-14 15:00:00"]),
        ("  0\t9 * *  * ", ["01-15 09:00:00"]),
]  # fmt: skip
CLOCKS = [
        # Set forward over it: once, at once. Europe in March, America before it, one by half an
        # hour, one at midnight.
        ("30 2 * * *", "Europe/Oslo", "2026-03-28T03:00",
         ["03-29 03:00:00 +0200", "03-30 02:30:00 +0200"]),
        ("0,30 2,3 * * *", "America/New_York", "2026-03-08T00:00",
         ["03-08 03:00:00 -0400", "03-08 03:30:00 -0400", "03-09 02:00:00 -0400"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00",
         ["10-04 02:30:00 +1100", "10-05 02:15:00 +1100"]),
        ("0 0 * * *", "Asia/Beirut", "2026-03-28T00:00",
         ["03-29 01:00:00 +0300", "03-30 00:00:00 +0300"]),
        # A star goes by what really passes.
        ("*/30 * * * *", "Europe/Oslo", "2026-03-29T01:00",
         ["03-29 01:30:00 +0100", "03-29 03:00:00 +0200", "03-29 03:30:00 +0200"]),
        ("30 * * * *", "Europe/Oslo", "2026-03-29T01:00",
         ["03-29 01:30:00 +0100", "03-29 03:30:00 +0200"]),
        # Set back: a fixed time once, the first time; a star each time.
        ("30 2 * * *", "Europe/Oslo", "2026-10-24T03:00",
         ["10-25 02:30:00 +0200", "10-26 02:30:00 +0100"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00",
         ["04-05 01:45:00 +1100", "04-06 01:45:00 +1030"]),
        ("0 */1 * * *", "America/New_York", "2026-11-01T00:30",
         ["11-01 01:00:00 -0400", "11-01 01:00:00 -0500", "11-01 02:00:00 -0500"]),
        ("*/20 1 * * *", "America/New_York", "2026-11-01T01:15",
         ["11-01 01:20:00 -0400", "11-01 01:40:00 -0400", "11-01 01:00:00 -0500",
          "11-01 01:20:00 -0500"]),
]  # fmt: skip
MISTAKES = [
    ("", "not a cron expression"),
    ("* * * *", "not a cron expression"),
    ("* * * * * * *", "not a cron expression"),
    ("@fortnightly", "not a cron expression"),
    ("@every", "not a cron expression"),
    ("@every day", "interval of @every"),
    ("@every 0.5s", "interval of @every"),
    ("@every 1 month", "interval of @every"),
    ("@every -1h", "interval of @every"),
    ("60 * * * *", "'60' cannot be the minute"),
    ("60 * * * * *", "'60' cannot be the second"),
    ("* 24 * * *", "'24' cannot be the hour"),
    ("* * 0 * *", "'0' cannot be the day of the month"),
    ("* * 32 * *", "'32' cannot be the day of the month"),
    ("* * L-1 * *", "'l-1' cannot be the day of the month"),
    ("* * * 13 *", "'13' cannot be the month"),
    ("* * * foo *", "'foo' cannot be the month"),
    ("* * * mon *", "'mon' cannot be the month"),
    ("* * * * 8", "'8' cannot be the day of the week"),
    ("* * * * fri-tue", "'fri-tue' cannot be the day of the week"),
    ("* * * * fri#6", "'fri#6' cannot be the day of the week"),
    ("* * * * mon-friL", "'mon-fril' cannot be the day of the week"),
    ("* * L/2 * *", "'l/2' cannot be the day of the month"),
    ("*/0 * * * *", "'*/0' cannot be the minute"),
    ("*-5 * * * *", "'*-5' cannot be the minute"),
    ("5-1 * * * *", "'5-1' cannot be the minute"),
    ("1,,2 * * * *", "'' cannot be the minute"),
    ("1L * * * *", "'1l' cannot be the minute"),
    ("-1 * * * *", "'-1' cannot be the minute"),
    ("0 0 30 2 *", "never runs"),
    ("0 0 31 4,6,9,11 *", "never runs"),
]


async def test_the_times_of_an_expression(connection: Connection) -> None:
    for cron, expected in MEANINGS:
        # A Wednesday.
        found = await times(connection, cron, "UTC", "2026-01-14T12:00:00", len(expected))
        assert found == [f"{time} +0000" for time in expected], cron


async def test_times_when_the_clock_is_set(connection: Connection) -> None:
    for cron, zone, after, expected in CLOCKS:
        found = await times(connection, cron, zone, after, len(expected))
        assert found == expected, (cron, zone)


async def test_an_invalid_expression_is_refused(connection: Connection) -> None:
    for cron, complaint in MISTAKES:
        with pytest.raises(InvalidArgumentError) as caught:
            await value(connection, "cron_next", cron=cron)
        assert complaint in str(caught.value), cron
        assert caught.value.hint


def test_python_checks_expressions_as_the_database_does() -> None:
    """But for what needs a calendar, and for intervals."""
    for cron in [cron for cron, _ in MEANINGS] + [cron for cron, *_ in CLOCKS]:
        check_cron(cron)
    for cron, complaint in MISTAKES:
        if "interval" not in complaint and "never runs" not in complaint:
            with pytest.raises(ConfigurationError, match=re.escape(complaint)):
                check_cron(cron)


async def test_other_arguments_that_are_refused(connection: Connection) -> None:
    with pytest.raises(InvalidArgumentError, match="no time zone 'Europe/Olso'"):
        await value(connection, "cron_next", cron="@daily", timezone="Europe/Olso")
    with pytest.raises(InvalidArgumentError, match="infinity"):
        await connection.fetchval("select messages.cron_next('* * * * *', 'UTC', 'infinity')")
    with pytest.raises(InvalidArgumentError, match="not a cron expression"):
        await connection.fetchval("select messages.cron_next(null)")


# Against another implementation of the same rules, those of Debian's cron.


def field(lowest: int, highest: int) -> st.SearchStrategy[str]:
    number = st.integers(lowest, highest)
    # It reads 5-5/2 as 5/2.
    ends = st.lists(number, min_size=2, max_size=2, unique=True).map(sorted)
    span = ends.map(lambda ends: f"{ends[0]}-{ends[1]}")
    step = st.tuples(st.sampled_from(["*", *map(str, range(lowest, lowest + 3))]) | span,
                     st.integers(1, 12)).map(lambda parts: f"{parts[0]}/{parts[1]}")  # fmt: skip
    term = number.map(str) | span | step
    few = st.lists(term, min_size=1, max_size=3).map(",".join)
    return st.just("*") | term | few


# Those whose rules have stayed: server and Python have databases of their own.
ZONES = [
    "America/Havana", "America/New_York", "Asia/Beirut", "Asia/Kathmandu",
    "Australia/Lord_Howe", "Europe/Dublin", "Europe/Oslo", "Pacific/Chatham", "UTC",
]  # fmt: skip
# Each of these zones changes its clocks within a day or two of some of these.
CHANGES = ["2026-03-08", "2026-03-29", "2026-04-05", "2026-09-27", "2026-10-04", "2026-10-25",
           "2026-11-01", "2027-03-14"]  # fmt: skip
moments = st.tuples(
    st.sampled_from(CHANGES), st.integers(-36 * 60, 36 * 60), st.integers(0, 59)
).map(
    lambda parts: (
        datetime.fromisoformat(parts[0]).replace(tzinfo=UTC)
        + timedelta(minutes=parts[1], seconds=parts[2])
    )
)
expressions = st.tuples(
    field(0, 59), field(0, 23), field(1, 28), field(1, 12) | st.just("*"), field(0, 7)
).map(" ".join)
near = st.tuples(field(0, 59), field(0, 4), st.just("*"), st.just("*"), st.just("*")).map(" ".join)


@pytest.fixture(scope="module")
def session(server: str, template: str) -> Iterator[Session]:
    with cloned(server, template, f"{template}_clock") as dsn, closing(Session(dsn)) as session:
        yield session


@settings(
    max_examples=400,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(cron=near | expressions, zone=st.sampled_from(ZONES), after=moments)
def test_times_are_those_of_another_implementation(
    session: Session, cron: str, zone: str, after: datetime
) -> None:
    expected: list[datetime] = []
    simulated = CronSim(cron, after.astimezone(ZoneInfo(zone)))
    while len(expected) < 5:
        at = next(simulated).astimezone(UTC)
        # It gives times that were jumped over, or came before, once more.
        if at > (expected[-1] if expected else after):
            expected.append(at)
    found = session.run(session.ours.fetch(TIMES, cron, zone, after, 5))
    assert [row["at"] for row in found] == expected


words = st.text("0123456789*-/,#lmonfrijawL", min_size=1, max_size=7)
near_expressions = st.tuples(*[field_ | words for field_ in (
    field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7)
)]).map(" ".join)  # fmt: skip


@settings(
    max_examples=400,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(cron=near_expressions)
def test_python_refuses_what_the_database_refuses(session: Session, cron: str) -> None:
    problems: list[str] = []
    try:
        check_cron(cron)
    except ConfigurationError as error:
        problems.append(str(error))
    try:
        session.run(session.ours.fetch("select messages.cron_next($1)", cron))
    except InvalidArgumentError as error:
        if "never runs" not in str(error):
            problems.append(str(error))
    assert len(problems) != 1, problems
