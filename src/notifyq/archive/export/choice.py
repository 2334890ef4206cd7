"""What is exported and into which files."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.errors import ConfigurationError
from notifyq.paths import local_path

if TYPE_CHECKING:
    from datetime import date, datetime


class Format(enum.StrEnum):
    """How rows are written."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportChoice:
    """Which messages go where.

    `path` is a file, or with `by_day` a folder. The end of its name says the format and how it is
    compressed, as in `archive.csv.gz`; `format` and `compression` (`gz` or `zst`) say it for a
    folder.
    """

    path: Path
    format: Format | None = None
    compression: str | None = None
    by_day: bool = False
    queue: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse a URI, which would become a local folder."""
        local_path(self.path)

    def kind(self) -> tuple[Format, str | None]:
        """Format and compression: as they are given, else by the name."""
        name = self.path.name
        suffix = None if self.by_day else next((it for it in COMPRESSED if name.endswith(it)), None)
        compression = self.compression or (suffix and suffix[1:])
        ending = Path(name.removesuffix(suffix or "")).suffix[1:]
        kind = self.format or (None if self.by_day else _FORMATS.get(ending))
        if kind is None:
            raise ConfigurationError(
                f"which format is {str(self.path)!r} to have? Give --format, or a name that ends "
                "in .parquet, .csv or .jsonl"
                if not self.by_day
                else "give --format: parquet, csv or jsonl"
            )
        if compression not in {None, "gz", "zst"}:
            raise ConfigurationError(f"compression is gz or zst, not {compression!r}")
        if kind is Format.PARQUET and compression is not None:
            raise ConfigurationError("Parquet is compressed by itself: leave .gz or .zst away")
        return kind, compression

    def target(self, day: date | None) -> Path:
        """The file of a day, or of all."""
        if day is None:
            return self.path
        kind, compression = self.kind()
        end = f".{compression}" if compression else ""
        return self.path / f"archive-{day}.{kind}{end}"


_FORMATS = {
    "parquet": Format.PARQUET,
    "csv": Format.CSV,
    "jsonl": Format.JSONL,
    "ndjson": Format.JSONL,
}
