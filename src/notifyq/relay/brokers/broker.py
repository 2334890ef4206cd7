"""What a relay needs of a message broker, as its target and as its source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from notifyq.dsn import masked
from notifyq.errors import BrokerRefusedError, BrokerUnavailableError
from notifyq.telemetry.tracebacks import text_of

Answer: TypeAlias = bool | str | BrokerRefusedError | BrokerUnavailableError
"""True: the broker has stored the message. False: it had stored it before. A text: why it never
will. An error: it takes nothing for this address now, or has not answered."""

ID, TYPE, KEY = "notifyq-id", "notifyq-type", "notifyq-key"
"""Headers for what a broker has no place of its own for."""
SUBJECT, ENCODING = "notifyq-subject", "notifyq-encoding"
"""Headers of messages that come from a broker: the subject or routing key; `base64` where the
payload is no JSON there."""
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


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that a broker has delivered."""

    id: str | None
    """Which one it is, the same each time it is delivered; None: the broker cannot tell."""
    number: int
    """A number for people: its sequence, offset or delivery tag."""
    body: bytes
    headers: dict[str, Any]
    type: str | None
    key: str | None
    created: float | None
    """When it was stored or sent, in seconds since 1970, where that is known."""


class Reader(Protocol):
    """Reads one stream, queue or topic of a broker; methods are called one after another."""

    system: str
    """What the ids of its messages belong to, beside the name of the stream, queue or topic."""
    has_more: bool
    """After receive() found nothing: whether messages may still come without a new one."""

    async def connect(self) -> None:
        """Connect, unless it is connected.

        Raises BrokerUnavailableError, and BrokerRefusedError where there is nothing of that name.
        """

    async def receive(self, quantity: int, seconds: float) -> list[Incoming]:
        """Wait so long for messages, and return those that are there; raises as connect()."""

    async def acknowledge(self, indexes: list[int]) -> None:
        """Have these of the messages that receive() returned last not delivered again."""

    async def close(self) -> None:
        """Disconnect; what is not acknowledged is delivered again."""


def text_of_bytes(value: bytes) -> str:
    """A text that PostgreSQL can store: as UTF-8 where it is that, else as base64."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return b64encode(value).decode() if "\0" in text else text


class Broker(ABC):
    """A connection to a message broker; methods are called one after another."""

    keeps_order: ClassVar[bool] = False
    """Whether no message is stored behind a later one, also where the broker fails in between."""

    def __init__(self, address: str) -> None:
        self._address = address

    @abstractmethod
    async def connect(self) -> None:
        """Connect, unless it is connected. Raises BrokerUnavailableError."""

    @abstractmethod
    async def publish(self, messages: list[Outgoing]) -> list[Answer]:
        """Send messages, wait for the answers, and return them."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; what has no answer may be lost."""

    def refusal(self, _message: Outgoing) -> str | None:
        """Why no such message can be sent, whatever the server is; None: that is not known."""
        return None

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
