"""What is done to all live messages that a search finds."""

from __future__ import annotations

import html

import pytest

from notifyq.operations.dashboard import matching
from operations.dashboard.conftest import Browser
from operations.dashboard.test_dead import fields_of
from support.database import Connection, alive, archived, live, publish, value

ACTIONS = ("cancel", "run-now", "move", "amend")


async def test_cancelling_all_shows_the_number_first_and_goes_in_steps(
    writer: Browser, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_STEP", 2)
    monkeypatch.setattr(matching, "_SECONDS", 0)
    await value(connection, "create_queue", name="q")
    ids = await publish(connection, 3, "q")
    [other] = await publish(connection, 1)
    page = "/messages?state=live&queue=q"
    assert "Cancel all" in await writer.text(page)
    asked = await writer.send("/messages/cancel", state="live", queue="q", back=page)
    assert "Cancel 3 live messages?" in asked.text
    # What is published after the confirmation was shown is left out.
    [late] = await publish(connection, 1, "q")
    answer = await writer.send("/messages/cancel", **fields_of(asked.text))
    assert "2 live messages were cancelled." in answer.text
    answer = await writer.send("/messages/cancel", **fields_of(answer.text))
    assert answer.headers["location"] == page
    assert "3 live messages were cancelled." in await writer.text(page)
    for id_ in ids:
        [row] = await archived(connection, id_)
        assert (row["status"], row["cancelled_by"]) == ("rejected", "anonymous")
    assert await live(connection, other)
    assert await live(connection, late)
    audit = await connection.fetch("select action, details from messages.audit")
    assert [(row["action"], row["details"]["done"], row["details"]["queue"]) for row in audit] == [
        ("message.cancel", 3, "q")
    ]


async def test_messages_are_moved_changed_and_made_due(
    writer: Browser, connection: Connection
) -> None:
    await value(connection, "create_queue", name="q", capacity=1)
    ids = await publish(connection, 2)
    await connection.execute("update messages.message set available_at = now() + interval '1 day'")
    page = "/messages?state=scheduled&queue=default"
    shown = await writer.text(page)
    assert all(f'action="/messages/{action}"' in shown for action in ACTIONS)
    for action, fields, notice in (
        ("amend", {"priority": "7"}, "2 live messages were changed."),
        ("run-now", {}, "2 live messages were made due."),
        ("move", {"to": "q", "state": "waiting"}, f"1 was not: message {ids[1]}: queue"),
    ):
        given = {"state": "scheduled", "queue": "default", "back": page, **fields}
        asked = await writer.send(f"/messages/{action}", **given)
        assert "2 live messages?" in asked.text, asked.text
        assert notice in await writer.act(f"/messages/{action}", **fields_of(asked.text))
    rows = [await alive(connection, id_) for id_ in ids]
    assert [(row["queue"], row["state"], row["priority"]) for row in rows] == [
        ("q", "waiting", 7),
        ("default", "waiting", 7),
    ]
    nothing = await writer.act("/messages/cancel", queue="nothing", state="live", back=page)
    assert "No live message matches any more" in nothing


async def test_a_wrong_forged_or_forbidden_form_changes_nothing(
    reader: Browser, writer: Browser, connection: Connection
) -> None:
    [id_] = await publish(connection, 1)
    page = "/messages?state=live&queue=default"
    assert "All that match" not in await reader.text(page)
    assert "All that match" not in await writer.text("/messages?queue=default")
    good = {"state": "live", "queue": "default", "to": "default", "priority": "1"}
    for action in ACTIONS:
        form = f"/messages/{action}"
        assert (await reader.send(form, **good)).status_code == 403
        data = {"csrf": "forged", **good, "confirmed": "yes"}
        origin = {"origin": "http://localhost:8080"}
        assert (await writer.client.post(form, data=data, headers=origin)).status_code == 403
        for changes in (
            {"state": "dead"},
            {"state": "locked"},
            {"like": str(id_)},
            {"subscriber": "s"},
            {"confirmed": "yes"},
        ):
            assert (await writer.send(form, **good | changes)).status_code == 400, changes
    until = {**good, "confirmed": "yes", "until": "2100-01-01"}
    for priority in ("high", "3000000000"):
        refused = await writer.send("/messages/amend", **until | {"priority": priority})
        assert refused.status_code == 400
    for changes, why in (
        ({"to": "nowhere"}, "no queue 'nowhere'"),
        ({}, "in this queue already"),
    ):
        page = await writer.act("/messages/move", back="/messages", **until | changes)
        assert why in html.unescape(page), changes
    assert dict(await alive(connection, id_))["priority"] == 0
    assert not await connection.fetchval("select count(*) from messages.audit")
