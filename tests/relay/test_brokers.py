"""Events on their way to message brokers: what arrives there, in which order, and how often."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aio_pika
import nats
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from nats.js.api import ConsumerConfig, DeliverPolicy

from notifyq.config import RelaySettings
from notifyq.database.pool import Database
from notifyq.relay import RelayMessage, StreamRelay
from support.brokers import Server, kafka_cluster, nats_server, rabbitmq_server
from support.database import Connection


class Arrived(NamedTuple):
    """A message at a broker."""

    payload: Any
    headers: dict[str, Any]
    key: str | None


Read = Callable[[int], Awaitable[list[Arrived]]]


class There(NamedTuple):
    """A broker: its URL, an address there, and what reads so many messages from it."""

    url: str
    to: str
    read: Read


@pytest.fixture(scope="module")
def nats_there() -> Iterator[Server]:
    with nats_server("max_payload: 100000") as made:
        yield made


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[Server]:
    with rabbitmq_server("max_message_size = 100000") as made:
        yield made


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with kafka_cluster() as url:
        yield url


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[Any]:
    client = await nats.connect(url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def read_stream(url: str, subject: str) -> list[Arrived]:
    """Give all that a stream of JetStream holds, in its order."""
    async with jetstream(url) as stream:
        name = await stream.find_stream_name_by_subject(subject)
        count = (await stream.stream_info(name)).state.messages
        found: list[Arrived] = []
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
        reader = await stream.pull_subscribe(subject, stream=name, config=config)
        while len(found) < count:
            for message in await reader.fetch(min(500, count - len(found)), timeout=10):
                headers = message.headers or {}
                key = headers.get("notifyq-key")
                found.append(Arrived(json.loads(message.data), headers, key))
        return found


@pytest.fixture
async def to_nats(nats_there: Server) -> AsyncIterator[There]:
    async def read(count: int) -> list[Arrived]:
        return await read_stream(nats_there.url, "orders.placed")

    async with jetstream(nats_there.url) as stream:
        await stream.add_stream(name="orders", subjects=["orders.>"])
        yield There(nats_there.url, "orders.placed", read)
        await stream.delete_stream("orders")


@pytest.fixture
async def to_amqp(rabbitmq: Server) -> AsyncIterator[There]:
    connection = await aio_pika.connect(rabbitmq.url)
    channel = await connection.channel()
    queue = await channel.declare_queue("orders", durable=True)

    async def read(count: int) -> list[Arrived]:
        found = []
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            headers = dict(message.headers)
            assert message.message_id == headers["notifyq-id"]
            assert message.type == headers["notifyq-type"]
            assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            found.append(Arrived(json.loads(message.body), headers, str(headers["notifyq-key"])))
        return found

    yield There(rabbitmq.url, "orders", read)
    await queue.delete(if_unused=False, if_empty=False)
    await connection.close()


def consume(url: str, topic: str, count: int) -> list[Arrived]:
    """Give as many messages of a topic, and fail where there are more."""
    consumer = Consumer({"bootstrap.servers": url.partition("//")[2], "group.id": "none"})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, it, OFFSET_BEGINNING) for it in partitions])
    found: list[Arrived] = []
    empty = 0
    while empty < (1 if len(found) >= count else 100):
        message = consumer.poll(0.1)
        if message is None or message.error():
            empty += message is None
            continue
        pairs: Any = message.headers()
        key: Any = message.key()
        value: Any = message.value()
        headers = {name: text.decode() for name, text in pairs}
        found.append(Arrived(json.loads(value), headers, key and key.decode()))
    consumer.close()
    return found


@pytest.fixture
def to_kafka(kafka: str, request: pytest.FixtureRequest) -> There:
    topic = f"orders-{abs(hash(request.node.name))}"

    async def read(count: int) -> list[Arrived]:
        return await asyncio.to_thread(consume, kafka, topic, count)

    return There(f"{kafka}?message.max.bytes=100000", topic, read)


@pytest.fixture(params=["nats", "amqp", "kafka"])
def there(request: pytest.FixtureRequest) -> There:
    made: There = request.getfixturevalue(f"to_{request.param}")
    return made


SUBSCRIBE = "select messages.create_stream('orders'), messages.subscribe('orders', 'hub', 'start')"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
async def _made(connection: Connection) -> None:
    await connection.execute(SUBSCRIBE)


async def fill(connection: Connection, first: int, last: int, keys: int = 7) -> None:
    await connection.execute(
        "select messages.publish('orders', to_jsonb(n), type => 'placed', "
        "key => 'k' || n % $3::int, headers => jsonb_build_object('traceparent', $4::text)) "
        "from generate_series($1::int, $2::int) as n",
        first, last, keys, PARENT,
    )  # fmt: skip


def relay(database: str, there: There, **options: Any) -> StreamRelay:
    known = {it: options.pop(it) for it in list(options) if it in RelaySettings.model_fields}
    settings = RelaySettings.load(**{"batch": 100, "poll": 60} | known)
    return StreamRelay(
        Database(database), there.url, "orders", "hub", there.to, settings=settings, **options
    )


def check_order(found: list[Arrived]) -> None:
    """Each key has its numbers in their order."""
    last: dict[str | None, int] = {}
    for it in found:
        assert it.payload > last.get(it.key, 0), it
        last[it.key] = it.payload


async def test_events_arrive_once_and_in_the_order_of_their_keys(
    database: str, connection: Connection, there: There
) -> None:
    await fill(connection, 1, 250)
    made = relay(database, there, once=True)
    await made.run()
    assert made.counts["moved"] == 250
    found = await there.read(250)
    assert sorted(it.payload for it in found) == list(range(1, 251))
    check_order(found)
    one = next(it for it in found if it.payload == 9)
    assert one.key == "k2"
    assert one.headers["traceparent"] == PARENT
    assert one.headers["notifyq-type"] == "placed"
    assert one.headers["notifyq-key"] == "k2"
    assert one.headers["notifyq-id"].startswith("orders/hub/")
    assert len({it.headers["notifyq-id"] for it in found}) == 250


async def test_a_position_moves_with_the_answer_of_the_broker(
    database: str, connection: Connection, there: There
) -> None:
    """A relay that starts where nothing is left sends nothing."""
    await fill(connection, 1, 10)
    await relay(database, there, once=True).run()
    again = relay(database, there, once=True)
    await again.run()
    assert again.counts["moved"] == 0
    assert len(await there.read(10)) == 10


async def test_a_transformation_routes_changes_and_drops(
    database: str, connection: Connection, there: There
) -> None:
    def change(message: RelayMessage) -> RelayMessage | None:
        number = message.payload()
        return message.replace(payload=100 + number) if number % 2 else None

    await fill(connection, 1, 10)
    made = relay(database, there, once=True, transform=change)
    await made.run()
    assert sorted(it.payload for it in await there.read(5)) == [101, 103, 105, 107, 109]
    assert (made.counts["moved"], made.counts["dropped"]) == (5, 5)


async def test_an_event_that_the_broker_refuses_is_dead_and_stops_no_other(
    database: str, connection: Connection, there: There
) -> None:
    await fill(connection, 1, 5)
    await connection.execute(
        "select messages.publish('orders', to_jsonb(repeat('x', 200000)), key => 'k1', "
        "type => 'large')"
    )
    await fill(connection, 6, 10)
    made = relay(database, there, once=True)
    await made.run()
    assert (made.counts["moved"], made.counts["refused"]) == (10, 1)
    found = await there.read(10)
    # AMQP cannot tell which of the confirms that were under way are lost.
    assert {it.payload for it in found} == set(range(1, 11))
    details = await connection.fetchval("select details from messages.dead_message")
    assert details.startswith("the target of the relay refuses it: ")
