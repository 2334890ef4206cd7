"""Reading by the data source `notifyq`: every row of the span once, with its types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from notifyq.errors import ConfigurationError, NotifyqError, StreamNotFoundError
from spark.sources import collect, finish, publish, reader
from support.database import Connect, Connection

OSLO = timezone(timedelta(hours=1))


async def test_spark_reads_the_archive(spark: Any, connection: Connection, database: str) -> None:
    await publish(connection, 20)
    await finish(connection, 20)
    frame = spark.read.format("notifyq").option("dsn", database).load()
    wanted = await connection.fetch(
        "select id, status::text, archived_at, message::text, xid::text::bigint "
        "from messages.message_archive order by id"
    )
    found = frame.select("id", "status", "archived_at", "message", "xid").orderBy("id").collect()
    assert [tuple(row) for row in found] == [
        (r["id"], r["status"], r["archived_at"].replace(tzinfo=None), str(r["message"]), r["xid"])
        for r in wanted
    ]
    assert len(wanted) == 20
    failed = frame.where("status = 'failed' and archived_at > '2020-01-01' and message <> '7'")
    assert failed.count() == 2
    chosen = spark.read.format("notifyq").options(dsn=database, columns="id,queue").load()
    assert chosen.dtypes == [("id", "bigint"), ("queue", "string")]
    assert chosen.distinct().count() == 20


async def test_a_large_read_is_split_by_its_size(
    connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.execute("select messages.create_stream('s')")
    await connection.execute(
        "select messages.publish('s', to_jsonb(i)) from generate_series(1, 1000) as i"
    )
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    few = reader(database, stream="s", columns="id").partitions()
    assert len(few) == 2
    # On a cluster the cores of this machine say nothing about those of the executors.
    monkeypatch.setattr("notifyq.spark.source.reader._MOST_PAGES", 1)
    source = reader(database, stream="s", columns="id")
    parts = source.partitions()
    assert len(parts) > 2
    assert len(collect(source, parts)) == 1000
    chosen = reader(database, stream="s", columns="id", partitions="1").partitions()
    assert len(chosen) == 1


@pytest.mark.parametrize("pushdown", ["true", "false"])
async def test_filters_of_one_read_are_not_those_of_another(
    spark: Any, connection: Connection, database: str, pushdown: str
) -> None:
    await publish(connection, 10)
    await finish(connection, 10)
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, pushdown)
    try:
        frame = spark.read.format("notifyq").option("dsn", database).load()
        low, high = frame.where("id <= 5"), frame.where("id > 5")
        assert [it.count() for it in (frame, high, frame)] == [10, 5, 10]
        assert sorted(row.id for row in low.union(high).collect()) == list(range(1, 11))
    finally:
        spark.conf.unset(name)


async def test_rows_of_all_days_are_read_once_while_they_move(
    connection: Connection, database: str
) -> None:
    await publish(connection, 60)
    await finish(connection, 60)
    # 20 of today, 20 of a day with a table, 20 of one without.
    await connection.execute(
        "update messages.message_archive set archived_at = archived_at + interval '2 days' "
        "where id % 3 = 1"
    )
    await connection.execute(
        "update messages.message_archive set archived_at = archived_at - interval '9 days' "
        "where id % 3 = 2"
    )
    source = reader(database, partitions="3", columns="id")
    parts = source.partitions()
    first = collect(source, parts[:1])
    await connection.execute("select messages.maintain()")
    await finish(connection, 10)
    rest = collect(source, parts[1:])
    assert sorted(row["id"] for row in first + rest) == list(range(1, 61))
    assert len(first) == 20


async def test_small_days_are_read_by_one_task(connection: Connection, database: str) -> None:
    await publish(connection, 40)
    await finish(connection, 40)
    await connection.execute(
        "update messages.message_archive "
        "set archived_at = archived_at + interval '1 day' * (id % 4)"
    )
    source = reader(database, partitions="2", columns="id")
    first, second = source.partitions()
    found = [sorted(row["id"] for row in collect(source, [part])) for part in (first, second)]
    assert sorted(found[0] + found[1]) == list(range(1, 41))
    assert all(found)


async def test_what_is_committed_after_planning_is_left_out(
    connection: Connection, connect: Connect, database: str
) -> None:
    await publish(connection, 30)
    await finish(connection, 10)
    other = await connect()
    late = other.transaction()
    await late.start()
    await finish(other, 10)
    source = reader(database, columns="id")
    parts = source.partitions()
    await late.commit()
    await finish(connection, 10)
    assert len(collect(source, parts)) == 10
    assert len(collect(source, source.partitions())) == 30


async def test_since_and_until_choose_days_and_rows(connection: Connection, database: str) -> None:
    await publish(connection, 40)
    await finish(connection, 40)
    # A row in each hour from the first of yesterday on; the day before has a table, too.
    await connection.execute(
        "update messages.message_archive set archived_at = "
        "date_trunc('day', now(), 'UTC') + interval '1 hour' * (id - 25)"
    )
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    wanted = [
        ({"since": f"{today:%Y-%m-%d}"}, range(25, 41)),
        ({"until": f"{today:%Y-%m-%d}"}, range(1, 25)),
        (
            {
                "since": (today - timedelta(hours=3)).isoformat(),
                "until": (today + timedelta(hours=2)).astimezone(OSLO).isoformat(),
            },
            range(22, 27),
        ),
        ({"since": f"{today:%Y-%m-%d}", "table": "dead"}, (30, 40)),
        ({"until": "2020-01-01"}, ()),
    ]
    for given, ids in wanted:
        source = reader(database, columns="id", **given)
        assert sorted(row["id"] for row in collect(source, source.partitions())) == list(ids)
    queries = str(reader(database, until=f"{today:%Y-%m-%d}").partitions())
    assert f"message_archive_{today:%Y%m%d}" not in queries
    assert f"message_archive_{today:%Y%m%d}" in str(reader(database).partitions())


async def test_since_and_until_choose_events(connection: Connection, database: str) -> None:
    await connection.execute("select messages.create_stream('s')")
    await connection.execute("select messages.publish('s', '1')")
    for given, rows in (({"since": "2020-01-01"}, 1), ({"until": "2020-01-01"}, 0)):
        source = reader(database, stream="s", **given)
        assert len(collect(source, source.partitions())) == rows


async def test_dead_and_live_messages_are_read(connection: Connection, database: str) -> None:
    await publish(connection, 40)
    await publish(connection, 3, "b")
    await finish(connection, 20)
    await connection.execute("select messages.cancel(messages.publish('default', '1'))")
    dead = reader(database, table="dead", columns="id,status")
    assert collect(dead, dead.partitions()) == [
        {"id": 10, "status": "failed"},
        {"id": 20, "status": "failed"},
    ]
    live = reader(database, table="messages", columns="id,state,queue", partitions="4")
    parts = live.partitions()
    found = collect(live, parts)
    assert len(parts) == 4
    assert sorted(row["id"] for row in found) == list(range(21, 44))
    assert found[0]["state"] == "waiting"
    one = reader(database, table="messages", queue="b")
    assert len(collect(one, one.partitions())) == 3


async def test_a_message_that_was_never_due_is_read(connection: Connection, database: str) -> None:
    await publish(connection, 1)
    await finish(connection, 1)
    await connection.execute("update messages.message_archive set available_at = 'infinity'")
    source = reader(database)
    [row] = collect(source, source.partitions())
    assert row["available_at"].year == 9999


async def test_events_of_a_stream_are_read(connection: Connection, database: str) -> None:
    await connection.execute("select messages.create_stream('s'), messages.create_stream('t')")
    for stream in ("s", "t", "s"):
        await connection.execute(
            "select messages.publish($1, to_jsonb(i), type => 'k') from generate_series(1, 50) i",
            stream,
        )
    await connection.execute("select messages.create_stream('empty')")
    empty = reader(database, stream="empty")
    # Spark would make a part of its own if there were none.
    assert [collect(empty, [part]) for part in empty.partitions()] == [[]]
    source = reader(database, stream="s")
    found = collect(source, source.partitions())
    assert len(found) == 100
    assert {row["type"] for row in found} == {"k"}
    with pytest.raises(StreamNotFoundError, match="no stream 'u'"):
        reader(database, stream="u").partitions()


async def test_a_table_that_is_emptied_during_a_read_fails_it(
    connection: Connection, database: str
) -> None:
    await connection.execute("select messages.create_stream('s')")
    await connection.execute("select messages.publish('s', '1')")
    source = reader(database, stream="s")
    parts = source.partitions()
    table = await connection.fetchval("select 'notifyq.event_' || max(id) from notifyq.segment")
    await connection.execute(f"truncate {table}")
    with pytest.raises(NotifyqError, match="during the read"):
        collect(source, parts)


async def test_a_restored_database_is_refused(connection: Connection, database: str) -> None:
    await connection.execute("update notifyq.origin set system_identifier = 1")
    with pytest.raises(NotifyqError, match="has not been adopted"):
        reader(database).partitions()


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="archive has no column 'mesage'; it has id"):
        reader("host=nowhere", columns="id,mesage")
