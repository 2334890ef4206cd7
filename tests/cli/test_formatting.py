"""How values are read from the command line and shown on it."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notifyq.cli.demo import without_password
from notifyq.cli.logs import formatter
from notifyq.cli.options import duration, instant
from notifyq.cli.output import cell, when
from notifyq.cli.policy import schema
from notifyq.models.payload import check_json
from notifyq.operations.texts import span
from notifyq.printable import printable
from support.database import Connection


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("30", 30), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("2d", 172_800)),
        *(
            ("250ms", 0.25),
            ("1.5h", 5400),
            (" 1h 30m ", 5400),
            ("0", 0),
            ("365000d", 365e3 * 86400),
        ),
    ],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", " ", "s", "5x", "-1s", "1e3s", "1,5h", "365001d", "9" * 400])
def test_a_wrong_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration(text)


def test_a_schema_that_is_too_deep_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="is not JSON"):
        schema('{"a":' * 100_000)


def test_instant_without_offset_is_local() -> None:
    assert instant("2030-01-31T12:00").utcoffset() is not None
    assert instant("2030-01-31T12:00Z") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert instant("2030-01-31T12:00+05:30") == datetime(2030, 1, 31, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (0.0123, "12.3 ms"), (0.9996, "1,000 ms"), (3.42, "3.42 s")),
        *(
            (119, "119 s"),
            (300, "5 min"),
            (7200, "2 h"),
            (2_592_000, "30 d"),
            (31_536_000 * 9, "3,285 d"),
        ),
    ],
)
def test_span_is_short(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_instant_has_its_date_unless_it_is_today() -> None:
    now = datetime.now(tz=UTC)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", when(now))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", when(now - timedelta(days=2)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", when(now, full=True))


def test_cell_is_one_line_of_plain_text() -> None:
    assert cell(None) == ""
    assert (cell(value=True), cell(value=False)) == ("yes", "")
    assert cell("first\nsecond") == "first"
    assert cell({"a": [1, "é"]}) == '{"a":[1,"é"]}'
    assert cell({"a": "\u009b1m\u202e"}) == '{"a":"?1m?"}'
    assert len(cell("x" * 1_000_000)) == 1000
    assert printable("a\x1b[1m\u009b\u202eb\x00") == "a?[1m??b?"


def test_a_traceback_in_the_log_cannot_control_the_terminal() -> None:
    error = ValueError("\x1b[31mred\n\u009bsecond line")
    record = logging.makeLogRecord({"msg": "failed", "exc_info": (ValueError, error, None)})
    assert formatter("text").format(record).endswith("ValueError: ?[31mred\n?second line")


@pytest.mark.parametrize(
    ("dsn", "public", "has"),
    [
        ("postgresql://u:p@h:1/d", "postgresql://u@h:1/d", True),
        ("postgresql://u:p%40@h/d?sslmode=allow", "postgresql://u@h/d?sslmode=allow", True),
        ("postgresql://u:p@q@h/d", "postgresql://u@h/d", True),
        ("postgresql://h/d?user=u&password=p", "postgresql://u@h/d", True),
        ("postgresql://u@h/d", "postgresql://u@h/d", False),
        ("host=h dbname=d password='p q'", "postgresql://h/d", True),
        ("", "", False),
    ],
)
def test_the_password_is_removed_from_a_dsn(dsn: str, public: str, has: bool) -> None:
    assert without_password(dsn) == (public, has)


PIECES = [
    *("\\ud800", "\\uDC00", "\\udbff", "\\uDFFF", "\\\\", "\\u0000", "\\u0001", '\\"', "\\n"),
    *("u0000", "ud800", "x", "é", "\\u00e9"),
]
NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.sampled_from(["0", "1", "12345", "9" * 131_072, "9" * 131_073]),
    st.sampled_from(["", ".0", ".5", "." + "1" * 16_383, "." + "1" * 16_384]),
    st.sampled_from(["", "e5", "E-5", "e131071", "e131072", "e-16383", "e-16384", "e999999"]),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map(lambda pieces: f'"{"".join(pieces)}"')


def is_taken(text: str) -> bool:
    try:
        check_json(text)
    except ValueError:
        return False
    return True


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TEXTS | NUMBERS)
async def test_json_is_accepted_if_postgresql_accepts_it(connection: Connection, text: str) -> None:
    try:
        await connection.execute(f"select '{text}'::jsonb")
    except asyncpg.DataError:
        taken = False
    else:
        taken = True
    assert is_taken(text) is taken
