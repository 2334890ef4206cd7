"""Kafka: an idempotent producer stores each message once, and those of a partition in order."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from notifyq.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError
from notifyq.relay.brokers.broker import ID, PATIENCE, TYPE, Answer, Broker, Outgoing

_REFUSED = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD}
"""Errors of a message or of the batch that it is in; of one message they are final."""
_PURGED = {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001
"""Errors of messages whose producer has failed: it sends nothing any more."""
_LARGEST, _SMALLER = 1_000_000, 8
"""Bytes of a batch, and the part of them that the next one has where a topic refuses it."""
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
            # Else later messages of a partition are stored though an earlier one was refused.
            "enable.gapless.guarantee": True,
            # Never: a message that is given up and sent again could be stored twice.
            "message.timeout.ms": 0,
        }
        size = options.get("batch.size", str(_LARGEST))
        if not size.isdecimal():
            raise ConfigurationError("the URL of Kafka: batch.size is no number of bytes")
        self._batch_size = self._next_size = int(size)
        self._producer: Producer | None = None
        self._is_up = False
        self._failure: str | None = None
        """Why the producer has failed: another one is made."""
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
        """Produce messages, wait for their deliveries, and return these.

        A refusal ends the producer. Another one sends the rest, unless their address is refused.
        """
        answers: dict[str, Answer] = {}
        left = messages
        while left:
            given = await self._send(left)
            answers |= zip((it.id for it in left), given, strict=True)
            is_too_large = self._next_size < self._batch_size
            if self._failure is None and not is_too_large:
                self._is_up = self._is_up and not self._answers
                break
            await self.close()
            kinds = set(map(type, given))
            if BrokerRefusedError in kinds or not (is_too_large or str in kinds):
                break
            left = [it for it in left if isinstance(answers[it.id], BrokerUnavailableError)]
        return [answers[it.id] for it in messages]

    async def _send(self, messages: list[Outgoing]) -> list[Answer]:
        producer = self._made()
        for message in messages:
            # What finds no room is sent again, and later ones must not come before it.
            if message.id not in self._answers and not self._produce(producer, message):
                break
        ids = [message.id for message in messages if message.id in self._answers]
        deadline = time.monotonic() + PATIENCE
        while None in map(self._answers.get, ids) and time.monotonic() < deadline:
            try:
                await asyncio.to_thread(producer.poll, _POLL)
            except KafkaException as error:  # only a fatal one is raised
                self._failure = text_of_kafka(error)
        return [self._take(message.id) for message in messages]

    def _made(self) -> Producer:
        if self._producer is None:
            try:
                self._producer = Producer(self._config | {"batch.size": self._next_size})
            except (KafkaException, ValueError) as error:
                raise ConfigurationError(f"the URL of Kafka: {text_of_kafka(error)}") from None
            self._batch_size = self._next_size
        return self._producer

    def _produce(self, producer: Producer, message: Outgoing) -> bool:
        """Hand a message to the producer; return whether it had room."""
        key = message.key.encode() if message.key is not None else None
        headers: list[tuple[str, str | bytes | None]] = [*message.headers.items()]
        headers += [(ID, message.id), (TYPE, message.type or "")]
        try:
            producer.produce(
                message.to,
                message.body,
                key,
                headers=headers,
                on_delivery=partial(self._delivered, message),
            )
        except KafkaException as error:
            self._note(message, error.args[0], is_alone=True)
        except BufferError:
            return False
        else:
            self._answers.setdefault(message.id)
        return self._failure is None

    def _delivered(self, message: Outgoing, error: KafkaError | None, _: Message | None) -> None:
        """Note the answer; called in the thread that polls."""
        # A message that is larger than a batch is sent alone.
        self._note(message, error, is_alone=len(message.body) >= self._batch_size)

    def _note(self, message: Outgoing, error: KafkaError | None, *, is_alone: bool) -> None:
        answer: Answer = True
        if error is not None and error.code() in _PURGED:
            self._failure = self._failure or error.str()
            answer = self._unavailable(self._failure)
        elif error is not None and error.code() not in _REFUSED:
            answer = BrokerRefusedError(error.str())
        elif error is not None and is_alone:
            answer = error.str()
        elif error is not None:
            answer = self._unavailable(error.str())
            self._next_size = max(1, self._batch_size // _SMALLER)
        self._answers[message.id] = answer

    def _take(self, message_id: str) -> Answer:
        answer = self._answers.get(message_id)
        if answer is None:
            return self._unavailable(self._failure or "no answer")
        del self._answers[message_id]
        return answer

    async def close(self) -> None:
        """Forget what is under way."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with suppress(KafkaException):  # it has failed
                await asyncio.to_thread(producer.flush, 1)
        self._answers.clear()
        self._is_up, self._failure = False, None


def text_of_kafka(error: Exception) -> str:
    """What an error of the library contains, without its name."""
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)
