"""Spark finds the data source `notifyq` by this module name, without registration."""

from __future__ import annotations

from notifyq.spark.source.source import NotifyqSource as DefaultSource

__all__ = ["DefaultSource"]
