"""Kafka as the source of a relay: a message is its offset in its partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from notifyq.errors import BrokerRefusedError, ConfigurationError
from notifyq.relay.brokers.broker import PATIENCE, TYPE, Incoming, text_of_bytes
from notifyq.relay.brokers.kafka import Kafka, text_of_kafka

T = TypeVar("T")

_REFUSED = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_AT_END, _AWAY = KafkaError._PARTITION_EOF, KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
"""Of the library itself: the end of a partition is reached; no broker can be."""


class KafkaReader(Kafka):
    """Reads a topic as a member of a consumer group."""

    system = "kafka"

    def __init__(self, address: str, topic: str, group: str, _quantity: int) -> None:
        super().__init__(address)
        self._topic = topic
        self._settings: dict[str, Any] = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            # How long the partitions of a relay that was killed wait.
            "session.timeout.ms": 10_000,
            **self._options,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "error_cb": self._failed,
        }
        self.has_more = True
        self._consumer: Consumer | None = None
        # One thread: a consumer must not be closed while another call waits.
        self._thread = ThreadPoolExecutor(1, "notifyq-kafka")
        self._ended: set[int] = set()
        self._error: KafkaError | None = None
        self._taken: list[Any] = []

    async def connect(self) -> None:
        """Make a consumer, and join the group."""
        if self._consumer is None:
            await self._in_thread(self._open)

    async def receive(self, quantity: int, seconds: float) -> list[Incoming]:
        """Read messages that follow those that were read."""
        self._taken = []
        self._taken = await self._in_thread(self._consume, quantity, seconds)
        return [_incoming(it) for it in self._taken]

    async def acknowledge(self, indexes: list[int]) -> None:
        """Commit for each partition the offset up to which all is acknowledged."""
        done, offsets, over = set(indexes), dict[int, int](), set[int]()
        for index, message in enumerate(self._taken):
            partition = message.partition()
            if index not in done:
                over.add(partition)
            elif partition not in over:
                offsets[partition] = message.offset() + 1
        if offsets:
            partitions = [TopicPartition(self._topic, *it) for it in offsets.items()]
            await self._in_thread(self._commit, partitions)

    async def close(self) -> None:
        """Leave the group."""
        await asyncio.shield(self._in_thread(self._close))

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, call, *args)
        except KafkaException as error:
            if error.args[0].code() in _REFUSED:
                raise BrokerRefusedError(text_of_kafka(error)) from None
            raise self._unavailable(text_of_kafka(error)) from None

    def _open(self) -> None:
        try:
            consumer = Consumer(self._settings)
        except (KafkaException, ValueError) as error:
            raise ConfigurationError(f"the URL of Kafka: {text_of_kafka(error)}") from None
        try:
            topic = consumer.list_topics(self._topic, timeout=PATIENCE).topics[self._topic]
            _check(topic.error)
            consumer.subscribe([self._topic], on_revoke=self._revoked)
        except KafkaException:
            consumer.close()
            raise
        self._ended.clear()
        self._error = None
        self._consumer = consumer

    def _consume(self, quantity: int, seconds: float) -> list[Any]:
        consumer = self._consumer
        assert consumer is not None  # noqa: S101  connect() comes first
        found = consumer.consume(1, seconds)
        if found and quantity > 1:
            found += consumer.consume(quantity - 1, 0)
        messages: list[Any] = []
        one: Any
        for one in found:
            error = one.error()
            if error is not None and error.code() == _AT_END:
                self._ended.add(one.partition())
                continue
            _check(error)
            messages.append(one)
            self._ended.discard(one.partition())
        if not messages:
            if self._error is not None:
                raise KafkaException(self._error)
            assigned = {it.partition for it in consumer.assignment()}
            self.has_more = not assigned or not assigned <= self._ended
        return messages

    def _commit(self, partitions: list[TopicPartition]) -> None:
        if self._consumer is not None:
            for one in self._consumer.commit(offsets=partitions, asynchronous=False):
                _check(one.error)

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _revoked(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._ended.clear()

    def _failed(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == _AWAY:
            self._error = error


def _check(error: KafkaError | None) -> None:
    if error is not None:
        raise KafkaException(error)


def _incoming(message: Any) -> Incoming:
    _, created = message.timestamp()  # in milliseconds
    number, key = message.offset(), message.key()
    headers: dict[str, Any] = {
        name: None if value is None else text_of_bytes(value)
        for name, value in message.headers() or ()
    }
    body = message.value()
    return Incoming(
        # With the time: a topic that was made again begins with the first offset.
        id=f"{message.partition()}/{number}@{created}",
        number=number,
        body=b"null" if body is None else body,
        headers={name: value for name, value in headers.items() if name != TYPE},
        type=headers.get(TYPE) or None,
        key=None if key is None else text_of_bytes(key),
        created=created / 1000 if created > 0 else None,
    )
