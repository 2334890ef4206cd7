"""Many messages at once: in batches, in bounded memory, and none of a batch that has a bad one."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cli.programs import NOTIFYQ, Notifyq, Running, Terminal, environment
from notifyq import App, ConfigurationError, Json, QueueNotFoundError
from notifyq.queues.publisher import Publisher
from support.database import Connection, rows, session, until, until_equal


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    async with App(database) as app:
        yield app


@pytest.fixture
def publisher(app: App) -> Publisher:
    return Publisher(app.database)


async def count(connection: Connection) -> int:
    return int(await connection.fetchval("select count(*) from messages.message"))


async def numbers(connection: Connection) -> list[Any]:
    found = await connection.fetch("select message from messages.message order by id")
    return [row[0] for row in found]


async def test_many_are_published_in_order_all_or_none(
    publisher: Publisher, connection: Connection
) -> None:
    options: dict[str, Any] = {"priority": 3, "type": "t", "headers": {"h": 1}}
    ids = await publisher.publish_many("default", range(25_001), **options)
    assert ids == sorted(set(ids))
    assert await numbers(connection) == list(range(25_001))
    found = await connection.fetch("select distinct priority, type, headers from messages.message")
    assert [tuple(row) for row in found] == [(3, "t", {"h": 1})]
    with pytest.raises(ConfigurationError, match=r"cannot store the message at position 20001: "):
        await publisher.publish_many("default", [*range(20_000), "\0"])
    assert await count(connection) == 25_001
    with pytest.raises(TypeError, match="prio"):
        await publisher.publish_many("default", [1], prio=3)  # type: ignore[call-arg]


async def test_many_belong_to_the_transaction_of_the_caller(
    publisher: Publisher, connection: Connection
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    assert (
        len(await publisher.publish_many("default", range(10_001), connection=connection)) == 10_001
    )
    with pytest.raises(ConfigurationError):
        await publisher.publish_many("default", [*range(10_000), "\0"], connection=connection)
    # The savepoint of the second call took its first batch back, and left the transaction usable.
    assert await count(connection) == 10_001
    await transaction.rollback()
    assert await count(connection) == 0


async def test_a_batch_is_bounded_in_size(publisher: Publisher, connection: Connection) -> None:
    await rows(connection, "alter_queue", name="default", max_bytes=4_000_000)
    large = Json('"' + "x" * 3_000_000 + '"')
    batches = [len(ids) async for ids in publisher.publish_stream("default", [large] * 7)]
    assert batches == [3, 3, 1]


async def test_a_key_of_each_payload_keeps_it_from_being_published_twice(
    app: App, connection: Connection
) -> None:
    def key(payload: dict[str, int]) -> str | None:
        return f"order-{payload['order']}" if payload["order"] else None

    (there,) = await app.publish_many("default", [{"order": 7}], dedup_key=key)
    orders = [7, 3, 0, 3, 0, 1]
    payloads = [{"order": order} for order in orders]
    ids = await app.publish_many("default", payloads, dedup_key=key)
    assert ids[0] == there
    assert ids[1] == ids[3]
    assert [id_.is_duplicate for id_ in ids] == [True, False, False, True, False, False]
    assert [ids[1], ids[2], ids[4], ids[5]] == sorted({*ids} - {there})
    assert [message["order"] for message in await numbers(connection)] == [7, 3, 0, 0, 1]
    again = [
        id_
        async for batch in app.publish_stream("default", payloads, batch=4, dedup_key=key)
        for id_ in batch
    ]
    assert [new == old for new, old in zip(again, ids, strict=True)] == [bool(n) for n in orders]
    assert [id_.is_duplicate for id_ in again] == [bool(n) for n in orders]


async def test_the_newest_of_a_key_is_none_that_was_dropped(app: App) -> None:
    ids = await app.publish_many(
        "default", [1, 2, 3], dedup_key=lambda _: "k", on_duplicate="replace"
    )
    assert [id_.is_duplicate for id_ in ids] == [True, True, False]


async def test_nothing_is_published_into_an_unknown_queue(publisher: Publisher) -> None:
    for payloads in ([], [1]):
        with pytest.raises(QueueNotFoundError):
            await publisher.publish_many("nope", payloads)


async def test_an_endless_stream_is_published_batch_by_batch(
    publisher: Publisher, connection: Connection
) -> None:
    stream = publisher.publish_stream("default", itertools.count(), batch=100)
    async for ids in stream:
        assert len(ids) == 100
        if await count(connection) == 300:
            break
    assert await numbers(connection) == list(range(300))


async def test_an_error_in_a_stream_names_the_message_and_keeps_earlier_batches(
    publisher: Publisher, connection: Connection
) -> None:
    async def payloads() -> AsyncIterator[Any]:
        for number in range(30):
            yield "\0" if number == 24 else number

    published: list[int] = []

    async def publish() -> None:
        async for ids in publisher.publish_stream("default", payloads(), batch=10):
            published.extend(ids)

    with pytest.raises(ConfigurationError, match="at position 25: "):
        await publish()
    assert len(published) == await count(connection) == 20


async def test_a_stream_in_a_transaction_is_published_all_or_none(
    publisher: Publisher, connection: Connection
) -> None:
    stop = asyncio.Event()

    async def payloads() -> AsyncIterator[Any]:
        for number in range(25):
            assert await count(connection) == 0
            yield number
        if stop.is_set():
            raise KeyError

    async def publish() -> int:
        async with publisher.transaction() as held:
            stream = publisher.publish_stream("default", payloads(), batch=10, connection=held)
            return sum([len(ids) async for ids in stream])

    assert await publish() == 25
    await connection.execute("delete from messages.message")
    stop.set()
    with pytest.raises(KeyError):
        await publish()
    assert await count(connection) == 0


async def test_a_stream_may_pause_for_longer_than_a_transaction_may_idle(
    database: str, connection: Connection
) -> None:
    name = await connection.fetchval("select current_database()")
    await connection.execute(
        f'alter database "{name}" set idle_in_transaction_session_timeout = 50'
    )

    async def payloads() -> AsyncIterator[Any]:
        yield 1
        await until(
            lambda: connection.fetchval(
                "select count(*) from pg_stat_activity where state = 'idle in transaction' "
                "and state_change < clock_timestamp() - interval '200 ms' "
                "and datname = current_database()"
            ),
            "the transaction idles for longer than it may",
        )
        yield 2

    async with App(database) as app:
        publisher = Publisher(app.database)
        async with publisher.transaction() as held:
            stream = publisher.publish_stream("default", payloads(), batch=1, connection=held)
            assert [len(ids) async for ids in stream] == [1, 1]


async def test_followed_lines_are_published_as_they_come(
    database: str, connection: Connection
) -> None:
    with Running(database, "publish", "default", "-f", stdin=subprocess.PIPE) as publishing:
        stdin = publishing.process.stdin
        assert stdin is not None

        def write(text: str) -> None:
            stdin.write(text)
            stdin.flush()

        async def has(number: int) -> bool:
            return await count(connection) == number

        write("1\n\n2\n")
        await until(lambda: has(2), "the lines are published")
        write("3")  # half a line waits for its end
        write("4\n")
        await until(lambda: has(3), "the line is published")
        write("{\n")
        result = publishing.end()
    assert await numbers(connection) == [1, 2, 34]
    assert (result.code, result.out) == (1, "3 published\n")
    assert result.err.startswith("notifyq: line 5 is not JSON: ")
    assert result.err.endswith("; nothing of its batch was published\n")


async def test_following_ends_by_interrupt_or_with_the_input(
    database: str, connection: Connection
) -> None:
    with Running(database, "publish", "default", "-f", stdin=subprocess.PIPE) as publishing:
        assert publishing.process.stdin is not None
        publishing.process.stdin.write("1\n")
        publishing.process.stdin.flush()
        await until_equal(lambda: count(connection), 1, "the line is published")
        assert publishing.stop(signal.SIGINT)[:2] == (130, "1 published\n")
    with Running(database, "publish", "default", "-f", stdin=subprocess.PIPE) as publishing:
        publishing.process.communicate("2\n3", timeout=30)  # the last line without its end
        assert publishing.process.returncode == 0
    assert await numbers(connection) == [1, 2, 3]


def test_following_is_for_lines(anywhere: Notifyq) -> None:
    assert "--follow is for lines" in anywhere.refused("publish", "q", "1", "--follow", code=2)


async def test_lines_of_a_terminal_can_be_followed(database: str) -> None:
    with Terminal(database, "publish", "default", "--follow") as terminal:
        async with session(database) as connection:
            terminal.type('"typed"\n')
            await until_equal(lambda: count(connection), 1, "the line is published", 20)
        terminal.type("\x04")
        assert terminal.end() == 0


def test_many_short_lines_are_more_than_one_statement(notifyq: Notifyq, queue: str) -> None:
    # Two reads of 256 KiB, the first of which is two statements.
    lines = f"{1:<13}\n" * 20_000
    result = notifyq("publish", queue, stdin=lines)
    assert (result.code, result.out) == (0, "20000 published\n")
    (row,) = [row for row in notifyq.good("queues", "--json").data if row["queue"] == queue]
    assert row["waiting"] == 20_000
    result = notifyq("publish", queue, stdin=lines + "x\n")
    assert (result.code, result.out) == (1, "")
    assert "notifyq: line 20001 is not JSON: " in result.err
    (after,) = [row for row in notifyq.good("queues", "--json").data if row["queue"] == queue]
    assert after == row


def test_a_line_that_no_queue_takes_is_not_read_to_its_end(database: str) -> None:
    """300 MB: far more than it may use."""
    # From a small process: a child begins with the memory of the one that starts it.
    measure = (
        "import resource, subprocess, sys; subprocess.run(['bash', '-c', sys.argv[1]]);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    for source in ("head -c 300000000 /dev/zero | tr '\\0' 7 |", "cat |"):
        pipeline = f"{source} {subprocess.list2cmdline([*NOTIFYQ])} publish default"
        result = subprocess.run(
            [sys.executable, "-c", measure, pipeline],
            check=False,
            env=environment(NOTIFYQ_DSN=database),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        *lines, kilobytes = result.stdout.splitlines()
        assert int(kilobytes) < 200_000
        if "cat" in source:
            assert (lines, result.stderr) == (["0 published"], "")
            continue
        assert lines == []
        assert (
            "a line has more than 8,388,608 bytes, and queue 'default' takes no " in result.stderr
        )
        assert "nothing was published" in result.stderr
