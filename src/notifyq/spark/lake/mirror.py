"""What all mirrors of a lake share: tables that other engines read without PostgreSQL.

The list in PostgreSQL is authoritative. A mirror follows it in whole batches. It may lag after a
process was killed in between; the next writer of the lake brings it up to date.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from notifyq.errors import LakeError
from notifyq.spark.lake.lake import ARCHIVE, PARTITIONS, Lake, LakeFile, Listing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

_ATTEMPTS = 10
"""How often a commit is tried again after another writer of the lake was first."""


class ConflictError(Exception):
    """Another writer changed the table since it was opened."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A table of a mirror, as it was read."""

    table: Any
    batch: int
    """The last batch that it follows; 0: none."""
    files: Mapping[str, Any]
    """What its format knows of each file, by the path in the lake."""
    fault: str | None = None
    """What another program did that the files do not show, and what undoes it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a mirror lacks."""

    schema: pa.Schema
    folders: list[str]
    """Columns that are in the names of folders, where the table is new."""
    added: list[LakeFile]
    removed: Mapping[str, Any]
    """Files by their path in the lake, as in Opened."""
    batch: int


class Mirror(ABC):
    """The tables of a lake in another format."""

    title: ClassVar[str]

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def check(self, dataset: str) -> None:
        """Raise LakeError if the table does not follow from the lists of the database."""
        if (opened := self._opened(dataset)) is not None:
            self._listing(dataset, opened)

    def follow(self, dataset: str, *, is_repair: bool = False) -> None:
        """Update the table to the files of the lake, in one commit. It is idempotent.

        Nothing is done while the lake has no files. Raises LakeError like check(), unless it is a
        repair: that sets the table back to the files of the lake.
        """
        if is_repair:
            self._reset(dataset)
        attempt = 1
        while True:
            opened = self._opened(dataset)
            listing = self._listing(dataset, opened, is_repair=is_repair)
            try:
                self._follow(dataset, opened, listing)
                return
            except ConflictError as error:
                if attempt == _ATTEMPTS:
                    raise LakeError(
                        f"the {self.title} table of {self.lake.storage.name(dataset)} cannot be "
                        f"updated: {error}"
                    ) from None
                time.sleep(0.01 * attempt)
                attempt += 1

    def _listing(self, dataset: str, opened: Opened | None, *, is_repair: bool = False) -> Listing:
        """Return the files of PostgreSQL; check that the table has those of its last batch."""
        lake = self.lake
        # Read after the table: a batch is in PostgreSQL before it is in the table.
        listing = lake.listing(dataset, 0 if opened is None else opened.batch)
        if opened is None:
            return listing
        changed = f"{lake.storage.name(dataset)} was changed by another program"
        if opened.fault is not None:
            raise LakeError(f"{changed}: {opened.fault}")
        if is_repair:
            return listing
        if opened.batch > listing.last:
            raise LakeError(
                f"{lake.location} is newer than its database, which was restored to an earlier "
                "state: create a lake in another folder, or reset this one with "
                "`notifyq spark tidy --repair`"
            )
        wanted, known = {file.path for file in listing.before}, opened.files.keys()
        if wanted != known:
            raise LakeError(
                f"{changed}: its {self.title} table lacks {len(wanted - known)} files of the lake "
                f"and has {len(known - wanted)} others. `notifyq spark tidy --repair` undoes that; "
                "`notifyq forget` deletes messages"
            )
        return listing

    def _follow(self, dataset: str, opened: Opened | None, listing: Listing) -> None:
        known: Mapping[str, Any] = {} if opened is None else opened.files
        files = {file.path: file for file in listing.files}
        added = [file for path, file in files.items() if path not in known]
        removed = {path: entry for path, entry in known.items() if path not in files}
        if opened is None and not added:
            return
        # Files of earlier batches are not opened again: there may be very many.
        is_known = bool(added) or dataset == ARCHIVE
        change = Change(
            self.lake.schema(dataset, added) if is_known else pa.schema([]),
            [it for it in PARTITIONS.names if any(getattr(f, it) is not None for f in added)],
            added,
            removed,
            listing.last,
        )
        with self._writing(dataset):
            if opened is None:
                self._create(dataset, change)
                return
            self._add_columns(opened.table, change.schema)
            if added or removed or opened.batch != listing.last:
                self._update(dataset, opened.table, change)

    @abstractmethod
    def tidy(self, dataset: str) -> None:
        """Delete what the format needs no more of its own files."""

    @abstractmethod
    def _opened(self, dataset: str) -> Opened | None:
        """Read the table; None: there is none."""

    @abstractmethod
    def _reset(self, dataset: str) -> None:
        """Undo what an update cannot."""

    @abstractmethod
    def _writing(self, dataset: str) -> AbstractContextManager[None]:
        """Raise errors of the format as LakeError, or as ConflictError."""

    @abstractmethod
    def _create(self, dataset: str, change: Change) -> None:
        """Create the table with its first files."""

    @abstractmethod
    def _add_columns(self, table: Any, schema: pa.Schema) -> None:
        """Add the columns of a later version, which are null in older files."""

    @abstractmethod
    def _update(self, dataset: str, table: Any, change: Change) -> None:
        """Bring a change into the table, in one commit with the number of the batch."""
