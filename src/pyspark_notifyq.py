"""Where Spark looks for the data source `notifyq` by itself: nobody has to register it."""

from __future__ import annotations

from notifyq.spark.source.source import NotifyqSource


class DefaultSource(NotifyqSource):
    """What `spark.read.format("notifyq")` reads with."""
