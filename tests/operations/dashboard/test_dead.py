"""Dead messages in groups, and what is done to all of a group or of a filter."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from notifyq.operations.dashboard import matching
from operations.dashboard.conftest import Browser, make_dead
from support.database import Connection, rows, value


def fields_of(page: str) -> dict[str, Any]:
    """The hidden fields of the form on a page of confirmation or progress."""
    form = page[page.index('<form method="post"', page.index("<main")) :]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    return {name: html.unescape(text) for name, text in found if name != "csrf"}


async def test_dead_messages_are_grouped_by_error(reader: Browser, connection: Connection) -> None:
    ids = await make_dead(connection, 3, "Timeout after 5 s")
    await make_dead(connection, 1, None)
    page = await reader.text("/dead")
    assert "Timeout after &lt;n&gt; s" in page
    assert f'href="/messages?state=dead&amp;like={ids[-1]}"' in page
    assert "(no details)" in page
    assert "4 dead messages were scanned" in page
    assert "Retry" not in page
    listed = await reader.text(f"/messages?state=dead&like={ids[-1]}")
    assert re.findall(r'<th scope="row"><a href="/messages/(\d+)">', listed) == [
        str(it) for it in reversed(ids)
    ]
    assert "No dead messages" in await reader.text("/dead?queue=other")


async def test_retrying_a_group_shows_the_number_first(
    writer: Browser, connection: Connection
) -> None:
    ids = await make_dead(connection, 3, "Timeout after 5 s")
    other = await make_dead(connection, 1, "another")
    asked = await writer.send("/dead/retry", like=ids[0], state="dead", back="/dead")
    assert "Retry 3 dead messages?" in asked.text
    fields = fields_of(asked.text)
    # Messages that fail after the confirmation was shown are left out.
    late = await make_dead(connection, 1, "Timeout after 7 s")
    page = await writer.act("/dead/retry", **fields)
    assert "3 dead messages were retried." in page
    redriven = await connection.fetch("select archive_id from notifyq.redrive order by 1")
    assert [row[0] for row in redriven] == ids
    # Sent twice, it does nothing more.
    assert "0 dead messages were retried." in await writer.act("/dead/retry", **fields)
    assert await connection.fetchval("select count(*) from messages.message") == 3
    left = await rows(connection, "dead_list")
    assert {row["id"] for row in left} == {*other, *late}
    audit = await connection.fetch("select action, details from messages.audit order by id")
    assert [(row["action"], row["details"]["done"]) for row in audit] == [
        ("dead.retry", 3),
        ("dead.retry", 0),
    ]


async def test_matching_messages_are_deleted_in_steps(
    writer: Browser, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_STEP", 2)
    monkeypatch.setattr(matching, "_SECONDS", 0)
    await value(connection, "create_queue", name="q")
    await make_dead(connection, 5, queue="q")
    kept = await make_dead(connection, 1)
    asked = await writer.send("/dead/discard", queue="q", state="failed", back="/dead?queue=q")
    assert "Delete 5 dead messages?" in asked.text
    answer = await writer.send("/dead/discard", **fields_of(asked.text))
    assert "2 dead messages were deleted." in answer.text
    assert "data-go-on" in answer.text
    answer = await writer.send("/dead/discard", **fields_of(answer.text))
    assert "4 dead messages were deleted." in answer.text
    answer = await writer.send("/dead/discard", **fields_of(answer.text))
    assert answer.headers["location"] == "/dead?queue=q"
    assert "5 dead messages were deleted." in await writer.text("/dead?queue=q")
    assert [row["id"] for row in await rows(connection, "dead_list")] == kept


async def test_a_whole_group_is_deleted(
    writer: Browser, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is known by one of its messages, which must be the last to go."""
    monkeypatch.setattr(matching, "_STEP", 2)
    monkeypatch.setattr(matching, "_SECONDS", 0)
    ids = await make_dead(connection, 5, "Timeout after 5 s")
    answer = await writer.send("/dead/discard", like=ids[0], state="dead", back="/dead")
    for _ in range(3):
        answer = await writer.send("/dead/discard", **fields_of(answer.text))
    assert answer.headers["location"] == "/dead"
    assert not await connection.fetchval("select count(*) from messages.message_archive")


async def test_messages_without_a_queue_are_reported(
    writer: Browser, connection: Connection
) -> None:
    await value(connection, "create_queue", name="gone")
    await make_dead(connection, 2, queue="gone")
    await make_dead(connection, 1)
    await value(connection, "drop_queue", name="gone")
    asked = await writer.send("/dead/retry", state="dead", back="/dead")
    page = await writer.act("/dead/retry", **fields_of(asked.text))
    assert "1 dead message was retried. 2 were not" in page
    nothing = await writer.act("/dead/retry", queue="nothing", state="dead", back="/dead")
    assert "Nothing was done" in nothing


async def test_only_dead_messages_can_be_retried_or_deleted(
    reader: Browser, writer: Browser
) -> None:
    assert (await writer.send("/dead/retry", state="success")).status_code == 400
    assert (await writer.send("/dead/discard", confirmed="yes")).status_code == 400
    assert (await reader.send("/dead/discard", state="dead")).status_code == 403
