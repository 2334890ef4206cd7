"""The policy of queues without counts."""

from support.database import Connection


async def test_it_has_the_policy_of_each_queue_or_of_one(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('a', rate => 5)")
    rows = await connection.fetch("select * from notifyq.queue_list()")
    assert [row["name"] for row in rows] == ["a", "default"]
    rows = await connection.fetch("select * from notifyq.queue_list('a')")
    assert [row["rate"] for row in rows] == [5]
    assert not await connection.fetch("select * from notifyq.queue_list('none')")
