"""Messages that are sent to brokers, and relays that bring them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count
from typing import Any, NamedTuple

from notifyq.config import DatabaseSettings, RelaySettings
from notifyq.database.pool import Database
from notifyq.relay import BrokerRelay
from notifyq.relay.brokers import broker_of
from notifyq.relay.brokers.broker import Outgoing
from support.running import Events

_numbers = count()


class From(NamedTuple):
    """A broker: its URL, where messages are sent there, and where they are read."""

    url: str
    address: str
    name: str


async def send(url: str, address: str, *payloads: Any, keys: int = 7) -> None:
    """Send payloads: bytes as they are, others as JSON."""
    await send_all(
        url,
        [
            Outgoing(
                f"id-{next(_numbers)}-{payload!r:.40}",
                address,
                payload if isinstance(payload, bytes) else json.dumps(payload).encode(),
                {"traceparent": "00-1"},
                "placed",
                f"k{payload % keys}" if isinstance(payload, int) else None,
            )
            for payload in payloads
        ],
    )


async def send_all(url: str, messages: Iterable[Outgoing]) -> None:
    broker = broker_of(url)
    await broker.connect()
    answers = await broker.publish(list(messages))
    await broker.close()
    assert all(it is True for it in answers), answers


def inbound(
    there: From, database: str, events: Events | None = None, queue: str = "inbox", **options: Any
) -> BrokerRelay:
    """Make a relay; what is a setting goes there."""
    known = {it: options.pop(it) for it in list(options) if it in RelaySettings.model_fields}
    target = Database(database, settings=DatabaseSettings.load(retry_for=20))
    return BrokerRelay(
        there.url,
        target,
        there.name,
        queue,
        settings=RelaySettings.load(**{"batch": 100} | known),
        telemetry=events or Events(),
        **options,
    )
