"""Messages of brokers on their way into queues and streams."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from datetime import UTC, datetime
from typing import Any

import aio_pika
import pytest
from confluent_kafka import Producer

from notifyq.errors import BrokerUnavailableError
from notifyq.relay import RelayMessage, RelayMoved, RelayRefused, RelayStalled
from notifyq.relay import inbound as module
from notifyq.relay.brokers import reader_of
from notifyq.relay.brokers.broker import Outgoing, Reader
from relay.arrivals import There, jetstream
from relay.departures import From, inbound, send, send_all
from relay.relaying import command, payloads, until_there
from support.brokers import Server
from support.database import Connection, until
from support.running import Events


@pytest.fixture(autouse=True)
async def _made(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('inbox')")


@pytest.fixture(params=["nats", "amqp", "kafka"])
def there(request: pytest.FixtureRequest) -> From:
    """Give each broker in turn."""
    made: There = request.getfixturevalue(f"to_{request.param}")
    # The simulated cluster lets a member that comes back wait for the session to end.
    url = made.url + "&session.timeout.ms=6000" * (request.param == "kafka")
    return From(url, made.to, made.to.partition(".")[0])


async def moved(there: From, database: str, **options: Any) -> dict[str, int]:
    """Bring all that is there; return the counts."""
    made = inbound(there, database, once=True, **options)
    async with asyncio.timeout(50):
        await made.run()
    return made.counts


async def test_messages_arrive_once_and_in_their_order(
    database: str, connection: Connection, there: From
) -> None:
    await send(there.url, there.address, *range(250))
    counts = await moved(there, database)
    assert (counts["moved"], counts["known"]) == (250, 0)
    rows = await connection.fetch("select * from messages.message order by id")
    by_key: dict[str, list[int]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row["message"])
    assert by_key == {f"k{it}": list(range(it, 250, 7)) for it in range(7)}
    assert {(row["queue"], row["type"]) for row in rows} == {("inbox", "placed")}
    assert rows[0]["headers"]["traceparent"] == "00-1"
    assert (await moved(there, database))["moved"] == 0


async def test_messages_that_are_delivered_again_are_known(
    database: str, connection: Connection, there: From, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks between the commit and the acknowledgement."""
    broken: list[int] = []

    def breaking(*args: Any) -> Reader:
        made = reader_of(*args)
        acknowledge = made.acknowledge

        async def acknowledge_later(indexes: list[int]) -> None:
            if not broken:
                broken.append(len(indexes))
                raise BrokerUnavailableError("broken")
            await acknowledge(indexes)

        monkeypatch.setattr(made, "acknowledge", acknowledge_later)
        return made

    monkeypatch.setattr(module, "reader_of", breaking)
    await send(there.url, there.address, *range(20), b"\x00", {"more": 1})
    counts = await moved(there, database)
    assert counts["known"] == broken[0]
    found = await payloads(connection, "inbox")
    assert len(found) == 22
    assert sorted(it for it in found if isinstance(it, int)) == list(range(20))
    assert (await moved(there, database))["moved"] == 0


async def test_what_is_no_json_becomes_text(
    database: str, connection: Connection, there: From
) -> None:
    bodies = [b"plain", b"\xff\x00", b'"\\u0000"', b"", b"NaN"]
    await send(there.url, there.address, *bodies, {"a": 1.5})
    await moved(there, database)
    rows = await connection.fetch("select message, headers from messages.message")
    texts = [row for row in rows if isinstance(row["message"], str)]
    [other] = [row for row in rows if row not in texts]
    assert sorted(base64.b64decode(row["message"]) for row in texts) == sorted(bodies)
    assert {row["headers"]["notifyq-encoding"] for row in texts} == {"base64"}
    assert other["message"] == {"a": 1.5}
    assert "notifyq-encoding" not in other["headers"]


async def test_what_a_queue_refuses_is_dead_there_and_stops_no_other(
    database: str, connection: Connection, there: From
) -> None:
    await connection.execute(
        """select messages.create_queue('strict', payload_schema => '{"maximum": 100}')"""
    )
    await send(there.url, there.address, 1, 200, 3)
    events = Events()
    counts = await moved(there, database, queue="strict", events=events)
    assert (counts["moved"], counts["refused"]) == (2, 1)
    assert sorted(await payloads(connection, "strict")) == [1, 3]
    [dead] = await connection.fetch("select * from messages.dead_message")
    assert (dead["queue"], dead["message"], dead["type"]) == ("strict", 200, "placed")
    assert (dead["key"], dead["headers"]["traceparent"]) == ("k4", "00-1")
    assert dead["details"].startswith("refused when it came from a broker: 'strict' does not take")
    assert [it.message_id for it in events.of(RelayRefused)] == [dead["id"]]
    await connection.execute("select messages.alter_queue('strict', payload_schema => '{}')")
    await connection.execute("select messages.redrive('strict')")
    assert sorted(await payloads(connection, "strict")) == [1, 3, 200]


async def test_events_of_a_stream(database: str, connection: Connection, there: From) -> None:
    await connection.execute("select messages.create_stream('news', max_bytes => 4096)")
    await send(there.url, there.address, 1, "x" * 5000, 2)
    counts = await moved(there, database, queue="news")
    assert (counts["moved"], counts["refused"]) == (2, 1)
    rows = await connection.fetch("select message, key, type from messages.event order by id")
    assert [tuple(row) for row in rows] == [(1, "k1", "placed"), (2, "k2", "placed")]
    assert await connection.fetchval("select queue from messages.dead_message") == "news"


async def test_it_waits_for_a_full_queue(
    database: str, connection: Connection, there: From
) -> None:
    await connection.execute("select messages.create_queue('small', capacity => 5)")
    await send(there.url, there.address, *range(12), keys=1)
    events = Events()
    made = inbound(there, database, events, queue="small", hold=0)
    running = asyncio.create_task(made.run())
    await events.wait(RelayStalled, source=made.label)
    found: list[Any] = []

    async def all_are_there() -> bool:
        rows = await connection.fetch("select * from messages.claim('{small}', 10)")
        for row in rows:
            found.append(row["message"])
            await connection.execute("select messages.finish($1, $2)", row["id"], row["lock_token"])
        return len(found) == 12

    await until(all_are_there, "all are there", 40)
    made.stop()
    await running
    assert sorted(found) == list(range(12))
    assert made.counts["released"] > 0


async def test_a_transformation_changes_routes_drops_and_fails(
    database: str, connection: Connection, there: From
) -> None:
    await connection.execute("select messages.create_queue('large')")

    def change(message: RelayMessage) -> Any:
        number = message.payload()
        if number == 3:
            raise ValueError("three")
        if number == 4:
            return "large", message
        return message.replace(payload=100 + number) if number % 2 else None

    await send(there.url, there.address, *range(6))
    counts = await moved(there, database, transform=change)
    names = ("moved", "dropped", "failed")
    assert [counts[name] for name in names] == [3, 2, 1]
    assert sorted(await payloads(connection, "inbox")) == [101, 105]
    assert await payloads(connection, "large") == [4]
    dead = await connection.fetchrow("select message, details from messages.dead_message")
    assert dead is not None
    assert tuple(dead) == (3, "the transformation of the relay failed: three")


async def test_the_command_stops_at_a_signal(
    database: str, connection: Connection, there: From
) -> None:
    await send(there.url, there.address, *range(10))
    async with command(there.url, database, "-q", f"{there.name}:inbox", "--json") as program:
        await until_there(connection, 10, "inbox")
        program.send_signal(signal.SIGTERM)
        out, _ = await program.communicate()
    assert program.returncode == 0
    assert json.loads(out)["moved"] == 10


async def test_messages_without_an_id_and_with_the_same(
    database: str, connection: Connection, to_amqp: There
) -> None:
    async with await aio_pika.connect(to_amqp.url) as broker:
        exchange = (await broker.channel()).default_exchange
        for name, body in [(None, b"1"), (None, b"1"), ("a", b"2"), ("a", b"2"), ("a", b"3")]:
            headers: Any = {"count": 7, "at": datetime(2026, 5, 1, tzinfo=UTC)}
            message = aio_pika.Message(body, message_id=name, headers=headers, correlation_id="c")
            await exchange.publish(message, "orders")
    counts = await moved(From(to_amqp.url, "orders", "orders"), database)
    assert (counts["moved"], counts["known"]) == (5, 1)
    assert sorted(await payloads(connection, "inbox")) == [1, 1, 2, 3]
    headers = await connection.fetchval("select headers from messages.message order by id limit 1")
    assert headers["correlation-id"] == "c"
    assert (headers["count"], headers["at"]) == (7, "2026-05-01T00:00:00Z")


async def test_a_stream_that_was_made_again_begins_anew(
    database: str, connection: Connection, to_nats: There
) -> None:
    there = From(to_nats.url, "orders.placed", "orders")
    await send(there.url, there.address, 1)
    await moved(there, database)
    async with jetstream(to_nats.url) as context:
        await context.delete_stream("orders")
        await context.add_stream(name="orders", subjects=["orders.>"])
    await send(there.url, there.address, 2)
    assert (await moved(there, database))["known"] == 0
    rows = await connection.fetch("select message, headers from messages.message order by id")
    assert [row["message"] for row in rows] == [1, 2]
    assert rows[0]["headers"]["notifyq-subject"] == "orders.placed"


async def test_a_key_that_is_no_text(
    database: str, connection: Connection, to_kafka: There
) -> None:
    there = From(to_kafka.url, to_kafka.to, to_kafka.to)
    messages = [Outgoing("a", there.address, b"1", {}, None, "k")]
    await send_all(there.url, messages)
    producer = Producer({"bootstrap.servers": there.url.partition("://")[2].partition("?")[0]})
    producer.produce(there.address, None, b"\xff\x01", headers=[("h", b"\x80"), ("n", None)])
    await asyncio.to_thread(producer.flush)
    await moved(there, database)
    rows = await connection.fetch("select message::text, key, type, headers from messages.message")
    found = {row["key"]: row for row in rows}
    assert found.keys() == {"k", "/wE="}
    assert found["k"]["type"] is None
    assert found["/wE="]["message"] == "null"
    assert found["/wE="]["headers"] == {"h": "gA==", "n": None}


@pytest.mark.parametrize(
    "options",
    [
        ("--stream", "s:h:t"),
        ("--queue", "q", "--filter", "$.a"),
        ("--queue", "q", "--accept-restored"),
    ],
)
async def test_a_broker_gives_to_queues_only(database: str, options: tuple[str, ...]) -> None:
    async with command("nats://127.0.0.1:1", database, *options) as program:
        _, text = await program.communicate()
    assert program.returncode == 2
    assert b"a broker gives --queue to a database" in text


async def test_an_envelope_is_wanted(
    database: str, connection: Connection, nats: Server, to_nats: There
) -> None:
    """Plain text for an encrypted queue is kept nowhere, and stays at the broker."""
    await connection.execute("select messages.create_queue('secret', encrypted => true)")
    there = From(nats.url, "orders.placed", "orders")
    await send(there.url, there.address, 1)
    events = Events()
    made = inbound(there, database, events, queue="secret", hold=0)
    running = asyncio.create_task(made.run())
    [stalled] = await events.wait(RelayStalled, source=made.label)
    assert "takes no payload in plain text" in stalled.reason
    made.stop()
    await running
    assert not events.of(RelayMoved, quantity=1)
    assert await connection.fetchval("select count(*) from messages.dead_message") == 0
