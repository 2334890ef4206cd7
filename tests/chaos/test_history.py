"""The history: it is read in order as it was written, and broken files are errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

import pytest

from notifyq.chaos.history import Call, History, HistoryError, calls, digest, read


def test_a_call_comes_back_with_its_end(tmp_path: Path) -> None:
    with History(tmp_path / "made", "publisher-1") as history:
        first = history.invoke("publish", key="a", queue="q")
        second = history.invoke("publish", key="b", queue="q")
        second.ok(id=7)
        first.unknown(error="the connection is gone")
        history.invoke("publish", key="c", queue="q").fail(error=ValueError("no"))
        history.invoke("publish", key="d", queue="q")
        history.note("dead", id=7)
    found = calls(read(tmp_path / "made"))
    assert [(it.op, it.outcome, it.fields) for it in found] == [
        ("publish", "unknown", {"key": "a", "queue": "q", "error": "the connection is gone"}),
        ("publish", "ok", {"key": "b", "queue": "q", "id": 7}),
        ("publish", "fail", {"key": "c", "queue": "q", "error": "no"}),
        ("publish", "unknown", {"key": "d", "queue": "q"}),
        ("dead", "ok", {"id": 7}),
    ]
    assert {it.process for it in found} == {"publisher-1"}
    assert [it.ended is None for it in found] == [False, False, False, True, False]


def test_a_line_has_its_common_fields_first(tmp_path: Path) -> None:
    with History(tmp_path, "w") as history:
        history.invoke("claim").ok(messages=[{"locked_at": datetime(2026, 1, 1, tzinfo=UTC)}])
    first, second = map(json.loads, (tmp_path / "w.jsonl").read_text().splitlines())
    assert list(first) == ["at", "process", "op", "type", "call"]
    assert (first["type"], second["type"], second["op"]) == ("invoke", "ok", "claim")
    assert first["call"] == second["call"]
    assert second["messages"] == [{"locked_at": "2026-01-01T00:00:00+00:00"}]


def test_a_field_cannot_replace_a_common_field(tmp_path: Path) -> None:
    with History(tmp_path, "w") as history, pytest.raises(TypeError):
        history.note("dead", process="another")
    assert read(tmp_path) == []


def test_the_lines_of_all_processes_are_in_the_order_of_time(tmp_path: Path) -> None:
    with History(tmp_path, "a") as a, History(tmp_path, "b") as b:
        call = a.invoke("finish", id=1)
        b.note("dead", id=1)
        call.ok(held=True)
    ops = read(tmp_path)
    assert [(op.process, op.op, op.type) for op in ops] == [
        ("a", "finish", "invoke"), ("b", "dead", "ok"), ("a", "finish", "ok"),
    ]  # fmt: skip
    assert ops == sorted(ops, key=attrgetter("at"))


def test_threads_do_not_mix_their_calls(tmp_path: Path) -> None:
    with History(tmp_path, "w") as history:

        def write(thread: int) -> None:
            for number in range(50):
                history.invoke("finish", id=thread, number=number).ok(value=(thread, number))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = calls(read(tmp_path))
    assert len(found) == 200
    assert all(it.fields["value"] == [it.fields["id"], it.fields["number"]] for it in found)


_WRITER = """
import sys
from notifyq.chaos.history import History
history = History(sys.argv[1], "w")
for number in range(10**9):
    history.invoke("finish", id=number, padding="x" * 1000)
    if number == 100:
        print("ready", flush=True)
"""


def test_a_kill_costs_at_most_the_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
    found = [it.fields["id"] for it in calls(read(tmp_path))]
    assert found == list(range(len(found)))
    assert len(found) > 100


def test_a_line_that_was_cut_off_is_left_out_at_the_end_only(tmp_path: Path) -> None:
    with History(tmp_path, "w") as history:
        history.note("dead", id=1)
        history.note("dead", id=2)
    file = tmp_path / "w.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert [op.fields for op in read(tmp_path)] == [{"id": 1}]
    file.write_bytes(whole[:-1])
    assert [op.fields for op in read(tmp_path)] == [{"id": 1}, {"id": 2}]
    for broken in (whole[5:], b"\n" + whole, b"[]\n" + whole, b'{"at": 1}\n' + whole):
        file.write_bytes(broken)
        with pytest.raises(HistoryError, match=r"^w\.jsonl has a broken line"):
            read(tmp_path)


@pytest.mark.parametrize(
    "lines", [("ok",), ("invoke", "invoke"), ("invoke", "ok", "fail")], ids="-".join
)
def test_an_end_without_a_start_is_no_history(tmp_path: Path, lines: tuple[str, ...]) -> None:
    common = {"at": 1.0, "process": "w", "op": "finish", "call": 1}
    text = "".join(json.dumps(common | {"type": type_}) + "\n" for type_ in lines)
    (tmp_path / "w.jsonl").write_text(text)
    with pytest.raises(HistoryError, match="call 1"):
        calls(read(tmp_path))


def test_a_digest_does_not_depend_on_how_the_value_is_written() -> None:
    assert digest({"b": [1, 2.5, "ü"], "a": None}) == digest({"a": None, "b": [1, 2.5, "ü"]})
    assert digest({"a": 1}) != digest({"a": "1"})
    assert len(digest(None)) == 64


def test_a_note_begins_and_ends_at_once(tmp_path: Path) -> None:
    with History(tmp_path, "rig") as history:
        history.note("deadline")
    (note,) = calls(read(tmp_path))
    assert note == Call("deadline", "rig", note.began, note.began, "ok", {})
