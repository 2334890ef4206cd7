"""Reading as it grows: whatever the order of commits and restarts, each row in one batch."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from notifyq.errors import NotifyqError
from spark.sources import collect, finish, follower, kept, publish

if TYPE_CHECKING:
    from pathlib import Path

    from notifyq.spark.source.stream_reader import TableStreamReader
    from support.database import Connect, Connection


def _by_id(row: Any) -> int:
    return int(row["id"])


def follow(
    source: TableStreamReader, offset: dict[str, Any], most: int | None = None
) -> tuple[list[Any], dict[str, Any], list[int]]:
    """Read batch after batch until there is nothing left."""
    found: list[Any] = []
    sizes = []
    limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
    while (end := kept(source.latestOffset(offset, limit))) != offset:
        batch = collect(source, source.partitions(offset, end))
        # A batch that is read again after a crash has the same rows, in whatever order.
        again = collect(source, source.partitions(offset, end))
        assert sorted(again, key=_by_id) == sorted(batch, key=_by_id)
        found += batch
        sizes.append(len(batch))
        offset = end
    return found, offset, sizes


@pytest.mark.parametrize("seed", range(3))
async def test_late_commits_are_read_once(
    connection: Connection, connect: Connect, database: str, seed: int
) -> None:
    chance = random.Random(seed)
    await connection.execute("select messages.create_stream('s')")
    sessions = [await connect() for _ in range(5)]
    open_ones: dict[int, Any] = {}
    source = follower(database, stream="s", columns="id,message")
    offset = kept(source.initialOffset())
    published = found = 0
    seen: list[int] = []
    for _ in range(60):
        number = chance.randrange(5)
        if number not in open_ones:
            open_ones[number] = sessions[number].transaction()
            await open_ones[number].start()
        quantity = chance.choice((1, 3, 20))
        await sessions[number].execute(
            "select messages.publish('s', to_jsonb(i)) from generate_series(1, $1::int) i",
            quantity,
        )
        if chance.random() < 0.4:
            transaction = open_ones.pop(number)
            await (transaction.rollback() if chance.random() < 0.2 else transaction.commit())
        if chance.random() < 0.4:
            if chance.random() < 0.3:
                source.stop()
                source = follower(database, stream="s", columns="id,message")
            rows, offset, _ = follow(source, offset, chance.choice((7, 1000, None)))
            seen += [row["id"] for row in rows]
    for transaction in open_ones.values():
        await transaction.commit()
    rows, offset, _ = follow(source, offset, 10)
    seen += [row["id"] for row in rows]
    source.stop()
    wanted = await connection.fetch("select id from messages.event order by id")
    published, found = len(wanted), len(seen)
    assert sorted(seen) == [row["id"] for row in wanted]
    assert published == found > 100


async def test_the_archive_is_followed_in_bounded_batches(
    connection: Connection, database: str
) -> None:
    await publish(connection, 130)
    await publish(connection, 5, "b")
    await finish(connection, 100)
    source = follower(database, columns="id", queue="a")
    rows, offset, sizes = follow(source, source.initialOffset(), 30)
    assert sorted(row["id"] for row in rows) == list(range(1, 101))
    assert max(sizes) == 30
    await finish(connection, 5, "b")
    await finish(connection, 30)
    rows, offset, _ = follow(source, offset)
    assert sorted(row["id"] for row in rows) == list(range(101, 131))
    dead = follower(database, table="dead", columns="id")
    rows, _, _ = follow(dead, dead.initialOffset())
    assert len(rows) == 13
    source.stop()
    dead.stop()


async def test_a_large_batch_is_split(
    connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.spark.source.stream_reader._SMALL", 10)
    await connection.execute("select messages.create_stream('s')")
    for quantity in (33, 40, 1):
        await connection.execute(
            "select messages.publish('s', to_jsonb(i)) from generate_series(1, $1::int) i", quantity
        )
    source = follower(database, stream="s", columns="id", partitions="3")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    parts = source.partitions(start, end)
    sizes = [len(collect(source, [part])) for part in parts]
    source.stop()
    assert len(sizes) == 3
    assert sum(sizes) == 74
    assert min(sizes) > 10


async def test_a_run_ends_with_the_rows_of_its_start(connection: Connection, database: str) -> None:
    await connection.execute("select messages.create_stream('s')")
    await connection.execute("select messages.publish('s', '1')")
    source = follower(database, stream="s")
    source.prepareForTriggerAvailableNow()
    await connection.execute("select messages.publish('s', '2')")
    rows, offset, _ = follow(source, source.initialOffset(), 10)
    assert [row["message"] for row in rows] == ["1"]
    source.prepareForTriggerAvailableNow()
    rows, _, _ = follow(source, offset, 10)
    assert [row["message"] for row in rows] == ["2"]
    fresh = follower(database, stream="s", **{"from": "now"})
    rows, _, _ = follow(fresh, fresh.initialOffset())
    assert rows == []
    source.stop()
    fresh.stop()


async def test_a_position_of_another_database_is_refused(
    connection: Connection, database: str
) -> None:
    await connection.execute("select messages.create_stream('s')")
    source = follower(database, stream="s")
    offset = source.initialOffset()
    other = {
        key: str(value).replace(offset["seen"].partition(":")[0], "12345")
        if key in {"seen", "until"}
        else value
        for key, value in offset.items()
    }
    with pytest.raises(NotifyqError, match="of another server"):
        source.latestOffset(other, ReadAllAvailable())
    source.stop()


async def test_dropped_events_raise_an_error(connection: Connection, database: str) -> None:
    await connection.execute("select messages.create_stream('s', retention => '0 seconds')")
    await connection.execute("select messages.publish('s', '1')")
    source = follower(database, stream="s")
    offset = source.initialOffset()
    # As maintenance empties a segment, and gives it to another stream.
    await connection.execute(
        "update notifyq.segment set opened_at = opened_at + interval '1 minute'"
    )
    with pytest.raises(NotifyqError, match="failOnDataLoss"):
        source.latestOffset(offset, ReadAllAvailable())
    lax = follower(database, stream="s", failOnDataLoss="false")
    rows, _, _ = follow(lax, offset)
    assert len(rows) == 1
    source.stop()
    lax.stop()


async def test_the_session_of_the_driver_may_be_ended(
    connection: Connection, database: str
) -> None:
    await connection.execute("select messages.create_stream('s')")
    source = follower(database, stream="s")
    offset = source.initialOffset()
    await connection.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where application_name = 'notifyq spark' and datname = current_database()"
    )
    assert source.latestOffset(offset, ReadAllAvailable()) == offset
    source.stop()


async def test_spark_follows_a_stream_through_restarts(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    await connection.execute("select messages.create_stream('s')")

    def run() -> list[int]:
        query = (
            spark.readStream.format("notifyq")
            .options(dsn=database, stream="s", maxRowsPerBatch="40")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    for rounds in (1, 2):
        await connection.execute(
            "select messages.publish('s', to_jsonb(i)) from generate_series(1, 90) i"
        )
        wanted = await connection.fetch("select id from messages.event order by id")
        assert len(wanted) == 90 * rounds
        assert run() == [row["id"] for row in wanted]
