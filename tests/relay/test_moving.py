"""A relay: which messages are moved, which stay, and its telemetry events."""

from __future__ import annotations

from typing import Any

import pytest

from notifyq import App
from notifyq.errors import ConfigurationError, QueueNotFoundError
from notifyq.relay import RelayMessage, RelayMoved, RelayRefused, RelayStopped
from relay.relaying import drained, fill, payloads, relay, relaying
from support.database import Connection, value
from support.running import Events, statuses


async def test_messages_are_moved_in_order(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await fill(connection, 1, 500)
    events = Events()
    done = await drained(database, far, events=events, batch=120, in_flight=1)
    assert await payloads(there) == list(range(1, 501))
    assert await payloads(connection) == []
    assert done.counts["moved"] == 500
    assert await statuses(connection) == {"success": 500}
    moved = events.of(RelayMoved)
    assert sum(event.quantity for event in moved) == 500
    assert all(event.lag >= event.took > 0 for event in moved)
    assert events.of(RelayStopped, moved=500, released=0)
    row: Any = await connection.fetchrow(
        "select result, handled_by from messages.message_archive where message = '7'"
    )
    other = await there.fetchval("select id from messages.message where message = '7'")
    assert row["result"] == {"queue": "default", "id": other}
    assert row["handled_by"] == done.name


async def test_all_fields_of_a_message_are_moved_unchanged(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    text = '{"n": 1.10, "big": 123456789012345678901234567890, "text": "\\u00e4\\ud83d\\ude00 \\""}'
    await connection.execute("select messages.create_queue('a'), messages.create_queue('b')")
    await there.execute("select messages.create_queue('c')")
    await connection.execute(
        "select messages.publish('a', $1::text::jsonb, 5, type => 'T', headers => '{\"h\": [1.0]}',"
        " key => 'k', dedup_key => 'd', max_attempts => 7)",
        text,
    )
    await connection.execute("select messages.publish('b', 'null')")
    await drained(database, far, {"a": "c", "b": "default"})
    columns = "queue, message::text, priority, type, headers::text, key, dedup_key, max_attempts"
    rows = await there.fetch(f"select {columns} from messages.message order by queue")
    assert [tuple(row) for row in rows] == [
        ("c", await connection.fetchval("select $1::text::jsonb::text", text), 5, "T",
         '{"h": [1.0]}', "k", "d", 7),
        ("default", "null", 0, None, "{}", None, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [16_000, 480_000])
async def test_large_payloads(
    database: str, far: str, connection: Connection, there: Connection, size: int
) -> None:
    await connection.execute(
        "select messages.publish('default', to_jsonb(repeat(md5(n::text), $1 / 32))) "
        "from generate_series(1, 40) as n",
        size,
    )
    digest = "select array_agg(md5(message::text) order by md5(message::text)) from messages."
    sent = await connection.fetchval(digest + "message")
    await drained(database, far)
    assert await there.fetchval(digest + "message") == sent


async def test_a_message_wakes_the_relay(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    events = Events()
    async with relaying(database, far, events=events):
        for number in (1, 2):
            await value(connection, "publish", queue="default", message=number)
            await events.wait(RelayMoved, number, seconds=5)
    assert await payloads(there) == [1, 2]


async def test_a_filter_leaves_other_messages_at_the_source(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await fill(connection, 1, 10)
    await drained(database, far, filter="$ > 7")
    assert await payloads(there) == [8, 9, 10]
    assert await payloads(connection) == [1, 2, 3, 4, 5, 6, 7]


async def test_a_transformation_changes_drops_routes_and_multiplies(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await there.execute("select messages.create_queue('odd')")
    await fill(connection, 1, 6)

    def change(message: RelayMessage) -> Any:
        number = message.payload()
        if number == 1:
            return None
        if number == 2:
            return message.replace(payload={"two": 2}, headers={"by": message.source})
        if number == 3:
            return "odd", message
        if number == 4:
            return [message, ("odd", message.replace(payload=44))]
        return message

    done = await drained(database, far, transform=change)
    assert sorted(map(str, await payloads(there))) == ["4", "5", "6", "{'two': 2}"]
    assert await payloads(there, "odd") == [3, 44]
    assert (done.counts["moved"], done.counts["dropped"]) == (5, 1)
    details = "select details, result from messages.message_archive where message = $1"
    row: Any = await connection.fetchrow(details, 1)
    assert tuple(row) == ("left out by the transformation of the relay", None)
    row = await connection.fetchrow(details, 4)
    assert [position["queue"] for position in row["result"]] == ["default", "odd"]


async def test_a_failed_transformation_affects_only_its_message(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await fill(connection, 1, 3)
    await connection.execute("select messages.alter_queue('default', max_attempts => 1)")

    async def change(message: RelayMessage) -> Any:
        if message.payload() == 2:
            raise RuntimeError("not this one")
        return message if message.payload() == 1 else 17

    done = await drained(database, far, transform=change, attempts=1)
    assert await payloads(there) == [1]
    assert done.counts["failed"] == 2
    rows = await connection.fetch("select details from messages.dead_message order by id")
    assert "RuntimeError: not this one" in rows[0]["details"]
    assert "returns None, a RelayMessage" in rows[1]["details"]


async def test_a_refused_message_is_dead_at_the_source(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await there.execute("select messages.alter_queue('default', max_bytes => 4096)")
    await fill(connection, 1, 20)
    await value(connection, "publish", queue="default", message="x" * 5000)
    events = Events()
    done = await drained(database, far, events=events)
    assert await payloads(there) == list(range(1, 21))
    assert done.counts["refused"] == 1
    assert await statuses(connection) == {"success": 20, "rejected": 1}
    (refused,) = events.of(RelayRefused)
    assert "bytes" in refused.reason
    dead = await connection.fetchval("select details from messages.dead_message")
    assert dead.startswith("the target of the relay refuses it: the message has 5004 bytes")


@pytest.mark.parametrize(
    "policy", ['payload_schema => \'{"type": "string"}\'', "payload_type => 'text'"]
)
async def test_a_message_that_breaks_the_policy_of_the_target_is_dead_at_the_source(
    database: str, far: str, connection: Connection, there: Connection, policy: str
) -> None:
    await there.execute(f"select messages.alter_queue('default', {policy})")
    for message in ("a", 5, "b"):
        await value(connection, "publish", queue="default", message=message)
    done = await drained(database, far)
    assert await payloads(there) == ["a", "b"]
    assert done.counts["refused"] == 1
    dead = await connection.fetchrow("select message, details from messages.dead_message")
    assert dead is not None
    assert dead["message"] == 5
    assert dead["details"].startswith("the target of the relay refuses it: 'default' ")


async def test_a_missing_queue_ends_the_relay(
    database: str, far: str, connection: Connection
) -> None:
    await fill(connection, 1, 3)
    with pytest.raises(QueueNotFoundError, match="absent"):
        await drained(database, far, {"default": "absent"})
    assert await payloads(connection) == [1, 2, 3]
    assert await connection.fetchval("select max(attempts) from messages.message") == 0
    with pytest.raises(QueueNotFoundError, match="gone"):
        await drained(database, far, {"gone": "default"})
    with pytest.raises(ConfigurationError, match="at least one queue"):
        relay(database, far, {})


async def test_a_relay_passes_envelopes_on(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    """It has no keys. A queue of another name that is encrypted refuses what it cannot read."""
    keys = {"k1": b"1" * 32}
    for session, name in ((connection, "a"), (connection, "b"), (there, "a"), (there, "c")):
        await session.execute("select messages.create_queue($1, encrypted => true)", name)
    async with App(database, encryption=keys) as app:
        await app.publish("a", {"card": 4711})
        await app.publish("b", {"card": 4712})
    done = await drained(database, far, {"a": "a", "b": "c"})
    assert done.counts["moved"] == 1
    async with App(far, encryption=keys) as app:
        [message] = await app.archive.live("a")
        assert message.payload() == {"card": 4711}
        assert await app.archive.live("c") == []
    async with App(database, encryption=keys) as app:
        [dead] = await app.archive.dead("b")
        assert dead.payload() == {"card": 4712}


async def test_a_transformation_that_fails_on_an_envelope(
    database: str, far: str, connection: Connection
) -> None:
    def change(message: RelayMessage) -> None:
        raise ValueError("no")

    await connection.execute("select messages.create_queue('a', encrypted => true)")
    async with App(database, encryption={"k1": b"1" * 32}) as app:
        number = await app.publish("a", 1)
        await drained(database, far, {"a": "default"}, transform=change, attempts=1)
        [attempt] = await app.archive.attempts(number)
        assert (attempt.error_type, attempt.details) == ("ValueError", None)
