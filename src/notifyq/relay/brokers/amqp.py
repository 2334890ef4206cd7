"""AMQP 0.9.1, as RabbitMQ speaks it: each message is confirmed, and none is without a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aio_pika
from aio_pika.exceptions import AMQPError, DeliveryError, PublishError
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from notifyq.errors import BrokerRefusedError
from notifyq.relay.brokers.broker import KEY, PATIENCE, Answer, Broker, Outgoing

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection

_OF_SERVER = {"BCC", "CC"}
"""Headers by which a publisher adds queues: an event must not have them."""
_LONGEST = 255
"""Most bytes of a short text of AMQP."""


class Amqp(Broker):
    """Publishes to a queue, or to an exchange by `exchange/routing_key`."""

    _connection: AbstractConnection | None = None
    _channel: AbstractChannel

    @property
    def _is_open(self) -> bool:
        return self._connection is not None and not self._channel.is_closed

    async def connect(self) -> None:
        """Connect, and open a channel with confirms; a refused message closes it."""
        if self._is_open:
            return
        await self.close()
        try:
            async with asyncio.timeout(PATIENCE):
                self._connection = await aio_pika.connect(self._address)
                self._channel = await self._connection.channel(on_return_raises=True)
        except (AMQPError, OSError) as error:
            await self.close()
            raise self._unavailable(error) from None

    async def publish(self, messages: list[Outgoing]) -> list[Answer]:
        """Send messages, wait for their confirms, and return them."""
        answers = list(await asyncio.gather(*map(self._send, messages)))
        if len(messages) > 1 and any(isinstance(it, str) for it in answers):
            # One of them has closed the channel: which one, each alone shows.
            for index, answer in enumerate(answers):
                if answer is not True:
                    await self.connect()
                    answers[index] = await self._send(messages[index])
        return answers

    def refusal(self, message: Outgoing) -> str | None:
        """Why AMQP cannot carry this message: the client would raise, and so stop the others."""
        exchange, _, routing_key = message.to.rpartition("/")
        texts = [("id", message.id), ("type", message.type or ""), ("exchange", exchange)]
        texts += [("routing key", routing_key)]
        texts += [("name of a header", name) for name in message.headers]
        for what, text in texts:
            if (size := len(text.encode())) > _LONGEST:
                return f"its {what} has {size} bytes, and AMQP takes {_LONGEST}"
        return None

    async def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _send(self, message: Outgoing) -> Answer:
        if reason := self.refusal(message):
            return reason
        name, _, routing_key = message.to.rpartition("/")
        try:
            async with asyncio.timeout(PATIENCE):
                exchange = self._channel.default_exchange
                if name:
                    exchange = await self._channel.get_exchange(name, ensure=False)
                await exchange.publish(_message(message), routing_key, mandatory=True)
        except PublishError:
            return BrokerRefusedError(f"no queue takes {message.to!r}: create or bind one")
        except DeliveryError:
            return BrokerRefusedError(f"{message.to!r} takes nothing: it is full")
        except (ChannelAccessRefused, ChannelNotFoundEntity) as error:
            return BrokerRefusedError(str(error))
        except ChannelPreconditionFailed as error:
            return str(error)
        except (AMQPError, OSError, RuntimeError, asyncio.InvalidStateError) as error:
            return self._unavailable(error)
        return True


def _message(message: Outgoing) -> aio_pika.Message:
    own = {} if message.key is None else {KEY: message.key}
    headers = {it: value for it, value in message.headers.items() if it not in _OF_SERVER}
    return aio_pika.Message(
        message.body,
        headers=dict[str, Any](headers | own),
        content_type="application/json",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=message.id,
        type=message.type,
    )
