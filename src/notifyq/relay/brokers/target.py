"""A message broker as the target of a relay: each message in the order of its key."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from notifyq.errors import BrokerRefusedError, BrokerUnavailableError
from notifyq.models.message import decode
from notifyq.models.payload import encode
from notifyq.relay.brokers.broker import Outgoing
from notifyq.relay.target import Sent

if TYPE_CHECKING:
    from notifyq.relay.brokers.broker import Answer, Broker
    from notifyq.relay.message import Item

_MOST = 1000
"""Most messages that are under way."""
_WAIT = wait_random_exponential(multiplier=0.1, max=5)


class BrokerTarget:
    """Sends the events of a subscription, `part`, to a broker."""

    def __init__(self, broker: Broker, part: str) -> None:
        self._broker = broker
        self._part = part
        self._sent = Sent()
        """Of a batch that comes again: what the broker has of it."""

    async def check(self) -> None:
        """Raise BrokerUnavailableError unless the broker answers."""
        await self._broker.connect()

    async def close(self) -> None:
        """Disconnect."""
        await self._broker.close()

    async def send(self, items: list[Item], hold: float) -> Sent:
        """Send all that the broker takes; wait up to `hold` seconds while it is away.

        What it has acknowledged is not sent again where the same items come again.
        """
        sent = Sent()
        if self._sent.ids.keys() <= {item[0] for item in items}:
            sent.ids, sent.refused = self._sent.ids, self._sent.refused
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(BrokerUnavailableError),
                stop=stop_after_delay(hold),
                wait=_WAIT,
                reraise=True,
            ):
                with attempt:
                    await self._send(items, sent)
        except Exception as error:  # noqa: BLE001  the caller handles it, with what was sent
            sent.error = error
        self._sent = sent if sent.error or sent.stopped else Sent()
        return sent

    async def _send(self, items: list[Item], sent: Sent) -> None:
        left = [it for it in items if it[0] not in sent.ids and it[0] not in sent.refused]
        for wave in [left] if self._broker.keeps_order else _waves(left):
            for begin in range(0, len(wave), _MOST):
                part = wave[begin : begin + _MOST]
                await self._broker.connect()
                answers = await self._broker.publish([self._outgoing(it) for it in part])
                _note(part, answers, sent)
                if sent.stopped:
                    return

    def _outgoing(self, item: Item) -> Outgoing:
        position, to, text, _, type, headers, key, *_ = item
        own: dict[str, str] = {}
        if headers and headers != "{}":
            given = decode(headers).items()
            own = {it: value if isinstance(value, str) else encode(value) for it, value in given}
        return Outgoing(f"{self._part}/{position}", to, text.encode(), own, type, key)


def _waves(items: list[Item]) -> list[list[Item]]:
    """Split messages so that those of one key are sent one after another.

    Else one that the broker has not stored could come behind a later one of its key.
    """
    waves: list[list[Item]] = []
    turns = Counter[str | None]()
    for item in items:
        key = item[6]
        turn = turns[key]
        if turn == len(waves):
            waves.append([])
        waves[turn].append(item)
        turns[key] += key is not None
    return waves


def _note(items: list[Item], answers: list[Answer], sent: Sent) -> None:
    """Record the answers; raise where one is missing."""
    missing: BrokerUnavailableError | None = None
    for item, answer in zip(items, answers, strict=True):
        match answer:
            case bool():
                sent.ids[item[0]] = 0
                sent.known += not answer
            case str():
                sent.refused[item[0]] = answer
            case BrokerRefusedError():
                sent.stopped[item[1]] = answer
            case BrokerUnavailableError():
                missing = answer
    if missing is not None and not sent.stopped:
        raise missing
