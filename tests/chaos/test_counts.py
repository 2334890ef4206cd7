"""The check by counts: lost, doubled and remaining messages are violations, and nothing else."""

from notifyq.chaos.results import counted
from support.database import Connection, publish, rows


async def test_archived_messages_are_no_violation(connection: Connection) -> None:
    await publish(connection, 3)
    await rows(connection, "take", queue="default", quantity=3)
    result = await counted(connection, acknowledged=3, unknown=0)
    assert result.ok
    # Of two without an answer one was published.
    assert (await counted(connection, acknowledged=2, unknown=2)).recovered == 1


async def test_each_violation_is_counted(connection: Connection) -> None:
    await publish(connection, 3)
    await rows(connection, "take", queue="default", quantity=2)
    found = await counted(connection, acknowledged=4, unknown=0)
    assert {it.invariant for it in found.violations} == {"lost", "unusable"}
    assert found.lost == 1
    found = await counted(connection, acknowledged=1, unknown=1)
    assert "unexpected" in {it.invariant for it in found.violations}
    await connection.execute("""
        insert into messages.message_archive
          (id, created_at, available_at, lock_token, priority, attempts, status, queue, message,
          headers)
        select id, created_at, available_at, lock_token, priority, 2, status, queue, message,
          headers
        from messages.message_archive
        union all
        select id, created_at, available_at, lock_token, priority, attempts,
          'success'::messages.message_status, queue, message, headers
        from messages.message
    """)
    found = await counted(connection, acknowledged=3, unknown=0)
    assert {it.invariant for it in found.violations} == {"I1", "I2", "I6", "unusable"}
    assert found.doubled_archive == 2
