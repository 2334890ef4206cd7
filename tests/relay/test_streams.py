"""A subscription that becomes a queue elsewhere, and a queue that becomes a stream."""

from __future__ import annotations

import asyncio
from typing import Any

from notifyq.config import RelaySettings
from notifyq.database.pool import Database
from notifyq.relay import RelayMessage, RelayMoved, StreamRelay
from relay.relaying import drained, payloads
from support.database import Connection
from support.running import Events

SUBSCRIBE = "select messages.create_stream('orders'), messages.subscribe('orders', 'hub', 'start')"


async def publish(connection: Connection, *numbers: int) -> None:
    for number in numbers:
        await connection.execute(
            "select messages.publish('orders', $1, type => 'T', key => 'k', "
            "headers => '{\"h\": 1}')",
            number,
        )


def made(source: str, target: str, queue: str = "default", **options: Any) -> StreamRelay:
    settings = RelaySettings.load(batch=2, attempts=1, poll=60)
    ends = Database(source), Database(target)
    return StreamRelay(*ends, "orders", "hub", queue, settings=settings, **options)


async def test_events_are_moved_once_and_in_order(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await connection.execute(SUBSCRIBE)
    await publish(connection, 1, 2, 3, 4, 5)
    relay = made(database, far, once=True)
    await relay.run()
    assert await payloads(there) == [1, 2, 3, 4, 5]
    row: Any = await there.fetchrow("select type, key, headers from messages.message limit 1")
    assert tuple(row) == ("T", "k", {"h": 1})
    assert relay.counts["moved"] == 5

    # As after a relay that was killed before it had finished.
    await connection.execute("select messages.seek('orders', 'hub', 'start')")
    again = made(database, far, once=True)
    await again.run()
    assert again.counts["known"] == 5
    assert await payloads(there) == [1, 2, 3, 4, 5]


async def test_an_event_wakes_the_relay(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await connection.execute(SUBSCRIBE)
    events = Events()
    relay = made(database, far, telemetry=events)
    running = asyncio.create_task(relay.run())
    for number in (1, 2):
        await publish(connection, number)
        await events.wait(RelayMoved, number)
    relay.stop()
    await running
    assert await payloads(there) == [1, 2]


async def test_events_are_transformed_dropped_and_refused(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await connection.execute(SUBSCRIBE)
    await there.execute("select messages.alter_queue('default', max_bytes => 4096)")
    await publish(connection, 1, 2, 3, 4)

    def change(message: RelayMessage) -> Any:
        match message.payload():
            case 1:
                return None
            case 2:
                return message.replace(payload="x" * 5000)
            case 3:
                raise RuntimeError("not this one")
        return message

    relay = made(database, far, once=True, transform=change)
    await relay.run()
    assert await payloads(there) == [4]
    assert {name: relay.counts[name] for name in ("moved", "dropped", "refused", "failed")} == {
        "moved": 1,
        "dropped": 1,
        "refused": 1,
        "failed": 1,
    }
    dead = await connection.fetch("select details from messages.dead_message order by event_id")
    assert "refuses" in dead[0][0]
    assert "RuntimeError" in dead[1][0] or "not this one" in dead[1][0]


async def test_a_queue_becomes_a_stream(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await there.execute(SUBSCRIBE)
    await connection.execute(
        "select messages.publish('default', to_jsonb(n), priority => 3, dedup_key => n::text) "
        "from generate_series(1, 5) as n"
    )
    await drained(database, far, {"default": "orders"})
    batch = await there.fetchval("select messages.next_batch('orders', 'hub')")
    events = await there.fetch("select message from messages.batch_events($1)", batch)
    assert [row[0] for row in events] == [1, 2, 3, 4, 5]
