"""Message brokers as the target of a relay: NATS JetStream, RabbitMQ and other AMQP, Kafka."""

from __future__ import annotations

from importlib import import_module

from notifyq.dsn import masked
from notifyq.errors import ConfigurationError
from notifyq.relay.brokers.broker import Broker

_KINDS = {
    "nats": ("nats", "jetstream", "JetStream"),
    "tls": ("nats", "jetstream", "JetStream"),
    "amqp": ("amqp", "amqp", "Amqp"),
    "amqps": ("amqp", "amqp", "Amqp"),
    "kafka": ("kafka", "kafka", "Kafka"),
}
"""By scheme: the extra, the module and the class."""


def is_broker(address: str) -> bool:
    """Whether this is the URL of a broker."""
    return address.partition("://")[0].lower() in _KINDS and "://" in address


def broker_of(address: str) -> Broker:
    """The broker of a URL, not connected yet.

    Raises ConfigurationError where the URL is wrong, or the package of its client is missing.
    """
    if not is_broker(address):
        schemes = ", ".join(f"{scheme}://" for scheme in _KINDS)
        raise ConfigurationError(f"{masked(address)!r} is no broker: use one of {schemes}")
    scheme = address.partition("://")[0].lower()
    extra, module, name = _KINDS[scheme]
    try:
        found = import_module(f"notifyq.relay.brokers.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "notifyq":
            raise
        raise ConfigurationError(
            f"a relay to {scheme}:// needs one more package: pip install 'notifyq[{extra}]'"
        ) from None
    broker: Broker = getattr(found, name)(address)
    return broker
