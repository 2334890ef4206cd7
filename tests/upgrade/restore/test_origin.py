"""Where positions are valid: what maintenance records, and the form of a position."""

from __future__ import annotations

import pytest

from cli.programs import Notifyq
from notifyq.errors import ForeignPositionError, InvalidArgumentError
from support.database import Connection, value
from upgrade.restore.readers import burn, dead_since, position

REACHED = "select reached::text::bigint from notifyq.origin"


async def test_an_install_notes_its_server(connection: Connection) -> None:
    rows = await connection.fetch(
        "select o.epoch, o.timeline, o.system_identifier = s.system_identifier as is_this "
        "from notifyq.origin as o, pg_control_system() as s"
    )
    assert [tuple(row) for row in rows] == [(1, 1, True)]
    assert not await value(connection, "adopt")


async def test_maintenance_records_the_progress_of_the_server_now_and_then(
    connection: Connection,
) -> None:
    await value(connection, "maintain")
    before = await connection.fetchval(REACHED)
    await connection.execute("update notifyq.origin set noted_at = clock_timestamp()")
    await burn(connection, 5)
    await value(connection, "maintain")
    assert await connection.fetchval(REACHED) == before
    await connection.execute("update notifyq.origin set noted_at = now() - interval '10 seconds'")
    await value(connection, "maintain")
    after = await connection.fetchval(REACHED)
    assert after > before + 5
    assert await connection.fetchval("select count(*) from notifyq.origin") == 1


async def test_a_position_of_another_server_is_refused(connection: Connection) -> None:
    parts = (await position(connection)).partition(":")[2]
    with pytest.raises(ForeignPositionError, match="of another server: of 1, and this is"):
        await dead_since(connection, f"1:{parts}")


async def test_an_invalid_position_is_refused(connection: Connection) -> None:
    for text in (
        "",
        "x",
        "1:2:",
        "1/1:2:",
        "1:2:3:4/",
        "1:2:3:4/1:2:x",
        "1:2/1:2:",
        "1:2:3:4/1:2:\n",
        "a" * 10**5,
    ):
        with pytest.raises(InvalidArgumentError, match="is not a position") as caught:
            await dead_since(connection, text)
        assert len(str(caught.value)) < 300


async def test_a_snapshot_from_the_future_is_refused(connection: Connection) -> None:
    with pytest.raises(ForeignPositionError, match="later than this server"):
        await connection.execute(
            "select messages.dead_since("
            "split_part(messages.current_position(), '/', 1) || '/9999999999:9999999999:')"
        )


async def test_sequences_that_replication_has_left_behind_are_set(
    connection: Connection, database: str
) -> None:
    async def late() -> dict[str, int]:
        rows = await connection.fetch("select * from notifyq.late_sequences()")
        return {row["sequence"]: row["used"] for row in rows}

    await connection.execute("""
        select messages.create_stream('s'), messages.create_queue('w', backoff => '0');
        select messages.subscribe('s', 'c');
        select messages.publish('default', to_jsonb(n)), messages.publish('s', to_jsonb(n))
        from generate_series(1, 5) as n;
        select messages.finish(c.id, c.lock_token) from messages.claim('{default}', 5) as c;
    """)
    batch = await value(connection, "next_batch", stream="s", subscriber="c")
    await value(connection, "finish_batch", batch=batch)
    assert await late() == {}
    newest = await connection.fetchval("select max(id) from messages.message_archive")
    await connection.execute("truncate messages.event")  # as old segments are dropped
    await connection.execute("""
        select setval(s.oid::regclass, 1, false) from pg_class as s
        where s.relkind = 'S' and s.relname ~ '^(message_id|event_id|batch_id|stream_id)_seq$'
    """)
    found = await late()
    assert found["messages.message_id_seq"] == newest
    assert {it.partition(".")[2] for it in found} >= {
        "message_id_seq", "event_id_seq", "batch_id_seq", "stream_id_seq",
    }  # fmt: skip
    with Notifyq(database) as command:
        assert "sequences are behind their tables" in command("doctor", "--only", "origin").out
        assert "and adopted" in command("migrate", "--adopt").out
        assert "and adopted before" in command("migrate", "--adopt").out
    assert await late() == {}
    assert await value(connection, "publish", queue="default", message=1) == newest + 1
    assert await value(connection, "publish", queue="s", message=1) == 6
    await value(connection, "create_stream", name="t")
    await value(connection, "subscribe", stream="t", subscriber="c")
    assert await value(connection, "next_batch", stream="s", subscriber="c")
