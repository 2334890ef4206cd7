"""Where the database of a test is relayed to: a second one, and message brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import aio_pika
import pytest

from relay.arrivals import Arrived, There, consume, jetstream, read_queue, read_stream
from support.brokers import Server, kafka_cluster, nats_server, rabbitmq_server
from support.database import Connection, session
from support.databases import Databases


@pytest.fixture
def far(databases: Databases) -> Iterator[str]:
    """Give the address of another database with the schema."""
    with databases.lend() as dsn:
        yield dsn


@pytest.fixture
async def there(far: str) -> AsyncIterator[Connection]:
    """Give a session in the other database."""
    async with session(far) as connection:
        yield connection


@pytest.fixture(scope="session")
def nats() -> Iterator[Server]:
    with nats_server("max_payload: 100000") as made:
        yield made


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Server]:
    with rabbitmq_server("max_message_size = 100000") as made:
        yield made


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    with kafka_cluster() as url:
        yield f"{url}?message.max.bytes=100000"


@pytest.fixture
async def to_nats(nats: Server) -> AsyncIterator[There]:
    """Give a subject of a stream of JetStream."""

    async def read(_: int) -> list[Arrived]:
        return await read_stream(nats.url, "orders.placed")

    async with jetstream(nats.url) as context:
        await context.add_stream(name="orders", subjects=["orders.>"])
        yield There(nats.url, "orders.placed", read)
        await context.delete_stream("orders")


@pytest.fixture
async def to_amqp(rabbitmq: Server) -> AsyncIterator[There]:
    """Give a queue of RabbitMQ."""

    async def read(_: int) -> list[Arrived]:
        return await read_queue(rabbitmq.url, "orders")

    async with await aio_pika.connect(rabbitmq.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("orders", durable=True)
        yield There(rabbitmq.url, "orders", read)
        await channel.queue_delete("orders")


@pytest.fixture
def to_kafka(kafka: str, request: pytest.FixtureRequest) -> There:
    """Give a topic that the cluster makes when it is used."""
    topic = "".join(filter(str.isalnum, request.node.name))

    async def read(count: int) -> list[Arrived]:
        return await asyncio.to_thread(consume, kafka, topic, count)

    return There(kafka, topic, read)


@pytest.fixture(params=["nats", "amqp", "kafka"])
def broker(request: pytest.FixtureRequest) -> There:
    """Give an address at each broker in turn."""
    made: There = request.getfixturevalue(f"to_{request.param}")
    return made
