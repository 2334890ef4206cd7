"""Kafka: an idempotent producer stores each message once, and those of a partition in order."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from notifyq.errors import BrokerRefusedError, ConfigurationError
from notifyq.relay.brokers.broker import ID, PATIENCE, TYPE, Answer, Broker, Outgoing

_REFUSED = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD}
"""Errors of one message, which it has again when it is sent again."""
_POLL = 0.1


class Kafka(Broker):
    """Produces to topics; the options of the URL are those of librdkafka."""

    keeps_order: ClassVar[bool] = True

    def __init__(self, address: str) -> None:
        super().__init__(address)
        _, options = self._without_query()
        parts = urlsplit(address)
        login: dict[str, Any] = {}
        if parts.username:
            login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN"}
            login["sasl.username"] = unquote(parts.username)
            login["sasl.password"] = unquote(parts.password or "")
        self._options: dict[str, Any] = {
            "bootstrap.servers": parts.netloc.rpartition("@")[2],
            "client.id": "notifyq relay",
            # Else it logs each attempt to connect, past the log of the relay.
            "log_level": 2,
            **login,
            **options,
        }
        self._config: dict[str, Any] = {
            # That of clients in Java: a key has the same partition from each program.
            "partitioner": "murmur2_random",
            "topic.metadata.propagation.max.ms": 5000,
            **self._options,
            "enable.idempotence": True,
            # Never: a message that is given up and sent again could be stored twice.
            "message.timeout.ms": 0,
        }
        self._producer: Producer | None = None
        self._is_up = self._is_fatal = False
        self._answers: dict[str, Answer | None] = {}
        """By message id; None: the producer has it, and sends it when the broker is back."""

    async def connect(self) -> None:
        """Make a producer, and check that a broker answers."""
        producer = self._made()
        if self._is_up:
            return
        try:
            await asyncio.to_thread(producer.list_topics, timeout=PATIENCE)
        except KafkaException as error:
            raise self._unavailable(text_of_kafka(error)) from None
        self._is_up = True

    async def publish(self, messages: list[Outgoing]) -> list[Answer]:
        """Produce messages, wait for their deliveries, and return these."""
        producer = self._made()
        ids = [message.id for message in messages]
        for message in messages:
            if message.id not in self._answers:
                self._produce(producer, message)
        deadline = time.monotonic() + PATIENCE
        while None in map(self._answers.get, ids) and time.monotonic() < deadline:
            await asyncio.to_thread(producer.poll, _POLL)
        answers = [self._take(it) for it in ids]
        if self._is_fatal:
            await self.close()
        self._is_up = self._is_up and not self._answers
        return answers

    def _made(self) -> Producer:
        if self._producer is None:
            try:
                self._producer = Producer(self._config)
            except (KafkaException, ValueError) as error:
                raise ConfigurationError(f"the URL of Kafka: {text_of_kafka(error)}") from None
        return self._producer

    def _produce(self, producer: Producer, message: Outgoing) -> None:
        self._answers[message.id] = None
        key = message.key.encode() if message.key is not None else None
        headers: list[tuple[str, str | bytes | None]] = [*message.headers.items()]
        headers += [(ID, message.id), (TYPE, message.type or "")]
        try:
            producer.produce(
                message.to,
                message.body,
                key,
                headers=headers,
                on_delivery=partial(self._delivered, message.id),
            )
        except KafkaException as error:
            self._delivered(message.id, error.args[0], None)
        except BufferError as error:
            self._answers[message.id] = self._unavailable(error)

    def _delivered(self, message_id: str, error: KafkaError | None, _: Message | None) -> None:
        """Note the answer; called in the thread that polls."""
        answer: Answer = True
        if error is not None and error.fatal():
            answer = self._unavailable(error.str())
            self._is_fatal = True
        elif error is not None:
            is_final = error.code() in _REFUSED
            answer = error.str() if is_final else BrokerRefusedError(error.str())
        self._answers[message_id] = answer

    def _take(self, message_id: str) -> Answer:
        answer = self._answers[message_id]
        if answer is None:
            return self._unavailable("no answer")
        del self._answers[message_id]
        return answer

    async def close(self) -> None:
        """Forget what is under way."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            await asyncio.to_thread(producer.flush, 1)
        self._answers.clear()
        self._is_up = self._is_fatal = False


def text_of_kafka(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)
