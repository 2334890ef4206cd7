"""Reading by the data source `notifyq`: every row once, with its types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from database import Connection


async def finish_some(connection: Connection, quantity: int = 20) -> None:
    """Archive messages of queue a, each tenth of them as failed."""
    await connection.execute("select messages.create_queue('a')")
    await connection.execute(
        "select messages.publish_many('a', array_agg(to_jsonb(i))) "
        "from generate_series(1, $1) as i",
        quantity,
    )
    await connection.execute(
        "select messages.finish(m.id, m.lock_token, case when m.id % 10 = 0 then 'failed' "
        "else 'success' end::messages.message_status) from messages.claim('{a}', $1) as m",
        quantity,
    )


async def test_the_archive_is_read(spark: Any, connection: Connection, database: str) -> None:
    await finish_some(connection)
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
