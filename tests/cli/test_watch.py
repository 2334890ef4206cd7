"""`notifyq dead watch`: misses nothing, whatever ends the server, the command, or the watch."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from cli.programs import Notifyq, Running
from notifyq.server import Server
from support.database import Connection, let_fail, open_session, until

LISTENS = "listening, in session"


def watch(database: str, *args: str | Path) -> Running:
    running = Running(database, "dead", "watch", *args)
    running.logged(LISTENS)
    return running


def ids(watching: Running, quantity: int) -> list[int]:
    return sorted(json.loads(watching.line())["id"] for _ in range(quantity))


async def test_message_is_printed_as_soon_as_it_is_dead(
    database: str, connection: Connection
) -> None:
    with watch(database) as watching:
        (first,) = await let_fail(connection, details="no\ngood")
        assert f" default {first} failed: no\n" in watching.line()
        (second,) = await let_fail(connection, details="no\ngood")
        assert f" default {second} failed: no\n" in watching.line()
        assert watching.stop(signal.SIGTERM)[:2] == (0, "")


async def test_only_messages_of_the_given_queue_are_printed(
    database: str, connection: Connection
) -> None:
    await connection.fetchval("select messages.create_queue('other')")
    with watch(database, "--queue", "other", "--json") as watching:
        await let_fail(connection)
        expected = await let_fail(connection, queue="other")
        assert ids(watching, 1) == expected
        result = watching.stop(signal.SIGINT)
        assert (result.code, result.out) == (0, "")


async def test_a_watch_continues_after_a_kill(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with watch(database, "--json", "--state", state) as watching:
        first = await let_fail(connection, 2)
        assert ids(watching, 2) == first
        assert watching.stop(signal.SIGTERM).code == 0
    missed = await let_fail(connection, 2)
    with watch(database, "--json", "--state", state) as watching:
        assert ids(watching, 2) == missed
        assert watching.stop(signal.SIGKILL).code == -signal.SIGKILL
    third = await let_fail(connection)
    with watch(database, "--json", "--state", state) as watching:
        found = ids(watching, 1)
        # What was printed just before the kill may come again; nothing is left out.
        while found[-1] in missed:
            found = ids(watching, 1)
        assert found == third
        assert watching.stop(signal.SIGTERM).out == ""


async def test_command_gets_each_message_on_its_input(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    command = f"cat >> {tmp_path}/got; echo received"
    with watch(database, "--exec", command, "--state", tmp_path / "state") as watching:
        expected = await let_fail(connection, 3, details="no\ngood")
        assert [watching.line() for _ in range(3)] == ["received\n"] * 3
        assert watching.stop(signal.SIGTERM).code == 0
    rows = [json.loads(line) for line in (tmp_path / "got").read_text().splitlines()]
    assert [row["id"] for row in rows] == expected
    assert rows[0]["details"] == "no\ngood"
    assert rows[0]["message"] == 0


async def test_a_failed_command_gets_only_its_message_again(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    failing = f"cat >> {tmp_path}/got; test $(wc -l < {tmp_path}/got) -ne 3"
    with watch(database, "--exec", failing, "--state", state) as watching:
        async with connection.transaction():  # all in one batch
            expected = await let_fail(connection, 5)
        result = watching.end()
    assert result.code == 1
    last = result.err.splitlines()[-1]
    assert last.startswith(f"notifyq: the command for dead message {expected[2]} ended with")
    assert "Traceback" not in result.err
    with watch(database, "--exec", failing, "--state", state) as watching:
        late = await let_fail(connection)
        await until(
            lambda: len((tmp_path / "got").read_text().splitlines()) == 7,
            "the message that failed, two more, and a new one came",
        )
        assert watching.stop(signal.SIGTERM).code == 0
    got = [json.loads(line)["id"] for line in (tmp_path / "got").read_text().splitlines()]
    assert got == [*expected[:3], *expected[2:], *late]


@pytest.mark.parametrize(
    ("command", "how"),
    [("exit 3", "ended with exit code 3"), ("kill -9 $$", "was ended by signal 9")],
)
async def test_the_end_of_a_command_is_reported(
    database: str, connection: Connection, command: str, how: str
) -> None:
    with watch(database, "--exec", command) as watching:
        (dead,) = await let_fail(connection)
        result = watching.end()
    assert result.code == 1
    assert f"notifyq: the command for dead message {dead} {how}" in result.err


async def test_command_need_not_read_its_input(database: str, connection: Connection) -> None:
    with watch(database, "--exec", "exec 0<&-; echo called") as watching:
        for _ in range(3):
            await let_fail(connection, 5)
            assert [watching.line() for _ in range(5)] == ["called\n"] * 5
        assert watching.stop(signal.SIGTERM).code == 0


async def test_a_running_command_is_not_interrupted(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    state, gate = tmp_path / "state", tmp_path / "gate"
    with watch(
        database, "--exec", f"echo began; cat {gate} >/dev/null; echo ended", "--state", state
    ) as watching:
        os.mkfifo(gate)
        (dead,) = await let_fail(connection)
        assert watching.line() == "began\n"
        watching.process.send_signal(signal.SIGTERM)
        with gate.open("w"):
            pass
        assert watching.line() == "ended\n"
        assert watching.end().code == 0
    assert state.read_text().splitlines()[1:] == [str(dead)]


async def test_second_signal_ends_the_command_too(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with watch(
        database,
        "--exec",
        "echo began; sleep 600",
        "--state",
        state,
    ) as watching:
        await let_fail(connection)
        assert watching.line() == "began\n"
        watching.process.send_signal(signal.SIGTERM)
        watching.process.send_signal(signal.SIGINT)
        assert watching.end().code == 0
    assert len(state.read_text().splitlines()) == 1


BAD_STATES = {
    "empty": (b"", "is not a file that --state wrote"),
    "binary": (bytes(range(256)), "is not a file that --state wrote"),
    "other": (b'{"some": "json"}\n', "is not a file that --state wrote"),
    "deep": (b"[" * 100_000 + b"\n", "is not a file that --state wrote"),
    "position": (b'{"position": "1:2:3:4/x"}\n', "is not a file that --state wrote"),
    "ids": (b'{"position": "1:2:3:4/1:2:"}\nx\n', "is not a file that --state wrote"),
}


@pytest.mark.parametrize("kind", BAD_STATES)
def test_state_that_cannot_be_used(notifyq: Notifyq, tmp_path: Path, kind: str) -> None:
    text, why = BAD_STATES[kind]
    state = tmp_path / "state"
    state.write_bytes(text)
    line = notifyq.refused("dead", "watch", "--state", str(state))
    assert f"{state} {why}: delete it to begin now" in line
    assert state.read_bytes() == text


async def test_since_begins_at_an_instant_and_continues(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.write_text('{"position": "1:2:3:4/1:2:"}\n')
    await let_fail(connection, 2)
    since = await connection.fetchval("select clock_timestamp()")
    dead = await let_fail(connection, 2)
    with watch(database, "--json", "--state", state, "--since", since.isoformat()) as watching:
        assert ids(watching, 2) == dead
        dead = await let_fail(connection)
        assert ids(watching, 1) == dead
        assert watching.stop(signal.SIGTERM).out == ""
    with watch(database, "--json", "--state", state) as watching:
        # Unless it was stopped in between, it has noted the last one, too.
        later = await let_fail(connection)
        found = ids(watching, 1)
        assert (found if found == later else ids(watching, 1)) == later
        assert watching.stop(signal.SIGTERM).out == ""


def test_state_of_another_server(notifyq: Notifyq, tmp_path: Path) -> None:
    state = tmp_path / "state"
    text = '{"position": "1:2:3:4/1:2:"}\n'
    state.write_text(text)
    line = notifyq.refused("dead", "watch", "--state", str(state))
    assert f"{state}: this position is of another server: of 1, and this is" in line
    assert line.endswith(
        ": give --since INSTANT to get again the messages that failed since then\n"
    )
    assert state.read_text() == text


async def test_a_state_of_another_watch_or_in_a_missing_folder(
    notifyq: Notifyq, database: str, connection: Connection, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with watch(database, "--state", state) as watching:
        assert watching.stop(signal.SIGTERM).code == 0
    line = notifyq.refused("dead", "watch", "--state", str(state), "--queue", "default")
    assert f"{state} is for all queues: delete it to begin now" in line
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "no/such/folder", "No such file or directory"),
        (state / "below", "Not a directory"),
    ):
        assert why in notifyq.refused("dead", "watch", "--state", str(path))


async def test_a_watch_survives_a_restart_of_the_server(
    mortal_server: Server, tmp_path: Path
) -> None:
    dsn = mortal_server.dsn
    with watch(dsn, "--json", "--state", tmp_path / "state") as watching:
        connection = await open_session(dsn)
        before = await let_fail(connection)
        assert ids(watching, 1) == before
        await connection.close()
        mortal_server.stop()
        mortal_server.start()
        connection = await open_session(dsn)
        expected = await let_fail(connection, 2)
        assert ids(watching, 2) == expected
        watching.logged(", again")
        found = await let_fail(connection)
        assert ids(watching, 1) == found
        await connection.close()
        result = watching.stop(signal.SIGTERM)
    assert (result.code, result.out) == (0, "")
    assert "Traceback" not in result.err
