"""A lone event is written in a shorter way than others, which leaves no check out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from notifyq.errors import (
    DatabaseError,
    InvalidArgumentError,
    MessageLimitError,
    PayloadError,
    QueueDeniedError,
    StreamPausedError,
)
from support.database import value

if TYPE_CHECKING:
    from support.database import Connection

PUBLISH = "select messages.publish('s', $1::jsonb)"


@pytest.fixture
async def stream(connection: Connection) -> None:
    await value(connection, "create_stream", name="s")
    assert await room(connection) == 1048576


async def room(connection: Connection) -> int | None:
    found: int | None = await connection.fetchval(
        "select unchecked_bytes from messages.stream where name = 's'"
    )
    return found


@pytest.mark.parametrize(
    ("before", "after", "message", "error"),
    [
        (
            "select messages.pause_stream('s')",
            "select messages.resume_stream('s')",
            "1",
            StreamPausedError,
        ),
        (
            "select messages.alter_stream('s', payload_type => 'integer')",
            "update messages.stream set payload_type = null",
            '"one"',
            asyncpg.DatatypeMismatchError,
        ),
        (
            """select messages.alter_stream('s', payload_schema => '{"type": "integer"}')""",
            "update messages.stream set payload_schema = null",
            '"one"',
            PayloadError,
        ),
    ],
)
@pytest.mark.usefixtures("stream")
async def test_a_stream_with_conditions_checks_each_event(
    connection: Connection, before: str, after: str, message: str, error: type[Exception]
) -> None:
    await connection.execute(before)
    assert await room(connection) is None
    with pytest.raises(error):
        await connection.fetchval(PUBLISH, message)
    await connection.execute(after)
    assert await room(connection) == 1048576
    assert await connection.fetchval(PUBLISH, message)


@pytest.mark.usefixtures("stream")
async def test_grants_of_a_stream_are_checked_and_those_of_others_cost_it_nothing(
    connection: Connection,
) -> None:
    await connection.execute("select messages.grant_queue('default', 'notifyq_admin')")
    assert await room(connection) == 1048576
    await connection.execute("select messages.grant_queue('s', 'notifyq_admin')")
    assert await room(connection) is None
    async with connection.transaction():
        await connection.execute("set local role notifyq_publisher")
        with pytest.raises(QueueDeniedError):
            async with connection.transaction():
                await connection.fetchval(PUBLISH, "1")
    await connection.execute("select messages.revoke_queue('s', 'notifyq_admin')")
    assert await room(connection) == 1048576
    async with connection.transaction():
        await connection.execute("set local role notifyq_publisher")
        assert await connection.fetchval(PUBLISH, "1")


@pytest.mark.usefixtures("stream")
async def test_a_stream_whose_name_has_grants_is_created_with_them(connection: Connection) -> None:
    await connection.execute(
        "insert into messages.queue_grant values ('t', 'notifyq_admin', now(), true, true)"
    )
    await value(connection, "create_stream", name="t")
    assert not await connection.fetchval(
        "select unchecked_bytes is not null from messages.stream where name = 't'"
    )
    await connection.execute("truncate messages.queue_grant")
    assert await connection.fetchval(
        "select unchecked_bytes is not null from messages.stream where name = 't'"
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"message": None}, InvalidArgumentError),
        ({"message": None, "headers": {"a": 1}}, InvalidArgumentError),
        ({"headers": [1]}, InvalidArgumentError),
        ({"priority": 1}, InvalidArgumentError),
        ({"max_attempts": 2}, InvalidArgumentError),
        ({"dedup_key": "k"}, InvalidArgumentError),
        ({"message": "x" * 5000}, MessageLimitError),
        ({"headers": {"a": "x" * 5000}}, MessageLimitError),
    ],
)
@pytest.mark.usefixtures("stream")
async def test_an_invalid_event_is_refused(
    connection: Connection, options: dict[str, Any], error: type[DatabaseError]
) -> None:
    await value(connection, "alter_stream", name="s", max_bytes=4096)
    with pytest.raises(error):
        await value(connection, "publish", **{"queue": "s", "message": 1, **options})
    assert await connection.fetchval("select count(*) from messages.event") == 0


@pytest.mark.parametrize("notification", ["always", "off"])
@pytest.mark.usefixtures("stream")
async def test_any_notification_takes_events(connection: Connection, notification: str) -> None:
    await value(connection, "alter_stream", name="s", notify=notification)
    assert (await room(connection) is None) == (notification == "always")
    before = await connection.fetchval("select last_value from notifyq.event_notification_seq")
    await connection.fetchval(PUBLISH, "1")
    await connection.fetchval(PUBLISH, "2")
    after = await connection.fetchval("select last_value from notifyq.event_notification_seq")
    assert (after > before) == (notification == "always")
    assert await connection.fetchval("select count(*) from messages.event") == 2
