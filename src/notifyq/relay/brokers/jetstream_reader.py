"""NATS JetStream as the source of a relay: a message is its sequence in its stream."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nats.errors import Error, NoRespondersError
from nats.js.api import ConsumerConfig
from nats.js.errors import APIError, ServiceUnavailableError

from notifyq.errors import BrokerRefusedError
from notifyq.relay.brokers.broker import KEY, PATIENCE, SUBJECT, TYPE, Incoming
from notifyq.relay.brokers.jetstream import JetStream

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_ACK_WAIT = 30.0
"""Seconds after which JetStream delivers again what a relay that was killed had."""


class JetStreamReader(JetStream):
    """Pulls from a durable consumer of a stream, which it makes if there is none."""

    system = "nats"

    def __init__(self, address: str, stream: str, group: str, _quantity: int) -> None:
        super().__init__(address)
        self._stream = stream
        self._group = group
        self.has_more = False
        self._pull: Any = None
        self._taken: list[Msg] = []
        self._done: set[int] = set()

    async def connect(self) -> None:
        """Connect, and bind to the consumer."""
        if self._pull is not None and self._client.is_connected:
            return
        await super().connect()
        # How many are under way each reader bounds by what it pulls.
        config = ConsumerConfig(ack_wait=_ACK_WAIT, max_ack_pending=-1)
        try:
            self._pull = await self._client.jetstream(timeout=PATIENCE).pull_subscribe(
                "", durable=self._group, stream=self._stream, config=config
            )
        except (Error, OSError) as error:
            await self.close()
            raise self._explained(error) from None

    async def receive(self, quantity: int, seconds: float) -> list[Incoming]:
        """Pull messages."""
        self._taken, self._done = [], set()
        try:
            with suppress(TimeoutError):
                self._taken = await self._pull.fetch(quantity, timeout=seconds)
            if not self._taken:
                # This also finds out that the consumer or the connection is gone.
                info = await self._pull.consumer_info()
                self.has_more = bool(info.num_pending or info.num_ack_pending)
        except (Error, OSError) as error:
            raise self._explained(error) from None
        return [_incoming(it) for it in self._taken]

    async def acknowledge(self, indexes: list[int]) -> None:
        """Acknowledge messages, and wait until the server has that."""
        self._done.update(indexes)
        try:
            for index in indexes:
                await self._taken[index].ack()
            await self._client.flush(int(PATIENCE))
        except (Error, OSError) as error:
            raise self._unavailable(error) from None

    async def close(self) -> None:
        """Give back what is not acknowledged, and disconnect."""
        left = [it for index, it in enumerate(self._taken) if index not in self._done]
        self._taken, self._done, self._pull = [], set(), None
        if left and self._client.is_connected:
            try:
                for message in left:
                    await message.nak()
                await self._client.flush(int(PATIENCE))
            except (Error, OSError):
                pass  # it comes again later
        await super().close()

    def _explained(self, error: Exception) -> Exception:
        away = isinstance(error, ServiceUnavailableError | NoRespondersError)
        if isinstance(error, APIError) and not away:
            return BrokerRefusedError(f"JetStream: {error.description or error}")
        return self._unavailable(error)


def _incoming(message: Msg) -> Incoming:
    of_stream = message.metadata
    headers: dict[str, Any] = dict(message.headers or {})
    type_, key = headers.pop(TYPE, None), headers.pop(KEY, None)
    headers[SUBJECT] = message.subject
    number, created = of_stream.sequence.stream, of_stream.timestamp
    return Incoming(
        # With the time: a stream that was made again begins with the first sequence.
        id=f"{number}@{created.isoformat()}",
        number=number,
        body=message.data,
        headers=headers,
        type=type_,
        key=key,
        created=created.timestamp(),
    )
