"""`notifyq import`: confirmation, output and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.programs import Notifyq
from integrations.sources import enqueue, install_pgqueuer
from support.database import Connection


@pytest.fixture(scope="module")
def program() -> Iterator[Notifyq]:
    """Give the command line."""
    with Notifyq() as notifyq:
        yield notifyq


async def test_the_command(
    program: Notifyq, database: str, connection: Connection, tmp_path: Path
) -> None:
    program.dsn = database
    await install_pgqueuer(database)
    await enqueue(database, "fetch", [b"1", b"2", b'"' + b"x" * 2_000_000 + b'"'])
    await enqueue(database, "default", [b"3"])

    planned = program("import", "pgqueuer", "--dry-run", "--map", "fetch=crawl", "--json")
    assert planned.code == 0
    rows = {row["queue"]: row for row in planned.data}
    assert rows["fetch"] == {
        "queue": "fetch",
        "becomes": "crawl",
        "exists": False,
        "waiting": 3,
        "scheduled": 0,
        "running": 0,
    }
    assert rows["default"]["exists"]

    stopped = program("import", "pgqueuer", "--map", "fetch=crawl")
    assert stopped.code == 1
    assert stopped.err.startswith("notifyq: there is no queue 'crawl': create it with")
    assert await connection.fetchval("select count(*) from pgqueuer") == 4

    one = program("import", "pgqueuer", "--queue", "default", "--queue", "absent")
    assert one.code == 0
    assert one.out == "1 messages imported from pgqueuer\n"
    assert "queue 'absent' of pgqueuer has nothing to import" in one.err

    file = tmp_path / "dsn"
    file.write_text(database)
    file.chmod(0o600)
    options = ("--map", "fetch=crawl", "--create-queues", "--source-file", file)
    moved = program("import", "pgqueuer", *map(str, options))
    assert moved.code == 1
    assert moved.out == "2 messages imported from pgqueuer\n"
    assert (
        "notifyq: 3 of queue 'fetch' is refused, and left there: the message has 2000" in moved.err
    )
    again = program("import", "pgqueuer", database, "--map", "fetch=crawl", "--json")
    assert again.code == 1
    assert again.data[0]["published"] == 0
    assert len(again.data[0]["refused"]) == 1
    assert "the password of the source" in again.err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("celery",), "celery"),
        (("pgmq", "--map", "a"), "--map 'a' is not OLD=NEW"),
        (("pgmq", "--map", "a=b", "--map", "a=c"), "--map has 'a' twice"),
        (("pgmq", "postgresql://h/d", "--source-file", "f"), "exclude each other"),
    ],
    ids=["system", "map", "twice", "source"],
)
def test_wrong_options_are_refused(program: Notifyq, args: tuple[str, ...], text: str) -> None:
    program.dsn = None
    ended = program("import", *args)
    assert ended.code == 2
    assert text in ended.err


def test_a_missing_pgmq_is_a_one_line_error(program: Notifyq, database: str) -> None:
    program.dsn = database
    ended = program("import", "pgmq")
    assert ended.code == 1
    assert ended.err.startswith("notifyq: pgmq is not installed in this database")
    assert ended.err.count("\n") == 1
