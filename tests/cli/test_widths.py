"""Every list at 80 columns, with names as long as people give them, and into a pipe."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cli.programs import Notifyq, Terminal
from cli.test_listing import archive, plain
from notifyq.cli.chaos import _print_list
from notifyq.cli.main import tree
from notifyq.cli.output import out, print_table
from support.database import session

QUEUE = "customer-notifications.transactional-email.europe-west-1"
STREAM = "warehouse-movements.stock-corrections.north-america-2"
SUBSCRIBER = "replenishment-forecast.nightly-recalculation.blue"
SCHEDULE = "monthly-invoices.reminder-of-overdue-payments.second"
KEY = "tenant-4711.subsidiary-of-the-north.department-of-things"
SIGNAL = "approved:tenant-4711.subsidiary-of-the-north.order-2027-000815"
ROLE = "notifyq_publisher"
REASON = "PaymentGatewayTimeout: no answer of https://pay.example.org after 30 s, " * 4

# A list, the names and ids that its lines cannot miss, and words of its head.
LISTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "queues": (("queues",), (QUEUE,), ("waiting", "locked", "paused")),
    "queue": (("queues", "show", QUEUE), (QUEUE,), ("value",)),
    "grants": (("queues", "grants"), (QUEUE, ROLE), ("may_publish", "may_consume")),
    "shares": (("queues", "shares"), (QUEUE, KEY), ("weight",)),
    "limits": (("queues", "limits"), (QUEUE, KEY), ("concurrency",)),
    "parked": (("parked",), (QUEUE, SIGNAL), ("kind", "waits_for")),
    "stream": (("stream", "ls"), (STREAM,), ("subscribers", "paused")),
    "lag": (("stream", "lag"), (STREAM, SUBSCRIBER), ("lag", "pending", "dead")),
    "forwards": (("stream", "forwards"), (STREAM, f"{SUBSCRIBER}-2", QUEUE), ()),
    "retention": (("retention", "ls"), (QUEUE,), ("rows", "size")),
    "roles": (("roles", "ls"), ("postgres",), ("duties", "superuser")),
    "schedules": (("schedules",), (SCHEDULE, QUEUE, "30 8 * * mon-fri"), ("next",)),
    "next": (("schedules", "next", SCHEDULE), (), ("at", "in")),
    "ls": (("ls", "-q", QUEUE), (QUEUE, "waiting"), ("available_at", "message")),
    "finished": (("ls", "--finished", "-q", QUEUE), (QUEUE, "rejected"), ("details", "message")),
    "dead": (("dead",), (QUEUE, "rejected"), ("details",)),
    "groups": (("dead", "groups"), (QUEUE, "PaymentGatewayTimeout"), ("dead", "fingerprint")),
    "audit": (("audit",), (QUEUE, "queue.alter"), ("actor", "action", "subject")),
}
OTHERS = {
    "archive export", "import", "bench", "chaos", "demo", "doctor", "server status", "publish",
    "show", "stream tail", "dead show", "dead watch", "init", "migrate", "relay", "retention set",
    "roles create", "top", "spark export", "spark load", "spark replay", "spark rollup",
    "spark sample", "spark tidy", "spark anomalies", "spark stream", "dead retry", "ping",
    "report", "bench report", "forget",
}  # fmt: skip
"""Commands with --json that print no table of rows of the database."""


@pytest.fixture(scope="module")
def filled(shared_database: str) -> str:
    """Give a database in which each list has a line, with long names."""
    asyncio.run(_fill(shared_database))
    return shared_database


async def _fill(database: str) -> None:
    async with session(database) as connection:
        await connection.execute(f"""
          select messages.create_queue('{QUEUE}', ordered => false);
          select messages.grant_queue('{QUEUE}', '{ROLE}');
          select messages.create_stream('{STREAM}');
          select messages.subscribe('{STREAM}', '{SUBSCRIBER}');
          select messages.forward('{STREAM}', '{SUBSCRIBER}-2', '{QUEUE}');
          select messages.schedule('{SCHEDULE}', '30 8 * * mon-fri', '{QUEUE}', 'null',
            timezone => 'America/Argentina/Buenos_Aires');
          update messages.schedule set last_at = now() - interval '3 days', last_id = 4711000;
        """)
    await archive(database, QUEUE, 2, details=REASON)
    async with session(database) as connection:
        await connection.fetchval(
            "select messages.publish($1, $2, available_at => '2030-01-31 12:00')",
            QUEUE,
            json.dumps({"text": "long " * 99}),
        )
        await connection.fetchval("select messages.publish($1, '1')", QUEUE)
        await connection.execute(
            "select messages.await_signal(m.id, m.lock_token, $2, $2) from messages.claim_id("
            "  messages.publish($1, '1')) as m",
            QUEUE,
            SIGNAL,
        )


@pytest.fixture(scope="module")
def changed(anywhere: Notifyq, filled: str) -> str:
    """Give that database, with entries in the audit."""
    for act, *args in (
        ("alter", "--fair"),
        ("share", KEY, "3"),
        ("alter", "--key-concurrency", "2"),
        ("limit", KEY, "--concurrency", "1"),
    ):
        anywhere.good("queues", act, QUEUE, *args, env={"NOTIFYQ_DSN": filled})
    return filled


@pytest.mark.parametrize("name", LISTS)
def test_list_can_be_read_in_80_columns(changed: str, name: str) -> None:
    args, wanted, head = LISTS[name]
    with Terminal(changed, *args) as terminal:
        assert terminal.end() == 0
    lines = plain(terminal.shown)
    assert max(map(len, lines)) <= 80, terminal.shown
    assert not [word for word in head if word not in lines[0].split()], terminal.shown
    for text in wanted:
        # Perhaps folded, but all of it is there.
        assert any(_unfolded(lines, text)), terminal.shown


def _unfolded(lines: list[str], text: str) -> Iterator[bool]:
    """Whether a column has the text in one line, or in some that follow each other."""
    for number, line in enumerate(lines):
        for start in range(len(line)):
            left, row = text, number
            while left and row < len(lines):
                piece = lines[row][start:].split("  ")[0].rstrip()
                if piece.startswith(left):
                    left = ""
                if not piece or not left.startswith(piece):
                    break
                left, row = left[len(piece) :].lstrip(), row + 1
            if not left:
                yield True


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_cut_off_in_a_pipe(notifyq: Notifyq, changed: str, name: str) -> None:
    args, wanted, head = LISTS[name]
    assert notifyq.dsn == changed
    text = notifyq.good(*args).out
    assert "…" not in text
    for word in (*wanted, *head):
        assert word in text
    if name == "ls":
        assert "long " * 99 in text
    if name in {"finished", "dead"}:
        assert REASON.strip() in text


@pytest.mark.parametrize("name", LISTS)
def test_json_has_all_of_it(notifyq: Notifyq, changed: str, name: str) -> None:
    args, wanted, _ = LISTS[name]
    assert notifyq.dsn == changed
    rows = json.dumps(notifyq.good(*args, "--json").data)
    for word in wanted:
        assert word in rows


def test_every_command_that_lists_is_here() -> None:
    here = {" ".join(args[:2]).removesuffix(f" {SCHEDULE}") for args, _, _ in LISTS.values()}
    here |= {f"{name} ls" for name in here}
    for path, command in _walk(tree()):
        if any("--json" in option.opts for option in command.params):
            assert path in here | OTHERS or path == "ls", path


def _walk(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    if any("--json" in option.opts for option in command.params):
        yield path, command
    for name, under in command.commands.items():
        yield from _walk(under, f"{path} {name}".strip())


def test_faults_of_chaos_can_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(out, "width", 80)
    _print_list()
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^worker-kill ", text, re.MULTILINE)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 132])
def test_table_of_any_shape_fits(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(out, "width", width)
    names = ["system", *(f"messages a second in case {n}" for n in range(9))]
    print_table(names, [["notifyq", *map(str, range(9))]], numbers=range(1, 10))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert "notifyq" in text
    assert "not shown at this width" in " ".join(text.split()) or width > 80
