"""Export the archive into Parquet, CSV or JSON lines, without a lake or Spark."""

from __future__ import annotations

from notifyq.archive.export.run import ExportChoice, ExportedArchive, Format, export_archive

__all__ = ["ExportChoice", "ExportedArchive", "Format", "export_archive"]
