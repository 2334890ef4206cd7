"""Spark finds the data source `notifyq` by this module name, without registration."""

from __future__ import annotations

from notifyq.spark.source.source import NotifyqSource


class DefaultSource(NotifyqSource):
    """The data source of `spark.read.format("notifyq")`."""
