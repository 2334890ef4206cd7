"""Moving messages from one database to another, each once, whatever dies meanwhile.

A batch is claimed at the source, received at the target in one transaction with a receipt for each
message, and finished at the source. A relay that dies between the commits leaves messages that
another one claims again, finds the receipts of, and only finishes.
"""

from notifyq.relay.events import (
    RelayMoved,
    RelayRefused,
    RelayResumed,
    RelayStalled,
    RelayStarted,
    RelayStopped,
)
from notifyq.relay.message import RelayMessage, Transform, Transformed
from notifyq.relay.relay import Relay
from notifyq.relay.stream import StreamRelay

__all__ = [
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
