"""The mirror of a lake as Delta tables, which other engines read without PostgreSQL.

The list in PostgreSQL is authoritative. The mirror follows it in whole batches. It may lag after a
process was killed in between; the next writer of the lake brings it up to date.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from notifyq.errors import LakeError
from notifyq.spark.lake.lake import ARCHIVE, Lake, LakeFile, Listing

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDERS = ("day", "queue")
_ATTEMPTS = 10
"""How often a commit is tried again after another writer of the lake was first."""


def check(lake: Lake, *datasets: str) -> None:
    """Raise LakeError if a Delta table does not follow from the lists of the database.

    Another program changed it, or the database lost batches by a restore.
    """
    for dataset in datasets:
        if (table := _opened(lake, dataset)) is not None:
            _listing(lake, dataset, table, _known(table))


def mirror(lake: Lake, dataset: str = ARCHIVE, *, is_repair: bool = False) -> int | None:
    """Update the Delta table to the files of the lake, in one commit; return its version.

    It is idempotent. None: the lake has no files yet. Raises LakeError like check(), unless it is a
    repair: that sets the table back to the files of the lake.
    """
    from deltalake.exceptions import CommitFailedError

    attempt = 1
    while True:
        table = _opened(lake, dataset)
        known = _known(table)
        listing = _listing(lake, dataset, table, known, is_repair=is_repair)
        try:
            return _follow(lake, dataset, table, known, listing)
        except CommitFailedError as error:
            if attempt == _ATTEMPTS:
                name = lake.storage.name(dataset)
                raise LakeError(f"{name} cannot be updated as a Delta table: {error}") from None
            time.sleep(0.01 * attempt)
            attempt += 1


def _opened(lake: Lake, dataset: str) -> Any:
    from deltalake import DeltaTable

    folder, options = lake.storage.name(dataset), lake.storage.delta_options
    with lake.storage.reading(dataset):
        if not DeltaTable.is_deltatable(folder, storage_options=options):
            return None
        return DeltaTable(folder, storage_options=options)


def _listing(
    lake: Lake, dataset: str, table: Any, known: Mapping[str, Any], *, is_repair: bool = False
) -> Listing:
    """Return the files of PostgreSQL; check that the Delta table has those of its last batch."""
    seen = 0 if table is None else table.transaction_version(lake.token) or 0
    # Read after the table: a batch is in PostgreSQL before it is in the table.
    listing = lake.listing(dataset, seen)
    if table is None:
        return listing
    changed = f"{lake.storage.name(dataset)} was changed by another program"
    if _has_vectors(table):
        # Such a file cannot be taken out by its path alone, as a repair would.
        raise LakeError(
            f"{changed}: it deletes rows of files by deletion vectors. To undo that, delete its "
            "folder _delta_log: the next run writes another"
        )
    if is_repair:
        return listing
    if seen > listing.last:
        raise LakeError(
            f"{lake.location} is newer than its database, which was restored to an earlier state: "
            "create a lake in another folder, or reset this one with `notifyq spark tidy --repair`"
        )
    wanted = {_path(file) for file in listing.before}
    if wanted != known.keys():
        raise LakeError(
            f"{changed}: its Delta table lacks {len(wanted - known.keys())} files of the lake and "
            f"has {len(known.keys() - wanted)} others. `notifyq spark tidy --repair` undoes that; "
            "`notifyq forget` deletes messages"
        )
    return listing


def _has_vectors(table: Any) -> bool:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False
    return bool(pa.table(table.deletion_vectors()).num_rows)


def _follow(
    lake: Lake, dataset: str, table: Any, known: Mapping[str, Any], listing: Listing
) -> int | None:
    files = {_path(file): file for file in listing.files}
    added = [file for path, file in files.items() if path not in known]
    removed = [_removal(path, entry) for path, entry in known.items() if path not in files]
    if table is None and not added:
        return None
    # Files of earlier batches are not opened again: there may be very many.
    schema = lake.schema(dataset, added) if added or dataset == ARCHIVE else pa.schema([])
    if table is not None:
        with lake.storage.writing(dataset):
            _add_columns(table, schema)
        if not (added or removed) and table.transaction_version(lake.token) == listing.last:
            return int(table.version())
    folders = [name for name in _FOLDERS if any(getattr(it, name) is not None for it in added)]
    _commit(lake, dataset, table, schema, folders, [*removed, *map(_action, added)], listing.last)
    return int(_opened(lake, dataset).version())


def _add_columns(table: Any, schema: pa.Schema) -> None:
    """Add the columns of a later version, which are null in older files."""
    from deltalake import Schema

    known = {field.name for field in table.schema().fields}
    new = [field for field in Schema.from_arrow(schema).fields if field.name not in known]
    if new:
        table.alter.add_columns(new)
        table.update_incremental()


def _commit(
    lake: Lake,
    dataset: str,
    table: Any,
    schema: pa.Schema,
    folders: list[str],
    actions: list[Any],
    last: int,
) -> None:
    from deltalake import CommitProperties, Schema, Transaction
    from deltalake.transaction import create_table_with_add_actions

    properties = CommitProperties(app_transactions=[Transaction(lake.token, last)])
    with lake.storage.writing(dataset):
        if table is None:
            create_table_with_add_actions(
                lake.storage.name(dataset),
                Schema.from_arrow(schema),
                actions,
                mode="append",
                partition_by=folders,
                name=dataset,
                storage_options=lake.storage.delta_options,
                commit_properties=properties,
            )
        else:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=properties,
            )


def _path(file: LakeFile) -> str:
    """Return the path relative to the folder of the table."""
    return file.path.partition("/")[2]


def _values(file: LakeFile) -> dict[str, str | None]:
    values = {name: getattr(file, name) for name in _FOLDERS}
    return {name: str(value) for name, value in values.items() if value is not None}


def _action(file: LakeFile) -> Any:
    from deltalake.transaction import AddAction

    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.first_id is not None:
        stats |= {"minValues": {"id": file.first_id}, "maxValues": {"id": file.last_id}}
    return AddAction(
        path=_path(file),
        size=file.bytes,
        partition_values=_values(file),
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(stats),
    )


def _known(table: Any) -> Mapping[str, Any]:
    """Return the files of the Delta table, by path."""
    if table is None:
        return {}
    entries = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return {unquote(entry["path"]): entry for entry in entries}


def _removal(path: str, entry: Mapping[str, Any]) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        path=path,
        size=entry["size_bytes"],
        partition_values={
            name: None if value is None else str(value)
            for name, value in (entry.get("partition") or {}).items()
        },
        data_change=True,
        deletion_timestamp=int(time.time() * 1000),
    )
