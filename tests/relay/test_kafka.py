"""Producers of Kafka that fail, refuse a batch, or have no room: none of it reorders or loses."""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from notifyq.errors import BrokerRefusedError, BrokerUnavailableError
from notifyq.relay import RelayMoved
from notifyq.relay.brokers.broker import Outgoing
from notifyq.relay.brokers.kafka import Kafka
from relay.arrivals import SUBSCRIBE, There, brokered, check_order, fill
from support.database import Connection, until
from support.running import Events

_PRODUCE = 0
"""The number of a request of Kafka."""


class Library:
    """Functions of librdkafka that Python does not have."""

    def __init__(self) -> None:
        folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
        found = [*folder.glob("librdkafka*")]
        if not found:
            pytest.skip("confluent_kafka has no librdkafka of its own")
        self._calls = ctypes.CDLL(str(found[0]))
        self._calls.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p

    def _handle(self, producer: object) -> ctypes.c_void_p:
        # It follows the head of the object.
        return ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)

    def fence(self, broker: Kafka) -> None:
        """Raise a fatal error, as another producer with the same id does."""
        self._calls.rd_kafka_test_fatal_error(
            self._handle(broker._producer), KafkaError.INVALID_PRODUCER_EPOCH, b"fenced"
        )

    def refuse(self, broker: Kafka, *codes: int) -> None:
        """Have the simulated cluster refuse the next batches."""
        cluster = self._calls.rd_kafka_handle_mock_cluster(self._handle(broker._producer))
        self._calls.rd_kafka_mock_push_request_errors(
            ctypes.c_void_p(cluster), _PRODUCE, ctypes.c_size_t(len(codes)), *codes
        )


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


def of_relay(made: Any) -> Kafka:
    broker: Kafka = made._target._broker
    return broker


async def test_a_producer_that_is_fenced_is_replaced(
    database: str, connection: Connection, to_kafka: There, library: Library
) -> None:
    await connection.execute(SUBSCRIBE)
    await fill(connection, 1, 10, keys=2)
    events = Events()
    made = brokered(database, to_kafka, telemetry=events)
    running = asyncio.create_task(made.run())
    await events.wait(RelayMoved)
    library.fence(of_relay(made))
    await fill(connection, 11, 20, keys=2)
    await until(lambda: made.counts["moved"] == 20 or running.done(), "all have moved", 30)
    made.stop()
    await running
    found = await to_kafka.read(20)
    assert sorted(it.payload for it in found) == list(range(1, 21))
    check_order(found)


def outgoing(*bodies: bytes) -> list[Outgoing]:
    return [Outgoing(f"o/h/{it}", "t", body, {}, None, "k") for it, body in enumerate(bodies)]


async def test_a_batch_that_is_too_large_kills_no_event(library: Library) -> None:
    """A topic takes batches up to a size: the events of a larger one are small enough."""
    made = Kafka("kafka://x?test.mock.num.brokers=1&linger.ms=100")
    await made.connect()
    [first] = await made.publish(outgoing(b"0"))
    assert first is True
    library.refuse(made, KafkaError.MSG_SIZE_TOO_LARGE)
    # The next producers have a cluster of their own, which refuses nothing.
    answers = await made.publish(outgoing(*[b"1" * 100] * 50))
    await made.close()
    assert answers == [True] * 50


async def test_an_event_that_is_too_large_is_refused_alone(library: Library) -> None:
    made = Kafka("kafka://x?test.mock.num.brokers=1&batch.size=10")
    await made.connect()
    library.refuse(made, 0, KafkaError.MSG_SIZE_TOO_LARGE)
    answers = await made.publish(outgoing(b"1" * 100, b"2" * 200, b"3" * 100))
    await made.close()
    assert [type(it) for it in answers] == [bool, str, bool]


async def test_nothing_of_a_key_is_sent_behind_an_event_that_a_policy_denies(
    library: Library,
) -> None:
    made = Kafka("kafka://x?test.mock.num.brokers=1&batch.size=10")
    await made.connect()
    library.refuse(made, KafkaError.POLICY_VIOLATION)
    answers = await made.publish(outgoing(*[b"1" * 100] * 100))
    await made.close()
    assert isinstance(answers[0], BrokerRefusedError)
    # What is in flight has numbers behind a gap: a cluster rejects it, the simulated one does not.
    assert answers.count(True) <= 5


async def test_nothing_is_sent_behind_an_event_that_finds_no_room() -> None:
    made = Kafka("kafka://x?test.mock.num.brokers=1&queue.buffering.max.kbytes=100")
    await made.connect()
    answers = await made.publish(outgoing(b"1" * 60_000, b"2" * 60_000, b"3"))
    assert answers[0] is True
    assert all(isinstance(it, BrokerUnavailableError) for it in answers[1:])
    answers = await made.publish(outgoing(b"", b"2" * 60_000, b"3")[1:])
    await made.close()
    assert answers == [True, True]
