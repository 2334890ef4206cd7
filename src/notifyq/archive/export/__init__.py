"""The archive into files, without a lake and without Spark: Parquet, CSV or JSON lines."""

from __future__ import annotations

from notifyq.archive.export.choice import ExportChoice, Format
from notifyq.archive.export.run import ExportedArchive, export_archive

__all__ = ["ExportChoice", "ExportedArchive", "Format", "export_archive"]
