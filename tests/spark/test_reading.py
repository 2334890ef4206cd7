"""Reading by the data source `notifyq`: every row once, with its types, filtered by the server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    Not,
    StringContains,
)

from notifyq.errors import ConfigurationError, NotifyqError, StreamNotFoundError
from spark.sources import collect, finish, publish, reader
from support.database import Connect, Connection


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
    plan = failed._jdf.queryExecution().toString()
    assert "status" not in plan.partition("== Physical Plan ==")[2].partition("Filter")[2][:60]
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


async def test_spark_reads_where_filters_are_off(
    spark: Any, connection: Connection, database: str
) -> None:
    await publish(connection, 3)
    await finish(connection, 3)
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        frame = spark.read.format("notifyq").option("dsn", database).schema("id long").load()
        assert frame.where("id > 1").count() == 2
    finally:
        spark.conf.set(name, "true")


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


FILTERS: list[tuple[Any, str]] = [
    (EqualTo(("queue",), "a"), "queue = 'a'"),
    (EqualTo(("queue",), "it's \\ %s {}"), "false"),
    (EqualTo(("status",), "failed"), "status = 'failed'"),
    (Not(EqualTo(("status",), "failed")), "status <> 'failed'"),
    (In(("status",), ("failed", "rejected")), "status in ('failed', 'rejected')"),
    (In(("id",), (3, 5, 99)), "id in (3, 5, 99)"),
    (GreaterThan(("id",), 7), "id > 7"),
    (LessThan(("priority",), 1), "priority < 1"),
    (IsNull(("type",)), "type is null"),
    (IsNotNull(("type",)), "type is not null"),
    (Not(EqualTo(("type",), "t")), "type <> 't'"),
    (GreaterThanOrEqual(("xid",), 3), "true"),
    (GreaterThan(("archived_at",), datetime(2020, 1, 1, tzinfo=UTC)), "true"),
    (LessThan(("archived_at",), datetime(2020, 1, 1, tzinfo=UTC)), "false"),
]


async def test_a_filter_is_applied_by_the_server(connection: Connection, database: str) -> None:
    await publish(connection, 20)
    await finish(connection, 20)
    for given, condition in FILTERS:
        source = reader(database, columns="id", partitions="1")
        assert list(source.pushFilters([given])) == []
        found = sorted(row["id"] for row in collect(source, source.partitions()))
        wanted = await connection.fetch(
            f"select id from messages.message_archive where {condition} order by id"
        )
        assert found == [row["id"] for row in wanted], given


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("status",), "unheard"),
        EqualTo(("queue",), "nul\0"),
        EqualTo(("message",), "1"),
        EqualTo(("message", "field"), "1"),
        GreaterThan(("queue",), "a"),
        GreaterThan(("archived_at",), datetime(2020, 1, 1)),  # noqa: DTZ001 - of no zone
        In(("id",), (1, None)),
        EqualTo(("xid",), -1),
        Not(EqualTo(("status",), "unheard")),
        StringContains(("queue",), "a"),
    ],
    ids=str,
)
def test_a_filter_with_another_meaning_in_postgresql_is_left_to_spark(given: Any) -> None:
    assert list(reader("host=nowhere").pushFilters([given])) == [given]


async def test_days_that_a_filter_excludes_are_not_read(
    connection: Connection, database: str
) -> None:
    await publish(connection, 10)
    await finish(connection, 10)
    source = reader(database)
    list(source.pushFilters([LessThan(("archived_at",), datetime(2020, 1, 1, tzinfo=UTC))]))
    [rest] = source.partitions()
    assert not collect(source, [rest])
    since = datetime.now(UTC) - timedelta(hours=1)
    source = reader(database, columns="id")
    list(source.pushFilters([GreaterThan(("archived_at",), since)]))
    assert len(collect(source, source.partitions())) == 10


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
