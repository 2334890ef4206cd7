"""Message brokers as targets of relays, and what arrives there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aio_pika
import nats
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from nats.js.api import ConsumerConfig, DeliverPolicy

from notifyq.config import DatabaseSettings, RelaySettings
from notifyq.database.pool import Database
from notifyq.relay import StreamRelay
from support.database import Connection

SUBSCRIBE = "select messages.create_stream('orders'), messages.subscribe('orders', 'hub', 'start')"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Arrived(NamedTuple):
    """A message at a broker."""

    payload: Any
    headers: dict[str, Any]
    id: str
    type: str | None
    key: str | None


Read = Callable[[int], Awaitable[list[Arrived]]]


class There(NamedTuple):
    """A broker: its URL, an address there, and what reads so many messages from it."""

    url: str
    to: str
    read: Read


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
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, max_ack_pending=-1)
        reader = await stream.pull_subscribe(subject, stream=name, config=config)
        while len(found) < count:
            for message in await reader.fetch(min(500, count - len(found)), timeout=10):
                headers = message.headers or {}
                own = (
                    headers["Nats-Msg-Id"],
                    headers.get("notifyq-type"),
                    headers.get("notifyq-key"),
                )
                found.append(Arrived(json.loads(message.data), headers, *own))
        return found


async def read_queue(url: str, queue: str) -> list[Arrived]:
    """Take all messages of a queue of RabbitMQ, in its order."""
    found = []
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        reader = await channel.get_queue(queue)
        while (message := await reader.get(no_ack=True, fail=False)) is not None:
            headers = dict(message.headers)
            assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            own = str(message.message_id), message.type, str(headers["notifyq-key"])
            found.append(Arrived(json.loads(message.body), headers, *own))
    return found


def consume(url: str, topic: str, count: int) -> list[Arrived]:
    """Give as many messages of a topic, and fail where there are more."""
    consumer = Consumer({"bootstrap.servers": urlsplit(url).netloc, "group.id": "none"})
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
        own = headers["notifyq-id"], headers["notifyq-type"], key and key.decode()
        found.append(Arrived(json.loads(value), headers, *own))
    consumer.close()
    return found


async def fill(connection: Connection, first: int, last: int, keys: int = 7) -> None:
    await connection.execute(
        "select messages.publish('orders', to_jsonb(n), type => 'placed', "
        "key => 'k' || n % $3::int, headers => jsonb_build_object('traceparent', $4::text)) "
        "from generate_series($1::int, $2::int) as n",
        first, last, keys, PARENT,
    )  # fmt: skip


def brokered(database: str, there: There, **options: Any) -> StreamRelay:
    known = {it: options.pop(it) for it in list(options) if it in RelaySettings.model_fields}
    settings = RelaySettings.load(**{"batch": 100, "poll": 60} | known)
    source = Database(database, settings=DatabaseSettings.load(retry_for=20))
    ends = source, there.url, "orders", "hub", there.to
    return StreamRelay(*ends, settings=settings, **options)


def check_order(found: list[Arrived]) -> None:
    """Each key has its numbers in their order."""
    last: dict[str | None, int] = {}
    for it in found:
        assert it.payload > last.get(it.key, 0), it
        last[it.key] = it.payload
