"""What a relay needs of a message broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from notifyq.dsn import masked
from notifyq.errors import BrokerRefusedError, BrokerUnavailableError
from notifyq.telemetry.tracebacks import text_of

Answer: TypeAlias = bool | str | BrokerRefusedError | BrokerUnavailableError
"""True: the broker has stored the message. False: it had stored it before. A text: why it never
will. An error: it takes nothing for this address now, or has not answered."""

ID, TYPE, KEY = "notifyq-id", "notifyq-type", "notifyq-key"
"""Headers for what a broker has no place of its own for."""
PATIENCE = 10.0
"""Seconds until a connection, or an answer to a message, is given up."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message on its way to a broker."""

    id: str
    """The same when it is sent again."""
    to: str
    """A subject of NATS, a queue or `exchange/routing_key` of AMQP, a topic of Kafka."""
    body: bytes
    headers: dict[str, str]
    """Those of the event; what else a message has goes where the broker has a place for it."""
    type: str | None
    key: str | None


class Broker:
    """A connection to a message broker; methods are called one after another."""

    keeps_order: ClassVar[bool] = False
    """Whether no message is stored behind a later one, also where the broker fails in between."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def connect(self) -> None:
        """Connect, unless it is connected. Raises BrokerUnavailableError."""
        raise NotImplementedError

    async def publish(self, messages: list[Outgoing]) -> list[Answer]:
        """Send messages, wait for the answers, and return them."""
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect; what has no answer may be lost."""
        raise NotImplementedError

    def _unavailable(self, error: object) -> BrokerUnavailableError:
        """The error for a broker that does not answer; a client may name the URL in its text."""
        why = text_of(error) if isinstance(error, BaseException) else str(error)
        why = why or "no answer"  # of a time limit
        shown = masked(self._address)
        return BrokerUnavailableError(
            f"no connection to {shown}: {why.replace(self._address, shown)}"
        )

    def _without_query(self) -> tuple[str, dict[str, str]]:
        """The URL, and the options behind its question mark."""
        parts = urlsplit(self._address)
        return urlunsplit(parts._replace(query="")), dict(parse_qsl(parts.query))
