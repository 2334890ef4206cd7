"""`notifyq publish`: what it takes, what it refuses, and that a refusal publishes nothing."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.programs import Running, Terminal
from notifyq.cli.publish import _lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.programs import Notifyq

    Count = Callable[[], int]

REFUSED = [
    ("hello", "a text needs quotes of its own"),
    ("", "Expecting value at column 1"),
    ("{'a': 1}", "column 2"),
    ('{"a": 1} x', "Extra data at column 10"),
    ("NaN", "NaN is not JSON"),
    ("[1, -Infinity]", "-Infinity is not JSON"),
    (r'"\u0000"', r"\u0000, which PostgreSQL cannot store"),
    (r'{"\\\u0000": 1}', r"\u0000, which PostgreSQL cannot store"),
    (r'"\ud800"', r"\ud800, which is half a character"),
    (r'"\uDC00\ud83d"', r"\uDC00, which is half a character"),
    ("1e999999", "more digits than PostgreSQL can store"),
    ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
]
TAKEN: list[tuple[str, Any]] = [
    (r'"\\u0000"', r"\u0000"),
    (r'"\\\\ud800"', r"\\ud800"),
    (r'"\ud83d\ude00"', "😀"),
    ("null", None),
    (" [1] ", [1]),
    ("1e400", 10**400),
    ('{"a": {"b": [true, "é"]}}', {"a": {"b": [True, "é"]}}),
]


@pytest.mark.parametrize(("message", "why"), REFUSED, ids=[it[0][:20] for it in REFUSED])
def test_bad_message_is_refused_with_its_reason(
    notifyq: Notifyq, queue: str, message: str, why: str
) -> None:
    assert why in notifyq.refused("publish", queue, message)
    if message:
        line = notifyq.refused("publish", queue, stdin=f"1\n\n{message}\n2\n")
        assert line.startswith("notifyq: line 3 is not JSON: ")
        assert "nothing was published" in line
    assert notifyq.good("ls", "-q", queue).out == "no messages\n"


@pytest.mark.parametrize(("message", "payload"), TAKEN, ids=[it[0] for it in TAKEN])
def test_a_message_keeps_its_text(
    notifyq: Notifyq, queue: str, message: str, payload: object
) -> None:
    notifyq.good("publish", queue, message)
    notifyq.good("publish", queue, stdin=message)
    assert [row["message"] for row in notifyq.good("ls", "-q", queue, "--json").data] == [
        payload,
        payload,
    ]


def test_digits_are_not_rounded(notifyq: Notifyq, queue: str) -> None:
    for number in ("0.1000000000000000055511151231257827", "7" * 4000, "1.10"):
        id_ = notifyq.good("publish", queue, number).out.strip()
        assert f'"message":{number},' in notifyq.good("show", id_, "--json").out
        assert number in notifyq.good("show", id_).out
    assert notifyq.good("ls", "-q", queue).out.count("\n") == 4


def test_options_are_those_of_the_message(notifyq: Notifyq, queue: str) -> None:
    options = ["--priority", "-3", "--type", "t", "--at", "2030-01-31T12:00", "--cost", "5"]
    options += ["--header", "a=1", "--header", "b=x=y", "--header", 'c="1"', "--header", "d="]
    id_ = notifyq.good(
        "publish", queue, "1", *options, "--dedup-key", "k", env={"TZ": "Asia/Tokyo"}
    ).out
    again = notifyq("publish", queue, "2", "--dedup-key", "k")
    assert (again.code, again.out) == (0, id_)
    notifyq.good("publish", queue, *options, stdin="1\n", env={"TZ": "Asia/Tokyo"})
    for row in notifyq.good("ls", "-q", queue, "--json").data:
        assert (row["message"], row["priority"], row["type"]) == (1, -3, "t")
        assert row["available_at"] == "2030-01-31T03:00:00Z"
        assert row["headers"] == {"a": 1, "b": "x=y", "c": "1", "d": "", "cost": 5}


def test_a_duplicate_is_reported(notifyq: Notifyq, queue: str) -> None:
    first = notifyq.good("publish", queue, '{"n": 1}', "--dedup-key", "order-5")
    again = notifyq("publish", queue, '{"n": 2}', "--dedup-key", "order-5")
    assert again.out == first.out
    id_ = int(first.out)
    assert again.err == (
        f"notifyq: a duplicate: message {id_} has this dedup key, nothing was published\n"
    )
    assert notifyq.good("show", id_, "--json").data[0]["message"] == {"n": 1}
    replaced = notifyq("publish", queue, "3", "--dedup-key", "order-5", "--on-duplicate", "replace")
    assert f"message {id_} has this dedup key, it gets this payload" in replaced.err
    for key, is_duplicate in (("order-5", True), ("order-6", False)):
        answer = notifyq.good("publish", queue, "4", "--dedup-key", key, "--json")
        assert answer.data[0]["is_duplicate"] is is_duplicate


def test_lines_are_published_in_order_all_or_none(
    notifyq: Notifyq, queue: str, count: Count
) -> None:
    lines = "".join(f'{{"n": {number}}}\r\n\n' for number in range(5000))
    assert notifyq.good("publish", queue, "-", stdin=lines).out == "5000 published\n"
    assert count() == 5000
    rows = notifyq.good("ls", "-q", queue, "-n", 10_000, "--json").data
    assert [row["message"]["n"] for row in rows] == list(range(5000))
    notifyq.refused("publish", queue, stdin=f"{lines}{{\n")
    assert count() == 5000


@pytest.mark.parametrize("text", [b"", b"\n \n"])
def test_empty_input_is_no_error(notifyq: Notifyq, queue: str, text: bytes) -> None:
    assert notifyq.good("publish", queue, stdin=text).out == "0 published\n"


@pytest.mark.parametrize("garbage", [bytes(range(256)) * 40, b"\0" * 9999, b"\xff\xfe1\0\n\0"])
def test_binary_garbage_is_not_json(notifyq: Notifyq, queue: str, garbage: bytes) -> None:
    assert "line 1 is not JSON" in notifyq.refused("publish", queue, stdin=garbage)


def test_lines_for_an_unknown_queue_are_refused(notifyq: Notifyq) -> None:
    for args in (("nosuch", "1"), ("nosuch", "-")):
        line = notifyq.refused("publish", *args, stdin="1\n")
        assert "there is no queue 'nosuch': create it with `notifyq queues create nosuch`" in line


def test_line_of_many_megabytes_is_a_message_like_any_other(notifyq: Notifyq, queue: str) -> None:
    # 20 here, to be quick; 100 take five times as long and end as well.
    notifyq.good("queues", "alter", queue, "--max-bytes", 30_000_000)
    result = notifyq("publish", queue, stdin=b'"' + b"x" * 20_000_000 + b'"\n1\n')
    assert (result.code, result.out) == (0, "2 published\n")
    rows = notifyq.good("ls", "-q", queue).out.splitlines()
    assert len(rows) == 3
    assert max(map(len, rows)) <= 10_240
    assert all(name in rows[0] for name in ("id", "queue", "state", "available_at", "message"))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupt_or_a_kill_ends_a_wait_for_input_and_publishes_nothing(
    shared_database: str, queue: str, count: Count, number: int, code: int
) -> None:
    with Running(shared_database, "publish", queue, stdin=subprocess.PIPE) as publishing:
        assert publishing.process.stdin is not None
        publishing.process.stdin.write("1\n" * 100_000)
        publishing.process.stdin.flush()
        # All but what a pipe holds was read, so the command waits, or soon will.
        assert publishing.stop(number)[:2] == (code, "")
    assert count() == 0


def test_a_terminal_gets_a_prompt(shared_database: str, queue: str, count: Count) -> None:
    with Terminal(shared_database, "publish", queue) as terminal:
        terminal.show("one message a line")
        terminal.type('"typed"\n\x04')
        assert terminal.end() == 0
        assert "1 published" in terminal.shown
    with Terminal(shared_database, "publish", queue) as terminal:
        terminal.show("one message a line")
        terminal.type("2\n\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown
    assert count() == 1


async def test_an_interrupt_that_a_library_swallowed_ends_the_wait_for_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the command would read on after a Ctrl-C that came while it connected."""

    async def read() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await anext(_lines(follow=False))

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n")))
    await asyncio.create_task(read())


def test_memory_does_not_grow_with_the_input(shared_database: str, queue: str) -> None:
    with Running(shared_database, "publish", queue, stdin=subprocess.PIPE) as publishing:
        assert publishing.process.stdin is not None
        lines = (json.dumps("x" * 1000) + "\n") * 1000
        for _ in range(50):
            publishing.process.stdin.write(lines)
        status = Path(f"/proc/{publishing.process.pid}/status").read_text()
        assert publishing.end().out == "50000 published\n"
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert int(peak) < 90_000  # of which Python and the libraries take half; the input has 50 MB
