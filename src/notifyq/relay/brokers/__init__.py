"""Message brokers at one end of a relay: NATS JetStream, RabbitMQ and other AMQP, Kafka."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from notifyq.dsn import masked
from notifyq.errors import ConfigurationError
from notifyq.relay.brokers.broker import Broker, Reader

_KINDS = {
    "nats": ("nats", "jetstream", "JetStream"),
    "tls": ("nats", "jetstream", "JetStream"),
    "amqp": ("amqp", "amqp", "Amqp"),
    "amqps": ("amqp", "amqp", "Amqp"),
    "kafka": ("kafka", "kafka", "Kafka"),
}
"""By scheme: the extra, the module and the class; those of readers end in `_reader`, `Reader`."""


def is_broker(address: str) -> bool:
    """Whether this is the URL of a broker."""
    return address.partition("://")[0].lower() in _KINDS and "://" in address


def broker_of(address: str) -> Broker:
    """The broker of a URL, not connected yet.

    Raises ConfigurationError where the URL is wrong, or the package of its client is missing.
    """
    broker: Broker = _class_of(address, "to")(address)
    return broker


def reader_of(address: str, name: str, group: str, quantity: int) -> Reader:
    """What reads a stream, queue or topic of a broker, not connected yet.

    `group` names the readers that share its messages, where the broker knows such; `quantity` is
    the most that receive() is called with. Raises as `broker_of`.
    """
    reader: Reader = _class_of(address, "from")(address, name, group, quantity)
    return reader


def _class_of(address: str, direction: str) -> Any:
    if not is_broker(address):
        schemes = ", ".join(f"{scheme}://" for scheme in _KINDS)
        raise ConfigurationError(f"{masked(address)!r} is no broker: use one of {schemes}")
    scheme = address.partition("://")[0].lower()
    extra, module, name = _KINDS[scheme]
    if direction == "from":
        module, name = f"{module}_reader", f"{name}Reader"
    try:
        return getattr(import_module(f"notifyq.relay.brokers.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "notifyq":
            raise
        raise ConfigurationError(
            f"a relay {direction} {scheme}:// needs one more package: "
            f"pip install 'notifyq[{extra}]'"
        ) from None
