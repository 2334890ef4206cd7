"""The audit: rows are written with the action, read back, and removed in time."""

import pytest

from notifyq.errors import InvalidArgumentError
from support.database import Connection, one_row


async def test_rows_have_actor_action_and_subject(connection: Connection) -> None:
    first = await connection.fetchval(
        "select notifyq.note_audit('ann', 'queue.pause', 'a', '{\"n\": 1}', '10.0.0.1')"
    )
    second = await connection.fetchval("select notifyq.note_audit('bob', 'message.retry', '7')")
    rows = await connection.fetch("select * from messages.audit_list()")
    user = await connection.fetchval("select current_user")
    assert [row["id"] for row in rows] == [second, first]
    assert dict(rows[1]) == {
        "id": first, "acted_at": rows[1]["acted_at"], "role": user,
        "actor": "ann", "action": "queue.pause", "subject": "a", "origin": "10.0.0.1",
        "details": {"n": 1},
    }  # fmt: skip


async def test_rows_are_found_by_each_part(connection: Connection) -> None:
    await connection.execute(
        "select notifyq.note_audit('ann', 'queue.pause', 'a'), "
        "notifyq.note_audit('bob', 'message.retry', '7')"
    )
    for filtered, actors in [
        ("actor => 'ann'", ["ann"]),
        ("action => 'queue'", ["ann"]),
        ("action => 'message.retry'", ["bob"]),
        ("action => 'mess'", []),
        ("subject => '7'", ["bob"]),
        ("before => 2", ["ann"]),
        ("quantity => 1", ["bob"]),
        ("since => now() - interval '1 min'", ["bob", "ann"]),
        ("since => now() + interval '1 min'", []),
    ]:
        rows = await connection.fetch(f"select actor from messages.audit_list({filtered})")
        assert [row["actor"] for row in rows] == actors


async def test_a_long_name_is_truncated_not_refused(connection: Connection) -> None:
    await connection.execute(
        "select notifyq.note_audit($1, 'queue.pause', $1, jsonb_build_object('a', $1::text), $1)",
        "x" * 20_000,
    )
    row = await one_row(connection, "select * from messages.audit")
    assert [len(row[name]) for name in ("actor", "subject", "origin")] == [200, 1000, 200]
    assert row["details"] == {"too_long": True}
    for actor, action in (("", "queue.pause"), ("ann", "Pause it"), (None, "a"), ("ann", None)):
        with pytest.raises(InvalidArgumentError):
            await connection.execute("select notifyq.note_audit($1, $2)", actor, action)


async def test_old_rows_are_forgotten_a_few_at_a_time(connection: Connection) -> None:
    await connection.execute(
        "select notifyq.note_audit('ann', 'queue.pause', n::text) from generate_series(1, 5) as n; "
        "update messages.audit set acted_at = now() - interval '401 days' where subject <= '3'"
    )
    assert await connection.fetchval("select notifyq.forget_audit(2)") == 2
    assert await connection.fetchval("select notifyq.forget_audit(2)") == 1
    assert await connection.fetchval("select notifyq.forget_audit(2)") == 0
    rows = await connection.fetch("select subject from messages.audit order by 1")
    assert [row["subject"] for row in rows] == ["4", "5"]
