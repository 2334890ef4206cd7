"""What is changed from the command line is noted, and `notifyq audit` lists it."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.programs import Notifyq
from cli.test_listing import archive
from cli.test_refusals import with_login
from notifyq.operations.masks import Masks, redacted
from support.database import session

APP = """
from notifyq import App

app = App()

@app.cron("@daily", name="daily", queue="of the app")
async def clean_up(): ...
"""


def noted(notifyq: Notifyq, *options: str) -> list[tuple[str, str, Any]]:
    """Action, subject and details of what was noted, the earliest first."""
    rows = notifyq.good("audit", *options, "--json").data
    return [(row["action"], row["subject"], row["details"]) for row in reversed(rows)]


def test_the_audit_has_changes_of_queues(notifyq: Notifyq) -> None:
    run = notifyq.good
    assert run("audit", "--subject", "q").out == "nobody has changed anything\n"
    run("queues", "create", "q", "--fair")
    run("queues", "pause", "q")
    run("queues", "pause", "q")
    run("queues", "resume", "q")
    run("queues", "alter", "q", "--lock-duration", "90s", "--max-attempts", "1")
    run("queues", "share", "q", "ann", "3")
    run("queues", "limit", "q", "ann")
    run("queues", "grant", "q", "notifyq_worker", "--consume")
    run("queues", "revoke", "q", "notifyq_worker")
    assert notifyq.refused("queues", "revoke", "q", "notifyq_worker") == (
        "notifyq: role 'notifyq_worker' has no grant on queue 'q': `notifyq queues grants` lists "
        "all\n"
    )
    notifyq.refused("queues", "alter", "q", "--backoff", "2h", "--backoff-max", "1h")
    run("queues", "drop", "q")
    assert noted(notifyq, "--subject", "q") == [
        ("queue.create", "q", {"changed": True}),
        ("queue.pause", "q", {"changed": True}),
        ("queue.pause", "q", {"changed": False}),
        ("queue.resume", "q", {"changed": True}),
        ("queue.alter", "q", {"lock_duration": ["60 s", "90 s"]}),
        ("queue.share", "q", {"key": "ann", "weight": 3.0, "changed": True}),
        ("queue.limit", "q", {"key": "ann", "changed": False}),
        (
            "queue.grant",
            "q",
            {"role": "notifyq_worker", "publish": False, "consume": True, "read": False}
            | {"changed": True},
        ),
        ("queue.revoke", "q", {"role": "notifyq_worker", "changed": True}),
        ("queue.drop", "q", {"deleted": 0}),
    ]


def test_the_audit_has_changes_of_messages_without_payloads(
    notifyq: Notifyq, shared_database: str, queue: str
) -> None:
    run = notifyq.good
    (waiting, blocked) = (int(run("publish", queue, '{"pin": 4711}').out) for _ in range(2))
    run("cancel", str(waiting))
    notifyq.refused("unblock", str(blocked))
    first, second, *_ = archive_of(shared_database, queue, 8)
    again = run("dead", "retry", str(first)).out
    assert again.startswith("1 published again as ")
    run("dead", "delete", str(second))
    run("dead", "retry", "--queue", queue, "--status", "rejected", "--limit", "2")
    (group,) = run("dead", "groups", "--queue", queue, "--json").data
    chosen = ["--queue", queue, "--fingerprint", group["fingerprint"]]
    run("dead", "retry", *chosen, "--limit", "1")
    run("dead", "delete", *chosen)
    rows = noted(notifyq)
    assert "4711" not in str(rows)
    assert ("message.cancel", str(waiting), {"changed": True}) in rows
    assert ("message.unblock", str(blocked), {"changed": False}) in rows
    assert ("dead.delete", str(second), {"deleted": 1}) in rows
    [several] = [it[2] for it in rows if it[:2] == ("dead.retry", queue) and it[2]["done"] == 2]
    assert (several["status"], len(several["as"])) == ("rejected", 2)
    (retried,) = (it[2] for it in rows if it[:2] == ("dead.retry", str(first)))
    assert (retried["done"], len(retried["as"])) == (1, 1)
    assert [
        (action, details["found"], details["done"])
        for action, subject, details in rows
        if details and details.get("fingerprint") == group["fingerprint"]
        # The first of the two before was rejected, too; the cancelled one is not dead.
    ] == [("dead.retry", 1, 1), ("dead.delete", 3, 3)]


def archive_of(dsn: str, queue: str, quantity: int) -> list[int]:
    return asyncio.run(archive(dsn, queue, quantity))


def test_the_audit_has_changes_of_streams_schedules_and_the_archive(
    notifyq: Notifyq, queue: str, tmp_path: Path
) -> None:
    run = notifyq.good
    run("stream", "create", "s")
    run("stream", "subscribe", "s", "w")
    run("stream", "pause", "s")
    run("stream", "resume", "s")
    run("stream", "alter", "s", "--max-events", "7")
    run("stream", "seek", "s", "w", "now")
    assert notifyq.refused("stream", "unforward", "s", "w") == (
        "notifyq: 'w' does not forward from stream 's': `notifyq stream forwards` lists those "
        "that do\n"
    )
    run("stream", "unsubscribe", "s", "w")
    run("stream", "forward", "s", "f", queue)
    run("stream", "unforward", "s", "f")
    run("stream", "drop", "s")
    assert noted(notifyq, "--action", "stream") == [
        ("stream.create", "s", {"changed": True}),
        ("stream.subscribe", "s w", {"position": "last", "changed": True}),
        ("stream.pause", "s", {"changed": True}),
        ("stream.resume", "s", {"changed": True}),
        ("stream.alter", "s", {"max_events": 7, "changed": True}),
        ("stream.seek", "s w", {"to": "now", "changed": True}),
        ("stream.unsubscribe", "s w", {"changed": True}),
        ("stream.forward", "s f", {"queue": queue, "changed": True}),
        ("stream.unforward", "s f", {"kept": False, "changed": True}),
        ("stream.drop", "s", {"subscribers": 0}),
    ]
    run("schedules", "add", "n", "@daily", queue)
    run("schedules", "disable", "n")
    run("schedules", "enable", "n")
    id_ = int(run("schedules", "run", "n").out)
    run("schedules", "remove", "n")
    (tmp_path / "timed.py").write_text(APP)
    for _ in range(2):
        run("schedules", "apply", "timed:app", folder=tmp_path)
    assert noted(notifyq, "--action", "schedule.apply") == [
        ("schedule.apply", "timed:app", {"queues": ["of the app"], "schedules": ["daily"]}),
        ("schedule.apply", "timed:app", {"queues": [], "schedules": []}),
    ]
    assert noted(notifyq, "--subject", "n") == [
        ("schedule.add", "n", {"cron": "@daily", "queue": queue, "changed": True}),
        ("schedule.disable", "n", {"changed": True}),
        ("schedule.enable", "n", {"changed": True}),
        ("schedule.run", "n", {"message": id_}),
        ("schedule.remove", "n", {"changed": True}),
    ]
    run("retention", "set", "--days-ahead", "9")
    [(_, _, details)] = noted(notifyq, "--action", "archive.alter")
    assert details["days_ahead"] == "9"


def test_the_audit_has_the_person_and_the_host(notifyq: Notifyq, queue: str) -> None:
    run = notifyq.good
    run("queues", "pause", queue)
    (row,) = run("audit", "--action", "queue.pause", "--subject", queue, "--json").data
    assert row["actor"] == getpass.getuser()
    assert row["origin"] == f"notifyq on {socket.gethostname()}"
    shown = run("audit", "--actor", row["actor"], "--limit", "1").out
    assert "queue.pause" in shown
    assert "there is more: use --limit" in shown
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert run("audit", "--since", soon).out == "nobody has changed anything\n"
    assert run("audit", "--since", row["acted_at"], "--subject", queue, "--json").data == [row]
    assert run("audit", "--actor", "nobody").out == "nobody has changed anything\n"


@pytest.fixture
async def worker(server: str, shared_database: str) -> AsyncIterator[str]:
    """Give the address of the database for a user who may do what workers may."""
    async with session(server) as admin:
        await admin.execute("create role test_hand login password 'x' in role notifyq_worker")
        yield with_login(shared_database, "test_hand:x")
        await admin.execute("drop role test_hand")


def test_a_role_without_the_audit_can_subscribe(notifyq: Notifyq, worker: str) -> None:
    notifyq.good("stream", "create", "open")
    mine = ("stream", "subscribe", "open", "mine")
    assert notifyq.good(*mine, env={"NOTIFYQ_DSN": worker}).out == "subscribed mine to open\n"
    assert noted(notifyq, "--subject", "open mine") == []
    notifyq.good(*mine)
    assert noted(notifyq, "--subject", "open mine") == [
        ("stream.subscribe", "open mine", {"position": "last", "changed": False})
    ]


def test_masks_of_errors_hold_in_the_audit(notifyq: Notifyq, shared_database: str) -> None:
    queue = "hushed"
    notifyq.good("queues", "create", queue)
    for details in ("KeyError: 4711", "ValueError: no 4000-1234"):
        asyncio.run(archive(shared_database, queue, 2, details=details))
    groups = notifyq.good("dead", "groups", "--queue", queue, "--json").data
    chosen = [it["fingerprint"] for it in groups]
    assert len(chosen) == 2
    for mask, fingerprint in zip(("", "card"), chosen, strict=True):
        delete = ("dead", "delete", "--queue", queue, "--fingerprint", fingerprint)
        notifyq.good(*delete, env={"NOTIFYQ_MASK": mask} if mask else {})
    [open_, masked] = noted(notifyq, "--subject", queue, "--action", "dead.delete")
    assert open_[2]["fingerprint"] == chosen[0]
    assert masked[2]["fingerprint"] == redacted(chosen[1], Masks(("card",)), None)
    [shown, _] = noted(notifyq, "--subject", queue, "--action", "dead", "--mask", "card")
    assert shown[2]["fingerprint"] == redacted(chosen[0], Masks(("card",)), None) != chosen[0]
