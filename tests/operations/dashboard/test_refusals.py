"""Pages when the server refuses one of the statements: a clear sentence, and other pages work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import AsyncExitStack

import pytest

from notifyq.operations.dashboard.view import Cache
from operations.dashboard.conftest import Browser, make_dead
from support.database import Connection, publish, value
from support.refusing import LIMITED, OF_ALL, refusing

READS = [
    "messages.backlog", "messages.throughput", "messages.workers", "messages.activity",
    "messages.cron_entries", "messages.health", "messages.audit_list", "messages.message_find",
    "messages.archive_find", "messages.steps", "messages.attempts", "messages.schedule_info",
    "messages.stream_info", "messages.subscription_info", "notifyq.subscription_lags",
    "notifyq.search_live", "notifyq.search_archive", "notifyq.dead_groups", "notifyq.queue_list",
    "notifyq.error_fingerprint", "notifyq.message_relatives", "notifyq.open_batches",
    "messages.forwards", "messages.parked", "messages.progress", "messages.output",
]  # fmt: skip
"""What pages call."""
ACTIONS = ["messages.pause_queue", "notifyq.note_audit"]
CALLS = [*READS, *ACTIONS]
PAGES = [
    "/", "/queues", "/queue?name=default", "/messages", "/messages?state=dead", "/dead",
    "/streams", "/schedules", "/workers", "/parked", "/health", "/audit",
]  # fmt: skip
TITLES = {
    **dict.fromkeys(["42501"], (403, "Not permitted")),
    **dict.fromkeys(["42P01", "42883", "3F000"], (503, "The schema has another version")),
    **dict.fromkeys(["57014", "40001", "53300"], (503, "The database is away")),
    **dict.fromkeys(["55000", "XX000"], (503, "The database refused this")),
}
"""How a page reports that its statement was refused."""


async def test_what_was_being_read_before_a_change_is_not_shown_after_it() -> None:
    cache, go_on, reads = Cache(), asyncio.Event(), 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        number = reads
        await go_on.wait()
        return number

    first = asyncio.ensure_future(cache.get("queues", 60, read))
    await asyncio.sleep(0)  # one turn of the loop, in which the read begins
    cache.forget()
    second = asyncio.ensure_future(cache.get("queues", 60, read))
    await asyncio.sleep(0)
    go_on.set()
    assert (await first, await second) == (1, 2)


def forget(browser: Browser, *, checks: bool = True) -> None:
    """Have pages read anew; the checks of the doctor only where they matter: they take long."""
    desk = browser.app.state.dashboard
    kept = desk.cache._kept.get("checks")
    desk.cache.forget()
    if checks:
        desk.checked = None
    elif kept is not None:
        desk.cache._kept["checks"] = kept


@pytest.mark.parametrize("function", READS)
async def test_only_pages_whose_statement_is_refused_report_it(
    reader: Browser, connection: Connection, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    [dead] = await make_dead(connection)
    [waiting] = await publish(connection, 1)
    await value(connection, "create_stream", name="news")
    await connection.execute("select messages.subscribe('news', 'reader')")
    pages = [*PAGES, f"/messages/{dead}", f"/messages/{waiting}"]

    async def reports(state: str, pages: Iterable[str]) -> set[str]:
        """Pages that report the refusal, on the whole or in a part."""
        found = set()
        async with refusing(connection, function, state):
            forget(reader, checks=function == "messages.health" or state == OF_ALL[0])
            for page in pages:
                answer = await reader.get(page)
                if answer.status_code != 200:
                    status, title = TITLES[state]
                    assert answer.status_code == status, (page, answer.text)
                    assert title in answer.text, page
                    assert "efused for a test" in answer.text
                    assert "Traceback" not in answer.text
                if "efused for a test" in answer.text:
                    found.add(page)
        return found

    # The others do not call the function, whatever its state.
    callers = set()
    for state in (OF_ALL[0], LIMITED[-1]):
        callers |= await reports(state, pages)
    assert 0 < len(callers) < len(pages)
    for state in (*OF_ALL[1:], *LIMITED[:-1]):
        # The doctor has findings of its own about a schema that is missing.
        assert await reports(state, callers) or function == "messages.health"
    forget(reader)
    for page in callers:
        await reader.text(page)
    assert not [it for it in caplog.records if it.exc_info]


@pytest.mark.parametrize("state", [*OF_ALL, "55000", "XX000"])
async def test_a_part_that_is_refused_hides_no_other_part(
    reader: Browser, connection: Connection, state: str
) -> None:
    [waiting] = await publish(connection, 1)
    await value(connection, "create_stream", name="news")
    await connection.execute("select messages.subscribe('news', 'reader')")
    parts = [
        ("/", "messages.backlog", "Oldest waiting", "Failure rate"),
        ("/", "messages.throughput", "Failure rate", "Oldest waiting"),
        ("/", "notifyq.subscription_lags", "Subscribers behind", "Oldest waiting"),
        ("/", "notifyq.queue_list", 'value="default"', "Oldest waiting"),
        ("/health", "messages.activity", "Nothing holds an old snapshot", "<h2>pg_cron</h2>"),
        ("/health", "messages.cron_entries", "pg_cron has no entry", "<h2>Old snapshots</h2>"),
        ("/health", "messages.health", "NOTIFY queue", "<h2>pg_cron</h2>"),
        ("/queues", "messages.throughput", ">0</td><td", ">default</a>"),
        ("/queue?name=default", "messages.backlog", "Oldest waiting", "<h2>Policy</h2>"),
        ("/schedules", "messages.backlog", "no worker", "There are no schedules."),
        ("/streams", "messages.subscription_info", "No subscribers", ">news</h2>"),
        ("/streams", "notifyq.open_batches", "Open batches", ">reader"),
        (f"/messages/{waiting}", "messages.attempts", "Failed attempts", "<h2>Payload</h2>"),
        (f"/messages/{waiting}", "messages.steps", "<h2>Steps</h2>", "<h2>Payload</h2>"),
        (f"/messages/{waiting}", "messages.parked", "Parked in", "<h2>Payload</h2>"),
        (f"/messages/{waiting}", "messages.progress", "<h2>Output</h2>", "<h2>Payload</h2>"),
        (f"/messages/{waiting}", "messages.output", "<h2>Output</h2>", "<h2>Payload</h2>"),
        (f"/messages/{waiting}", "notifyq.message_relatives", "Retried as", "<h2>Payload</h2>"),
    ]
    for page, function, hidden, shown in parts:
        forget(reader, checks=function == "messages.health")
        async with refusing(connection, function, state):
            answer = await reader.get(page)
        assert answer.status_code == 200, (page, function, answer.text)
        assert "efused for a test" in answer.text, (page, function)
        assert shown in answer.text, (page, function)
        assert hidden not in answer.text, (page, function)


async def test_where_each_part_is_refused_the_page_reports_it(
    reader: Browser, connection: Connection
) -> None:
    async with AsyncExitStack() as stack:
        for function in ("stream_info", "subscription_info", "forwards"):
            await stack.enter_async_context(refusing(connection, f"messages.{function}", "42501"))
        await stack.enter_async_context(refusing(connection, "notifyq.open_batches", "42501"))
        assert (await reader.get("/streams")).status_code == 403


async def test_an_action_that_is_refused_reports_it_and_changes_nothing(
    writer: Browser, connection: Connection
) -> None:
    for state in (*OF_ALL, *LIMITED):
        status, title = TITLES[state]
        for function in ACTIONS:
            async with refusing(connection, function, state):
                answer = await writer.send("/queues/pause", name="default")
                assert (answer.status_code, title in answer.text) == (status, True), answer.text
                assert "efused for a test" in answer.text
            assert not await connection.fetchval("select paused from messages.queue")
        await writer.act("/queues/pause", name="default")
        assert await connection.fetchval("select paused from messages.queue")
        await value(connection, "resume_queue", name="default")


async def test_live_values_come_back(reader: Browser, connection: Connection) -> None:
    live = reader.app.state.dashboard.live
    live._interval = 0.1
    for state in (*OF_ALL, *LIMITED):
        async with live.listen() as viewer:
            assert not json.loads(await viewer.get())["is_away"]
            async with refusing(connection, "messages.backlog", state):
                found = json.loads(await viewer.get())
                assert found["is_away"]
                assert found["is_refused"] == (state not in {"57014", "40001", "53300"})
                assert "refused for a test" in found["reason"]
            assert not json.loads(await viewer.get())["is_away"]
