"""`notifyq report`: its numbers are those of the archive, and its page shows texts as they are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from cli.programs import Notifyq
from notifyq.database.pool import Database
from notifyq.operations.report import gather, page, picture
from notifyq.operations.report.charts import change
from notifyq.operations.texts import NONE, clean, percent, short, span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.database import Connection

HOSTILE = "<script>alert('$x$ & \"y\"')</script>"
UNTIL = datetime(2026, 3, 9, tzinfo=UTC)

FILL = """
insert into messages.message_archive (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, message, headers, details
)
select i, a.at - interval '3 s', a.at - interval '3 s', a.at - interval '1 s' * (1 + i % 2), a.at,
  1, 0, 1 + i % 2, (case when i % 10 = 0 then 'failed' else 'success' end)::messages.message_status,
  (array['mail', 'bills', $1, '請求書 🧾'])[1 + i % 4], null, 'w' || i % 3 || $1, '1', '{}',
  case when i % 10 = 0 then $1 || ' ' || i end
from generate_series(1, 800) as i
cross join lateral (select timestamptz '2026-03-09 00:00+00' - interval '15 min' * i as at) as a
"""


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in {"src", "href", "xlink:href"}:
                self.links.append(value or "")


@pytest.fixture
async def filled(connection: Connection) -> None:
    await connection.execute(
        "select notifyq.make_partition('message_archive', 'archived_at', day::date) "
        "from generate_series('2026-03-01'::date, '2026-03-08'::date, '1 day') as day"
    )
    await connection.execute(FILL, HOSTILE)


@pytest.fixture
def notifyq(database: str) -> Iterator[Notifyq]:
    with Notifyq(database) as notifyq:
        yield notifyq


@pytest.mark.usefixtures("filled")
async def test_the_numbers_are_those_of_the_archive(database: str) -> None:
    async with Database(database) as opened:
        report = await gather(opened)
    assert (report.lake, report.until, report.step) == (0, UNTIL, timedelta(hours=1))
    assert report.since == UNTIL - timedelta(days=7)
    assert report.total is not None
    assert (report.total.finished, report.total.dead, report.total.retried) == (672, 67, 336)
    assert len(report.timeline) == 168
    assert {group.finished for group in report.timeline} == {4}
    assert {group.queue: group.finished for group in report.queues} == dict.fromkeys(
        ["mail", "bills", HOSTILE, "請求書 🧾"], 168
    )
    assert [(it.errors, it.sample) for it in report.failures] == [(67, f"{HOSTILE} 10")]
    assert sum(it.finished for it in report.workers) == 672
    whole, *_ = report.growth
    assert (whole.before, whole.now) == (128, 672)
    wait = report.total.wait["p50"]
    assert wait is not None
    assert wait / timedelta(seconds=1) == pytest.approx(1, rel=0.01)


@pytest.mark.usefixtures("filled")
async def test_the_page_escapes_hostile_texts(database: str) -> None:
    async with Database(database) as opened:
        text = page(await gather(opened))
    shown = Page(text)
    assert {"script", "img", "iframe", "link", "object"} & set(shown.tags) == set()
    assert "&lt;script&gt;alert" in text
    # What is in a drawing refers to nothing but parts of it, and no two have a name in common.
    assert [it for it in shown.links if not it.startswith("#")] == []
    assert len(shown.ids) == len(set(shown.ids))
    assert set(re.findall(r"url\((?!#)", text)) == set()
    # Each drawing, one for a wide and one for a narrow window, has a title and a description.
    titles = re.findall(r'role="img".*?<title [^>]+>([^<]+)</title><desc [^>]+>[^<]+</desc>', text)
    assert len(titles) == text.count('role="img"') == 14
    assert {"Throughput", "Growth"} <= set(titles)


@pytest.mark.usefixtures("filled")
async def test_the_picture_is_a_png(database: str) -> None:
    async with Database(database) as opened:
        data = picture(await gather(opened))
    assert data.startswith(b"\x89PNG\r\n")


async def test_a_report_without_messages_reports_that(notifyq: Notifyq, tmp_path: Path) -> None:
    for name in ("r.html", "r.png"):
        ended = notifyq("report", "--out", str(tmp_path / name))
        assert (ended.code, ended.err) == (0, "")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "There are no messages in this time" in text
    assert "No message has been finished yet" in text


@pytest.mark.usefixtures("filled")
async def test_a_range_without_messages_names_the_range_with_messages(
    notifyq: Notifyq, tmp_path: Path
) -> None:
    file = tmp_path / "r.html"
    ended = notifyq("report", "--out", str(file), "--until", "2026-01-01T00:00Z")
    assert ended.code == 0
    assert "There are messages from 2026-02-28" in file.read_text(encoding="utf-8")


@pytest.mark.usefixtures("filled")
async def test_a_range_has_whole_hours(notifyq: Notifyq, tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    ended = notifyq(
        "report", "-o", str(file), "--since", "2026-03-07T10:20Z", "--until", "2026-03-07T12:20Z"
    )
    assert ended.out == f"{file}: 12 messages, 2026-03-07 10:00 to 2026-03-07 13:00 UTC\n"


@pytest.mark.usefixtures("filled")
async def test_what_was_written_is_printed_as_json(notifyq: Notifyq, tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    options = ["--since", "2026-03-07T10:20Z", "--until", "2026-03-07T12:20Z"]
    [facts] = notifyq.good("report", "-o", str(file), "--json", *options).data
    assert (facts["file"], facts["messages"]) == (str(file), 12)
    assert facts["since"] == "2026-03-07T10:00:00Z"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--out", "r.pdf"], "neither .html nor .png"),
        (["--out", "missing/r.html"], "missing"),
        (["--since", "2026-03-08", "--until", "2026-03-07"], "is not before"),
        (["--lake", "x"], "valid integer"),
    ],
)
async def test_a_wrong_option_is_refused_in_one_line(
    notifyq: Notifyq, options: list[str], error: str
) -> None:
    ended = notifyq("report", *options)
    assert ended.code != 0
    assert error in ended.err
    assert ended.err.count("\n") == 1


def test_numbers_are_formatted() -> None:
    assert [span(it) for it in (None, 0, 1e-4, 0.0123, 3.4, 3600, 1e7)] == [
        NONE, "0 s", "100 µs", "12.3 ms", "3.4 s", "60 min", "116 d",
    ]  # fmt: skip
    assert [percent(it) for it in (0, 0.0001, 0.0123, 0.9999, 1)] == [
        "0 %", "< 0.1 %", "1.23 %", "> 99.9 %", "100 %",
    ]  # fmt: skip
    assert [change(it) for it in (None, -0.05, 0.12, 2.4)] == ["new", "-5 %", "+12 %", "3.4 times"]
    assert [short(it) for it in (0, 950, 12_000, 3.4e6)] == ["0", "950", "12 k", "3.4 M"]
    assert clean("a\x1b[31m\u202eb") == "a\ufffd[31m\ufffdb"
