"""Changes of all live messages that match: a preview, a question, steps, and one audit entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from cli.programs import Notifyq, Terminal
from notifyq.cli import matching


@pytest.fixture
def publish(notifyq: Notifyq, queue: str) -> Callable[..., list[str]]:
    """Give a function that publishes the numbers from 0 on into the queue of the test."""

    def some(quantity: int, *options: str) -> list[str]:
        lines = "".join(f"{n}\n" for n in range(quantity))
        notifyq.good("publish", queue, "-", *options, stdin=lines)
        return [str(row["id"]) for row in listed(notifyq, queue)]

    return some


def listed(notifyq: Notifyq, queue: str) -> list[dict[str, Any]]:
    return notifyq.good("ls", "-q", queue, "--limit", "10000", "--json").data


def audited(notifyq: Notifyq, queue: str) -> list[tuple[str, dict[str, Any]]]:
    """The actions on the queue in the audit with their details, without `until`."""
    rows = notifyq.good("audit", "--action", "message", "--json").data
    return [
        (row["action"], {name: it for name, it in row["details"].items() if name != "until"})
        for row in rows
        if row["subject"] == queue
    ]


def test_messages_are_cancelled_by_a_filter_with_a_preview(
    notifyq: Notifyq, queue: str, publish: Callable[..., list[str]]
) -> None:
    ids = publish(8)
    done = notifyq.good(
        "cancel", "-q", queue, "--filter", "$ < 7", "--reason", "wrong", "--yes"
    ).out
    head, *sample, more, last = done.splitlines()
    assert head.split() == list(matching._COLUMNS)
    assert [line.split()[0] for line in sample] == ids[6:1:-1]
    assert (more, last) == ("and 2 more", "7 cancelled")
    assert [str(row["id"]) for row in listed(notifyq, queue)] == ids[7:]
    assert notifyq.good("show", ids[0]).out.count("cancelled: wrong") == 1
    [(action, details)] = audited(notifyq, queue)
    assert action == "message.cancel"
    assert details == {"queue": queue, "reason": "wrong", "found": 7, "done": 7}
    assert notifyq.good("cancel", "-q", queue, "--filter", "$ < 7", "--yes").out == "0 cancelled\n"


def test_the_steps_of_one_change_have_one_audit_entry(
    notifyq: Notifyq, queue: str, publish: Callable[..., list[str]]
) -> None:
    publish(2500)
    done = notifyq("amend", "-q", queue, "--priority", "4", "--limit", "2200", "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (0, "2200 changed")
    rows = listed(notifyq, queue)
    assert sum(row["priority"] == 4 for row in rows) == 2200
    assert audited(notifyq, queue) == [
        ("message.amend", {"queue": queue, "priority": 4, "found": 2200, "done": 2200})
    ]


def test_scheduled_messages_are_made_due_by_id_and_by_filter(
    notifyq: Notifyq, queue: str, publish: Callable[..., list[str]]
) -> None:
    first, *_ = publish(3, "--delay", "1h")
    assert notifyq.good("run-now", first).out == f"made due {first}\n"
    assert f"{first} is not scheduled" in notifyq.refused("run-now", first)
    assert notifyq.good("run-now", "-q", queue, "--yes").out.endswith("2 made due\n")
    assert {row["state"] for row in listed(notifyq, queue)} == {"waiting"}


def test_what_cannot_be_moved_is_named(
    notifyq: Notifyq, queue: str, publish: Callable[..., list[str]]
) -> None:
    ids = publish(3)
    other = f"{queue}.other"
    notifyq.good("queues", "create", other, "--capacity", "2")
    moved = notifyq("move", "-q", queue, "--to", other, "--yes")
    assert (moved.code, moved.out.splitlines()[-1]) == (1, "2 moved")
    assert moved.err == (
        f"notifyq: message {ids[2]}: queue '{other}' is full\nnotifyq: 1 of 3 were not moved\n"
    )
    assert [str(row["id"]) for row in listed(notifyq, other)] == ids[:2]
    [(_, details)] = audited(notifyq, queue)
    assert details == {"queue": queue, "to": other, "found": 3, "done": 2}


def test_a_terminal_needs_an_answer_before_anything_changes(
    notifyq: Notifyq, shared_database: str, queue: str, publish: Callable[..., list[str]]
) -> None:
    publish(2)
    for answer, code, left in (("n", 130, 2), ("y", 0, 1)):
        with Terminal(shared_database, "cancel", "-q", queue) as terminal:
            terminal.show("2 to be cancelled. Continue? [y/N]")
            if answer == "y":
                # Published after the preview.
                notifyq.good("publish", queue, "9")
            terminal.type(f"{answer}\n")
            assert terminal.end() == code
        assert len(listed(notifyq, queue)) == left
        assert bool(re.search(r"2 cancelled\s*$", terminal.shown)) == (answer == "y")
    [row] = listed(notifyq, queue)
    assert row["message"] == 9


def test_a_change_needs_ids_or_a_filter_and_an_answer(notifyq: Notifyq, queue: str) -> None:
    for args, why in (
        (("cancel", "1", "-q", queue), "give ids, or a filter, or --all"),
        (("run-now", "1", "--all"), "give ids, or a filter, or --all"),
        (("move", "--all", "--to", queue), "give the --queue"),
        (("amend", "-q", queue), "give JSON, --priority, --at or --header"),
        (("amend", "-q", queue, "--priority", "1", "--header", "a=1"), "give --priority alone"),
    ):
        assert why in notifyq.refused(*args, code=2), args
    assert "no queue 'nowhere'" in notifyq.refused("cancel", "-q", "nowhere", "--yes")
    assert "no queue 'nowhere'" in notifyq.refused("move", "-q", queue, "--to", "nowhere", "--yes")
    refused = notifyq.refused("run-now", "-q", queue, "--state", "waiting", "--yes")
    assert "there is no state 'waiting'" in refused
