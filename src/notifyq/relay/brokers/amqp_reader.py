"""AMQP as the source of a relay: a message is known again where it has a message_id."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aio_pika.exceptions import AMQPError
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity
from pydantic_core import from_json, to_json

from notifyq.errors import BrokerRefusedError
from notifyq.relay.brokers.amqp import Amqp
from notifyq.relay.brokers.broker import KEY, PATIENCE, SUBJECT, Incoming

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

_PROPERTIES = ("app_id", "content_encoding", "content_type", "correlation_id", "message_id")
"""What becomes a header where a message has it."""
_FAILED = (AMQPError, OSError, RuntimeError, asyncio.InvalidStateError)


class AmqpReader(Amqp):
    """Consumes a queue; the server delivers two batches in advance."""

    def __init__(self, address: str, queue: str, _group: str, quantity: int) -> None:
        super().__init__(address)
        self._name = queue
        self._prefetch = min(2 * quantity, 65_535)
        parts = urlsplit(address)
        # The ids of another server are others.
        self.system = f"amqp {parts.netloc.rpartition('@')[2]}{parts.path}"
        self.has_more = False
        self._queue: AbstractQueue
        self._inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        self._taken: list[AbstractIncomingMessage] = []

    async def connect(self) -> None:
        """Connect, and have the server deliver messages."""
        if self._is_open:
            return
        await super().connect()
        self._inbox = asyncio.Queue()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._channel.set_qos(prefetch_count=self._prefetch)
                self._queue = await self._channel.get_queue(self._name)
                await self._queue.consume(self._inbox.put)
        except _FAILED as error:
            await self.close()
            raise self._explained(error) from None

    async def receive(self, quantity: int, seconds: float) -> list[Incoming]:
        """Return what was delivered; None of it is acknowledged yet."""
        self._taken = []
        try:
            async with asyncio.timeout(seconds):
                self._taken.append(await self._inbox.get())
        except TimeoutError:
            try:
                # This also finds out that the queue or the connection is gone.
                async with asyncio.timeout(PATIENCE):
                    left = await self._channel.declare_queue(self._name, passive=True)
            except _FAILED as error:
                raise self._explained(error) from None
            self.has_more = bool(left.declaration_result.message_count)
        while self._taken and len(self._taken) < quantity and not self._inbox.empty():
            self._taken.append(self._inbox.get_nowait())
        return [self._incoming(it) for it in self._taken]

    async def acknowledge(self, indexes: list[int]) -> None:
        """Acknowledge messages; the server confirms none of that."""
        try:
            if len(indexes) == len(self._taken):
                await self._taken[-1].ack(multiple=True)
                return
            for index in indexes:
                await self._taken[index].ack()
        except _FAILED as error:
            raise self._unavailable(error) from None

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, ChannelNotFoundEntity | ChannelAccessRefused):
            return BrokerRefusedError(str(error))
        return self._unavailable(error)

    def _incoming(self, message: AbstractIncomingMessage) -> Incoming:
        headers: dict[str, Any] = from_json(to_json(message.headers, bytes_mode="base64"))
        key = headers.pop(KEY, None)
        for name in _PROPERTIES:
            if value := getattr(message, name):
                headers.setdefault(name.replace("_", "-"), value)
        if message.routing_key != self._name:
            headers[SUBJECT] = message.routing_key
        return Incoming(
            id=_id(message),
            number=message.delivery_tag or 0,
            body=message.body,
            headers=headers,
            type=message.type or None,
            key=key if key is None else str(key),
            created=message.timestamp.timestamp() if message.timestamp else None,
        )


def _id(message: AbstractIncomingMessage) -> str | None:
    if not message.message_id:
        return None
    # With the body: programs may use an id for two messages.
    return f"{message.message_id} {hashlib.sha256(message.body).hexdigest()}"
