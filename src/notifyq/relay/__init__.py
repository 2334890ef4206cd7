"""Move messages from one database to another, each once, also when a process or server crashes.

A batch is claimed at the source, received at the target in one transaction that stores a receipt
for each message, and finished at the source. After a crash between the two commits another relay
claims the messages again, finds the receipts, and only finishes them.
"""

from notifyq.relay.events import (
    RelayMoved,
    RelayRefused,
    RelayResumed,
    RelayStalled,
    RelayStarted,
    RelayStopped,
)
from notifyq.relay.inbound import BrokerRelay
from notifyq.relay.message import RelayMessage, Transform, Transformed
from notifyq.relay.relay import Relay
from notifyq.relay.stream import StreamRelay

__all__ = [
    "BrokerRelay",
    "Relay",
    "RelayMessage",
    "RelayMoved",
    "RelayRefused",
    "RelayResumed",
    "RelayStalled",
    "RelayStarted",
    "RelayStopped",
    "StreamRelay",
    "Transform",
    "Transformed",
]
