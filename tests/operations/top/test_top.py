"""`notifyq top` at 80 columns and 24 lines, on a database that has something of everything."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import pytest
from rich.cells import cell_len

from notifyq.chaos.proxy import Proxy
from notifyq.cli.top import as_text
from notifyq.database.pool import Database
from notifyq.operations import monitor
from notifyq.operations.masks import HIDDEN, Masks
from notifyq.operations.monitor import Figure, Health, Lag
from notifyq.operations.top.app import Top
from notifyq.operations.top.frame import line
from notifyq.operations.top.listing import MESSAGES
from notifyq.operations.top.snapshot import Snapshot, Source
from notifyq.operations.top.table import Table
from notifyq.operations.top.text import _of_server
from notifyq.operations.top.views import QUEUES, VIEWS, chosen, fitting
from operations.top.filled import fill
from support.database import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.pilot import Pilot

    from support.database import Connection

QUICKLY = timedelta(seconds=0.2)


def shown(pilot: Pilot[None]) -> str:
    """Give the text that the terminal shows."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


async def see(pilot: Pilot[None], *texts: str, hidden: str | None = None) -> str:
    """Wait until all of this is shown, and `hidden` no more."""
    seen = ""

    async def is_shown() -> bool:
        nonlocal seen
        await pilot.pause()
        seen = shown(pilot)
        return all(text in seen for text in texts) and (hidden is None or hidden not in seen)

    try:
        await until(is_shown, "it is shown", seconds=20)
    except TimeoutError:
        pytest.fail(f"{texts} are not all shown:\n{seen}")
    return seen


@asynccontextmanager
async def watching(
    dsn: str, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[Pilot[None]]:
    async with Database(dsn) as database:
        source = Source(database, options.pop("masks", Masks()))
        app = Top(source, every=options.pop("every", QUICKLY), **options)
        async with app.run_test(size=size) as pilot:
            yield pilot


async def test_each_view_shows_its_rows(database: str, connection: Connection) -> None:
    await fill(connection)
    async with watching(database) as pilot:
        text = await see(pilot, "billing", "66", "paused", "4m")
        lines = text.splitlines()
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert "waiting 86  locked 4  dead/day 10  rate 1.2/s  failing 0.17/s" in text
        assert lines[-1].endswith("q quit")
        await pilot.press("2")
        await see(pilot, "web-1:4711:abcdef", "working", "4/10")
        await pilot.press("enter")
        await see(pilot, "4 messages locked", "billing", "concurrency")
        await pilot.press("escape", "3")
        await see(pilot, "TimeoutError: bank", "unknown address", "rejected")
        await pilot.press("tab")
        await see(pilot, "orders", "warehouse", "42")
        await pilot.press("5")
        await see(pilot, "database_bytes", "MB")
        await pilot.press("question_mark")
        await see(pilot, "retry dead messages (confirm)")


async def test_a_queue_without_a_worker_is_marked(database: str, connection: Connection) -> None:
    await connection.execute("select messages.publish('default', '1')")
    await connection.execute("update messages.message set available_at = now() - interval '1 hour'")
    async with watching(database) as pilot:
        await see(pilot, "default", "60m", "no worker")


async def test_a_queue_opens_its_messages_and_a_message_its_details(
    database: str, connection: Connection
) -> None:
    await fill(connection)
    await connection.execute(
        r"""select messages.publish('ledger', '{"text": "\u001b[2J wiped", "n": 1}')"""
    )
    await connection.execute(
        """select messages.publish('ledger', '{"$encrypted": {"key": "k1"}}', priority => -1)"""
    )
    async with watching(database) as pilot:
        await see(pilot, "billing")
        await pilot.press("enter")
        await see(pilot, "queue billing", "[live]", "locked", '{"order": 72')
        await pilot.press("tab")
        await see(pilot, "[dead]", "failed", "TimeoutError: bank")
        await pilot.press("enter")
        await see(pilot, "message 67", "details:", '"order": 67', "attempt 1: failed")
        await pilot.press("escape", "escape")
        await see(pilot, "[1 Queues]", "ledger")
        await pilot.press("down", "down", "enter")
        assert "$encrypted" not in await see(pilot, "encrypted with k1", "wiped")
        await pilot.press("enter")
        text = await see(pilot, "wiped", '"n": 1')
        assert "\x1b" not in text


async def test_rows_are_filtered_and_sorted(database: str, connection: Connection) -> None:
    await fill(connection)

    def names(pilot: Pilot[None]) -> list[str]:
        return [row.queue for row in pilot.app.screen.query_one(Table).shown]

    async with watching(database) as pilot:
        await see(pilot, "thumbnails")
        await pilot.press("s")
        await see(pilot, "waiting▾")
        assert names(pilot)[:2] == ["billing", "mail"]
        await pilot.press("S")
        await see(pilot, "waiting▴")
        assert names(pilot)[-2:] == ["mail", "billing"]
        await pilot.press("slash", "m", "a", "i", "enter")
        await see(pilot, "filter: mai")
        assert names(pilot) == ["mail"]
        await pilot.press("escape")
        await see(pilot, "billing")


async def test_changes_are_confirmed_and_audited(database: str, connection: Connection) -> None:
    await fill(connection)

    async def paused() -> bool:
        return bool(await connection.fetchval("select paused from messages.queue_info('billing')"))

    async with watching(database) as pilot:
        await see(pilot, "billing")
        await pilot.press("p")
        await see(pilot, "Pause the queue billing?")
        await pilot.press("n", "p")
        await see(pilot, "Pause the queue billing?")
        assert not await paused()
        await pilot.press("y")
        await see(pilot, "billing is paused")
        assert await paused()
        async with asyncio.timeout(20):
            while not pilot.app.screen.query_one(Table).current.paused:
                await pilot.pause(0.02)
        await pilot.press("p")
        await see(pilot, "Resume the queue billing?")
        await pilot.press("y")
        await see(pilot, "billing is resumed")
        await pilot.press("3")
        await see(pilot, "TimeoutError")
        await pilot.press("r")
        await see(pilot, "Retry these 7 dead messages?")
        await pilot.press("y")
        await see(pilot, "retried 7 dead messages")
        await pilot.press("1", "down", "down", "down", "r")
        await see(pilot, "Retry dead messages of mail")
        await pilot.press("y")
        await see(pilot, "retried 3 dead messages of mail")
    assert await connection.fetchval("select messages.dead_count()") == 0
    noted = await connection.fetch(
        "select action, subject, details ->> 'fingerprint' from messages.audit order by id"
    )
    assert [tuple(row) for row in noted] == [
        ("queue.pause", "billing", None),
        ("queue.resume", "billing", None),
        ("dead.retry", "those found", "TimeoutError: bank <n> did not answer"),
        ("dead.retry", "mail", None),
    ]


async def test_masked_values_are_hidden_on_every_screen(
    database: str, connection: Connection
) -> None:
    await connection.execute("""
      select messages.publish('default', '{"card": {"number": "4000-1234"}, "n": 1}',
        headers => '{"token": "tok-99"}') from generate_series(1, 2);
      select messages.retry(
        c.id, c.lock_token, null, 'ValueError: 4000-1234 with tok-99', 'failed', 'ValueError',
        'Traceback of 4000-1234 with tok-99')
      from messages.claim(array['default'], 1) as c;
      update messages.message_archive set archived_at = archived_at - interval '15 seconds';
    """)
    for masks in (Masks.parse("card.*,token"), Masks(all_payloads=True)):
        async with watching(database, (80, 50), masks=masks) as pilot:
            seen = [await see(pilot, "default")]
            await pilot.press("enter")
            seen += [await see(pilot, "[live]", HIDDEN)]
            await pilot.press("tab")
            seen += [await see(pilot, "[dead]", f"ValueError: {HIDDEN}")]
            await pilot.press("enter")
            seen += [await see(pilot, "attempt 1: failed", "Traceback of", HIDDEN)]
            await pilot.press("escape", "escape", "3")
            seen += [await see(pilot, f"ValueError: {HIDDEN}")]
            await pilot.press("r")
            seen += [await see(pilot, "Retry this dead message?")]
            await pilot.press("n", "enter")
            seen += [await see(pilot, "dead: ValueError")]
            await pilot.press("escape", "r", "y")
            await see(pilot, "retried 1 dead messages")
            noted = await connection.fetchval(
                "select details ->> 'fingerprint' from messages.audit order by id desc"
            )
            assert noted == f"ValueError: {HIDDEN}"
            await connection.execute("delete from notifyq.redrive")
            text = "\n".join(seen)
            assert "4000" not in text
            assert "tok-99" not in text
            assert ('"n": 1' in text) == (not masks.all_payloads)


async def test_read_only_changes_nothing(database: str, connection: Connection) -> None:
    await fill(connection)
    async with watching(database, read_only=True) as pilot:
        text = await see(pilot, "billing", "read-only")
        assert "p pause" not in text
        await pilot.press("p")
        await see(pilot, "nothing can be changed here")
    assert await connection.fetchval("select count(*) from messages.audit") == 0


async def test_the_headline_reports_that_the_database_is_away(
    database: str, connection: Connection
) -> None:
    await fill(connection)
    async with Proxy(database) as proxy, watching(proxy.dsn) as pilot:
        await see(pilot, "billing")
        there = proxy._target
        proxy.redirect("postgresql://nobody@127.0.0.1:1/none")
        proxy.cut()
        text = await see(pilot, "DATABASE AWAY")
        assert "billing" in text  # what was seen last stays
        proxy.redirect(database)
        assert proxy._target == there
        async with asyncio.timeout(20):
            while "AWAY" in shown(pilot):
                await pilot.pause(0.05)


async def test_one_call_runs_at_a_time(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(connection)
    running, most = 0, 0
    fetch = Database._call

    async def counted(self: Database, *args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.03)  # each key is pressed during a call
            return await fetch(self, *args)
        finally:
            running -= 1

    monkeypatch.setattr(Database, "_call", counted)
    async with watching(database, every=timedelta(milliseconds=1)) as pilot:
        await see(pilot, "billing")
        await pilot.press("space", "p", "y", "space")
        await see(pilot, "billing is paused")
        for key in ("space", "3", "enter", "space", "escape", "1", "enter", "tab", "space"):
            await pilot.press(key)
        await see(pilot, "[dead]")
    assert most == 1


@pytest.mark.parametrize("width", [30, 40, 60, 80, 132])
async def test_columns_fit_into_narrow_terminals(
    database: str, connection: Connection, width: int
) -> None:
    await fill(connection)
    async with Database(database) as opened:
        seen = await Source(opened).snapshot()
    for view in VIEWS:
        columns = fitting(view, seen, chosen(view, seen), width)
        assert sum(size + 2 for _, size in columns) <= width, view.name
        assert columns[0][0] is view.columns[0]


@pytest.mark.parametrize("width", [40, 80])
def test_wide_characters_keep_to_the_width(width: int) -> None:
    names = ("発注" * 20, "a" * 50)
    lags = tuple(Lag(name, "me", timedelta(), 0, 0, None) for name in names)
    text = as_text(Snapshot(datetime.now(UTC), lags=lags), width)
    (columns,) = {cell_len(it) for it in text.split("STREAMS\n")[1].splitlines()}
    assert columns <= width


async def test_the_cursor_is_visible_without_colours(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    await fill(connection)
    async with watching(database, size=(60, 15)) as pilot:
        await see(pilot, "billing")
        await pilot.pause()
        strips = pilot.app.screen._compositor.render_strips()
        styles = {
            style.bgcolor
            for strip in strips
            if "billing" in strip.text or "ledger" in strip.text
            if (style := next(iter(strip)).style) is not None
        }
        assert len(styles) == 2


async def test_a_rate_is_that_of_the_last_minute(database: str, connection: Connection) -> None:
    await fill(connection)
    async with Database(database) as opened:
        seen: Snapshot = await Source(opened).snapshot()
    assert seen.rates["billing"].finished == pytest.approx(67 / 60)
    assert seen.rates["billing"].dead == pytest.approx(7 / 60)
    assert seen.total.finished == pytest.approx(70 / 60)
    assert json.dumps(sorted(it.queue for it in chosen(QUEUES, seen, wanted="IL"))) == (
        '["billing", "mail", "thumbnails"]'
    )


@pytest.mark.parametrize(
    ("part", "size", "is_reported"),
    [(0.87, 656 * 1024, False), (0.87, 2**30, True), (0.3, 2**30, False)],
)
def test_only_bloat_of_large_tables_is_reported(part: float, size: int, is_reported: bool) -> None:
    figures = (
        Figure("bloat", "message", part, "ratio"),
        Figure("table_bytes", "message", float(size), "bytes"),
    )
    problems = "; ".join(_of_server(Snapshot(datetime.now(UTC)), Health(figures)))
    assert (problems == f"bloat {part:.0%}") is is_reported


EVIL = "a\x1b]0;owned\x07b\x9b31m\u202e"


def filled(kind: Any) -> Any:
    """Give a value of the type, with control characters in each text."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return filled(inner[0])
    if origin is tuple:
        return (filled(inner[0]),)
    if origin is dict:
        return {filled(inner[0]): filled(inner[1])}
    if is_dataclass(kind):
        # Modules import the names of their annotations for type checks only.
        names = {name: getattr(monitor, name) for name in monitor.__all__}
        names |= {"datetime": datetime, "timedelta": timedelta}
        hints = get_type_hints(kind, localns=names)
        made: Any = kind
        return made(**{it.name: filled(hints[it.name]) for it in fields(kind)})
    plain = {str: EVIL, datetime: datetime.now(UTC), timedelta: timedelta(1), int: 1, float: 1.0}
    return plain.get(kind, kind is bool)


def test_no_text_of_any_view_controls_the_terminal() -> None:
    seen = filled(Snapshot)
    for view in (*VIEWS, MESSAGES):
        rows = chosen(view, seen)
        assert rows
        raw = [column.cell(seen, row) for row in rows for column in view.columns]
        assert any(EVIL in it for it in raw)
        for row in rows:
            for column in view.columns:
                assert column.show(seen, row).isprintable(), (view.name, column.title)
    for text in as_text(seen, 10_000).splitlines():
        assert text.isprintable()
    assert line(EVIL).plain.isprintable()
