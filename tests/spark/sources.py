"""What tests of the data source share: rows to read, and reading without a session of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from notifyq.spark.source.options import described, read_options, stream_options
from notifyq.spark.source.reader import TableReader
from notifyq.spark.source.schema import struct
from notifyq.spark.source.stream_reader import TableStreamReader
from support.database import Connection


async def publish(connection: Connection, quantity: int, queue: str = "a") -> None:
    """Publish messages into a queue that may be there already."""
    await connection.execute("select messages.create_queue($1)", queue)
    await connection.execute(
        "select messages.publish_many($2, array_agg(to_jsonb(i))) "
        "from generate_series(1, $1::integer) as i",
        quantity,
        queue,
    )


async def finish(connection: Connection, quantity: int, queue: str = "a") -> None:
    """Finish messages of a queue, each tenth of them as failed."""
    await connection.execute(
        "select messages.finish(m.id, m.lock_token, case when m.id % 10 = 0 then 'failed' "
        "else 'success' end::messages.message_status) "
        "from messages.claim(array[$2], $1) as m",
        quantity,
        queue,
    )


def schema(options: dict[str, str]) -> Any:
    """Return the schema that Spark would get."""
    chosen = described(options)
    return struct(chosen.table, chosen.columns)


def reader(dsn: str, **options: str) -> TableReader:
    """Give a reader as Spark would make it."""
    options["dsn"] = dsn
    return TableReader(read_options(options), schema(options))


def follower(dsn: str, **options: str) -> TableStreamReader:
    """Give a reader of what comes as Spark would make it."""
    options["dsn"] = dsn
    return TableStreamReader(stream_options(options), schema(options))


def collect(source: TableReader | TableStreamReader, parts: Iterable[Any]) -> list[Any]:
    """Read parts in turn, and give the rows."""
    return [
        row for part in parts for batch in source.read(part) for row in batch.to_pylist()
    ]  # fmt: skip


def kept(offset: dict[str, Any]) -> dict[str, Any]:
    """Give an offset as it comes from a checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
