"""A stream in the lake: each event once, also when a micro-batch is run again after its commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from notifyq.errors import ConfigurationError, StreamNotFoundError
from notifyq.spark.lake.lake import Lake
from notifyq.spark.streaming import stream_to_lake, table_of
from support.database import Connection


async def test_each_event_is_in_the_lake_once(
    spark: Any, database: str, connection: Connection, tmp_path: Path
) -> None:
    await connection.execute("select messages.create_stream('orders')")
    batches: list[tuple[int, int]] = []

    async def publish(number: int) -> None:
        await connection.execute(
            "select messages.publish_many('orders', array_agg(to_jsonb(n))) "
            f"from generate_series(1, {number}) as n"
        )

    def carry() -> list[int]:
        query = stream_to_lake(
            spark,
            database,
            tmp_path / "lake",
            "orders",
            once=True,
            on_batch=lambda number, rows: batches.append((number, rows)),
        )
        assert query.awaitTermination(120)
        return sorted(lake.dataset("events_orders").to_table(columns=["id"])["id"].to_pylist())

    root = tmp_path / "lake"
    lake = Lake.create(database, root)
    await publish(10)
    first = carry()
    assert len(set(first)) == len(first) == 10
    await publish(5)
    second = carry()
    assert len(set(second)) == len(second) == 15
    assert sum(rows for _, rows in batches) == 15
    files = {file.path for file in lake.files("events_orders")}
    # As after a kill between our commit and Spark's: it runs the last micro-batch again.
    commits = root / "_checkpoints/events_orders/commits"
    last = max(
        (path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    assert carry() == second
    assert sum(rows for _, rows in batches) == 15
    assert {file.path for file in lake.files("events_orders")} == files
    found = {str(path.relative_to(root)) for path in root.rglob("part-*.parquet")}
    assert found == files


def test_an_unknown_stream_is_refused_before_anything_is_created(
    spark: Any, database: str, tmp_path: Path
) -> None:
    with pytest.raises(StreamNotFoundError, match="there is no stream 'ordres'"):
        stream_to_lake(spark, database, tmp_path / "lake", "ordres", once=True)
    assert not (tmp_path / "lake").exists()


def test_a_table_has_a_name_of_its_own(database: str, tmp_path: Path) -> None:
    assert table_of("Orders / EU") == "events_orders___eu"
    with pytest.raises(ConfigurationError, match="belongs to `notifyq spark export`"):
        stream_to_lake(None, database, tmp_path / "lake", "orders", table="archive")
